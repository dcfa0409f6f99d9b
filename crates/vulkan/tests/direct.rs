//! Kernels run on a device and give what they should.

mod support;

use support::{device, no_messages};
use zinc_ir::device::Device;
use zinc_ir::kernel::*;
use zinc_vulkan::{KernelArg, Options, VulkanError};

fn memory(index: usize) -> KernelArg {
    KernelArg::Memory { index, offset: 0 }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

/// y[i] = x[i] * 3 + n, and the sum of every subgroup's lane numbers.
#[test]
fn a_kernel_reads_computes_and_writes() {
    let Some(mut device) = device(Options::default()) else { return };
    println!("{} validated: {}", device.description(), device.validated());
    let size = device.caps().subgroup_size;
    let b = Builder::new("affine", 64, size);
    let (x, y, s) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write), b.arg("s", ArgKind::Write));
    let n = b.arg("n", ArgKind::Word);
    let i = b.tile(0) * 64 + b.local_id();
    let v = b.load(Type::U32, x, i * 4, 4);
    b.store(y, i * 4, v * 3 + n, 4);
    b.store(s, i * 4, b.lane().subgroup_add(), 4);
    let kernel = b.finish();
    let input: Vec<u32> = (0..256).map(|i| i * i).collect();
    let mut bytes = vec![input.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>(), vec![0; 1024], vec![0; 1024]];
    let args = [memory(0), memory(1), memory(2), KernelArg::Word(7)];
    let time = device.run_kernel(&kernel, [4, 1, 1], &args, &mut bytes).expect("runs");
    println!("{time:?}");
    assert_eq!(words(&bytes[1]), input.iter().map(|v| v * 3 + 7).collect::<Vec<u32>>());
    assert_eq!(words(&bytes[2]), vec![size * (size - 1) / 2; 256]);
    no_messages(&device);
}

#[test]
fn kernels_that_do_not_fit_are_refused_with_the_reason() {
    let Some(mut device) = device(Options::default()) else { return };
    let largest = device.report().subgroup_range.1;
    let lanes = device.caps().max_workgroup;
    let too_wide = Builder::new("wide", largest * 2, largest * 2).finish();
    let too_many = Builder::new("many", lanes * 2, largest).finish();
    let b = Builder::new("memory", largest, largest);
    b.shared("huge", Type::U32X4, device.caps().max_shared_bytes / 16 + 1);
    let too_much = b.finish();
    let shape = MatrixType { scalar: Scalar::F32, rows: 3, cols: 5, usage: MatrixUse::A };
    let b = Builder::new("matrix", largest, largest);
    let a = b.matrix_splat(shape, b.f32(1.0));
    let right = b.matrix_splat(MatrixType { rows: 5, cols: 7, usage: MatrixUse::B, ..shape }, b.f32(1.0));
    let acc = b.matrix_splat(MatrixType { cols: 7, usage: MatrixUse::Acc, ..shape }, b.f32(1.0));
    b.matrix_mul_add(a, right, acc);
    for kernel in [too_wide, too_many, too_much, b.finish()] {
        let error = device.run_kernel(&kernel, [1, 1, 1], &[], &mut []).expect_err("does not fit");
        assert!(matches!(&error, VulkanError::Unfit { .. }), "{}: {error}", kernel.name);
    }
    no_messages(&device);
}

#[test]
fn a_device_that_does_not_answer_in_time_is_lost() {
    if support::driver().is_some_and(|d| d.contains("gpu-assisted")) {
        println!("not run: the instrumenting layer aborts at exit while a device is abandoned");
        return;
    }
    let timeout = std::time::Duration::from_millis(10);
    let Some(mut device) = device(Options { timeout, ..Options::default() }) else { return };
    let size = device.caps().subgroup_size;
    let b = Builder::new("long", size, size);
    let (y, rounds) = (b.arg("y", ArgKind::Write), b.arg("rounds", ArgKind::Word));
    let last = b.for_(b.u32(0), rounds, 1, &[b.lane()], |i, x| vec![(x[0] ^ i) * 1_664_525 + 1_013_904_223]);
    b.store(y, b.lane() * 4, last[0], 4);
    let args = [memory(0), KernelArg::Word(200_000_000)];
    let error = device.run_kernel(&b.finish(), [1, 1, 1], &args, &mut [vec![0; 1024]]).expect_err("too slow");
    assert!(matches!(&error, VulkanError::Lost { .. }), "{error}");
    println!("{error}");
    let again = device.run_kernel(&Builder::new("empty", size, size).finish(), [1, 1, 1], &[], &mut []);
    assert!(matches!(again, Err(VulkanError::Lost { .. })), "no more work for it");
}
