//! `zinc devices --measure`: what each device attains.
//!
//! ```text
//! device ─measured─► Measured ─► reads by width and workgroups │ launches │ submissions │ arithmetic
//! ```

use crate::commands::devices::matrix;
use crate::device::Choice;
use crate::folders;
use crate::measured::{Freshness, of_cpu, of_gpu};
use crate::output::{print_line, say};
use anyhow::{Result, bail};
use serde_json::json;
use std::fmt::Write;
use zinc_ir::measured::{Measured, ReadRate};

/// Measures the device asked for, or all that can run something.
pub(super) fn run(device: Option<Choice>, as_json: bool) -> Result<()> {
    let device = device.filter(|d| *d != Choice::Auto);
    let cache = Some(folders::cache()?);
    let mut all = vec![];
    if matches!(device, None | Some(Choice::Cpu)) {
        all.push(("cpu".to_string(), of_cpu(0, cache.clone(), Freshness::Now)?));
    }
    if device != Some(Choice::Cpu) {
        let gpus = match zinc_vulkan::list_devices() {
            Ok(gpus) => gpus,
            Err(_) if device.is_none() => vec![],
            Err(error) => return Err(error.into()),
        };
        let wanted = |index| !matches!(device, Some(Choice::Vulkan(Some(i))) if i != index);
        for gpu in gpus.iter().filter(|g| wanted(g.index)) {
            match &gpu.usable {
                Ok(()) if !gpu.no_hardware => {}
                _ if device.is_some() => bail!("{} cannot run anything; see `zinc devices`", gpu.name),
                _ => continue,
            }
            let measured = match of_gpu(gpu, cache.clone(), Freshness::Now) {
                Ok(measured) => measured,
                Err(error) if device.is_some() => return Err(error),
                Err(error) => {
                    say!("{}: {error:#}", gpu.name);
                    continue;
                }
            };
            all.push((format!("vulkan:{}", gpu.index), measured));
        }
    }
    if all.is_empty() {
        bail!("there is no such device to measure; see `zinc devices`");
    }
    if as_json {
        let devices: serde_json::Map<_, _> = all.into_iter().map(|(name, m)| (name, json!(m))).collect();
        return print_line(&serde_json::to_string_pretty(&devices)?);
    }
    for (name, measured) in &all {
        print_line(&table(name, measured)?)?;
    }
    Ok(())
}

fn table(name: &str, m: &Measured) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{name:<10} {}, measured in {:.1} s", m.device, m.took)?;
    writeln!(
        out,
        "           streaming read {} GB/s, write {} GB/s (over {} MiB)",
        giga(m.read()),
        giga(m.write),
        m.read_over >> 20
    )?;
    reads(m, &mut out)?;
    let groups = if m.submit.is_some() { "workgroups" } else { "threads" };
    writeln!(out, "           launch µs by {groups}, after a barrier (without one)")?;
    for l in &m.launches {
        let alone = l.independent.map_or(String::new(), |s| format!(" ({:.2})", s * 1e6));
        writeln!(out, "             {:>6}: {:.2}{alone}", l.workgroups, l.dependent * 1e6)?;
    }
    if let Some(s) = m.submit {
        writeln!(out, "           a timestamp behind a launch adds {:.2} µs", m.stamp * 1e6)?;
        let [call, asleep, watching] = [s.call, s.asleep, s.watching].map(|s| format!("{:.1}", s * 1e6));
        writeln!(out, "           submission µs: call {call}, to the result {watching} watching, {asleep} asleep")?;
    }
    writeln!(out, "           multiply-adds {} GFLOP/s, byte dot products {} GOP/s", giga(m.fma), giga(m.dot4))?;
    for r in &m.matrices {
        writeln!(out, "           matrices {}: {} GFLOP/s", matrix(&r.shape), giga(r.rate))?;
    }
    Ok(out)
}

/// A rate in units of a billion, with about four digits.
pub(super) fn giga(rate: f64) -> String {
    let giga = rate / 1e9;
    if giga < 100.0 { format!("{giga:.2}") } else { format!("{giga:.0}") }
}

/// One line per way of reading, one column per number of workgroups.
fn reads(m: &Measured, out: &mut String) -> Result<()> {
    let mut groups: Vec<u32> = m.reads.iter().map(|r| r.workgroups).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut ways: Vec<(u32, u32)> = m.reads.iter().map(|r| (r.load_bytes, r.in_flight)).collect();
    ways.dedup();
    let lanes = m.reads.first().map_or(0, |r| r.lanes);
    let of = if m.submit.is_some() { format!("workgroups of {lanes} lanes") } else { "threads".into() };
    let head: String = groups.iter().map(|g| format!("{g:>8}")).collect();
    writeln!(out, "           {:<24}{head}  {of}", "read GB/s")?;
    for (load_bytes, in_flight) in ways {
        let at = |group: &u32| {
            let same = |r: &&ReadRate| (r.load_bytes, r.in_flight, r.workgroups) == (load_bytes, in_flight, *group);
            let rate = m.reads.iter().find(same).map_or("-".into(), |r| giga(r.rate));
            format!("{rate:>8}")
        };
        let way = format!("  {load_bytes} bytes, {in_flight} in flight");
        writeln!(out, "           {way:<24}{}", groups.iter().map(at).collect::<String>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zinc_ir::device::MatrixShape;
    use zinc_ir::kernel::Scalar;
    use zinc_ir::measured::{FORMAT, LaunchCost, MatrixRate, SubmitCost};

    #[test]
    fn the_table_looks_like_this() {
        let read = |in_flight, workgroups, rate| ReadRate { load_bytes: 16, in_flight, lanes: 512, workgroups, rate };
        let launch = |workgroups, dependent, independent| LaunchCost { workgroups, dependent, independent };
        let shape = MatrixShape { m: 16, n: 8, k: 16, input: Scalar::F16, acc: Scalar::F32 };
        let measured = Measured {
            format: FORMAT,
            device: "A card".into(),
            read_over: 4 << 30,
            reads: vec![read(2, 132, 3.2e12), read(2, 1056, 4.5e12), read(8, 1056, 4.59e12)],
            write: 4.1e12,
            launches: vec![launch(1, 1.74e-6, Some(1.6e-7)), launch(64, 2e-6, None)],
            stamp: 3.5e-7,
            submit: Some(SubmitCost { call: 6.8e-6, asleep: 68e-6, watching: 25e-6 }),
            fma: 6.1e13,
            dot4: 2.4e13,
            matrices: vec![MatrixRate { shape, rate: 5.5e14 }],
            took: 1.25,
            ..Measured::default()
        };
        let expected = "\
vulkan:0   A card, measured in 1.2 s
           streaming read 4590 GB/s, write 4100 GB/s (over 4096 MiB)
           read GB/s                    132    1056  workgroups of 512 lanes
             16 bytes, 2 in flight     3200    4500
             16 bytes, 8 in flight        -    4590
           launch µs by workgroups, after a barrier (without one)
                  1: 1.74 (0.16)
                 64: 2.00
           a timestamp behind a launch adds 0.35 µs
           submission µs: call 6.8, to the result 25.0 watching, 68.0 asleep
           multiply-adds 61000 GFLOP/s, byte dot products 24000 GOP/s
           matrices 16x8x16 f16->f32: 550000 GFLOP/s
";
        assert_eq!(table("vulkan:0", &measured).expect("text"), expected);
    }
}
