//! Random kernels: they verify, their text is a fixed point and means the same; damaged text never panics.

use proptest::prelude::*;
use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
use zinc_ir::kernel::*;

/// Values that are usable at the current point.
#[derive(Clone)]
struct Pool<'b> {
    words: Vec<Val<'b>>,
    floats: Vec<Val<'b>>,
    bools: Vec<Val<'b>>,
}

/// Chooses by the bytes of the test case, then by zeros.
struct Choices<'c>(&'c mut std::slice::Iter<'c, u8>);

impl Choices<'_> {
    fn below(&mut self, n: usize) -> usize {
        *self.0.next().unwrap_or(&0) as usize % n
    }
    fn of<'b>(&mut self, values: &[Val<'b>]) -> Val<'b> {
        values[self.below(values.len())]
    }
}

const WORKGROUP: u32 = 8;

fn random_kernel(bytes: &[u8]) -> Kernel {
    let b = Builder::new("random", WORKGROUP, 4);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let n = b.arg("n", ArgKind::Word);
    let shared = b.shared("s", Type::F32, WORKGROUP);
    let mut pool = Pool {
        words: vec![b.local_id(), b.lane(), n, b.u32(5), b.tile(0)],
        floats: vec![b.f32(0.5), b.f32(-3.0)],
        bools: vec![b.lane().lt(2u32)],
    };
    let mut iter = bytes.iter();
    let mut choices = Choices(&mut iter);
    for _ in 0..6 {
        // Subgroup operations and barriers at the top, where control is uniform.
        b.shared_store(shared, b.local_id(), choices.of(&pool.floats));
        b.barrier();
        pool.floats.push(b.shared_load(shared, choices.of(&pool.words) % WORKGROUP));
        b.barrier();
        pool.floats.push(choices.of(&pool.floats).subgroup_max());
        pool.words.push(choices.of(&pool.words).shuffle_xor(choices.below(4) as u32));
        operations(&b, x, &mut choices, &mut pool, 0);
    }
    let place = (b.tile(0) * WORKGROUP + b.local_id()) * 16u32;
    let last = |v: &[Val]| v[v.len() - 1].value();
    let (word, float) = (pool.words[pool.words.len() - 1], pool.floats[pool.floats.len() - 1]);
    assert_ne!(last(&pool.words), last(&pool.floats));
    let flag = pool.bools[pool.bools.len() - 1].select(b.u32(1), b.u32(0));
    b.store(y, place, b.compose(&[word, float.bitcast(Type::U32), flag, word ^ flag]), 16);
    b.finish()
}

fn operations<'b>(b: &'b Builder, x: Val<'b>, c: &mut Choices, pool: &mut Pool<'b>, depth: u32) {
    for _ in 0..3 {
        let (w, v) = (c.of(&pool.words), c.of(&pool.words));
        let (f, g) = (c.of(&pool.floats), c.of(&pool.floats));
        match c.below(14) {
            0 => pool.words.push(w + v),
            1 => pool.words.push(w * v),
            2 => pool.words.push(w ^ (v >> 3u32)),
            3 => pool.words.push(w / (v | 1u32)),
            4 => pool.floats.push(f.min(g) - g),
            5 => pool.floats.push(b.fma(f, g, f)),
            6 => pool.floats.push((w & 1023u32).to_f32().sqrt()),
            7 => pool.floats.push(b.load(Type::F32, x, (w & 63u32) * 4u32, 4)),
            8 => pool.words.push(f.bitcast(Type::U32)),
            9 => pool.bools.push(w.lt(v)),
            10 => pool.bools.push(f.ge(g) ^ c.of(&pool.bools)),
            11 => pool.floats.push(c.of(&pool.bools).select(f, g)),
            _ if depth == 3 => {}
            12 => {
                let cond = c.of(&pool.bools);
                let (mut one, mut other) = (pool.clone(), pool.clone());
                // One set of choices for both branches would make them alike: the first eats its part.
                let cell = std::cell::RefCell::new(&mut *c);
                let results = b.if_else(
                    cond,
                    || {
                        operations(b, x, *cell.borrow_mut(), &mut one, depth + 1);
                        vec![one.words[one.words.len() - 1], one.floats[one.floats.len() - 1]]
                    },
                    || {
                        operations(b, x, *cell.borrow_mut(), &mut other, depth + 1);
                        vec![other.words[other.words.len() - 1], other.floats[other.floats.len() - 1]]
                    },
                );
                pool.words.push(results[0]);
                pool.floats.push(results[1]);
            }
            _ => {
                let end = c.of(&pool.words) & 3u32;
                let results = b.for_(b.u32(0), end, 1, &[w, f, w], |i, carried| {
                    let mut inner = pool.clone();
                    inner.words.extend([i, carried[0], carried[2]]);
                    inner.floats.push(carried[1]);
                    operations(b, x, c, &mut inner, depth + 1);
                    let words = &inner.words;
                    vec![carried[2], inner.floats[inner.floats.len() - 1], words[words.len() - 1]]
                });
                pool.words.extend([results[0], results[2]]);
                pool.floats.push(results[1]);
            }
        }
    }
}

fn outcome(kernel: &Kernel, seed: u64) -> Vec<u8> {
    let mut memory = Memory::new();
    let xs = (0..64).flat_map(|i| (i as f32 / 7.0 - 4.0).to_le_bytes()).collect();
    let x = memory.bind("x", xs, Access::Read);
    let y = memory.bind_uninitialised("y", 2 * WORKGROUP as usize * 16);
    let options = Options { seed, check_races: true };
    run(kernel, &[x, y, 3], [2, 1, 1], &mut memory, &options).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    memory.bytes(y).unwrap().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_is_a_fixed_point_and_means_the_same(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let kernel = random_kernel(&bytes);
        verify(&kernel).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
        let text = kernel.to_string();
        let parsed = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        verify(&parsed).unwrap();
        prop_assert_eq!(parsed.to_string(), text);
        prop_assert_eq!(parsed.fingerprint(), kernel.fingerprint());
        let outcomes = [outcome(&kernel, 1), outcome(&parsed, 2)];
        prop_assert_eq!(&outcomes[0], &outcomes[1]);
    }

    #[test]
    fn damaged_text_is_an_error_or_a_kernel(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        at in any::<prop::sample::Index>(),
        len in 0usize..12,
        patch in "[ -~\n]{0,6}|%[0-9]{1,2}|, |true|f32x4|for|4294967295|@s|\\$y",
    ) {
        let text = random_kernel(&bytes).to_string();
        let start = at.index(text.len());
        let end = (start + len).min(text.len());
        let damaged = format!("{}{patch}{}", &text[..start], &text[end..]);
        if let Ok(kernel) = parse(&damaged) {
            let again = parse(&kernel.to_string()).unwrap_or_else(|e| panic!("{e}\n{damaged}\n{kernel}"));
            prop_assert_eq!(again.to_string(), kernel.to_string());
            if verify_structure(&kernel).is_ok() && kernel.args.len() == 3 {
                let _ = verify(&kernel);
                // A changed bound may loop for hours: run only what surely ends.
                let loops = kernel.ops.iter().any(|op| matches!(op, Op::For { .. }));
                if !loops {
                    let mut memory = Memory::new();
                    let x = memory.bind("x", vec![0; 256], Access::Read);
                    let y = memory.bind_uninitialised("y", 2 * WORKGROUP as usize * 16);
                    let _ = run(&kernel, &[x, y, 3], [2, 1, 1], &mut memory, &Options::default());
                }
            }
        }
    }
}

/// The generator is no idle loop: it makes all it can make.
#[test]
fn random_kernels_are_rich() {
    let mut text = String::new();
    for seed in 0..40u32 {
        let bytes: Vec<u8> = (0..300u32).map(|i| ((i + seed * 300).wrapping_mul(2654435761) >> 13) as u8).collect();
        text += &random_kernel(&bytes).to_string();
    }
    for word in
        ["if ", "else", "for ", "with", "yield", "fma", "select", "load", "xor", "div", "sqrt", "bitcast", "ge "]
    {
        assert!(text.contains(word), "{word}");
    }
}
