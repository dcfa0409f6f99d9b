//! The conformance suite: the same cases on the kernel interpreter, the CPU and Vulkan.

mod attention;
mod batches;
mod cases;
mod chains;
mod cuts;
mod drive;
mod experts;
mod fixture;
mod interpreted;
mod invariant;
mod losing;
mod persistent;

pub use attention::{attention_of_batches, attention_of_prompts, attention_of_prompts_in};
pub use batches::{batch_equals_solo, best_candidates_are_the_logits_best, greedy_equals_reference};
pub use cases::{ARCHITECTURES, FORMATS, architecture, format, hidden_states, quantized_cache};
pub use chains::{chained_equals_unchained, tails_agree};
pub use cuts::{LongRows, Trial};
pub use drive::{Chunk, Driver};
pub use experts::{crowded_experts, experts_of_two_formats, mixture_of_experts};
pub use fixture::{Distance, Fixture, data, distance};
pub use interpreted::{InterpretedDevice, gpu_caps};
pub use invariant::invariant;
pub use losing::{Fuse, LosingDevice};
pub use persistent::{even_cuts, layers_as_one, persistent_context, persistent_equals_launches};
