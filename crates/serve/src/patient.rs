//! A connection that is not waited for endlessly: who does not read what is written is let go, and who has gone is
//! noticed, whatever lies unread.

use std::io::{Error, ErrorKind};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// From a client's last byte to when it counts as gone: an answer that is there already still goes out.
const FAREWELL: Duration = Duration::from_millis(250);

/// Silence after which the system asks whether a client is still there, how often it asks, and how far apart.
const SILENCE: Duration = Duration::from_secs(30);
const QUESTIONS: u32 = 4;
const BETWEEN: Duration = Duration::from_secs(10);

/// A connection whose writes fail once nothing could be written for some time.
pub(crate) struct Patient {
    stream: Arc<TcpStream>,
    patience: Duration,
    /// Runs while the connection takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(crate) fn new(stream: Arc<TcpStream>, patience: Duration) -> Patient {
        Patient { stream, patience, stalled: None }
    }

    /// Writes by `write` as soon as the connection takes something, unless that takes too long.
    fn write<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        while self.stream.poll_write_ready(context)?.is_ready() {
            match write(&self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => {
                    self.stalled = None;
                    return Poll::Ready(result);
                }
            }
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled.as_mut().poll(context).map(|()| Err(Error::new(ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|n| buffer.advance(n))),
            }
        }
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        self.write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        self.write(context, |stream| stream.try_write_vectored(buffers))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // One that the client has cut already is as good as shut.
        socket2::SockRef::from(&*self.stream).shutdown(Shutdown::Write).ok();
        Poll::Ready(Ok(()))
    }
}

/// Has the system find out when a client vanishes without a word, and send small packets at once.
pub(crate) fn prepare(stream: &TcpStream) {
    // A token is a small packet, and each is waited for.
    stream.set_nodelay(true).ok();
    let alive = socket2::TcpKeepalive::new().with_time(SILENCE);
    #[cfg(unix)]
    let alive = alive.with_interval(BETWEEN).with_retries(QUESTIONS);
    socket2::SockRef::from(stream).set_tcp_keepalive(&alive).ok();
}

/// Ends when the client sends no more. HTTP's own loop does not look for that while bytes behind a request lie unread.
pub(crate) async fn gone(stream: &TcpStream) {
    loop {
        let seen = stream.ready(Interest::READABLE).await;
        sleep(FAREWELL).await;
        if seen.map_or(true, |seen| seen.is_read_closed()) {
            return;
        }
    }
}
