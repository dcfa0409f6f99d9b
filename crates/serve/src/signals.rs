//! Ctrl-C and SIGTERM end the server, SIGHUP has it read its keys and its certificate anew.

use crate::Stop;
use crate::app::App;
use crate::keys::Keys;
use crate::tls::Tls;
use std::sync::Arc;

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

/// Lets the server end at the first signal, and ends the process at the second: a step of a long prompt can take a while.
pub(crate) async fn obey(stop: Stop) {
    signal().await;
    tracing::info!("stopping; requests that have begun may end (once more: at once)");
    stop.drain();
    signal().await;
    std::process::exit(130);
}

/// Reads keys and certificate anew at every SIGHUP, which ends the server in no case.
#[cfg(unix)]
pub(crate) async fn reload(reload: Reload, app: Arc<App>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
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

/// There is no SIGHUP here.
#[cfg(not(unix))]
pub(crate) async fn reload(_: Reload, _: Arc<App>) {}

/// Waits for a signal. Where one cannot be taken over it does what it always does.
#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
