//! One file per architecture: what its files hold and how it computes.

pub(crate) mod gemma3;
pub(crate) mod llama;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod qwen3moe;
