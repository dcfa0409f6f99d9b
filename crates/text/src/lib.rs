//! Text in, token ids; token ids, text out. Pure: no file, no thread, no clock.
//!
//! ```text
//! GGUF metadata ─TokenizerSpec─► Tokenizer ─encode─► ids
//! messages ─ChatTemplate.render─► prompt text ──────┘
//! ids ─StreamDecoder─► pieces of valid UTF-8 ─StopMatcher─► what the user sees
//! ```
//!
//! The token ids are those of the model's own tokenizer, to the last id: a model that sees
//! other ids than in training answers worse, and nothing else tells.

mod alphabet;
mod civil_time;
mod decode;
mod gguf_spec;
mod merge;
mod pretokenizer;
mod python;
mod python_methods;
mod spec;
mod special;
mod stop;
mod stream;
mod strings;
mod synthetic;
mod template;
mod tokenizer;
mod vocabulary;

pub use civil_time::CivilTime;
pub use decode::clean_up_spaces;
pub use gguf_spec::chat_template_source;
pub use spec::{TokenKind, TokenizerSpec};
pub use stop::{StopError, StopMatcher, Stopped};
pub use stream::{StreamDecoder, TextStart};
pub use template::{ChatTemplate, TemplateError, TemplateInput};
pub use tokenizer::{Tokenizer, TokenizerError};
