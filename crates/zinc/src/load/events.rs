//! Server-sent events out of a stream of bytes.
//!
//! ```text
//! bytes, cut anywhere ─► lines ─"data: …"─► the data of each event, at its blank line
//! ```

/// Most bytes of one event.
const LARGEST: usize = 16 << 20;

/// An event that is larger than any server has reason to send.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event of more than {LARGEST} bytes")]
pub(crate) struct TooLarge;

/// Puts events together. Lines end with LF or CR LF; comments and fields other than `data` are skipped.
#[derive(Debug, Default)]
pub(crate) struct EventReader {
    /// The beginning of a line.
    line: Vec<u8>,
    /// Data lines of the event so far, each ended by LF.
    data: Vec<u8>,
}

impl EventReader {
    /// Takes the next bytes and hands the data of each event that is whole now to `take`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), TooLarge> {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.line.is_empty() {
                Self::line(&mut self.data, line, &mut take);
            } else {
                self.line.extend_from_slice(line);
                Self::line(&mut self.data, &self.line, &mut take);
                self.line.clear();
            }
            bytes = rest;
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > LARGEST { Err(TooLarge) } else { Ok(()) }
    }

    /// Takes a whole line.
    fn line(data: &mut Vec<u8>, line: &[u8], take: &mut impl FnMut(&[u8])) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(value) = line.strip_prefix(b"data:") {
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
            data.push(b'\n');
        } else if line.is_empty() && !data.is_empty() {
            take(&data[..data.len() - 1]);
            data.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&str]) -> Vec<String> {
        let (mut reader, mut events) = (EventReader::default(), vec![]);
        for piece in pieces {
            reader
                .push(piece.as_bytes(), |data| events.push(String::from_utf8_lossy(data).into_owned()))
                .expect("small events");
        }
        events
    }

    #[test]
    fn events_come_out_whole_wherever_the_bytes_are_cut() {
        let text = ": hello\n\ndata: {\"a\": 1}\n\nevent: x\ndata:two\r\ndata:  lines\r\n\r\n\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\": 1}", "two\n lines", "[DONE]"];
        assert_eq!(read(&[text]), expected);
        for cut in 0..text.len() {
            assert_eq!(read(&[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
        assert_eq!(read(&["data: no blank line after it\n"]), [""; 0]);
    }

    #[test]
    fn an_endless_event_is_an_error() {
        let mut reader = EventReader::default();
        let piece = vec![b'x'; LARGEST / 2];
        assert_eq!((0..3).map(|_| reader.push(&piece, |_| ())).last(), Some(Err(TooLarge)));
    }
}
