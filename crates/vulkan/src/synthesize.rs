//! Kernels that make synthetic weights in place, by the definition in `zinc_ir::synthetic`.
//!
//! ```text
//! Recipe ─► one kernel per field ─launched over all blocks─► the field's bytes in its plane
//! ```

use zinc_ir::kernel::{ArgKind, Builder, Kernel, Scalar, Type, Val};
use zinc_ir::quant::Plane;
use zinc_ir::synthetic::{Field, Fill};

/// One lane's share: a word of the field, or all of a shorter one.
pub(crate) fn items_per_block(field: &Field) -> u32 {
    (field.bytes / 4).max(1)
}

/// The plane that holds a field.
pub(crate) fn plane_of<'p>(planes: &'p [Plane], field: &Field) -> Option<(usize, &'p Plane)> {
    let holds = |p: &Plane| p.offset <= field.offset && field.offset + field.bytes <= p.offset + p.bytes;
    planes.iter().enumerate().find(|(_, p)| holds(p))
}

/// Fills `field` of consecutive blocks. Arguments: address of the first block's part of the plane; number of items
/// ([`items_per_block`] each); the first block's number; low and high half of the seed.
pub(crate) fn synthesize(field: &Field, plane: &Plane, lanes: u32, subgroup_size: u32) -> Kernel {
    let b = Builder::new(format!("synthesize_{}_{}", field.offset, field.bytes), lanes, subgroup_size);
    let to = b.arg("to", ArgKind::Write);
    let [count, first, low, high] = ["count", "first", "low", "high"].map(|name| b.arg(name, ArgKind::Word));
    let index = b.tile(0) * lanes + b.local_id();
    b.if_(index.lt(count), || {
        let per_block = items_per_block(field);
        let (block, i) = (index / per_block, index % per_block);
        let key = mix(mix((block + first) ^ low) ^ high);
        let inside = field.offset - plane.offset;
        let at = block * plane.bytes + i * 4 + inside;
        let align = 1 << (plane.bytes | inside).trailing_zeros().min(2);
        store(&b, to, at, content(&b, field, key, i), field.bytes.min(4), align);
    });
    b.finish()
}

/// Word `i` of a field, as `Field::word`.
fn content<'b>(b: &'b Builder, field: &Field, key: Val<'b>, i: Val<'b>) -> Val<'b> {
    let w = |i: Val<'b>| mix(key + (i + (field.offset / 4 + 1)) * 0x9e37_79b9);
    let sub = |w: Val<'b>| (w & 0x0303_0303) + 0x0202_0202;
    match field.fill {
        Fill::Quants { set, clear } => (w(i) & !clear) | set,
        Fill::Scale { halves } => pick(key, halves.map(|h| b.u32(h as u32))),
        Fill::Constant { word } => b.u32(word),
        Fill::Exponent { base, up } => (key >> 24).lt(up).select(b.u32(base as u32 + 1), b.u32(base as u32)),
        Fill::ScaleMin { pairs } => pick(key, pairs.map(|p| b.u32(p))),
        Fill::PackedScales => i.lt(2).select(sub(w(b.u32(0))), sub(w(b.u32(1))) * 0x11),
        Fill::ByteScales => sub(w(i)),
        Fill::Floats { sign, base, mask } => {
            let w = w(i);
            (w & sign) | ((w & mask) + base)
        }
    }
}

/// As `zinc_ir::synthetic::mix`.
fn mix(x: Val<'_>) -> Val<'_> {
    let x = (x ^ (x >> 16)) * 0x7feb_352d;
    let x = (x ^ (x >> 15)) * 0x846c_a68b;
    x ^ (x >> 16)
}

/// One of four by the key's low bits.
fn pick<'b>(key: Val<'b>, [a, b, c, d]: [Val<'b>; 4]) -> Val<'b> {
    let (odd, upper) = ((key & 1).ne(0), (key & 2).ne(0));
    upper.select(odd.select(d, c), odd.select(b, a))
}

/// Stores the low `bytes` of a word in pieces that are aligned.
fn store<'b>(b: &'b Builder, to: Val<'b>, at: Val<'b>, word: Val<'b>, bytes: u32, align: u32) {
    let piece = bytes.min(align);
    let scalar = match piece {
        4 => Scalar::U32,
        2 => Scalar::U16,
        _ => Scalar::U8,
    };
    let parts = word.bitcast(Type::Vec(scalar, (4 / piece) as u8));
    for i in 0..bytes / piece {
        b.store(to, at + i * piece, parts.lane(i as u8), piece as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::kernel::interpret::{Access, Memory, Options, run};
    use zinc_ir::quant::FORMATS;
    use zinc_ir::synthetic::Recipe;

    /// In two launches, the second of which starts at a later block.
    #[test]
    fn kernels_make_the_defined_bytes() {
        for format in FORMATS {
            let (blocks, seed, lanes) = (21, 0x1234_5678_9abc_def0_u64, 32);
            let recipe = Recipe::matrix(format, 4096);
            let mut bytes = vec![0; (blocks * format.device_block_bytes()) as usize];
            recipe.fill(seed, 0, &mut bytes);
            let expected = format.repack(&bytes);
            let (starts, total) = format.plane_offsets(blocks as u64);
            let mut memory = Memory::new();
            let to = memory.bind("planes", vec![0; total as usize], Access::ReadWrite);
            for field in &recipe.fields {
                let (plane, p) = plane_of(format.planes, field).expect("no field crosses planes");
                let kernel = synthesize(field, p, lanes, 16);
                for (first, count) in [(0, 8), (8, blocks - 8)] {
                    let address = to + starts[plane] + (first * p.bytes) as u64;
                    let items = count * items_per_block(field);
                    let args = [address, items as u64, first as u64, seed & 0xffff_ffff, seed >> 32];
                    run(&kernel, &args, [items.div_ceil(lanes), 1, 1], &mut memory, &Options::default())
                        .unwrap_or_else(|fault| panic!("{}: {fault}", format.name));
                }
            }
            assert!(memory.bytes(to) == Some(&expected[..]), "{}", format.name);
        }
    }
}
