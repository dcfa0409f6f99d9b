//! Any bytes, read as a GGUF file: no panic, no huge allocation; and what opens can be written and
//! reads back the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zinc_gguf::{Gguf, GgufWriter};

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else {
        return;
    };
    lookups(&gguf);
    let copy = rewrite(&gguf);
    let again = Gguf::from_bytes(copy.clone()).expect("the writer writes valid files");
    // Compared as bytes, since a NaN in the metadata is not equal to itself.
    assert!(rewrite(&again) == copy);
    for t in gguf.tensors() {
        let twin = again.tensor(&t.name).expect("the same tensors");
        assert_eq!((&t.shape, t.ty), (&twin.shape, twin.ty));
        assert_eq!(gguf.data(t), again.data(twin));
    }
});

/// Every kind of lookup on every key.
fn lookups(gguf: &Gguf) {
    let m = gguf.metadata();
    for (key, value) in m.iter() {
        assert_eq!(m.get(key).map(|v| v.ty()), Some(value.ty()));
        let _ = (m.u32(key), m.i32(key), m.u64(key), m.usize(key), m.f32(key), m.bool(key));
        let _ = (m.str(key), m.f32s(key), m.bools(key), m.i32s(key), m.u32s(key));
        let _ = m.u32_per_layer(key, 5);
        if let Ok(Some(strings)) = m.strings(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
    }
}

fn rewrite(gguf: &Gguf) -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.set_version(gguf.version()).expect("a readable version");
    for (key, value) in gguf.metadata().iter() {
        w.set(key, value.clone());
    }
    for t in gguf.tensors() {
        w.tensor(&t.name, &t.shape, t.ty, gguf.data(t)).expect("a readable tensor");
    }
    w.to_bytes().expect("readable names and alignment")
}
