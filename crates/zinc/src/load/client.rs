//! A client for streamed answers that does little itself: connections that are used again, and a clock.
//!
//! ```text
//! path, body ─► HTTP/1.1 ─► status ─ 200 ─► events: first piece, pieces after it, usage, [DONE] ─► Outcome
//!                               └─ other ─► the server's message
//! ```

use super::events::EventReader;
use crate::failure::usage;
use anyhow::{Context, Result, anyhow};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, Visitor};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Most bytes of an answer that is no stream.
const WHOLE: usize = 1 << 20;

/// Where a server is, and what opens it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Host and port.
    authority: String,
    address: String,
    /// What goes before `/v1`.
    prefix: String,
    key: Option<String>,
}

impl Target {
    /// Reads a server's URL, with or without the `/v1` at its end.
    pub(crate) fn parse(url: &str, key: Option<&str>) -> Result<Target> {
        let wrong = |why: &str| usage(format!("--base-url {url}: {why}"));
        let uri: Uri = url.parse().map_err(|_| wrong("is no URL; it looks like http://127.0.0.1:8080"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("https is not supported; measure where the server runs, over http")),
            _ => return Err(wrong("must begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        let prefix = uri.path().trim_end_matches('/');
        Ok(Target {
            address: format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80)),
            authority: authority.to_string(),
            prefix: prefix.strip_suffix("/v1").unwrap_or(prefix).to_owned(),
            key: key.map(str::to_owned),
        })
    }
}

/// What came of a request. Times count from when it was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// When it was sent, counted from the beginning of the run.
    pub(crate) sent: Duration,
    /// Until the first piece of text.
    pub(crate) first: Option<Duration>,
    /// Between pieces.
    pub(crate) gaps: Vec<Duration>,
    /// Until the answer's end.
    pub(crate) whole: Duration,
    /// Tokens of the prompt, as the server counts them.
    pub(crate) prompt: u64,
    /// Tokens of the answer; the number of pieces, if the server does not count.
    pub(crate) tokens: u64,
    /// Why there is no whole answer.
    pub(crate) failure: Option<String>,
}

/// Asks one server. Connections go back when an answer has been read to its end.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    pub(crate) fn new(target: Target) -> Client {
        Client { target, idle: Mutex::default() }
    }

    /// An answer that is no stream.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, Value)> {
        let (connection, response) = self.send(Method::GET, path, Bytes::new()).await?;
        let status = response.status();
        let body = whole(response.into_body()).await?;
        self.give_back(connection).await;
        let value = serde_json::from_slice(&body);
        Ok((status, value.with_context(|| format!("the server's answer to {path} is not JSON"))?))
    }

    /// Asks for a streamed answer and reads it; `start` is the beginning of the run.
    pub(crate) async fn stream(&self, path: &str, body: Bytes, start: Instant) -> Outcome {
        let sent = Instant::now();
        let mut outcome = Outcome { sent: sent - start, ..Outcome::default() };
        let result = self.read_stream(path, body, sent, &mut outcome).await;
        outcome.whole = sent.elapsed().min(if outcome.whole.is_zero() { Duration::MAX } else { outcome.whole });
        outcome.failure = result.err().map(|error| crate::failure::words(&error));
        outcome
    }

    async fn read_stream(&self, path: &str, body: Bytes, sent: Instant, outcome: &mut Outcome) -> Result<()> {
        let (connection, response) = self.send(Method::POST, path, body).await?;
        let status = response.status();
        let mut body = response.into_body();
        if status != StatusCode::OK {
            let body = whole(body).await.unwrap_or_default();
            self.give_back(connection).await;
            return Err(anyhow!("{}: {}", status.as_u16(), message(&body)));
        }
        let (mut reader, mut pieces) = (EventReader::default(), Pieces::default());
        while let Some(frame) = body.frame().await {
            let frame = frame.context("the stream broke")?;
            let Some(bytes) = frame.data_ref() else { continue };
            let now = sent.elapsed();
            reader.push(bytes, |data| pieces.take(data, now))?;
        }
        pieces.into_outcome(outcome)?;
        self.give_back(connection).await;
        Ok(())
    }

    /// Sends a request over a connection that waits, or a new one.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(SendRequest<Full<Bytes>>, Response<Incoming>)> {
        loop {
            let waiting = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let fresh = waiting.is_none();
            let mut connection = match waiting {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.try_send_request(self.request(&method, path, body.clone())?).await {
                Ok(response) => return Ok((connection, response)),
                // The server has closed a connection that waited: it has not seen the request.
                Err(error) if !fresh && error.message().is_some() => continue,
                Err(error) => return Err(error.into_error()).context("the server closed the connection"),
            }
        }
    }

    fn request(&self, method: &Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>> {
        let Target { authority, prefix, key, .. } = &self.target;
        let mut request = Request::builder().method(method).uri(format!("{prefix}{path}")).header(HOST, authority);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(Full::new(body)).context("the URL or the API key cannot be put into a request")
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let address = &self.target.address;
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true).ok();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // What goes wrong with it is told to the request.
        tokio::spawn(async move { connection.await.ok() });
        Ok(sender)
    }

    async fn give_back(&self, mut connection: SendRequest<Full<Bytes>>) {
        if connection.ready().await.is_ok() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

/// All of a body.
async fn whole(mut body: Incoming) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(frame?.data_ref().map_or(&[][..], |data| data));
        if bytes.len() > WHOLE {
            return Err(anyhow!("the server's answer has more than {WHOLE} bytes"));
        }
    }
    Ok(bytes)
}

/// The message in an error's body.
fn message(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let found = [&value["error"]["message"], &value["error"], &value["message"], &value["detail"]];
    match found.into_iter().find_map(Value::as_str) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
    }
}

/// Whether a text has anything in it, read without keeping it.
#[derive(Clone, Copy, Debug, Default)]
struct Filled(bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Filled, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Filled;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text or null")
            }
            fn visit_str<E>(self, text: &str) -> Result<Filled, E> {
                Ok(Filled(!text.is_empty()))
            }
            fn visit_unit<E>(self) -> Result<Filled, E> {
                Ok(Filled(false))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// What counts in an event.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Filled,
    #[serde(default)]
    delta: Delta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Filled,
    reasoning_content: Filled,
    reasoning: Filled,
    tool_calls: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl Choice {
    fn says_something(&self) -> bool {
        let delta = &self.delta;
        let texts = [self.text, delta.content, delta.reasoning_content, delta.reasoning];
        texts.iter().any(|text| text.0) || delta.tool_calls.is_some()
    }
}

/// Pieces of an answer as they come.
#[derive(Default)]
struct Pieces {
    first: Option<Duration>,
    last: Duration,
    gaps: Vec<Duration>,
    usage: Option<Usage>,
    done: bool,
    failure: Option<String>,
}

impl Pieces {
    fn take(&mut self, data: &[u8], now: Duration) {
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let event: Event = match serde_json::from_slice(data) {
            Ok(event) => event,
            Err(error) => {
                self.failure.get_or_insert_with(|| format!("an event is no chunk of an answer: {error}"));
                return;
            }
        };
        if let Some(error) = event.error {
            let text = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
            self.failure.get_or_insert(text);
        }
        if event.choices.iter().any(Choice::says_something) {
            match self.first {
                None => self.first = Some(now),
                Some(_) => self.gaps.push(now - self.last),
            }
            self.last = now;
        }
        self.usage = event.usage.or(self.usage.take());
    }

    fn into_outcome(self, outcome: &mut Outcome) -> Result<()> {
        let pieces = self.first.map_or(0, |_| 1 + self.gaps.len() as u64);
        outcome.tokens = self.usage.as_ref().map_or(pieces, |usage| usage.completion_tokens);
        outcome.prompt = self.usage.as_ref().map_or(0, |usage| usage.prompt_tokens);
        (outcome.first, outcome.gaps, outcome.whole) = (self.first, self.gaps, self.last);
        match (self.failure, self.done) {
            (Some(failure), _) => Err(anyhow!(failure)),
            (None, false) => Err(anyhow!("the stream ended without [DONE]")),
            (None, true) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_and_without_v1() {
        let of = |url| Target::parse(url, None).map(|t| (t.address, t.prefix));
        assert_eq!(of("http://h:8080/v1/").expect("a URL"), ("h:8080".into(), "".into()));
        assert_eq!(of("http://h").expect("a URL"), ("h:80".into(), "".into()));
        assert_eq!(of("http://[::1]:9/a/v1").expect("a URL"), ("[::1]:9".into(), "/a".into()));
        for bad in ["https://h", "h:80", "ftp://h", "http://", ""] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pieces_count_where_they_have_text() {
        let ms = Duration::from_millis;
        let mut pieces = Pieces::default();
        let events = [
            (r#"{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}"#, 1),
            (r#"{"choices": [{"delta": {"content": "a"}, "finish_reason": null}], "usage": null}"#, 5),
            (r#"{"choices": [{"delta": {"reasoning_content": "b", "content": null}}]}"#, 8),
            (r#"{"choices": [{"text": "c", "logprobs": null}]}"#, 9),
            (r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#, 10),
            (r#"{"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}}"#, 11),
            ("[DONE]", 12),
        ];
        for (data, at) in events {
            pieces.take(data.as_bytes(), ms(at));
        }
        let mut outcome = Outcome::default();
        pieces.into_outcome(&mut outcome).expect("whole");
        assert_eq!((outcome.first, outcome.gaps, outcome.whole), (Some(ms(5)), vec![ms(3), ms(1)], ms(9)));
        assert_eq!((outcome.prompt, outcome.tokens), (4, 7));
    }

    #[test]
    fn a_stream_that_breaks_off_or_tells_of_an_error_is_a_failure() {
        let end = |events: &[&str]| {
            let mut pieces = Pieces::default();
            events.iter().for_each(|data| pieces.take(data.as_bytes(), Duration::ZERO));
            pieces.into_outcome(&mut Outcome::default()).expect_err("a failure").to_string()
        };
        assert!(end(&[r#"{"choices": [{"text": "c"}]}"#]).contains("without [DONE]"));
        assert_eq!(end(&[r#"{"error": {"message": "the device is gone"}}"#, "[DONE]"]), "the device is gone");
        assert!(end(&["<html>", "[DONE]"]).contains("no chunk"));
        assert_eq!(message(br#"{"error": {"message": "full"}}"#), "full");
        assert_eq!(message(b"<h1>no</h1>"), "<h1>no</h1>");
    }
}
