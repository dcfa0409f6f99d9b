//! An HTTP server for one model, in the formats that OpenAI's and llama.cpp's clients speak.
//!
//! ```text
//! connections ─► guard ─► api/* ─Generation─► App ─Command─► Runner (a thread, owns the Engine)
//!                            ◄─ Answer (text, stop strings) ◄─Update─┘
//! ```
//!
//! Each family of wire formats is a module of `api`; all of them make the same `generation::Generation` and read the
//! same `answer::Answer`. The engine knows nothing of HTTP, and no client can hold it up.

mod answer;
mod api;
mod app;
mod bodies;
mod error;
mod fields;
mod generation;
mod grammar;
mod guard;
mod keys;
mod listener;
mod logging;
mod metrics;
mod model;
mod pace;
mod patient;
mod places;
mod pooling;
mod reasoning;
mod recovery;
mod room;
mod runner;
mod score;
mod signals;
mod sse;
mod story;
mod tls;
mod tools;
mod trace;
mod ui;

pub use keys::{Entry, KeyError, Keys, Ledger, LedgerError, Rules, spell_digest};
pub use listener::Patience;
pub use logging::{LogFormat, log_to_stderr};
pub use model::{Loaded, Reasoning};
pub use pooling::Pooling;
pub use recovery::Revival;
pub use runner::Power;
pub use signals::Reload;
pub use tls::{Tls, TlsError};
pub use trace::{Collector, CollectorError};

use crate::app::{App, Shared};
use crate::error::ApiError;
use crate::listener::Stage;
use crate::model::Model;
use crate::recovery::Recovery;
use crate::runner::{Command, Runner};
use crate::trace::Tracer;
use axum::Router;
use axum::extract::Request;
use axum::middleware;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

/// Time for the last spans to be sent.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// How to serve.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name or address to listen on.
    pub host: String,
    /// Port; 0: any free one.
    pub port: u16,
    /// Who may ask.
    pub keys: Keys,
    /// Speak TLS, with this certificate.
    pub tls: Option<Tls>,
    /// Read keys and certificate anew on SIGHUP, if signals are taken over; the old ones stay where that fails.
    pub reload: Reload,
    /// Enters what every request has used; quotas count from what it says.
    pub ledger: Option<Arc<Ledger>>,
    /// Where spans of requests are sent.
    pub traces: Option<Collector>,
    /// Does `/metrics` tell what each key has used? Whoever has a key can read that.
    pub key_metrics: bool,
    /// Listen on an address that others can reach even though there are no keys, or be reached by any name on one that
    /// they cannot.
    pub allow_anyone: bool,
    /// Most sequences that run or wait; what is above is refused.
    pub most_sequences: usize,
    /// Largest body of a request, in bytes.
    pub max_body: usize,
    /// Most memory of all bodies that have come, wholly or in part, and are not parsed yet, in bytes; at least twice `max_body`.
    pub max_bodies: usize,
    /// What clients may take of time and connections.
    pub patience: Patience,
    /// Time that requests have to end when the server is stopped.
    pub grace: Duration,
    /// Give browsers a page to chat in, at `/`.
    pub page: bool,
    /// Take over Ctrl-C and SIGTERM: the first one lets requests end, the second one ends the process with code 130. And
    /// SIGHUP, which ends nothing.
    pub signals: bool,
}

impl Default for Config {
    /// As `zinc serve` without flags, but that no signals are taken over: this machine only, no keys, no ledger.
    fn default() -> Config {
        Config {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: Keys::default(),
            tls: None,
            reload: Reload::default(),
            ledger: None,
            traces: None,
            key_metrics: false,
            allow_anyone: false,
            most_sequences: 264,
            max_body: 16 << 20,
            max_bodies: 256 << 20,
            patience: Patience::default(),
            grace: Duration::from_secs(30),
            page: true,
            signals: false,
        }
    }
}

/// Why a server does not work.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It would be open to everyone.
    #[error(
        "{address} can be reached by others, and there are no API keys; give some (--api-key, --api-key-file), listen on \
         127.0.0.1, or say that anyone may use the server (--allow-anyone)"
    )]
    Open {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// Nothing of that name.
    #[error("there is no address for the host `{host}`")]
    NoAddress {
        /// The name.
        host: String,
    },
    /// The address cannot be had.
    #[error("cannot listen on {host}:{port}: {source}")]
    Listen {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Why.
        source: std::io::Error,
    },
    /// No threads.
    #[error("cannot start the server's threads: {0}")]
    Threads(#[source] std::io::Error),
    /// The model could not be loaded.
    #[error(transparent)]
    Load(Box<dyn std::error::Error + Send + Sync>),
    /// The engine's thread has died: a bug.
    #[error("the engine's thread has died")]
    Died,
}

/// Stops a server from outside.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Stage>);

impl Stop {
    /// No new connections; what has begun may end within the time of grace.
    pub fn drain(&self) {
        self.raise(Stage::Draining);
    }

    /// As [`Stop::drain`], without grace.
    pub fn now(&self) {
        self.raise(Stage::Ending);
    }

    fn raise(&self, stage: Stage) {
        self.0.send_if_modified(|at| {
            let later = stage > *at;
            if later {
                *at = stage;
            }
            later
        });
    }
}

/// A server that has its address, but does not answer yet.
pub struct Server {
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    stop: Stop,
}

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// It cannot be had, or others could reach it without a key and nobody said that they may.
    pub fn bind(config: Config) -> Result<Server, ServeError> {
        let (host, port) = (config.host.clone(), config.port);
        let failed = |source| ServeError::Listen { host: host.clone(), port, source };
        let addresses: Vec<SocketAddr> = (host.as_str(), port).to_socket_addrs().map_err(failed)?.collect();
        if addresses.is_empty() {
            return Err(ServeError::NoAddress { host });
        }
        let public = addresses.iter().find(|a| !a.ip().is_loopback());
        if let (Some(address), true, false) = (public, config.keys.is_open(), config.allow_anyone) {
            return Err(ServeError::Open { address: *address });
        }
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Server { config, listener, address, stop: Stop(watch::channel(Stage::Running).0) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that stops it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Answers until it is stopped. `load` runs on a thread of its own meanwhile; until it is done, clients are told to
    /// wait.
    ///
    /// # Errors
    /// The model cannot be loaded, or there are no threads.
    pub fn run<E>(self, load: impl FnOnce() -> Result<Loaded, E> + Send + 'static) -> Result<(), ServeError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Server { config, listener, address, stop } = self;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).max_blocking_threads(8).thread_name("zinc-http").enable_all();
        let runtime = builder.build().map_err(ServeError::Threads)?;
        let (commands, queue) = channel();
        let shared = Shared::new();
        let local = (address.ip().is_loopback() && !config.allow_anyone).then(|| config.host.clone());
        let app = Arc::new(App::new(&config, local, shared.clone(), commands));
        let work = {
            let (app, stop) = (app.clone(), stop.clone());
            move || {
                // However the thread ends, so does the server.
                let _end = AtEnd { app: app.clone(), stop };
                let loaded = load().map_err(|error| ServeError::Load(error.into()))?;
                work(loaded, &app, queue, shared);
                Ok(())
            }
        };
        // Compiling plans is deeply recursive in places; a thread's usual stack is a quarter of a program's.
        let thread = std::thread::Builder::new().name("zinc-engine".into()).stack_size(16 << 20);
        let thread = thread.spawn(work).map_err(ServeError::Threads)?;
        let stages = stop.0.subscribe();
        let served = async {
            let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Threads)?;
            if config.signals {
                // Before anyone is answered: a signal that comes then is not lost, and ends nothing that it should not.
                signals::take_over(stop, config.reload.clone(), app.clone());
            }
            if let Some(collector) = config.traces.clone() {
                app.tracer.set(Tracer::start(collector, app.metrics.clone())).ok();
            }
            listener::listen(listener, routes(&app, config.page), &app, stages, config.grace).await;
            if let Some(tracer) = app.tracer.get() {
                tracer.flush(LAST_SPANS).await;
            }
            Ok(())
        };
        let ended = runtime.block_on(async {
            let (served, app) = (served.await, app.clone());
            // Not after the runtime, which hears signals: a second one must end a long wait.
            let finished = tokio::task::spawn_blocking(move || finish(thread, &app));
            served.and(finished.await.unwrap_or(Err(ServeError::Died)))
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        ended
    }
}

/// Runs the engine until the server ends.
fn work(loaded: Loaded, app: &App, queue: Receiver<Command>, shared: Shared) {
    let (model, engine, revival, power) = Model::new(loaded);
    tracing::info!(model = model.name(), context = model.context, parallel = model.parallel, "ready");
    let runner = Runner::new(engine, Recovery::new(revival), power, queue, shared);
    app.set_model(model);
    runner.run();
}

/// Stops the server when it goes away.
struct AtEnd {
    app: Arc<App>,
    stop: Stop,
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        // In this order: whoever sees the server stop knows that there is something to learn from the thread.
        self.app.engine_ended.store(true, Ordering::SeqCst);
        self.stop.now();
    }
}

/// Waits for the engine's thread, unless it is still loading: that cannot be stopped, and has nothing to save. Then for the
/// ledger.
fn finish(thread: JoinHandle<Result<(), ServeError>>, app: &App) -> Result<(), ServeError> {
    let loading = app.loaded().is_none() && !app.engine_ended.load(Ordering::SeqCst);
    let finished = if loading { Ok(()) } else { thread.join().unwrap_or(Err(ServeError::Died)) };
    if let Some(ledger) = app.accounts.ledger() {
        ledger.close();
    }
    finished
}

/// All paths.
fn routes(app: &Arc<App>, page: bool) -> Router {
    let nothing = |request: Request| async move { ApiError::no_route(request.method().as_str(), request.uri().path()) };
    let no_method =
        |request: Request| async move { ApiError::no_method(request.method().as_str(), request.uri().path()) };
    let closed = api::router().layer(middleware::from_fn_with_state(app.clone(), guard::ask_for_key));
    let open = if page { api::open_router().merge(ui::router()) } else { api::open_router() };
    let routes = closed.merge(open).fallback(nothing).method_not_allowed_fallback(no_method);
    routes.layer(middleware::from_fn_with_state(app.clone(), guard::accompany)).with_state(app.clone())
}
