//! Which device computes.
//!
//! ```text
//! --device cpu | vulkan[:n] | auto ─► Box<dyn Device>, and why this one
//! ```

use crate::args::ComputeArgs;
use crate::folders;
use crate::measured::{self, Freshness};
use crate::tuned;
use anyhow::{Context, Result, bail};
use std::str::FromStr;
use std::sync::Arc;
use zinc_compiler::Tuned;
use zinc_engine::OpenError;
use zinc_ir::device::Device;
use zinc_ir::measured::Measured;
use zinc_tuner::Record;
use zinc_vulkan::{DeviceReport, DeviceType};

/// What `--device` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A real GPU if there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The Vulkan device of this number, or the best one.
    Vulkan(Option<usize>),
}

impl FromStr for Choice {
    type Err = String;
    fn from_str(text: &str) -> Result<Choice, String> {
        let number = |n: &str| n.parse().map_err(|_| format!("`{n}` is no device number; see `zinc devices`"));
        match text.split_once(':') {
            None if text == "auto" => Ok(Choice::Auto),
            None if text == "cpu" => Ok(Choice::Cpu),
            None if text == "vulkan" => Ok(Choice::Vulkan(None)),
            Some(("vulkan", n)) => Ok(Choice::Vulkan(Some(number(n)?))),
            _ => Err(format!("`{text}` is none of cpu, vulkan, vulkan:N, auto")),
        }
    }
}

/// An opened device.
pub(crate) struct Opened {
    /// The device.
    pub(crate) device: Box<dyn Device>,
    /// Is it the CPU?
    pub(crate) is_cpu: bool,
    /// Why this one, in words.
    pub(crate) why: String,
    /// What was tuned on it, unless that is not wanted.
    pub(crate) record: Option<Record>,
    /// What asks for this very one.
    choice: Choice,
}

/// Opens a lost device again.
pub(crate) type Reopen = Box<dyn FnMut() -> Result<Box<dyn Device>, OpenError> + Send>;

impl Opened {
    /// The cuts to use.
    pub(crate) fn tuned(&self) -> Arc<Tuned> {
        Arc::new(self.record.as_ref().map(Record::tuned).unwrap_or_default())
    }

    /// What opens the same device again; `compute` is what it was opened by.
    pub(crate) fn reopen(&self, compute: &ComputeArgs) -> Reopen {
        let compute = ComputeArgs { device: self.choice, ..compute.clone() };
        Box::new(move || open(&compute).map(|opened| opened.device).map_err(OpenError::from))
    }
}

/// Number of the Vulkan device that the arguments ask for; the best one for `auto`, running or not.
pub(crate) fn vulkan_index(compute: &ComputeArgs) -> Result<usize> {
    match compute.device {
        Choice::Vulkan(Some(index)) => Ok(index),
        Choice::Vulkan(None) | Choice::Auto => {
            let devices = zinc_vulkan::list_devices().context("this needs a GPU and its driver")?;
            best(&devices)
        }
        Choice::Cpu => bail!("the CPU compiles no kernels; this needs a GPU and its driver (--device vulkan)"),
    }
}

/// Opens the device that the arguments ask for.
pub(crate) fn open(compute: &ComputeArgs) -> Result<Opened> {
    match compute.device {
        Choice::Cpu => cpu(compute, "as asked".into()),
        Choice::Vulkan(wanted) => {
            let index = match wanted {
                Some(index) => index,
                None => best(&list()?)?,
            };
            vulkan(compute, index, "as asked".into())
        }
        Choice::Auto => auto(compute),
    }
}

fn auto(compute: &ComputeArgs) -> Result<Opened> {
    let devices = match zinc_vulkan::list_devices() {
        Ok(devices) => devices,
        Err(error) => return cpu(compute, format!("no GPU: {error}")),
    };
    match devices.iter().filter(|d| is_real(d)).max_by_key(|d| rank(d)) {
        Some(gpu) => match vulkan(compute, gpu.index, "the best GPU here".into()) {
            Ok(opened) => Ok(opened),
            Err(error) => cpu(compute, format!("{} cannot be used: {error:#}", gpu.name)),
        },
        None => cpu(compute, no_gpu(&devices)),
    }
}

/// What the device that [`open`] takes was measured to attain; measured now if that has not been done.
pub(crate) fn limits(compute: &ComputeArgs) -> Result<Measured> {
    let cache = if compute.no_cache { None } else { Some(folders::cache()?) };
    let gpu = match compute.device {
        Choice::Cpu => None,
        Choice::Vulkan(wanted) => {
            let devices = list()?;
            let index = wanted.map_or_else(|| best(&devices), Ok)?;
            let count = devices.len();
            let found = devices.into_iter().find(|d| d.index == index);
            Some(found.with_context(|| format!("no Vulkan device {index}; there are {count} (see `zinc devices`)"))?)
        }
        Choice::Auto => {
            let devices = zinc_vulkan::list_devices().unwrap_or_default();
            devices.into_iter().filter(is_real).max_by_key(rank)
        }
    };
    match gpu {
        Some(gpu) => measured::of_gpu(&gpu, cache, Freshness::Stored),
        None => measured::of_cpu(compute.threads, cache, Freshness::Stored),
    }
}

/// Why none of these devices is taken by itself.
fn no_gpu(devices: &[DeviceReport]) -> String {
    let reason = |d: &DeviceReport| match &d.usable {
        Err(reason) => reason.clone(),
        Ok(()) if d.no_hardware => "it has no hardware".to_owned(),
        Ok(()) => "it computes on the CPU, slower than Zinc itself does".to_owned(),
    };
    let lines: Vec<String> = devices.iter().map(|d| format!("{}: {}", d.name, reason(d))).collect();
    if lines.is_empty() {
        "no GPU with a Vulkan driver".into()
    } else {
        format!("no usable GPU ({})", lines.join("; "))
    }
}

/// Hardware that can run something.
fn is_real(device: &DeviceReport) -> bool {
    device.usable.is_ok() && !device.no_hardware && device.device_type != DeviceType::Software
}

/// Better devices rank higher.
fn rank(device: &DeviceReport) -> (u8, u64) {
    let kind = match device.device_type {
        DeviceType::Discrete => 4,
        DeviceType::Virtual => 3,
        DeviceType::Integrated => 2,
        DeviceType::Other => 1,
        DeviceType::Software => 0,
    };
    (kind, device.device_memory())
}

fn list() -> Result<Vec<DeviceReport>> {
    zinc_vulkan::list_devices().context("Vulkan cannot be used; --device cpu needs none")
}

/// The best device that can run something, software included.
fn best(devices: &[DeviceReport]) -> Result<usize> {
    let usable = devices.iter().filter(|d| d.usable.is_ok() && !d.no_hardware);
    match usable.max_by_key(|d| rank(d)) {
        Some(device) => Ok(device.index),
        None => bail!("{}; see `zinc devices`, or use --device cpu", no_gpu(devices)),
    }
}

fn cpu(compute: &ComputeArgs, why: String) -> Result<Opened> {
    let device = zinc_cpu::CpuDevice::new(compute.threads).context("cannot start the CPU device")?;
    Ok(Opened { device: Box::new(device), is_cpu: true, why, record: None, choice: Choice::Cpu })
}

fn vulkan(compute: &ComputeArgs, index: usize, why: String) -> Result<Opened> {
    let cache = if compute.no_cache { None } else { Some(folders::cache()?) };
    let options = zinc_vulkan::Options { cache, ..Default::default() };
    let device = zinc_vulkan::VulkanDevice::open(index, &options)?;
    let record = match compute.no_cache || compute.no_tuned {
        true => None,
        false => {
            let identity = device.report().identity();
            tuned::load(&tuned::path(&identity)?, &identity)
        }
    };
    Ok(Opened { device: Box::new(device), is_cpu: false, why, record, choice: Choice::Vulkan(Some(index)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_spelled_like_this() {
        assert_eq!("vulkan:2".parse(), Ok(Choice::Vulkan(Some(2))));
        assert_eq!("vulkan".parse(), Ok(Choice::Vulkan(None)));
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert!(Choice::from_str("vulkan:x").unwrap_err().contains("zinc devices"));
        assert!(Choice::from_str("cuda").unwrap_err().contains("none of"));
    }
}
