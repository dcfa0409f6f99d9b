//! Connections: taken, limited in number and time, and ended in an orderly way.
//!
//! ```text
//! accept ─► one task per connection ─ HTTP/1.1 ─► router
//! stop: no more connections ─► requests end by themselves (grace) ─► answers are ended ─► connections are cut
//! ```

use crate::app::App;
use crate::patient::Patient;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time for the head of a request, counted from when the connection is free.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Time for a client to take anything of what is written.
const READ_TIME: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Connections at the same time; more wait in the system's own queue.
const CONNECTIONS: usize = 4096;
/// Time for streams to say that they end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Running,
    /// What has begun may end.
    Draining,
    /// Everything ends now.
    Ending,
}

/// Answers connections until it is stopped, and then sees them off.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    app: &App,
    mut stage: watch::Receiver<Stage>,
    grace: Duration,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stage.wait_for(|s| *s > Stage::Running) => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, permit)) = accepted else { continue };
        let (router, stage) = (router.clone(), stage.clone());
        connections.spawn(async move {
            serve(stream, router, stage).await;
            drop(permit);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    app.end();
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::pin!(all);
    let drained = tokio::select! {
        () = &mut all => true,
        () = sleep(grace) => false,
        _ = stage.wait_for(|s| *s == Stage::Ending) => false,
    };
    app.end_answers();
    if !drained && timeout(LAST_WORDS, all).await.is_err() {
        tracing::warn!("some connections were cut");
    }
}

/// The next connection, once there is room; `None` if there was none to be had.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            // Too many open files, most likely: some will be closed.
            tracing::warn!(%error, "cannot take a connection");
            sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Answers one connection's requests.
async fn serve(stream: TcpStream, router: Router, mut stage: watch::Receiver<Stage>) {
    // A token is a small packet, and each is waited for.
    stream.set_nodelay(true).ok();
    let io = TokioIo::new(Patient::new(stream, READ_TIME));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD_BYTES);
    let connection = http.serve_connection(io, TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stage.wait_for(|s| *s > Stage::Running) => connection.as_mut().graceful_shutdown(),
    }
    // What goes wrong with a connection concerns nobody else.
    connection.await.ok();
}
