//! Properties: what is written reads back the same, and no bytes at all make the reader panic.

use proptest::collection::vec;
use proptest::prelude::*;
use zinc_gguf::{Array, Gguf, GgufWriter, Strings, TensorType, Value};

fn flat_array() -> impl Strategy<Value = Array> {
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<String>(), 0..9).prop_map(|v| Array::String(v.iter().collect::<Strings>())),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    flat_array().prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        array().prop_map(Value::Array),
    ]
}

/// A tensor's type, shape and first data byte.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<usize>, u8)> {
    let types: Vec<_> = TensorType::all().collect();
    (proptest::sample::select(types), vec(1_usize..4, 0..5), any::<u8>()).prop_map(|(ty, mut shape, byte)| {
        match shape.first_mut() {
            Some(row) => *row *= ty.block_elements(),
            None if ty.block_elements() > 1 => shape.push(ty.block_elements()),
            None => {}
        }
        (ty, shape, byte)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_reads_back(
        version in 2_u32..4,
        alignment in proptest::option::of(3_u32..8),
        entries in vec((any::<String>(), value()), 0..6),
        tensors in vec(tensor(), 0..5),
    ) {
        let mut w = GgufWriter::new();
        w.set_version(version).unwrap();
        for (i, (key, value)) in entries.iter().enumerate() {
            w.set(format!("{key}.{i}"), value.clone());
        }
        if let Some(power) = alignment {
            w.set_alignment(1 << power);
        }
        for (i, (ty, shape, byte)) in tensors.iter().enumerate() {
            let bytes = ty.bytes_for(shape.iter().product()).unwrap();
            w.tensor(format!("t{i}"), shape, *ty, vec![*byte; bytes]).unwrap();
        }
        let bytes = w.to_bytes().unwrap();
        let gguf = Gguf::from_bytes(bytes.clone()).unwrap();

        prop_assert_eq!(gguf.version(), version);
        prop_assert_eq!(gguf.metadata().len(), entries.len() + usize::from(alignment.is_some()));
        for ((key, read), (i, (wrote, value))) in gguf.metadata().iter().zip(entries.iter().enumerate()) {
            prop_assert_eq!(key, format!("{}.{}", wrote, i));
            // NaN is not itself; the bytes compared below cover it.
            let same = read == value || format!("{read:?}") == format!("{value:?}");
            prop_assert!(same);
        }
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (i, (ty, shape, byte)) in tensors.iter().enumerate() {
            let t = gguf.tensor(&format!("t{i}")).unwrap();
            prop_assert_eq!((t.ty, &t.shape), (*ty, shape));
            prop_assert!(gguf.data(t).iter().all(|b| b == byte));
        }

        let mut again = GgufWriter::new();
        again.set_version(version).unwrap();
        for (key, value) in gguf.metadata().iter() {
            again.set(key, value.clone());
        }
        for t in gguf.tensors() {
            again.tensor(&t.name, &t.shape, t.ty, gguf.data(t)).unwrap();
        }
        prop_assert_eq!(again.to_bytes().unwrap(), bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..256)) {
        let _ = Gguf::from_bytes(bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_valid_start_never_panic(
        version in 2_u32..4, tensors in 0_u64..3, keys in 0_u64..4, rest in vec(any::<u8>(), 0..512)
    ) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(keys.to_le_bytes());
        bytes.extend(rest);
        let _ = Gguf::from_bytes(bytes);
    }
}
