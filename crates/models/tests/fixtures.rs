//! The models of tests/data: what `open` makes of them.

use std::path::{Path, PathBuf};
use zinc_gguf::Gguf;
use zinc_ir::graph::{Op, Pairing};
use zinc_models::{Model, RopeScaling, open};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

fn model(name: &str) -> Model {
    let gguf = Gguf::open(data(&format!("arch/{name}/model.gguf"))).unwrap();
    open(&gguf).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn llama_has_the_numbers_of_its_configuration() {
    let Model { spec, graph } = model("llama");
    let numbers =
        [spec.layers, spec.width, spec.heads, spec.kv_heads, spec.head_dim, spec.ffn, spec.vocab, spec.context];
    assert_eq!(numbers, [2, 128, 4, 2, 32, 256, 512, 4096]);
    assert!(spec.tied);
    assert_eq!(spec.norm_eps, 1e-5);
    assert_eq!(spec.rope.divisors.len(), 16);
    assert_eq!(graph.kv().len(), 2);
    println!("{spec}\n{graph}");
    assert!(matches!(graph.nodes()[2].op, Op::MatMul { .. }));
}

#[test]
fn each_architecture_opens() {
    for (name, pairing) in [
        ("llama", Pairing::Adjacent),
        ("llama_linear", Pairing::Adjacent),
        ("qwen2", Pairing::Halves),
        ("qwen2_yarn", Pairing::Halves),
        ("qwen3", Pairing::Halves),
        ("gemma3", Pairing::Halves),
    ] {
        let Model { spec, graph } = model(name);
        println!("{spec}\n{graph}");
        let all = graph.nodes().iter().filter_map(|n| match n.op {
            Op::Rope { pairing, .. } => Some(pairing),
            _ => None,
        });
        assert!(all.clone().count() == 2 * spec.layers as usize && all.clone().all(|p| p == pairing), "{name}");
    }
    assert_eq!(model("llama_linear").spec.rope.scaling, RopeScaling::Linear { factor: 4.0 });
}
