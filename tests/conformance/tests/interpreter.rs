//! The generated kernels in the interpreter: every access checked, against independent implementations.

use zinc_compiler::Choices;
use zinc_conformance::{
    FORMATS, InterpretedDevice, architecture, batch_equals_solo, best_candidates_are_the_logits_best,
    chained_equals_unchained, format, gpu_caps, greedy_equals_reference, tails_agree,
};
use zinc_ir::plan::{ActPrecision, KvType};

fn device(subgroup: u32) -> InterpretedDevice {
    InterpretedDevice::new(gpu_caps(subgroup), 7 + subgroup as u64)
}

fn choices(act: ActPrecision) -> Choices {
    Choices { act, ..Choices::default() }
}

const F32: ActPrecision = ActPrecision::F32;

#[test]
fn llama_few_rows() {
    architecture(&mut device(8), "llama", choices(F32), KvType::F32, 4);
}

#[test]
fn llama_single_rows() {
    architecture(&mut device(32), "llama", choices(F32), KvType::F16, 1);
}

#[test]
fn llama_unfused() {
    architecture(&mut device(4), "llama", Choices { fuse: false, ..Choices::default() }, KvType::F32, 8);
}

#[test]
fn qwen2() {
    architecture(&mut device(16), "qwen2", choices(F32), KvType::F32, 3);
}

#[test]
fn qwen3() {
    architecture(&mut device(64), "qwen3", choices(F32), KvType::F32, 2);
}

#[test]
fn gemma3() {
    architecture(&mut device(32), "gemma3", choices(F32), KvType::F32, 4);
}

/// Every block format, with F32 and with 8-bit activations.
#[test]
fn formats() {
    for (i, name) in FORMATS.iter().enumerate() {
        let subgroup = [4, 8, 16, 32, 64][i % 5];
        format(&mut device(subgroup), name, choices(F32), 2, 4);
        format(&mut device(subgroup), name, choices(ActPrecision::Q8), 2, 4);
    }
}

#[test]
fn a_batch_gives_each_sequence_its_own_tokens() {
    batch_equals_solo(&mut device(32), "arch/qwen3");
}

#[test]
fn greedy() {
    greedy_equals_reference(&mut device(32), "arch/llama", Choices::default(), KvType::F32, 8);
}

#[test]
fn best_candidates() {
    best_candidates_are_the_logits_best(&mut device(16), "arch/llama", 2);
}

#[test]
fn chained_steps() {
    chained_equals_unchained(&mut device(16), "arch/llama", 2);
    chained_equals_unchained(&mut device(64), "arch/gemma3", 1);
}

#[test]
fn tails() {
    tails_agree(&mut device(8), 4200);
    tails_agree(&mut device(64), 4203);
}
