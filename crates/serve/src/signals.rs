//! Ctrl-C and SIGTERM end the server, SIGHUP has it read its keys anew.

use crate::Stop;
use crate::app::App;
use crate::keys::Reload;
use std::sync::Arc;

/// Lets the server end at the first signal, and ends the process at the second: a step of a long prompt can take a while.
pub(crate) async fn obey(stop: Stop) {
    signal().await;
    tracing::info!("stopping; requests that have begun may end (once more: at once)");
    stop.drain();
    signal().await;
    std::process::exit(130);
}

/// Reads the keys anew at every SIGHUP, which ends the server in no case.
#[cfg(unix)]
pub(crate) async fn reload(reload: Option<Reload>, app: Arc<App>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        let Some(reload) = &reload else {
            tracing::warn!("SIGHUP came, but there is no file of keys to read anew");
            continue;
        };
        match reload.read().map(|keys| app.set_keys(keys)) {
            Ok(true) => tracing::info!("the keys were read anew"),
            Ok(false) => tracing::error!("there are no keys any more; the old ones stay"),
            Err(error) => tracing::error!(error, "the keys cannot be read; the old ones stay"),
        }
    }
}

/// There is no SIGHUP here.
#[cfg(not(unix))]
pub(crate) async fn reload(_: Option<Reload>, _: Arc<App>) {}

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
