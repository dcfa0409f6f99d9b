//! The Vulkan device, on the driver set this test runs in, against independent implementations.

mod support;

use std::time::Duration;
use zinc_compiler::Choices;
use zinc_conformance::{
    ARCHITECTURES, FORMATS, architecture, attention_of_prompts, batch_equals_solo, best_candidates_are_the_logits_best,
    chained_equals_unchained, crowded_experts, format, greedy_equals_reference, hidden_states, mixture_of_experts,
    persistent_equals_launches, tails_agree,
};
use zinc_ir::device::{Caps, Device};
use zinc_ir::graph::AttentionSpec;
use zinc_ir::kernel::Scalar;
use zinc_ir::plan::{ActPrecision, KvType};
use zinc_vulkan::{DeviceType, Options, VulkanDevice};

/// Runs `test` on the device with the validation layer on; any message is a failure.
fn on_device(test: impl Fn(&mut VulkanDevice)) {
    let options = Options { validation: true, emulated_matrices: true, ..Options::default() };
    let Some(mut device) = support::vulkan(&options) else { return };
    test(&mut device);
    let messages = device.validation_messages();
    assert!(messages.is_empty(), "the validation layer said:\n{}", messages.join("\n"));
}

fn choices(act: ActPrecision) -> Choices {
    Choices { act, ..Choices::default() }
}

#[test]
fn architectures_in_few_rows() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            architecture(device, name, choices(ActPrecision::F32), KvType::F32, 1);
            architecture(device, name, choices(ActPrecision::F32), KvType::F16, 7);
            architecture(device, name, choices(ActPrecision::Q8), KvType::F16, 2);
        }
    });
}

#[test]
fn architectures_in_prompts() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            architecture(device, name, choices(ActPrecision::F32), KvType::F32, 24);
        }
        for name in ["llama", "gemma3"] {
            architecture(device, name, choices(ActPrecision::F16), KvType::F16, 17);
        }
    });
}

#[test]
fn unfused() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            architecture(device, name, Choices { fuse: false, ..Choices::default() }, KvType::F32, 3);
        }
    });
}

/// Compiling takes most of the time on software drivers: all formats for the usual subgroup size, a third of them for
/// each other one and for matrices.
#[test]
fn formats() {
    on_device(|device| {
        let subgroup = device.caps().subgroup_size as usize;
        for (i, name) in FORMATS.iter().enumerate() {
            let third = i % 3 == subgroup / 4 % 3;
            if subgroup == 8 || third {
                format(device, name, choices(ActPrecision::F32), 1, 24);
                format(device, name, choices(ActPrecision::Q8), 1, 24);
            }
            if third {
                format(device, name, choices(ActPrecision::F16), 24, 24);
            }
        }
    });
}

#[test]
fn experts_of_odd_sizes() {
    on_device(|device| {
        for rows in [1, 9] {
            mixture_of_experts(device, "Q4_0", choices(ActPrecision::F32), rows, 5e-6);
            mixture_of_experts(device, "Q4_K", choices(ActPrecision::F16), rows, 1e-3);
        }
        mixture_of_experts(device, "Q6_K", choices(ActPrecision::Q8), 2, 3e-2);
    });
}

#[test]
fn experts_of_many_rows() {
    on_device(|device| {
        mixture_of_experts(device, "Q8_0", choices(ActPrecision::F32), 60, 5e-6);
        mixture_of_experts(device, "Q6_K", choices(ActPrecision::F16), 60, 1e-3);
        crowded_experts(device, "Q4_K", choices(ActPrecision::F32), 60, 5e-6);
        for rows in [20, 200] {
            crowded_experts(device, "Q4_K", choices(ActPrecision::F16), rows, 1e-3);
        }
    });
}

/// On matrices where the device has those of halves with sums in singles, eight deep at least; also if software emulates
/// them, for which its compiler then takes long.
#[test]
fn attention() {
    on_device(|device| {
        let able = device.caps().matrices.iter().any(|m| (m.input, m.acc) == (Scalar::F16, Scalar::F32) && m.k >= 8);
        let template = able.then_some("attention_matrices");
        for (heads, kv_heads, head_dim, window) in [(8, 2, 64, None), (5, 1, 32, Some(33))] {
            let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.125, window };
            attention_of_prompts(device, spec, template);
        }
    });
}

#[test]
fn batches() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            batch_equals_solo(device, &format!("arch/{name}"));
        }
    });
}

#[test]
fn greedy() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            greedy_equals_reference(device, &format!("arch/{name}"), choices(ActPrecision::F32), KvType::F16, 24);
        }
    });
}

#[test]
fn hidden() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            hidden_states(device, name, choices(ActPrecision::F32), 24);
            hidden_states(device, name, choices(ActPrecision::F16), 2);
        }
    });
}

#[test]
fn best_candidates() {
    on_device(|device| best_candidates_are_the_logits_best(device, "arch/qwen2", 5));
}

#[test]
fn chained_steps() {
    on_device(|device| {
        for (name, _) in ARCHITECTURES {
            chained_equals_unchained(device, &format!("arch/{name}"), 12);
        }
    });
}

#[test]
fn tails() {
    on_device(|device| [9000, 9001, 128_256].into_iter().for_each(|vocabulary| tails_agree(device, vocabulary)));
}

/// Each launch a submission of its own: as the device hands over what would keep it busy for too long.
#[test]
fn in_parts() {
    let run = |longest_part| {
        let before = Options { validation: true, emulated_matrices: true, ..Options::default() };
        let mut device = support::vulkan(&Options { longest_part, ..before })?;
        architecture(&mut device, "llama", choices(ActPrecision::F32), KvType::F16, 24);
        chained_equals_unchained(&mut device, "arch/qwen3moe", 6);
        assert_eq!(device.validation_messages(), [""; 0]);
        Some(device.submissions())
    };
    let Some(whole) = run(Options::default().longest_part) else { return };
    let parts = run(Duration::ZERO).expect("the same device");
    assert!(parts > 5 * whole, "{parts} submissions, not in parts {whole}");
}

/// The layers as one launch. A software driver runs as many workgroups at once as it has threads: two where there are
/// two processors, and a third would wait for ever. A GPU has room for sixteen small ones.
#[test]
fn persistent() {
    on_device(|device| {
        let subgroup = device.caps().subgroup_size;
        let several = std::thread::available_parallelism().is_ok_and(|n| n.get() >= 2);
        let workgroups: &[u32] = match device.report().device_type {
            DeviceType::Software if several => &[1, 2],
            DeviceType::Software => &[1],
            _ => &[1, 2, 16],
        };
        for (path, act, subgroups) in [
            ("arch/llama", ActPrecision::F32, 2),
            ("arch/qwen3moe", ActPrecision::F32, 2),
            ("quant/Q4_K", ActPrecision::F16, 2),
        ] {
            let caps = Caps { max_workgroup: subgroup * subgroups, ..device.caps().clone() };
            persistent_equals_launches(device, path, &caps, act, workgroups, 3);
        }
    });
}
