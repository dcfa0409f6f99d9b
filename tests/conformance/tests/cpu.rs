//! The CPU device: every SIMD level of this machine, against independent implementations.

use zinc_compiler::Choices;
use zinc_conformance::{
    ARCHITECTURES, FORMATS, architecture, batch_equals_solo, best_candidates_are_the_logits_best,
    chained_equals_unchained, format, greedy_equals_reference, hidden_states, mixture_of_experts, tails_agree,
};
use zinc_cpu::{CpuDevice, Isa};
use zinc_ir::plan::{ActPrecision, KvType};

const PRECISIONS: [ActPrecision; 3] = [ActPrecision::F32, ActPrecision::F16, ActPrecision::Q8];

fn each_level(test: impl Fn(&mut CpuDevice)) {
    for isa in Isa::available() {
        for threads in [1, 2] {
            test(&mut CpuDevice::with_isa(threads, isa).expect("a device"));
        }
    }
}

#[test]
fn architectures() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            for act in PRECISIONS {
                let choices = Choices { act, ..Choices::default() };
                architecture(device, name, choices.clone(), KvType::F32, 24);
                architecture(device, name, choices, KvType::F16, 5);
            }
        }
    });
}

#[test]
fn unfused_regions() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            architecture(device, name, Choices { fuse: false, ..Choices::default() }, KvType::F32, 7);
        }
    });
}

#[test]
fn formats() {
    each_level(|device| {
        for name in FORMATS {
            for act in PRECISIONS {
                format(device, name, Choices { act, ..Choices::default() }, 24, 24);
                format(device, name, Choices { act, ..Choices::default() }, 1, 24);
            }
        }
    });
}

#[test]
fn experts_of_odd_sizes() {
    each_level(|device| {
        for format in ["F32", "F16", "Q8_0", "Q4_0", "Q5_1"] {
            for rows in [1, 7, 40] {
                for fuse in [true, false] {
                    mixture_of_experts(device, format, Choices { fuse, ..Choices::default() }, rows, 5e-6);
                }
                let choices = Choices { act: ActPrecision::Q8, ..Choices::default() };
                mixture_of_experts(device, format, choices, rows, 3e-2);
            }
        }
    });
}

#[test]
fn batches() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            batch_equals_solo(device, &format!("arch/{name}"));
        }
    });
}

#[test]
fn greedy() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            for act in [ActPrecision::F32, ActPrecision::F16] {
                let choices = Choices { act, ..Choices::default() };
                greedy_equals_reference(device, &format!("arch/{name}"), choices, KvType::F16, 24);
            }
        }
    });
}

#[test]
fn hidden() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            hidden_states(device, name, Choices::default(), 7);
            hidden_states(device, name, Choices { act: ActPrecision::F16, ..Choices::default() }, 24);
        }
    });
}

#[test]
fn best_candidates() {
    each_level(|device| best_candidates_are_the_logits_best(device, "arch/qwen2", 5));
}

#[test]
fn chained_steps() {
    each_level(|device| {
        for (name, _) in ARCHITECTURES {
            chained_equals_unchained(device, &format!("arch/{name}"), 12);
        }
    });
}

#[test]
fn tails() {
    each_level(|device| [9000, 9001].into_iter().for_each(|vocabulary| tails_agree(device, vocabulary)));
}
