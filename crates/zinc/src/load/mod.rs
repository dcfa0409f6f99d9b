//! Load on an OpenAI-compatible server, and what comes of it.
//!
//! ```text
//! Workload ─bodies─► drive (arrivals, or so many at a time) ─► Client ─► server
//!                                  Outcome of each request ◄─ EventReader ─┘ ─► Report: percentiles, rates, goodput
//! ```
//!
//! All of it runs on one thread, whose work per token is small beside a server's: what it measures is the server.

mod client;
mod drive;
mod events;
mod processor;
mod report;
mod workload;

pub(crate) use client::{Client, Target};
pub(crate) use drive::{Pace, drive};
pub(crate) use processor::thread_time;
pub(crate) use report::{Goal, Report};
pub(crate) use workload::{Ask, Lengths, Prompt, Settings, dataset, random};
