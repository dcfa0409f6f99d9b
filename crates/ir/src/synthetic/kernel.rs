//! The same bytes made on the device: one launch per plane of the device layout.

use super::{Field, Fill, Recipe};
use crate::kernel::{ArgKind, Builder, Kernel, Scalar, Val};
use crate::quant::{QuantFormat, repack::LANES};

/// Fills plane `plane` of `blocks` blocks. Arguments: `dst` (the plane's start), words `seed_low`, `seed_high`,
/// `blocks`. Grid: [`grid`].
pub fn kernel(format: &QuantFormat, recipe: &Recipe, plane: usize, subgroup_size: u32) -> Kernel {
    let part = format.planes[plane];
    let name = format!("synthetic_{}_{plane}", format.name.to_lowercase());
    let b = Builder::new(name, LANES.max(subgroup_size), subgroup_size);
    let dst = b.arg("dst", ArgKind::Write);
    let [low, high, blocks] = ["seed_low", "seed_high", "blocks"].map(|name| b.arg(name, ArgKind::Word));
    let item = item_bytes(part.bytes);
    let per_block = part.bytes / item;
    let i = (b.tile(1) * ROW + b.tile(0)) * LANES + b.local_id();
    b.if_(i.lt(blocks * per_block), || {
        let key = emit_mix(emit_mix((i / per_block) ^ low) ^ high);
        let at = i % per_block * item + part.offset;
        let fields = recipe.fields.iter().filter(|f| f.offset >= part.offset && f.offset < part.offset + part.bytes);
        let value = fields.fold(None, |chosen: Option<Val<'_>>, field| {
            let value = emit_word(&b, field, key, at);
            Some(chosen.map_or(value, |before| at.ge(field.offset).select(value, before)))
        });
        let value = value.expect("every plane has a field");
        match item {
            2 => b.store(dst, i * 2, value.to(Scalar::U16), 2),
            _ => b.store(dst, i * 4, value, 4),
        }
    });
    b.finish()
}

/// Workgroups along the first grid axis before the second is used.
const ROW: u32 = 32768;

/// Tiles of [`kernel`].
pub fn grid(format: &QuantFormat, plane: usize, blocks: u32) -> [u32; 3] {
    let bytes = format.planes[plane].bytes;
    let tiles = (blocks * (bytes / item_bytes(bytes))).div_ceil(LANES);
    [tiles.min(ROW), tiles.div_ceil(ROW), 1]
}

/// What one lane writes: a word, or the half of a lone scale.
fn item_bytes(plane_bytes: u32) -> u32 {
    if plane_bytes.is_multiple_of(4) { 4 } else { 2 }
}

fn emit_mix(x: Val<'_>) -> Val<'_> {
    let x = (x ^ (x >> 16)) * 0x7feb_352d;
    let x = (x ^ (x >> 15)) * 0x846c_a68b;
    x ^ (x >> 16)
}

/// [`Field::word`] of the word at byte `at` of the block.
fn emit_word<'b>(b: &'b Builder, field: &Field, key: Val<'b>, at: Val<'b>) -> Val<'b> {
    let word = |at: Val<'b>| emit_mix(key + (at / 4 + 1) * 0x9e37_79b9);
    let fixed = |i: u32| word(b.u32(field.offset + 4 * i));
    let sub = |w: Val<'b>| (w & 0x0303_0303) + 0x0202_0202;
    let pick = |options: [u32; 4]| {
        let choice = key & 3;
        (1..4).fold(b.u32(options[0]), |v, i| choice.eq(i).select(b.u32(options[i as usize]), v))
    };
    match field.fill {
        Fill::Quants { set } => word(at) | set,
        Fill::Scale { halves } => pick(halves.map(u32::from)),
        Fill::ScaleMin { pairs } => pick(pairs),
        Fill::PackedScales => at.lt(field.offset + 8).select(sub(fixed(0)), sub(fixed(1)) * 0x11),
        Fill::ByteScales => sub(word(at)),
        Fill::Floats { sign, base, mask } => (word(at) & sign) | ((word(at) & mask) + base),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::interpret::{Access, Memory, Options, run};
    use crate::quant::FORMATS;

    #[test]
    fn kernels_make_the_defined_bytes() {
        for format in FORMATS {
            let (blocks, seed) = (21u32, 0x1234_5678_9abc_def0);
            let recipe = Recipe::matrix(format, 4096);
            let mut bytes = vec![0; (blocks * format.device_block_bytes()) as usize];
            recipe.fill(seed, 0, &mut bytes);
            let expected = format.repack(&bytes);
            let (starts, total) = format.plane_offsets(blocks as u64);
            let mut memory = Memory::new();
            let dst = memory.bind("planes", vec![0; total as usize], Access::ReadWrite);
            for (plane, start) in starts.iter().enumerate() {
                let kernel = kernel(format, &recipe, plane, 16);
                let args = [dst + start, seed & 0xffff_ffff, seed >> 32, blocks as u64];
                run(&kernel, &args, grid(format, plane, blocks), &mut memory, &Options::default())
                    .unwrap_or_else(|fault| panic!("{}: {fault}", format.name));
            }
            assert!(memory.bytes(dst) == Some(&expected[..]), "{}", format.name);
        }
    }
}
