//! OpenTelemetry: a span for each request that generates, with its time in the queue, for its prompt and for its answer below it.
//!
//! ```text
//! traceparent ─► Visit ─► Answer ─end─► Span ─channel─► a task: OTLP as JSON, POST to a collector
//! ```
//!
//! Attributes have the names of OpenTelemetry's conventions for generative AI. Nobody waits for the collector: while it takes
//! nothing, spans wait in a channel of limited length, and what finds that full is dropped and counted.

use crate::metrics::Metrics;
use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// Spans that wait at most, and that are sent at once at most.
const WAITING: usize = 4096;
const BATCH: usize = 256;
/// How long spans are gathered before they are sent.
const GATHER: Duration = Duration::from_secs(1);
/// Time for the collector to answer, and tries.
const ANSWER: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

/// Where spans are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Host and port.
    authority: String,
    path: String,
}

/// An address that no collector can have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is no address of a collector; it must be like http://127.0.0.1:4318 (without TLS: let a collector nearby do that)"
)]
pub struct CollectorError(String);

impl Collector {
    /// Reads `http://HOST[:PORT][/PATH]`; the port is 4318 and the path `/v1/traces` where there is none.
    ///
    /// # Errors
    /// It is something else.
    pub fn read(url: &str) -> Result<Collector, CollectorError> {
        let wrong = || CollectorError(url.to_owned());
        let uri: axum::http::Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(4318));
        let path = if matches!(uri.path(), "" | "/") { "/v1/traces" } else { uri.path() };
        Ok(Collector { authority, path: path.to_owned() })
    }
}

/// The span of whoever asks, as W3C's `traceparent` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Parent {
    pub(crate) fn read(headers: &HeaderMap) -> Option<Parent> {
        let text = headers.get("traceparent")?.to_str().ok()?;
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            let part = parts.next()?;
            let fits = part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if fits { u128::from_str_radix(part, 16).ok() } else { None }
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let known = version == 0 && parts.next().is_none() || (1..255).contains(&version);
        (known && trace != 0 && span != 0).then_some(Parent { trace, span: span as u64, sampled: flags & 1 == 1 })
    }
}

/// What is told of a request.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) parent: Option<Parent>,
    pub(crate) name: String,
    /// When it came, was first run, gave its first token, and ended.
    pub(crate) times: [Option<Instant>; 4],
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) error: Option<String>,
}

enum Message {
    Span(Box<Span>),
    /// Everything before is to be sent now.
    Flush(oneshot::Sender<()>),
}

/// The way to the collector.
#[derive(Clone)]
pub(crate) struct Tracer {
    messages: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// Begins to export; must be called inside of the runtime.
    pub(crate) fn start(collector: Collector, metrics: Arc<Metrics>) -> Tracer {
        let (messages, queue) = mpsc::channel(WAITING);
        tokio::spawn(export(collector, queue, metrics.clone()));
        Tracer { messages, metrics }
    }

    /// Sends a span, unless whoever asked does not want it.
    pub(crate) fn send(&self, span: Span) {
        let wanted = span.parent.is_none_or(|parent| parent.sampled);
        if wanted && self.messages.try_send(Message::Span(Box::new(span))).is_err() {
            self.metrics.spans_dropped.add(1);
        }
    }

    /// Waits until all has been sent, for so long at most.
    pub(crate) async fn flush(&self, within: Duration) {
        let (done, wait) = oneshot::channel();
        let flushed = async {
            if self.messages.send(Message::Flush(done)).await.is_ok() {
                wait.await.ok();
            }
        };
        timeout(within, flushed).await.ok();
    }
}

/// Sends what comes.
async fn export(collector: Collector, mut queue: mpsc::Receiver<Message>, metrics: Arc<Metrics>) {
    let (mut batch, mut works) = (vec![], true);
    while let Some(first) = queue.recv().await {
        let (mut flush, mut next) = (None, Some(first));
        let end = tokio::time::Instant::now() + GATHER;
        while let Some(message) = next.take() {
            match message {
                Message::Span(span) => batch.push(span),
                Message::Flush(done) => {
                    flush = Some(done);
                    break;
                }
            }
            if batch.len() < BATCH {
                next = tokio::time::timeout_at(end, queue.recv()).await.ok().flatten();
            }
        }
        let count = batch.len() as u64;
        if count > 0 {
            let sent = send(&collector, &otlp(&batch).to_string()).await;
            match &sent {
                Ok(()) => metrics.spans_sent.add(count),
                Err(error) => {
                    metrics.spans_dropped.add(count);
                    if works {
                        tracing::warn!(error, "spans cannot be sent; told once until that works again");
                    }
                }
            }
            works = sent.is_ok();
            batch.clear();
        }
        if let Some(done) = flush {
            done.send(()).ok();
        }
    }
}

/// Posts a batch; tries again where that may help.
async fn send(collector: &Collector, body: &str) -> Result<(), String> {
    let mut pause = Duration::from_millis(500);
    for attempt in 1.. {
        let error = match timeout(ANSWER, post(collector, body)).await {
            Ok(Ok(status)) if status.is_success() => return Ok(()),
            // It will not take this batch at any other time either.
            Ok(Ok(status)) if !matches!(status.as_u16(), 429 | 502..=504) => return Err(format!("status {status}")),
            Ok(Ok(status)) => format!("status {status}"),
            Ok(Err(error)) => error,
            Err(_) => "no answer".into(),
        };
        if attempt == TRIES {
            return Err(error);
        }
        sleep(pause).await;
        pause *= 2;
    }
    Ok(())
}

async fn post(collector: &Collector, body: &str) -> Result<axum::http::StatusCode, String> {
    let stream = TcpStream::connect(&collector.authority).await.map_err(|e| e.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let driven = tokio::spawn(connection);
    let request = Request::post(&collector.path)
        .header(header::HOST, &collector.authority)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_owned()));
    let response = sender.send_request(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string());
    driven.abort();
    Ok(response?.status())
}

/// A random number that is not 0.
fn random() -> u64 {
    RandomState::new().hash_one(()).max(1)
}

/// Spans as OTLP's JSON.
fn otlp(spans: &[Box<Span>]) -> Value {
    let scope = json!({"name": "zinc-serve", "version": env!("CARGO_PKG_VERSION")});
    let resource = attributes(&[("service.name", json!("zinc")), ("service.version", scope["version"].clone())]);
    let now = (Instant::now(), SystemTime::now());
    let spans: Vec<Value> = spans.iter().flat_map(|span| span.json(now)).collect();
    json!({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}]})
}

impl Span {
    /// The span and those below it. `now`: the same moment on two clocks.
    fn json(&self, now: (Instant, SystemTime)) -> Vec<Value> {
        let nanos = |then: Instant| {
            let since = now.1.duration_since(UNIX_EPOCH).unwrap_or_default();
            since.saturating_sub(now.0.saturating_duration_since(then)).as_nanos().to_string()
        };
        let trace = self.parent.map_or_else(|| u128::from(random()) << 64 | u128::from(random()), |p| p.trace);
        let own = random();
        let span = |id: u64, parent: Option<u64>, name: &str, kind: u32, [from, to]: [Instant; 2]| {
            json!({
                "traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"),
                "parentSpanId": parent.map_or(String::new(), |id| format!("{id:016x}")),
                "name": name, "kind": kind, "startTimeUnixNano": nanos(from), "endTimeUnixNano": nanos(to),
            })
        };
        let [Some(came), started, first, Some(ended)] = self.times else { return vec![] };
        const SERVER: u32 = 2;
        const INTERNAL: u32 = 1;
        let mut whole = span(own, self.parent.map(|p| p.span), &self.name, SERVER, [came, ended]);
        whole["attributes"] = attributes(&self.attributes);
        if let Some(error) = &self.error {
            whole["status"] = json!({"code": 2, "message": error});
        }
        let phases = [
            ("queue", Some(came), started.or(Some(ended))),
            ("prefill", started, first.or(Some(ended))),
            ("decode", first, Some(ended)),
        ];
        let below = phases.into_iter().filter_map(|(name, from, to)| {
            let (from, to) = from.zip(to)?;
            Some(span(random(), Some(own), name, INTERNAL, [from, to]))
        });
        std::iter::once(whole).chain(below).collect()
    }
}

/// Attributes as OTLP's JSON has them; those that are null are left out.
fn attributes(rows: &[(&'static str, Value)]) -> Value {
    fn value(of: &Value) -> Value {
        match of {
            Value::Bool(b) => json!({"boolValue": b}),
            Value::Number(n) if n.is_f64() => json!({"doubleValue": n}),
            // OTLP's whole numbers end at 63 bits; a seed may have 64.
            Value::Number(n) if n.is_i64() => json!({"intValue": n.to_string()}),
            Value::Array(list) => json!({"arrayValue": {"values": list.iter().map(value).collect::<Vec<_>>()}}),
            Value::String(text) => json!({"stringValue": text}),
            other => json!({"stringValue": other.to_string()}),
        }
    }
    rows.iter().filter(|(_, v)| !v.is_null()).map(|(key, v)| json!({"key": key, "value": value(v)})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn parent(text: &'static str) -> Option<Parent> {
        Parent::read(&HeaderMap::from_iter([("traceparent".parse().expect("a name"), HeaderValue::from_static(text))]))
    }

    #[test]
    fn parents_are_read_as_w3c_says() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        assert_eq!(parent(text), Some(Parent { trace, span: 0x00f0_67aa_0ba9_02b7, sampled: true }));
        assert_eq!(
            parent("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more").map(|p| p.sampled),
            Some(false)
        );
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        ] {
            assert_eq!(parent(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn whole_numbers_are_those_that_a_collector_can_read() {
        let rows = [("a", json!(i64::MAX)), ("b", json!(i64::MIN)), ("c", json!(u64::MAX)), ("d", Value::Null)];
        let expected = json!([
            {"key": "a", "value": {"intValue": "9223372036854775807"}},
            {"key": "b", "value": {"intValue": "-9223372036854775808"}},
            {"key": "c", "value": {"stringValue": "18446744073709551615"}},
        ]);
        assert_eq!(attributes(&rows), expected);
    }

    #[test]
    fn collectors_are_plain_addresses() {
        let read = |url: &str| Collector::read(url).map(|c| format!("{} {}", c.authority, c.path));
        assert_eq!(read("http://localhost"), Ok("localhost:4318 /v1/traces".into()));
        assert_eq!(read("http://[::1]:9/x/y"), Ok("[::1]:9 /x/y".into()));
        for wrong in ["", "localhost:4318", "https://localhost", "/v1/traces", "http://"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
