//! Where log lines go.

use tracing::level_filters::LevelFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Writes log lines to standard error for the rest of the program; `verbose` tells more. Does nothing the second time.
pub fn log_to_stderr(format: LogFormat, verbose: bool) {
    let level = if verbose { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let lines = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    // A subscriber that is there already was set by whoever embeds the server.
    match format {
        LogFormat::Text => lines.with_ansi(false).try_init().ok(),
        LogFormat::Json => lines.json().flatten_event(true).try_init().ok(),
    };
}
