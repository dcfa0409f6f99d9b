//! Every weight format's plain decoder against ggml's own, bit for bit, on files that llama.cpp's
//! quantizer wrote; and the device layout against the file's.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use zinc_gguf::{Gguf, TensorType};
use zinc_ir::quant::{FORMATS, QuantFormat, by_ggml_type, by_name};

const TENSOR: &str = "blk.0.attn_k.weight";

/// The fixture's folder, its bytes of [`TENSOR`] and ggml's values for them.
fn fixture(name: &str) -> (Vec<u8>, Vec<f32>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/quant").join(name);
    let gguf = Gguf::open(model(&dir)).expect("a valid fixture");
    let tensor = gguf.tensor(TENSOR).expect("the tensor");
    assert_eq!((tensor.ty.name(), tensor.shape.as_slice()), (name, &[256, 128][..]));

    let file = std::fs::read(dir.join("expected.safetensors")).expect("the expected values");
    let expected = SafeTensors::deserialize(&file).expect("a valid safetensors file");
    let values = expected.tensor("dequant").expect("the dequantized tensor");
    assert_eq!(values.shape(), [128, 256]);
    let values = values.data().as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    (gguf.data(tensor).to_vec(), values)
}

/// The whole model, or only the one tensor where the model is large.
fn model(dir: &Path) -> PathBuf {
    let whole = dir.join("model.gguf");
    if whole.is_file() { whole } else { dir.join("tensor.gguf") }
}

fn exact(format: &QuantFormat) {
    let (bytes, expected) = fixture(format.name);
    // NaN: a value that the decoder does not write cannot pass.
    let mut values = vec![f32::NAN; expected.len()];
    format.decode(&bytes, &mut values);
    for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
        assert_eq!(value.to_bits(), expected.to_bits(), "{} value {i}: {value} instead of {expected}", format.name);
    }
}

/// One test for each format, so that a failure names it and hides no other.
macro_rules! exact {
    ($($test:ident $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                exact(by_name($name).expect("a format of this name"));
            }
        )*

        #[test]
        fn every_format_has_a_test() {
            let tested = [$($name),*];
            for format in FORMATS {
                assert!(tested.contains(&format.name), "{} has no test here", format.name);
            }
        }
    };
}

exact! {
    f32 "F32", f16 "F16", bf16 "BF16", q4_0 "Q4_0", q4_1 "Q4_1", q5_0 "Q5_0", q5_1 "Q5_1",
    q8_0 "Q8_0", q3_k "Q3_K", q4_k "Q4_K", q5_k "Q5_K", q6_k "Q6_K", iq3_xxs "IQ3_XXS",
    iq3_s "IQ3_S", iq4_nl "IQ4_NL", iq4_xs "IQ4_XS", mxfp4 "MXFP4",
}

#[test]
fn rows_agree_with_the_file_format() {
    for format in FORMATS {
        let ty = TensorType::from_id(format.ggml_type).expect("a type of GGUF");
        assert_eq!(ty.name(), format.name);
        assert_eq!(ty.block_elements(), format.block_elems as usize);
        assert_eq!(ty.block_bytes(), format.block_bytes as usize);
        assert_eq!(by_ggml_type(ty.id()), Some(*format));
    }
}

#[test]
fn planes_hold_every_byte_of_the_file_once() {
    for format in FORMATS {
        let (bytes, _) = fixture(format.name);
        let block = format.device_block_bytes() as usize;
        let (starts, total) = format.plane_offsets((bytes.len() / block) as u64);
        let repacked = format.repack(&bytes);
        assert_eq!(repacked.len() as u64, total);

        // Back into the file's order; a byte in no plane would stay missing.
        let mut file: Vec<Option<u8>> = vec![None; bytes.len()];
        for (plane, start) in format.planes.iter().zip(starts) {
            assert!(start.is_multiple_of(16));
            for (i, back) in file.chunks_exact_mut(block).enumerate() {
                for b in 0..plane.bytes as usize {
                    let slot = &mut back[plane.offset as usize + b];
                    assert_eq!(*slot, None, "{} stores a byte twice", format.name);
                    *slot = Some(repacked[start as usize + i * plane.bytes as usize + b]);
                }
            }
        }
        let file: Option<Vec<u8>> = file.into_iter().collect();
        assert!(file.as_deref() == Some(&bytes[..]), "{} loses bytes", format.name);
    }
}
