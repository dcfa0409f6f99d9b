//! The kernels that measure: each does one thing as fast as the device can, on shapes known in advance.
//!
//! ```text
//! read   every lane: in_flight loads, then their xor           fill   16 bytes per lane and round
//! bump   y[lane] += 1, the smallest launch                     fma, dot4, matrix   independent chains in registers
//! ```
//!
//! Nothing may be optimised away: results flow into a store that happens only for one value, which is a launch argument.
//! All loops run for a number of rounds that is a launch argument too, so that one pipeline serves all lengths.

use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::{ArgKind, Builder, Kernel, MatrixMemory, Scalar, Type, Val};

/// Independent chains of the arithmetic kernels: covers latency times width of the units of known GPUs.
const CHAINS: u32 = 16;
/// Links of each chain per round: the loop's own cost is lost among them.
const LINKS: u32 = 8;
/// Independent accumulators and products per round of the matrix kernel.
const TILES: u32 = 4;
const PRODUCTS: u32 = 4;

/// Reads `[rounds][tile][in_flight][lane]` loads of `load_bytes` (4, 8 or 16). Arguments: data, result, rounds, bytes
/// that all tiles read in a round, magic. A lane whose loads have the xor `magic` stores it.
pub(super) fn read(lanes: u32, subgroup: u32, load_bytes: u32, in_flight: u32) -> Kernel {
    let b = Builder::new(format!("measure_read_{load_bytes}x{in_flight}"), lanes, subgroup);
    let (data, result) = (b.arg("data", ArgKind::Read), b.arg("result", ArgKind::Write));
    let (rounds, step) = (b.arg("rounds", ArgKind::Word), b.arg("step", ArgKind::Word));
    let magic = b.arg("magic", ArgKind::Word);
    let ty = Type::Vec(Scalar::U32, (load_bytes / 4) as u8);
    let own = b.tile(0) * (lanes * in_flight * load_bytes) + b.local_id() * load_bytes;
    let step = step.to(Scalar::U64);
    let zero = b.u32(0).splat(ty.lanes());
    let end = b.for_(b.u32(0), rounds, 1, &[data, zero], |_, carried| {
        let at = |i| b.load_at(ty, carried[0], own, i * lanes * load_bytes, load_bytes as u8, true);
        let loads: Vec<Val<'_>> = (0..in_flight).map(at).collect();
        let sum = loads.into_iter().fold(carried[1], |sum, load| sum ^ load);
        vec![carried[0] + step, sum]
    });
    let sum = (1..ty.lanes()).fold(end[1].lane(0), |sum, i| sum ^ end[1].lane(i));
    b.if_(sum.eq(magic), || b.store(result, b.local_id() * 4, sum, 4));
    b.finish()
}

/// Writes `[rounds][tile][lane]` 16 bytes each. Arguments: data, rounds, bytes per round.
pub(super) fn fill(lanes: u32, subgroup: u32) -> Kernel {
    let b = Builder::new("measure_fill", lanes, subgroup);
    let data = b.arg("data", ArgKind::Write);
    let (rounds, step) = (b.arg("rounds", ArgKind::Word), b.arg("step", ArgKind::Word));
    let lane = b.tile(0) * lanes + b.local_id();
    let step = step.to(Scalar::U64);
    b.for_(b.u32(0), rounds, 1, &[data], |round, base| {
        // Other words everywhere: equal ones could be compressed on the way.
        let word = (lane + round * 0x9e37_79b9) * 0x85eb_ca6b;
        let value = b.compose(&[word, word ^ 0x5bd1_e995, word + 0x27d4_eb2f, word * 5]);
        b.store(base[0], lane * 16, value, 16);
        vec![base[0] + step]
    });
    b.finish()
}

/// `y[lane] += 1` for every lane of the grid. Argument: y.
pub(super) fn bump(lanes: u32, subgroup: u32) -> Kernel {
    let b = Builder::new("measure_bump", lanes, subgroup);
    let y = b.arg("y", ArgKind::ReadWrite);
    let at = (b.tile(0) * lanes + b.local_id()) * 4;
    b.store(y, at, b.load_at(Type::U32, y, at, 0, 4, false) + 1, 4);
    b.finish()
}

/// `count` links on every chain, chain by chain within each: neighbours do not depend on each other.
fn linked<'b>(count: u32, chains: &[Val<'b>], link: impl Fn(Val<'b>) -> Val<'b>) -> Vec<Val<'b>> {
    (0..count).fold(chains.to_vec(), |chains, _| chains.into_iter().map(&link).collect())
}

/// Operations per lane and round of [`fma`] and [`dot4`].
pub(super) const FMA_OPERATIONS: u64 = (CHAINS * LINKS) as u64 * 2;
pub(super) const DOT4_OPERATIONS: u64 = (CHAINS * LINKS) as u64 * 8;

/// Chains of multiply-adds. Arguments: result, rounds, factor, addend (F32 bits), magic.
pub(super) fn fma(lanes: u32, subgroup: u32) -> Kernel {
    let b = Builder::new("measure_fma", lanes, subgroup);
    let result = b.arg("result", ArgKind::Write);
    let rounds = b.arg("rounds", ArgKind::Word);
    let word = |name| b.arg(name, ArgKind::Word);
    let (factor, addend, magic) = (word("factor").bitcast(Type::F32), word("addend").bitcast(Type::F32), word("magic"));
    let first: Vec<Val<'_>> = (0..CHAINS).map(|i| (b.local_id() + i).to_f32()).collect();
    let end = b.for_(b.u32(0), rounds, 1, &first, |_, chains| linked(LINKS, chains, |x| b.fma(x, factor, addend)));
    let sum = end[1..].iter().fold(end[0], |sum, x| sum + *x).bitcast(Type::U32);
    b.if_(sum.eq(magic), || b.store(result, b.local_id() * 4, sum, 4));
    b.finish()
}

/// Chains of byte dot products, each the operand and the addend of the next: with a constant operand a compiler could
/// make one product and additions of it. Arguments: result, rounds, bytes, magic.
pub(super) fn dot4(lanes: u32, subgroup: u32) -> Kernel {
    let b = Builder::new("measure_dot4", lanes, subgroup);
    let result = b.arg("result", ArgKind::Write);
    let rounds = b.arg("rounds", ArgKind::Word);
    let (bytes, magic) = (b.arg("bytes", ArgKind::Word), b.arg("magic", ArgKind::Word));
    let first: Vec<Val<'_>> = (0..CHAINS).map(|i| (b.local_id() + i).bitcast(Type::I32)).collect();
    let end = b.for_(b.u32(0), rounds, 1, &first, |_, chains| {
        linked(LINKS, chains, |x| b.dot4(x.bitcast(Type::U32), bytes, x, true))
    });
    let sum = end[1..].iter().fold(end[0], |sum, x| sum + *x).bitcast(Type::U32);
    b.if_(sum.eq(magic), || b.store(result, b.local_id() * 4, sum, 4));
    b.finish()
}

/// Operations per subgroup and round of [`matrix`].
pub(super) fn matrix_operations(s: MatrixShape) -> u64 {
    2 * s.m as u64 * s.n as u64 * s.k as u64 * (TILES * PRODUCTS) as u64
}

/// Accumulators of every subgroup, multiplied into in turn. Arguments: result, rounds, element (F32 bits), keep: with 1,
/// the accumulators are stored.
pub(super) fn matrix(lanes: u32, subgroup: u32, s: MatrixShape) -> Kernel {
    let b = Builder::new(format!("measure_matrix_{}x{}x{}", s.m, s.n, s.k), lanes, subgroup);
    let result = b.arg("result", ArgKind::Write);
    let rounds = b.arg("rounds", ArgKind::Word);
    let (element, keep) = (b.arg("element", ArgKind::Word).bitcast(Type::F32), b.arg("keep", ArgKind::Word));
    let [a, bt, acc] = Caps::matrix_types(s);
    let left = b.matrix_splat(a, element.to(s.input));
    let right = b.matrix_splat(bt, element.to(s.input));
    let first: Vec<Val<'_>> = (0..TILES).map(|i| b.matrix_splat(acc, (element * (i + 1)).to(s.acc))).collect();
    let end = b.for_(b.u32(0), rounds, 1, &first, |_, tiles| {
        linked(PRODUCTS, tiles, |sum| b.matrix_mul_add(left, right, sum))
    });
    b.if_(keep.eq(1), || {
        for (i, sum) in end.iter().enumerate() {
            let offset = b.u32(i as u32 * s.m as u32 * s.n as u32 * 4).value();
            let memory = MatrixMemory::Global { base: result.value(), offset };
            b.matrix_store(*sum, memory, b.u32(s.n as u32), false);
        }
    });
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::interpret::{Access, Memory, Options, run};

    const LANES: u32 = 8;

    /// Every lane finds the xor of exactly its own loads, so all bytes are read, each once.
    #[test]
    fn reads_cover_the_data() {
        let (tiles, rounds) = (2u32, 3u32);
        for (load_bytes, in_flight) in [(4, 1), (8, 2), (16, 1), (16, 4)] {
            let kernel = read(LANES, 4, load_bytes, in_flight);
            zinc_ir::kernel::verify(&kernel).expect("sound");
            let step = tiles * LANES * in_flight * load_bytes;
            let words: Vec<u32> = (0..step * rounds / 4).map(|i| (i + 1).wrapping_mul(0x9e37_79b9)).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let per_load = load_bytes / 4;
            for lane in 0..tiles * LANES {
                let mine = |word: &u32| {
                    let load = word % (step / 4) / per_load;
                    (load / (LANES * in_flight), load % LANES) == (lane / LANES, lane % LANES)
                };
                let magic = (0..words.len() as u32).filter(mine).fold(0, |sum, i| sum ^ words[i as usize]);
                let mut memory = Memory::new();
                let data = memory.bind("data", bytes.clone(), Access::Read);
                let result = memory.bind("result", vec![0; 4 * LANES as usize], Access::ReadWrite);
                let args = [data, result, rounds.into(), step.into(), magic.into()];
                run(&kernel, &args, [tiles, 1, 1], &mut memory, &Options::default()).expect("runs");
                let at = (lane % LANES * 4) as usize;
                let stored = &memory.bytes(result).expect("bound")[at..at + 4];
                assert_eq!(stored, magic.to_le_bytes(), "{load_bytes} x {in_flight}, lane {lane}");
            }
        }
    }

    #[test]
    fn fills_and_chains_compute() {
        let mut memory = Memory::new();
        let data = memory.bind("data", vec![0; 2 * 3 * 8 * 16], Access::ReadWrite);
        let args = [data, 3, 2 * 8 * 16];
        run(&fill(LANES, 4), &args, [2, 1, 1], &mut memory, &Options::default()).expect("runs");
        assert!(memory.bytes(data).expect("bound").chunks(16).skip(1).all(|c| c.iter().any(|b| *b != 0)));
        let y = memory.bind("y", vec![0; 64], Access::ReadWrite);
        run(&bump(LANES, 4), &[y], [2, 1, 1], &mut memory, &Options::default()).expect("runs");
        assert_eq!(memory.bytes(y).expect("bound"), [1, 0, 0, 0].repeat(16));
        let one = 1f32.to_bits() as u64;
        // x·1 + 1, LINKS times per round: 16 chains from lane + i end at lane + i + 16; the sum over i of lane 0 is 376.
        let result = memory.bind("result", vec![0; 32], Access::ReadWrite);
        let args = [result, 2, one, one, 376f32.to_bits() as u64];
        run(&fma(LANES, 4), &args, [1, 1, 1], &mut memory, &Options::default()).expect("runs");
        assert_eq!(memory.bytes(result).expect("bound")[..4], 376f32.to_le_bytes());
        // No byte is multiplied by 0: the chains keep their first value, 0 to 15 in lane 0.
        let args = [result, 2, 0, 120];
        run(&dot4(LANES, 4), &args, [1, 1, 1], &mut memory, &Options::default()).expect("runs");
        assert_eq!(memory.bytes(result).expect("bound")[..4], 120u32.to_le_bytes());
    }

    #[test]
    fn matrix_chains_add_up() {
        let shape = MatrixShape { m: 8, n: 8, k: 8, input: Scalar::F16, acc: Scalar::F32 };
        let kernel = matrix(4, 4, shape);
        zinc_ir::kernel::verify(&kernel).expect("sound");
        let mut memory = Memory::new();
        let result = memory.bind("result", vec![0; TILES as usize * 256], Access::ReadWrite);
        let half = 0.5f32.to_bits() as u64;
        run(&kernel, &[result, 2, half, 1], [1, 1, 1], &mut memory, &Options::default()).expect("runs");
        // Each product adds 8 · 1/4, eight of them in two rounds.
        let first = f32::from_le_bytes(memory.bytes(result).expect("bound")[..4].try_into().expect("four bytes"));
        assert_eq!(first, 0.5 + 2.0 * (2 * PRODUCTS) as f32);
    }
}
