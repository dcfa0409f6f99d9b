//! The models of tests/data: what `open` makes of them.

use std::f64::consts::PI;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zinc_gguf::Gguf;
use zinc_ir::device::WeightSource;
use zinc_ir::graph::{Activation, AttentionSpec, Op, Pairing, WeightId};
use zinc_models::{Experts, GgufWeights, Model, ModelError, ModelSpec, RopeScaling, open};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(name: &str) -> Gguf {
    Gguf::open(root().join(format!("tests/data/arch/{name}/model.gguf"))).unwrap()
}

fn model(name: &str) -> Model {
    open(&file(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn numbers(spec: &ModelSpec) -> [u32; 8] {
    let s = spec;
    [s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.ffn, s.vocab, s.context]
}

fn attentions(model: &Model) -> Vec<AttentionSpec> {
    let specs = model.graph.nodes().iter().filter_map(|n| match n.op {
        Op::Attention { spec, .. } => Some(spec),
        _ => None,
    });
    specs.collect()
}

fn count(model: &Model, is: fn(&Op) -> bool) -> usize {
    model.graph.nodes().iter().filter(|n| is(&n.op)).count()
}

/// Frequencies without scaling.
fn plain(base: f64, dims: usize) -> Vec<f64> {
    (0..dims / 2).map(|i| 1.0 / base.powf((2 * i) as f64 / dims as f64)).collect()
}

fn assert_close(found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((*f as f64 - e).abs() <= 1e-6 * e, "pair {i}: {f} instead of {e}");
    }
}

#[test]
fn llama_has_llama3_scaling_and_tied_embeddings() {
    let m = model("llama");
    assert_eq!(numbers(&m.spec), [2, 128, 4, 2, 32, 256, 512, 4096]);
    assert!(m.spec.tied && !m.spec.has("output.weight"));
    assert_eq!((m.spec.norm_eps, m.spec.embedding_scale), (1e-5, 1.0));
    let rules = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 32, scale: 1.0 / 32_f32.sqrt(), window: None };
    assert_eq!(attentions(&m), [rules, rules]);
    // llama3's rule in terms of wavelengths; the numbers are those of the fixture's config.json.
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 64.0);
    let scaled = plain(10000.0, 32).into_iter().map(|f| {
        let wavelength = 2.0 * PI / f;
        if wavelength < original / high {
            f
        } else if wavelength > original / low {
            f / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * f / factor + smooth * f
        }
    });
    let [rope] = m.graph.ropes() else { panic!("one table") };
    assert_close(&rope.inv_freq, &scaled.collect::<Vec<_>>());
    assert_eq!(rope.magnitude, 1.0);
}

#[test]
fn llama_linear_divides_all_frequencies() {
    let m = model("llama_linear");
    assert!(!m.spec.tied && m.spec.has("output.weight"));
    assert_eq!(m.spec.rope.scaling, RopeScaling::Linear { factor: 4.0 });
    let expected: Vec<f64> = plain(10000.0, 32).iter().map(|f| f / 4.0).collect();
    assert_close(&m.graph.ropes()[0].inv_freq, &expected);
    assert_eq!(m.graph.weight_of(WeightId(m.graph.weights().len() as u32 - 1)).name, "output.weight");
}

#[test]
fn qwen2_has_biases() {
    let m = model("qwen2");
    assert_eq!(numbers(&m.spec)[..7], [2, 128, 4, 2, 32, 256, 512]);
    assert_eq!(count(&m, |op| matches!(op, Op::Bias { .. })), 6);
    assert_eq!(m.spec.norm_eps, 1e-6);
}

#[test]
fn qwen2_yarn_blends_frequencies_and_raises_the_magnitude() {
    let m = model("qwen2_yarn");
    let (factor, original, base, dims) = (4.0, 32.0, 10000.0_f64, 32.0);
    // The paper's ramp (gamma), its ends rounded outward.
    let at = |turns: f64| dims * (original / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (low, high) = (at(32.0).floor().max(0.0), at(1.0).ceil().min(dims - 1.0));
    let expected = plain(base, 32).into_iter().enumerate().map(|(i, f)| {
        let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        f / factor * interpolated + f * (1.0 - interpolated)
    });
    let [rope] = m.graph.ropes() else { panic!("one table") };
    assert_close(&rope.inv_freq, &expected.collect::<Vec<_>>());
    assert!((rope.magnitude as f64 - (1.0 + 0.1 * 4_f64.ln())).abs() < 1e-7);
}

#[test]
fn qwen3_norms_heads_that_do_not_divide_the_width() {
    let m = model("qwen3");
    assert_eq!(numbers(&m.spec), [2, 128, 4, 2, 48, 256, 512, 4096]);
    let head_norms = |op: &Op| matches!(op, Op::RmsNorm { group: 48, .. });
    assert_eq!(count(&m, head_norms), 4);
    assert_close(&m.graph.ropes()[0].inv_freq, &plain(1e6, 48));
}

#[test]
fn qwen3moe_has_experts_in_every_layer() {
    let m = model("qwen3moe");
    assert_eq!(numbers(&m.spec), [2, 128, 4, 2, 32, 256, 512, 4096]);
    assert_eq!(m.spec.experts, Some(Experts { count: 8, used: 2, ffn: 32 }));
    let columns = |is: fn(&Op) -> bool| {
        let nodes = m.graph.nodes().iter().filter(|n| is(&n.op)).map(|n| n.shape.cols);
        nodes.collect::<Vec<_>>()
    };
    assert_eq!(columns(|op| matches!(op, Op::Route { k: 2, .. })), [4, 4]);
    assert_eq!(columns(|op| matches!(op, Op::ExpertMatMul { .. })), [64, 64, 256, 64, 64, 256]);
    assert_eq!(columns(|op| matches!(op, Op::ExpertSum { .. })), [128, 128]);
    assert_eq!(m.spec.tensors["blk.1.ffn_down_exps.weight"].rows, 8 * 128);
    // Of each layer's experts, two in eight are read.
    let experts: u64 = m.spec.tensors.iter().filter(|t| t.0.contains("_exps.")).map(|t| t.1.bytes()).sum();
    let table = m.spec.tensors["token_embd.weight"].bytes();
    assert_eq!(m.spec.bytes_per_token(), m.spec.weight_bytes() - table + table / 512 - experts / 8 * 6);
}

#[test]
fn gemma3_has_windows_two_ropes_and_scaled_embeddings() {
    let m = model("gemma3");
    assert_eq!(numbers(&m.spec), [6, 128, 4, 2, 32, 128, 512, 4096]);
    let windows: Vec<_> = attentions(&m).iter().map(|a| a.window).collect();
    assert_eq!(windows, [Some(8), Some(8), Some(8), Some(8), Some(8), None]);
    let [local, global] = m.graph.ropes() else { panic!("two tables") };
    assert_close(&local.inv_freq, &plain(1e4, 32));
    assert_close(&global.inv_freq, &plain(1e6, 32).iter().map(|f| f / 8.0).collect::<Vec<_>>());
    assert!(matches!(m.graph.nodes()[1].op, Op::Scale { factor, .. } if factor == 128_f32.sqrt()));
    assert_eq!(count(&m, |op| matches!(op, Op::Glu { act: Activation::GeluTanh, .. })), 6);
    // Six norms a layer, and the last.
    assert_eq!(count(&m, |op| matches!(op, Op::RmsNorm { .. })), 6 * 6 + 1);
}

#[test]
fn pairs_are_as_the_architecture_has_them() {
    for (name, expected) in [("llama", Pairing::Adjacent), ("qwen2", Pairing::Halves), ("qwen3", Pairing::Halves)] {
        let m = model(name);
        let pairings = m.graph.nodes().iter().filter_map(|n| match n.op {
            Op::Rope { pairing, .. } => Some(pairing),
            _ => None,
        });
        assert_eq!(pairings.collect::<Vec<_>>(), [expected; 4], "{name}");
    }
}

#[test]
fn text_forms_stay() {
    for name in ["qwen2_yarn", "qwen3moe"] {
        let m = model(name);
        let found = format!("{}\n{}", m.spec, m.graph);
        let path = root().join(format!("crates/models/tests/snapshots/{name}.txt"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        assert_eq!(found, std::fs::read_to_string(path).unwrap(), "BLESS=1 accepts the new text");
    }
}

#[test]
fn weights_are_the_bytes_of_the_file() {
    for name in ["llama", "qwen2", "gemma3"] {
        let gguf = Arc::new(file(name));
        let graph = open(&gguf).unwrap().graph;
        let weights = GgufWeights::new(gguf.clone(), &graph).unwrap();
        for (i, w) in graph.weights().iter().enumerate() {
            let bytes = weights.bytes(WeightId(i as u32)).unwrap();
            assert_eq!(bytes.len() as u64, w.bytes());
            assert!(std::ptr::eq(bytes, gguf.data(gguf.tensor(&w.name).unwrap())), "{}", w.name);
        }
        assert!(weights.bytes(WeightId(graph.weights().len() as u32)).is_none());
    }
    let foreign = GgufWeights::new(Arc::new(file("qwen2")), &model("qwen3").graph);
    assert!(matches!(foreign, Err(ModelError::ForeignGraph { .. })));
}

#[test]
fn quantized_models_keep_their_formats() {
    for format in zinc_ir::quant::FORMATS {
        let path = root().join(format!("tests/data/quant/{}/model.gguf", format.name));
        if !path.exists() {
            continue;
        }
        let m = open(&Gguf::open(path).unwrap()).unwrap();
        let matrices = m.graph.weights().iter().filter(|w| w.rows > 1);
        assert_eq!(matrices.clone().count(), 16, "{format:?}");
        assert!(matrices.clone().all(|w| w.format == *format), "{format:?}");
    }
}

#[test]
fn real_models_open() {
    for (name, numbers_expected) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", [30, 576, 9, 3, 64, 1536, 49152, 8192]),
        ("gemma-3-270m-q4_k_m.gguf", [18, 640, 4, 1, 256, 2048, 262144, 32768]),
    ] {
        let path = root().join("target/zinc-test/models").join(name);
        if !path.exists() {
            println!("not run: {name} is not there; the test setup gets it");
            continue;
        }
        let gguf = Arc::new(Gguf::open(path).unwrap());
        let m = open(&gguf).unwrap();
        assert_eq!(numbers(&m.spec), numbers_expected);
        GgufWeights::new(gguf, &m.graph).unwrap();
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    let folder = root().join("../shared/fixtures/arch");
    if !folder.exists() {
        println!("not run: shared fixtures absent");
        return;
    }
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().join("model.gguf");
        if !path.exists() {
            continue;
        }
        let gguf = Gguf::open(&path).unwrap();
        let architecture = gguf.metadata().str("general.architecture").unwrap().unwrap();
        match (architecture, open(&gguf)) {
            ("llama" | "qwen2" | "qwen3" | "qwen3moe" | "gemma3", Ok(m)) => {
                assert_eq!(m.spec.architecture, architecture);
            }
            ("llama", Err(e)) => assert!(path.ends_with("mixtral/model.gguf"), "{path:?}: {e}"),
            (_, Err(e)) => {
                let supported = "supported are: llama, qwen2, qwen3, qwen3moe, gemma3";
                assert_eq!(e.to_string(), format!("architecture \"{architecture}\" is not supported; {supported}"));
            }
            (_, Ok(_)) => panic!("{path:?} opened"),
        }
    }
}
