//! `zinc devices`: what can compute here, and why something cannot.

use crate::commands::limits;
use crate::device::Choice;
use crate::measured::stored;
use crate::output::print_line;
use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write;
use zinc_ir::device::{Device, MatrixShape};
use zinc_vulkan::{DeviceReport, DeviceType, Options, Quads, VulkanDevice};

/// Lists the CPU and every GPU with its driver, memory, subgroup sizes and matrix shapes; or measures what they attain.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Measure what devices attain: streaming reads, launches, submissions, arithmetic. Some seconds per device; the
    /// figures are kept, and are what reports compare with. Leave the machine alone meanwhile
    #[arg(long)]
    measure: bool,
    /// Measure only this one: cpu or vulkan:N
    #[arg(long, requires = "measure", value_name = "DEVICE")]
    device: Option<Choice>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.measure {
        return limits::run(arguments.device, arguments.json);
    }
    let cpu = zinc_cpu::CpuDevice::new(0)?;
    let (gpus, no_vulkan) = match zinc_vulkan::list_devices() {
        Ok(devices) => (devices, None),
        Err(error) => (vec![], Some(error.to_string())),
    };
    if arguments.json {
        let value = json!({
            "cpu": {
                "description": cpu.description(),
                "memory_bytes": cpu.memory().total,
                "measured": stored(&cpu.identity()),
            },
            "vulkan": gpus.iter().map(as_json).collect::<Vec<_>>(),
            "vulkan_unavailable_because": no_vulkan,
        });
        return print_line(&serde_json::to_string_pretty(&value)?);
    }
    let mut out = String::new();
    writeln!(out, "cpu        {}", cpu.description())?;
    writeln!(out, "           memory {}", gib(cpu.memory().total))?;
    attained(&cpu.identity(), &mut out)?;
    for gpu in &gpus {
        as_text(gpu, &mut out)?;
    }
    match no_vulkan {
        Some(reason) => writeln!(out, "vulkan     none: {reason}")?,
        None if gpus.is_empty() => writeln!(out, "vulkan     no device; install your GPU's Vulkan driver")?,
        None => {}
    }
    print_line(out.trim_end())
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

fn kind(device: &DeviceReport) -> &'static str {
    match device.device_type {
        DeviceType::Discrete => "discrete GPU",
        DeviceType::Integrated => "integrated GPU",
        DeviceType::Virtual => "virtual GPU",
        DeviceType::Software => "software on the CPU",
        DeviceType::Other => "other",
    }
}

pub(super) fn matrix(shape: &MatrixShape) -> String {
    format!("{}x{}x{} {:?}->{:?}", shape.m, shape.n, shape.k, shape.input, shape.acc).to_lowercase()
}

fn as_text(d: &DeviceReport, out: &mut String) -> Result<()> {
    writeln!(out, "vulkan:{:<3} {} ({})", d.index, d.name, kind(d))?;
    match &d.usable {
        Ok(()) if d.no_hardware => writeln!(out, "           compiles only: there is no hardware behind the driver")?,
        Ok(()) => writeln!(out, "           usable")?,
        Err(reason) => writeln!(out, "           not usable: {reason}")?,
    }
    writeln!(out, "           driver {} {}, Vulkan {}", d.driver, d.driver_info, d.api_version)?;
    for heap in &d.heaps {
        let local = if heap.device_local { "device" } else { "host" };
        let visible = if heap.host_visible { ", writable by the CPU" } else { "" };
        writeln!(out, "           memory {} {local}{visible}", gib(heap.bytes))?;
    }
    let (low, high) = d.subgroup_range;
    let choice = if low == high { format!("{low}") } else { format!("{low} to {high}, usually {}", d.subgroup_size) };
    writeln!(out, "           subgroup size {choice}; shared memory {} KiB", d.shared_bytes >> 10)?;
    if let Some(units) = d.compute_units {
        writeln!(out, "           {units} compute units")?;
    }
    let dot = if d.dot4_accelerated.0 { "in hardware" } else { "expanded" };
    writeln!(out, "           byte dot products {dot}")?;
    if d.matrices.is_empty() {
        writeln!(out, "           no cooperative matrices")?;
    } else {
        let shapes: Vec<String> = d.matrices.iter().map(matrix).collect();
        writeln!(out, "           matrices {}", shapes.join(", "))?;
    }
    if let Some(words) = words(&quads(d)) {
        writeln!(out, "           {words}")?;
    }
    attained(&d.identity(), out)
}

/// How a device holds matrices; it is opened for that where there is something to find out.
fn quads(d: &DeviceReport) -> Quads {
    if d.usable.is_err() || d.no_hardware || !d.may_have_quads() {
        return Quads::Absent;
    }
    match VulkanDevice::open(d.index, &Options::default()) {
        Ok(device) => device.quads().clone(),
        Err(error) => Quads::Unknown(error.to_string()),
    }
}

fn words(quads: &Quads) -> Option<String> {
    match quads {
        Quads::Absent => None,
        Quads::Held => Some("matrices held in quads: batches decode weights straight into them".into()),
        Quads::Otherwise => Some("matrices not held in quads: batches fill them from shared memory".into()),
        Quads::Unknown(why) => Some(format!(
            "whether matrices are held in quads could not be seen ({why}): results stay right, batches are slower"
        )),
    }
}

/// The main figures of an earlier measurement, if there was one.
fn attained(identity: &str, out: &mut String) -> Result<()> {
    if let Some(m) = stored(identity) {
        let launch = m.launches.first().map_or(0.0, |l| l.dependent);
        writeln!(out, "           measured: read {} GB/s, launch {:.2} µs", limits::giga(m.read()), launch * 1e6)?;
    }
    Ok(())
}

fn as_json(d: &DeviceReport) -> Value {
    let (held, unseen) = match quads(d) {
        Quads::Absent => (None, None),
        Quads::Held => (Some(true), None),
        Quads::Otherwise => (Some(false), None),
        Quads::Unknown(why) => (None, Some(why)),
    };
    json!({
        "index": d.index,
        "name": d.name,
        "kind": kind(d),
        "usable": d.usable.is_ok() && !d.no_hardware,
        "unusable_because": d.usable.as_ref().err().cloned().or(d.no_hardware.then(|| "no hardware".to_owned())),
        "driver": d.driver,
        "driver_info": d.driver_info,
        "bus_address": d.bus_address,
        "vulkan": d.api_version,
        "heaps": d.heaps.iter().map(|h| json!({
            "bytes": h.bytes, "device_local": h.device_local, "host_visible": h.host_visible,
        })).collect::<Vec<_>>(),
        "subgroup_sizes": [d.subgroup_range.0, d.subgroup_range.1],
        "shared_bytes": d.shared_bytes,
        "compute_units": d.compute_units,
        "byte_dot_products_in_hardware": d.dot4_accelerated.0,
        "matrices": d.matrices.iter().map(matrix).collect::<Vec<_>>(),
        "matrices_in_quads": held,
        "matrices_in_quads_unknown_because": unseen,
        "measured": stored(&d.identity()),
    })
}
