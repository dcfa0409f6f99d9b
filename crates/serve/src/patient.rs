//! A connection that is not waited for endlessly: who does not read what is written is let go.

use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// A connection whose writes fail once nothing could be written for some time.
pub(crate) struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while the connection takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Patient {
        Patient { stream, patience, stalled: None }
    }

    /// Passes a write's result on, unless it has been pending for too long.
    fn watch<T>(&mut self, result: Poll<Result<T, Error>>, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled.as_mut().poll(context).map(|()| Err(Error::new(ErrorKind::TimedOut, "the client does not read")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(result, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watch(result, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(result, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(result, context)
    }
}
