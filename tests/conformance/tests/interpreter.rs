//! The generated kernels in the interpreter: every access checked, against independent implementations.

use zinc_compiler::Choices;
use zinc_conformance::{
    FORMATS, InterpretedDevice, architecture, batch_equals_solo, best_candidates_are_the_logits_best,
    chained_equals_unchained, crowded_experts, experts_of_two_formats, format, gpu_caps, greedy_equals_reference,
    hidden_states, mixture_of_experts, tails_agree,
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
fn qwen3moe() {
    for (subgroup, rows) in [(4, 1), (8, 8), (16, 3), (32, 1), (64, 2)] {
        architecture(&mut device(subgroup), "qwen3moe", choices(F32), KvType::F32, rows);
    }
    architecture(&mut device(32), "qwen3moe", choices(ActPrecision::Q8), KvType::F32, 2);
    // Prompts.
    architecture(&mut device(8), "qwen3moe", choices(F32), KvType::F32, 24);
    architecture(&mut device(16), "qwen3moe", choices(ActPrecision::F16), KvType::F16, 12);
}

#[test]
fn qwen3moe_unfused() {
    let unfused = Choices { fuse: false, ..Choices::default() };
    for rows in [1, 12] {
        architecture(&mut device(16), "qwen3moe", unfused.clone(), KvType::F32, rows);
    }
}

#[test]
fn experts_of_odd_sizes() {
    let unfused = Choices { fuse: false, ..Choices::default() };
    for (i, format) in ["F32", "F16", "Q8_0", "Q4_0", "Q5_1"].into_iter().enumerate() {
        let subgroup = [4, 8, 16, 32, 64][i];
        for rows in [1, 3, 9] {
            mixture_of_experts(&mut device(subgroup), format, choices(F32), rows, 5e-6);
        }
        mixture_of_experts(&mut device(subgroup), format, unfused.clone(), 2, 5e-6);
    }
    // Inputs in blocks: two bytes, then one.
    for (i, format) in ["Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "IQ3_S"].into_iter().enumerate() {
        let subgroup = [4, 8, 16, 32, 64][i];
        let wide = choices(ActPrecision::F16);
        mixture_of_experts(&mut device(subgroup), format, wide.clone(), 1, 1e-4);
        let plain = Choices { fuse: false, matrices: false, ..wide };
        mixture_of_experts(&mut device(subgroup), format, plain, 2, 1e-4);
        mixture_of_experts(&mut device(subgroup), format, choices(ActPrecision::Q8), 3, 3e-2);
    }
}

/// Tiles of rows sorted by expert: sparse, ragged and full ones, with multiply-adds and with matrices.
#[test]
fn experts_of_many_rows() {
    for (i, format) in ["F32", "BF16", "Q8_0", "Q4_0", "Q5_1"].into_iter().enumerate() {
        let subgroup = [64, 32, 16, 8, 4][i];
        let halves = choices(ActPrecision::F16);
        for rows in [10, 35] {
            mixture_of_experts(&mut device(subgroup), format, choices(F32), rows, 5e-6);
            mixture_of_experts(&mut device(subgroup), format, halves.clone(), rows, 1e-3);
        }
        crowded_experts(&mut device(subgroup), format, choices(F32), 50, 5e-6);
        for rows in [19, if subgroup == 8 { 130 } else { 60 }] {
            crowded_experts(&mut device(subgroup), format, halves.clone(), rows, 1e-3);
        }
    }
    for (i, format) in ["Q4_K", "Q6_K", "IQ4_XS", "IQ3_S"].into_iter().enumerate() {
        mixture_of_experts(&mut device([32, 64, 8, 16][i]), format, choices(ActPrecision::F16), 20, 1e-3);
    }
    experts_of_two_formats(&mut device(32), ["Q8_0", "Q4_1"], choices(F32), 5e-6);
    experts_of_two_formats(&mut device(16), ["Q4_K", "Q6_K"], choices(ActPrecision::F16), 1e-3);
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
    batch_equals_solo(&mut device(16), "arch/qwen3moe");
}

#[test]
fn greedy() {
    greedy_equals_reference(&mut device(32), "arch/llama", Choices::default(), KvType::F32, 8);
    greedy_equals_reference(&mut device(8), "arch/qwen3moe", Choices::default(), KvType::F32, 8);
}

#[test]
fn hidden() {
    hidden_states(&mut device(16), "llama", Choices::default(), 3);
    hidden_states(&mut device(32), "gemma3", Choices { act: ActPrecision::F16, ..Choices::default() }, 24);
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
