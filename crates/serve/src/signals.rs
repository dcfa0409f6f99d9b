//! Ctrl-C and SIGTERM end the server, SIGHUP has it read its keys and its certificate anew.

use crate::Stop;
use crate::app::App;
use crate::keys::Keys;
use crate::tls::Tls;
use std::sync::Arc;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Reads something anew; the error goes to the log.
type Read<T> = Arc<dyn Fn() -> Result<T, String> + Send + Sync>;

/// What can be read anew while the server runs.
#[derive(Clone, Default)]
pub struct Reload {
    keys: Option<Read<Keys>>,
    tls: Option<Read<Tls>>,
}

impl Reload {
    /// Reads keys so.
    pub fn keys(self, read: impl Fn() -> Result<Keys, String> + Send + Sync + 'static) -> Reload {
        Reload { keys: Some(Arc::new(read)), ..self }
    }

    /// Reads the certificate so.
    pub fn tls(self, read: impl Fn() -> Result<Tls, String> + Send + Sync + 'static) -> Reload {
        Reload { tls: Some(Arc::new(read)), ..self }
    }
}

impl std::fmt::Debug for Reload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reload")
    }
}

/// Takes the signals over, and obeys them from now on; must be called inside of the runtime.
pub(crate) fn take_over(stop: Stop, reload: Reload, app: Arc<App>) {
    tokio::spawn(obey(Ends::new(), stop));
    #[cfg(unix)]
    match signal(SignalKind::hangup()) {
        Ok(hangup) => drop(tokio::spawn(read_anew(hangup, reload, app))),
        Err(error) => tracing::warn!(%error, "SIGHUP does what it always does: it ends the server"),
    }
    #[cfg(not(unix))]
    drop((reload, app));
}

/// Lets the server end at the first signal, and ends the process at the second: a step of a long prompt can take a while.
async fn obey(mut ends: Ends, stop: Stop) {
    ends.next().await;
    tracing::info!("stopping; requests that have begun may end (once more: at once)");
    stop.drain();
    ends.next().await;
    std::process::exit(130);
}

/// Reads keys and certificate anew at every SIGHUP, which ends the server in no case.
#[cfg(unix)]
async fn read_anew(mut hangup: Signal, reload: Reload, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        if reload.keys.is_none() && reload.tls.is_none() {
            tracing::warn!("SIGHUP came, but there is no file of keys and no certificate to read anew");
        }
        match reload.keys.as_ref().map(|read| read().map(|keys| app.set_keys(keys))) {
            None => {}
            Some(Ok(true)) => tracing::info!("the keys were read anew"),
            Some(Ok(false)) => tracing::error!("there are no keys any more; the old ones stay"),
            Some(Err(error)) => tracing::error!(error, "the keys cannot be read; the old ones stay"),
        }
        match reload.tls.as_ref().map(|read| read().map(|tls| app.certificate.set(tls))) {
            None => {}
            Some(Ok(())) => tracing::info!("the certificate was read anew"),
            Some(Err(error)) => tracing::error!(error, "the certificate cannot be read; the old one stays"),
        }
    }
}

/// What ends the server. Where a signal cannot be taken over it does what it always does.
struct Ends {
    #[cfg(unix)]
    both: Option<(Signal, Signal)>,
}

impl Ends {
    /// From now on the signals do nothing but be seen.
    fn new() -> Ends {
        #[cfg(unix)]
        let both = signal(SignalKind::interrupt()).ok().zip(signal(SignalKind::terminate()).ok());
        Ends {
            #[cfg(unix)]
            both,
        }
    }

    /// Waits for Ctrl-C or SIGTERM.
    async fn next(&mut self) {
        #[cfg(unix)]
        if let Some((interrupt, terminate)) = &mut self.both {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_ok() {
            return;
        }
        std::future::pending().await
    }
}
