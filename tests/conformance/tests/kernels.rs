//! Plans and kernels of a fixed set, as text under review: a change of a template shows here. `cargo xtask bless`
//! accepts the present output.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use zinc_compiler::{Choices, compile};
use zinc_conformance::{Fixture, gpu_caps};
use zinc_ir::plan::{ActPrecision, Bucket, KvLayout, KvType, Plan, Tail};

fn plan(fixture: &str, subgroup: u32, tokens: u32, act: ActPrecision) -> Plan {
    let f = Fixture::open(fixture);
    let kv = Arc::new(KvLayout::new(&f.graph, KvType::F16, 16));
    let bucket = Bucket { tokens, outputs: 1, context: 512, sequences: 1, tail: Tail::Greedy };
    let choices = Choices { act, ..Choices::default() };
    compile(&f.graph, &kv, bucket, &gpu_caps(subgroup), &choices).expect("compiles")
}

fn check(name: &str, text: &str) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../filetests")).join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&path, text).expect("the file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    if expected != text {
        let line = expected.lines().zip(text.lines()).position(|(a, b)| a != b);
        let at = line.unwrap_or(expected.lines().count().min(text.lines().count()));
        let of = |t: &str| t.lines().nth(at).unwrap_or("(nothing)").to_string();
        panic!(
            "{name} differs from line {}:\n  before: {}\n  now:    {}\nrun `cargo xtask bless` and review the diff",
            at + 1,
            of(&expected),
            of(text)
        );
    }
}

/// The plan, and its kernels: short ones whole, of long ones the declaration, the number of each operation and the
/// fingerprint (`cargo xtask kernels-diff` shows them whole).
fn text_of(plan: &Plan) -> String {
    let mut text = plan.to_string();
    for kernel in &plan.kernels {
        let body = kernel.to_string();
        let lines = body.lines().count();
        if lines <= SHORT {
            write!(text, "\n{body}").expect("strings take text");
            continue;
        }
        let mut counts = BTreeMap::new();
        for op in &kernel.ops {
            let shown = format!("{op:?}");
            let end = shown.find(|c: char| !c.is_alphanumeric()).unwrap_or(shown.len());
            *counts.entry(shown[..end].to_string()).or_insert(0) += 1;
        }
        let head: Vec<&str> = body.lines().take(kernel.args.len() + kernel.shared.len() + 2).collect();
        let print = kernel.fingerprint();
        write!(text, "\n{}\n  {lines} lines, {print:032x}: {counts:?}\n", head.join("\n")).expect("strings take text");
    }
    text
}

/// Kernels of up to this many lines are shown whole.
const SHORT: usize = 80;

/// Shapes and format mixes that bring every template and every weight format.
const SHAPES: &[&str] = &[
    "llama3.1-8b:q4_k_m",
    "qwen2.5-32b:q5_k_m",
    "llama3.1-8b:q3_k_m",
    "llama3.1-8b:iq4_xs",
    "qwen2.5-32b:iq3_m",
    "llama3.1-8b:iq3_xxs",
    "smollm2-135m:iq4_nl",
    "smollm2-135m:mxfp4",
    "qwen3-0.6b:q8_0",
    "qwen3-30b-a3b:q4_k_m",
    "gemma3-270m:q4_0",
    "smollm2-135m:q4_1",
    "smollm2-135m:q5_0",
    "smollm2-135m:q5_1",
    "smollm2-135m:f16",
    "smollm2-135m:bf16",
    "smollm2-135m:f32",
];

/// Writes the SPIR-V of all kernels of real shapes, for every subgroup size, where the test runner has them validated.
#[test]
fn kernels_of_real_shapes_become_spirv() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/zinc-test/spirv/kernels"));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let mut written = HashSet::new();
    for shape in SHAPES {
        let (model, _) = zinc_models::synthetic(shape, Some(1)).expect("a shape");
        let kv = Arc::new(KvLayout::new(&model.graph, KvType::F16, 64));
        for subgroup in [4, 8, 16, 32, 64] {
            for (tokens, act, tail) in [
                (1, ActPrecision::F32, Tail::Greedy),
                (3, ActPrecision::Q8, Tail::Best(40)),
                (2, ActPrecision::F32, Tail::Sample(64)),
                (64, ActPrecision::F32, Tail::Logits),
                (512, ActPrecision::F16, Tail::Greedy),
            ] {
                for fuse in [true, false] {
                    let bucket = Bucket { tokens, outputs: 1, context: 1024, sequences: 2, tail };
                    let choices = Choices { act, fuse, ..Choices::default() };
                    let plan = compile(&model.graph, &kv, bucket, &gpu_caps(subgroup), &choices).expect("compiles");
                    for kernel in &plan.kernels {
                        assert!(!zinc_spirv::push_layout(kernel).in_memory(), "{}: too many arguments", kernel.name);
                        let name = format!("{:032x}.spv", kernel.fingerprint());
                        if written.insert(name.clone()) {
                            let words = zinc_spirv::emit(kernel, zinc_spirv::FloatModes::default()).expect("emits");
                            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                            std::fs::write(folder.join(name), bytes).expect("the file can be written");
                        }
                    }
                }
            }
        }
    }
    println!("{} kernels", written.len());
    assert!(written.len() > 500, "only {} kernels", written.len());
}

#[test]
fn decode_in_subgroups_of_32() {
    check("decode_llama_f16_32.txt", &text_of(&plan("arch/llama", 32, 1, ActPrecision::F32)));
}

#[test]
fn decode_with_experts_in_subgroups_of_32() {
    check("decode_qwen3moe_f16_32.txt", &text_of(&plan("arch/qwen3moe", 32, 1, ActPrecision::F32)));
}

#[test]
fn decode_with_head_norms_in_subgroups_of_64() {
    check("decode_gemma3_f16_64.txt", &text_of(&plan("arch/gemma3", 64, 1, ActPrecision::F32)));
}

#[test]
fn decode_q4_k_with_bytes() {
    check("decode_q4_k_q8_32.txt", &text_of(&plan("quant/Q4_K", 32, 1, ActPrecision::Q8)));
}

#[test]
fn prompt_with_matrices_of_8() {
    check("prompt_q6_k_matrices_8.txt", &text_of(&plan("quant/Q6_K", 8, 16, ActPrecision::F16)));
}

#[test]
fn prompt_with_experts_in_subgroups_of_32() {
    check("prompt_qwen3moe_32.txt", &text_of(&plan("arch/qwen3moe", 32, 24, ActPrecision::F32)));
}
