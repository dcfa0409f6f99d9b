//! Samples that compute several results from element `i` of each input.
//!
//! ```text
//! inputs[..][i] ─► results[..] ─► output, one region per result
//! ```

use super::super::{ArgKind, Builder, Type, Val};
use super::{Buffer, Compare, Sample, input, output};

/// Elements of every input: enough for two tiles at any subgroup size.
pub(super) const N: u32 = 512;

/// Builds the kernel. `inputs` are `N` elements each of a type; `results` computes from one element of each.
/// `expected` has the results one after the other, `N` elements each; Bool results are stored as U32 0 or 1.
pub(super) fn elementwise(
    name: &str,
    subgroup_size: u32,
    inputs: &[(Type, Vec<u8>)],
    results: impl for<'b> FnOnce(&'b Builder, &[Val<'b>]) -> Vec<Val<'b>>,
    expected: Vec<u8>,
    compare: Compare,
) -> Sample {
    let workgroup = subgroup_size * 2;
    let b = Builder::new(name, workgroup, subgroup_size);
    let label = |i: usize| format!("in{i}");
    let args: Vec<Val> = (0..inputs.len()).map(|i| b.arg(&label(i), ArgKind::Read)).collect();
    let out = b.arg("out", ArgKind::Write);
    let i = b.tile(0) * workgroup + b.local_id();
    let mut values = vec![];
    for (arg, (ty, _)) in args.iter().zip(inputs) {
        values.push(b.load(*ty, *arg, i * ty.bytes(), ty.bytes() as u8));
    }
    let mut start = 0;
    for result in results(&b, &values) {
        let result = if result.ty() == Type::BOOL { result.select(b.u32(1), b.u32(0)) } else { result };
        let size = result.ty().bytes();
        b.store(out, i * size + start, result, size as u8);
        start += size * N;
    }
    assert_eq!(start as usize, expected.len(), "expected bytes of {name}");
    let mut buffers: Vec<Buffer> =
        inputs.iter().enumerate().map(|(i, (_, bytes))| input(&label(i), bytes.clone())).collect();
    buffers.push(output("out", expected, compare));
    let kernel = b.finish();
    Sample { kernel, buffers, words: vec![], grid: [N / workgroup, 1, 1] }
}
