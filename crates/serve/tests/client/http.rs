//! A plain HTTP/1.1 client that shows everything and can also misbehave: it may leave at any byte.
#![allow(dead_code)] // Each test file uses its part.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A request to be sent.
pub(crate) struct Request {
    head: String,
    body: Option<String>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Request {
        Request { head: format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"), body: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Request {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<String>) -> Request {
        let body = body.into();
        self.head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        self.body = Some(body);
        self
    }

    /// Sends it.
    pub(crate) fn begin(self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        let bytes = format!("{}\r\n{}", self.head, self.body.unwrap_or_default());
        // A server that refuses may close before it has read everything.
        stream.write_all(bytes.as_bytes()).ok();
        stream
    }

    /// Sends it and reads the response's head.
    pub(crate) fn send(self, address: SocketAddr) -> Response {
        let mut reader = BufReader::new(self.begin(address));
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status =
            line.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("status in {line:?}"));
        let mut headers = vec![];
        loop {
            line.clear();
            reader.read_line(&mut line).expect("a header");
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
                None => break,
            }
        }
        let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
        Response { status, headers, reader, chunked, buffer: vec![], ended: false }
    }
}

/// A response whose body is still to come.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    chunked: bool,
    buffer: Vec<u8>,
    ended: bool,
}

impl Response {
    /// Reads a little more of the body; false at its end.
    fn more(&mut self) -> bool {
        if self.ended {
            return false;
        }
        if !self.chunked {
            self.reader.read_to_end(&mut self.buffer).expect("the body");
            self.ended = true;
            return true;
        }
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a chunk's size");
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("a size, not {line:?}"));
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(size);
        self.buffer.extend(chunk);
        self.ended = size == 0;
        true
    }

    /// The next event's data; `None` at the end.
    pub(crate) fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let event = String::from_utf8(self.buffer.drain(..end + 2).collect()).expect("UTF-8");
                match event.trim_end().strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    None => continue,
                }
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// All of it.
    pub(crate) fn finish(mut self) -> Reply {
        while self.more() {}
        Reply { status: self.status, headers: self.headers, body: self.buffer }
    }

    /// All events, which must end with `[DONE]`.
    pub(crate) fn events(mut self) -> Vec<Value> {
        let mut events = vec![];
        while let Some(data) = self.event() {
            if data == "[DONE]" {
                assert_eq!(self.event(), None, "nothing comes after the end");
                return events;
            }
            events.push(serde_json::from_str(&data).expect("JSON"));
        }
        panic!("the stream has no end: {events:?}");
    }
}

/// A whole response.
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }
}
