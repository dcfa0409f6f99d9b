//! Standard output and standard error. Where nobody reads it any more (`zinc … | head`), printing is an error that ends the command, not a
//! panic as with `println!`.

use anyhow::Result;
use std::io::Write;

/// Text as it is, at once.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// A line.
pub(crate) fn print_line(line: &str) -> Result<()> {
    print(&format!("{line}\n"))
}

/// Text out of a model file, without what would move the cursor, colour or otherwise steer a terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A line on standard error. Where that is closed or full there is nobody left to tell, so that is no error.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        writeln!(std::io::stderr().lock(), $($words)*).ok();
    }};
}
pub(crate) use say;
