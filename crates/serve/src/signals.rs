//! Ctrl-C and SIGTERM.

use crate::Stop;

/// Lets the server end at the first signal, and ends the process at the second: a step of a long prompt can take a while.
pub(crate) async fn obey(stop: Stop) {
    signal().await;
    tracing::info!("stopping; requests that have begun may end (once more: at once)");
    stop.drain();
    signal().await;
    std::process::exit(130);
}

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
