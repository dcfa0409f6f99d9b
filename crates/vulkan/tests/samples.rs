//! Every sample kernel of the IR gives on the device what its definition says.

mod support;

use support::{device, no_messages};
use zinc_ir::device::Device;
use zinc_ir::kernel::Scalar;
use zinc_ir::kernel::samples::{Sample, all, matrix};
use zinc_vulkan::{KernelArg, Options, VulkanDevice};

fn run(device: &mut VulkanDevice, sample: &Sample) -> Result<(), String> {
    let mut memory: Vec<Vec<u8>> = sample.buffers.iter().map(|b| b.bytes.clone()).collect();
    let addresses = (0..memory.len()).map(|index| KernelArg::Memory { index, offset: 0 });
    let args: Vec<KernelArg> = addresses.chain(sample.words.iter().map(|w| KernelArg::Word(*w))).collect();
    let ran = device.run_kernel(&sample.kernel, sample.grid, &args, &mut memory);
    ran.map_err(|e| format!("{}: {e}", sample.kernel.name))?;
    for (i, bytes) in memory.iter().enumerate() {
        sample.check(i, bytes).map_err(|e| e.to_string())?;
    }
    Ok(())
}

#[test]
fn all_samples_give_what_they_should() {
    let Some(mut device) = device(Options::default()) else { return };
    println!("{}", device.description());
    let mut failed = vec![];
    let (smallest, largest) = device.report().subgroup_range;
    for size in (0..8).map(|i| 1 << i).filter(|size| (smallest..=largest).contains(size)) {
        let shapes = device.caps().matrices.clone();
        let mut samples = all(size);
        // Those with matrices are made below for the shapes the device has.
        samples.retain(|s| !zinc_spirv::requirements(&s.kernel).matrix);
        for s in shapes.iter().filter(|s| s.input == Scalar::F16 && s.acc == Scalar::F32) {
            samples.extend(matrix(size, [s.m, s.n, s.k]));
        }
        // Mesa 26.1's llvmpipe overruns its stack when it makes a U64 of two U32 in 512-bit vectors.
        let overruns = device.report().driver == "llvmpipe" && size == 16;
        samples.retain(|s| !(overruns && s.kernel.name == "bitcasts"));
        // Its threads run one workgroup each: with a single one, the first workgroup would wait for the second for ever.
        let alone =
            device.report().driver == "llvmpipe" && std::thread::available_parallelism().is_ok_and(|n| n.get() < 2);
        samples.retain(|s| !(alone && s.kernel.has_grid_barrier()));
        samples.retain(|s| s.kernel.workgroup_size <= device.caps().max_workgroup);
        assert!(samples.len() > 10, "{} samples", samples.len());
        failed.extend(samples.iter().filter_map(|s| run(&mut device, s).err()));
        println!("{} samples at subgroups of {size}", samples.len());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    no_messages(&device);
}
