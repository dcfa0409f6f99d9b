//! Speed without the card: from a compiled plan and a card's figures to tokens per second.
//!
//! ```text
//! Plan (bytes per launch) + Card (published) + Rates (what a compiler's statistics, or other models, say)
//! ```

pub mod cards;
pub mod memory;
pub mod rates;
pub mod time;
