//! Server-sent events: a response body that is written as an answer comes.
//!
//! ```text
//! Answer ─Delta─► Wire (one per format) ─"data: …\n\n"─► body frames
//! ```
//!
//! The body asks for the next piece only when the connection has taken the last one, and when the client goes away it is
//! dropped, and with it the answer.

use crate::answer::{Answer, Delta};
use crate::error::ApiError;
use crate::generation::Usage;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use http_body::Frame;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval_at};

/// After so long without an event there is a comment, so that proxies keep the connection and a client that is gone is
/// noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// Bytes of events that are put into one frame at most.
const FRAME: usize = 16 << 10;

/// How a wire format writes a stream.
pub(crate) trait Wire: Send + Unpin + 'static {
    /// Writes a piece of an answer.
    fn delta(&mut self, delta: Delta, out: &mut String);
    /// Writes what comes after all choices have ended.
    fn end(&mut self, usage: Usage, out: &mut String);
    /// Writes an error; nothing comes after it.
    fn error(&mut self, error: &ApiError, out: &mut String);
}

/// Writes an event.
pub(crate) fn event(out: &mut String, data: &Value) {
    // Writing to a string does not fail.
    write!(out, "data: {data}\n\n").ok();
}

/// OpenAI's chunks of one stream: what they all say is written once, and what differs is put behind it. A server spends
/// most of its time per token here.
#[derive(Clone, Debug)]
pub(crate) struct ChunkWriter {
    /// Up to the bracket that opens the list of choices.
    beginning: String,
    /// Chunks have a `usage`, which is null but in the last.
    usage: bool,
}

impl ChunkWriter {
    /// Of a chunk with an empty list of choices at its end.
    pub(crate) fn new(empty: &Value, usage: bool) -> ChunkWriter {
        let mut beginning = format!("data: {empty}");
        debug_assert!(beginning.ends_with("\"choices\":[]}"), "{beginning}");
        beginning.truncate(beginning.len().saturating_sub(2));
        ChunkWriter { beginning, usage }
    }

    /// Writes a chunk of one choice.
    pub(crate) fn choice(&self, choice: &Value, out: &mut String) {
        out.push_str(&self.beginning);
        write!(out, "{choice}").ok();
        out.push_str(if self.usage { "],\"usage\":null}\n\n" } else { "]}\n\n" });
    }

    /// Writes what comes after all choices have ended.
    pub(crate) fn end(&self, usage: &Value, out: &mut String) {
        if self.usage {
            out.push_str(&self.beginning);
            write!(out, "],\"usage\":{usage}}}\n\n").ok();
        }
        out.push_str("data: [DONE]\n\n");
    }
}

struct Events<W> {
    answer: Answer,
    wire: W,
    alive: Interval,
    ended: bool,
}

/// The response that streams an answer.
pub(crate) fn respond<W: Wire>(answer: Answer, wire: W) -> Response<Body> {
    let mut alive = interval_at(tokio::time::Instant::now() + ALIVE, ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut response = Response::new(Body::new(Events { answer, wire, alive, ended: false }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx collects responses otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<W: Wire> http_body::Body for Events<W> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let mut out = String::new();
        while !this.ended && out.len() < FRAME {
            match this.answer.poll_next(context) {
                Poll::Ready(Some(Ok(delta))) => this.wire.delta(delta, &mut out),
                Poll::Ready(Some(Err(error))) => {
                    this.wire.error(&error, &mut out);
                    this.ended = true;
                }
                Poll::Ready(None) => {
                    this.wire.end(this.answer.usage(), &mut out);
                    this.ended = true;
                }
                Poll::Pending if !out.is_empty() => break,
                Poll::Pending => match this.alive.poll_tick(context) {
                    Poll::Ready(_) => out.push_str(": alive\n\n"),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        if out.is_empty() {
            return Poll::Ready(None);
        }
        this.alive.reset();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chunks_are_what_whole_objects_would_be() {
        let of = |choices: Value| json!({"id": "x", "model": "a \"b\"]}", "choices": choices});
        for usage in [false, true] {
            let writer = ChunkWriter::new(&of(json!([])), usage);
            let choice = json!({"index": 1, "text": "\n\n\u{1}é]}", "finish_reason": null});
            let (mut got, mut expected) = (String::new(), String::new());
            writer.choice(&choice, &mut got);
            writer.end(&json!({"total_tokens": 3}), &mut got);
            let with = |mut chunk: Value, value: Value| {
                if usage {
                    chunk["usage"] = value;
                }
                chunk
            };
            event(&mut expected, &with(of(json!([choice])), Value::Null));
            if usage {
                event(&mut expected, &with(of(json!([])), json!({"total_tokens": 3})));
            }
            assert_eq!(got, expected + "data: [DONE]\n\n");
        }
    }
}
