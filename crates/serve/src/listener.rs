//! Connections: taken, limited in number and time, and ended in an orderly way.
//!
//! ```text
//! accept ─ places ─► one task per connection ─ TLS, if there is a certificate ─ HTTP/1.1 ─► router
//! stop: no more connections ─► requests end by themselves (grace) ─► answers are ended ─► connections are cut
//! ```

use crate::app::App;
use crate::error::ApiError;
use crate::patient::{Patient, gone, prepare};
use crate::places::{Place, Places};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Bytes of a request's head; more, or more than 100 lines, is answered with status 431.
const HEAD_BYTES: usize = 64 << 10;
/// Time for streams to say that they end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What clients may take of time and connections.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time for the head of a request, counted from when the connection is free: who keeps one without asking is let go
    /// after it, too.
    pub head: Duration,
    /// Time for the body of a request.
    pub body: Duration,
    /// Time without anything taken of what is written.
    pub stall: Duration,
    /// Connections at the same time; more wait in the system's own queue.
    pub connections: usize,
    /// Of which from one address (of version 6: one network of 64 bits); more are refused with status 429.
    pub connections_per_address: usize,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            connections: 4096,
            connections_per_address: 1024,
        }
    }
}

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
    app: &Arc<App>,
    mut stage: watch::Receiver<Stage>,
    grace: Duration,
) {
    let places = Places::new(app.patience.connections, app.patience.connections_per_address);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stage.wait_for(|s| *s > Stage::Running) => break,
            accepted = accept(&listener, &places) => accepted,
        };
        while connections.try_join_next().is_some() {}
        let Some((stream, place)) = accepted else { continue };
        let Some(place) = place else {
            app.metrics.connections_refused.add(1);
            if app.certificate.acceptor().is_none() {
                refuse(&stream);
            }
            continue;
        };
        prepare(&stream);
        let (router, stage, app) = (router.clone(), stage.clone(), app.clone());
        connections.spawn(async move {
            serve(Arc::new(stream), router, stage, &app).await;
            drop(place);
        });
    }
    drop(listener);
    app.end();
    let drained = tokio::select! {
        () = all(&mut connections) => true,
        () = sleep(grace) => false,
        _ = stage.wait_for(|s| *s == Stage::Ending) => false,
    };
    app.end_answers();
    if !drained && timeout(LAST_WORDS, all(&mut connections)).await.is_err() {
        tracing::warn!("some connections were cut");
    }
    // What they hold is let go: the bills of their requests are to be entered before the ledger closes.
    connections.abort_all();
    timeout(LAST_WORDS, all(&mut connections)).await.ok();
}

/// Waits until all connections have ended.
async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// The next connection, once there is room for one, and its place if its address may have another; `None` if there was
/// none to be had.
async fn accept(listener: &TcpListener, places: &Places) -> Option<(TcpStream, Option<Place>)> {
    let room = places.room().await?;
    match listener.accept().await {
        Ok((stream, from)) => Some((stream, places.place(room, from.ip()))),
        Err(error) => {
            // Too many open files, most likely: some will be closed.
            tracing::warn!(%error, "cannot take a connection");
            sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Tells a client that its address has too many connections, as far as that can be said without waiting.
fn refuse(stream: &TcpStream) {
    let error = ApiError::busy("there are too many connections from your address; close some, or try again later");
    let body = error.json().to_string();
    let head =
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 2\r\nConnection: close";
    let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    // The runtime does not know yet that a connection just taken can be written to; the system does.
    socket2::SockRef::from(stream).send(answer.as_bytes()).ok();
}

/// Answers one connection's requests.
async fn serve(stream: Arc<TcpStream>, router: Router, stage: watch::Receiver<Stage>, app: &App) {
    let (patient, head) = (Patient::new(stream.clone(), app.patience.stall), app.patience.head);
    let conversation = async {
        let Some(tls) = app.certificate.acceptor() else { return converse(patient, router, stage, head).await };
        match timeout(head, tls.accept(patient)).await {
            Ok(Ok(secret)) => converse(secret, router, stage, head).await,
            Ok(Err(error)) => tracing::debug!(%error, "a client does not speak TLS"),
            Err(_) => {}
        }
    };
    tokio::select! {
        () = conversation => {}
        () = gone(&stream) => {}
    }
}

/// Speaks HTTP over a connection.
async fn converse<S>(stream: S, router: Router, mut stage: watch::Receiver<Stage>, head: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(HEAD_BYTES);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stage.wait_for(|s| *s > Stage::Running) => connection.as_mut().graceful_shutdown(),
    }
    // What goes wrong with a connection concerns nobody else.
    connection.await.ok();
}
