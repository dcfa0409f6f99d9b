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
    out.push_str("data: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
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
