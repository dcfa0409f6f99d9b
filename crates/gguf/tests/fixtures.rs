//! Real files, written by llama.cpp's tools: the small ones of this project, and all shared ones
//! where they are present.

use std::path::{Path, PathBuf};

use zinc_gguf::{Gguf, GgufWriter, TensorType};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every GGUF file one folder below `dir`.
fn models_in(dir: &Path) -> Vec<PathBuf> {
    let read = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten();
    let folders = read(dir).map(|entry| entry.expect("a readable folder").path());
    let files = folders.flat_map(|f| read(&f)).map(|entry| entry.expect("a readable file").path());
    let mut paths: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    paths.sort();
    paths
}

#[test]
fn the_llama_fixture_reads_as_llama_cpp_wrote_it() {
    let gguf = Gguf::open(root().join("tests/data/arch/llama/model.gguf")).expect("a valid file");
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.file_bytes(), 738_304);
    assert_eq!(gguf.paths().len(), 1);

    let m = gguf.metadata();
    assert_eq!(m.iter().next().map(|(key, _)| key), Some("general.architecture"));
    assert_eq!(m.str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(m.f32("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(1e-5));
    assert_eq!(m.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    let tokens = m.strings("tokenizer.ggml.tokens").unwrap().expect("a vocabulary");
    assert_eq!(tokens.len(), 512);
    assert_eq!(&tokens[1], "\"");
    assert_eq!(m.i32s("tokenizer.ggml.token_type").unwrap().map(|v| v.len()), Some(512));

    assert_eq!(gguf.tensors().len(), 21);
    let embedding = gguf.tensor("token_embd.weight").expect("an embedding");
    assert_eq!(embedding.shape, [128, 512]);
    assert_eq!(embedding.ty, TensorType::F16);
    assert_eq!(gguf.data(embedding).len(), 128 * 512 * 2);
    assert_eq!(gguf.tensor("no such tensor"), None);
    let norm = gguf.data(gguf.tensor("output_norm.weight").expect("a norm"));
    let first = f32::from_le_bytes(norm[..4].try_into().expect("four bytes"));
    assert!(first.is_finite() && first > 0.0, "a norm weight is near 1, not {first}");
}

#[test]
fn every_quant_fixture_has_the_type_of_its_name() {
    let shared = root().join("../shared/fixtures/quant");
    let mut dirs = models_in(&root().join("tests/data/quant"));
    assert!(!dirs.is_empty(), "tests/data/quant is part of the project");
    if shared.is_dir() {
        dirs.extend(models_in(&shared));
    } else {
        println!("not run for all types: shared fixtures absent");
    }
    for path in dirs {
        let name = path.parent().and_then(Path::file_name).expect("a folder").to_string_lossy();
        let gguf = Gguf::open(&path).expect("a valid file");
        let tensor = gguf.tensor("blk.0.attn_k.weight").expect("an attention weight");
        assert_eq!(tensor.ty.name(), name);
        assert_eq!(tensor.shape, [256, 128]);
        // The file lays tensors out without gaps but for the alignment: the table's sizes must
        // lead from each tensor exactly to the next, and to the end of the file.
        let mut order: Vec<_> = gguf.tensors().iter().collect();
        order.sort_by_key(|t| t.offset);
        let ends = order.iter().skip(1).map(|t| t.offset).chain([gguf.file_bytes()]);
        for (t, end) in order.iter().zip(ends) {
            assert_eq!((t.offset + t.bytes as u64).next_multiple_of(32), end, "{name} {}", t.name);
        }
    }
}

#[test]
fn every_architecture_fixture_survives_a_round_trip() {
    let mut models = models_in(&root().join("tests/data/arch"));
    assert!(!models.is_empty(), "tests/data/arch is part of the project");
    let shared = root().join("../shared/fixtures/arch");
    if shared.is_dir() {
        models.extend(models_in(&shared));
    } else {
        println!("not run for all architectures: shared fixtures absent");
    }
    for path in models {
        let gguf = Gguf::open(&path).expect("a valid file");
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            writer.set(key, value.clone());
        }
        for t in gguf.tensors() {
            writer.tensor(&t.name, &t.shape, t.ty, gguf.data(t)).expect("a valid tensor");
        }
        // gguf-py writes the same order and padding, so the copy is the file, byte for byte.
        let copy = writer.to_bytes().expect("a valid file");
        let original = std::fs::read(&path).expect("a readable file");
        assert!(copy == original, "{} differs after a round trip", path.display());
    }
}
