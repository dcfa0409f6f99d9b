//! `zinc explain`: what becomes of a model on its way to a device.
//!
//! ```text
//! spec ─► graph ─► plan (launches, what was fused, bytes, FLOPs) ─► kernel (text) ─► spirv ─► machine (statistics)
//!                   └─ --why: how each kernel's work is cut, and the reason
//! ```

use crate::args::{ComputeArgs, ModelArgs};
use crate::device;
use crate::failure::usage;
use crate::output::{print_line, say};
use crate::profiles::{self, PROFILES};
use crate::session::act_name;
use crate::source::Source;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;
use zinc_compiler::kernels::TEMPLATES;
use zinc_compiler::{Choices, Cuts};
use zinc_ir::device::Caps;
use zinc_ir::graph::NodeId;
use zinc_ir::kernel::Kernel;
use zinc_ir::plan::{Bucket, Entry, KvLayout, Launch, PAGE_TOKENS, Plan, Tail};
use zinc_tuner::Record;

#[derive(Clone, Copy, ValueEnum, Debug, PartialEq, Eq)]
enum Stage {
    /// The model's numbers
    Spec,
    /// Its operations
    Graph,
    /// Launches and barriers, what was fused, bytes and FLOPs
    Plan,
    /// The kernels as text
    Kernel,
    /// The kernels as SPIR-V assembly
    Spirv,
    /// What the driver's compiler makes of them: registers, spills, code size
    Machine,
}

/// Shows one stage of compiling a model for a device, which need not be here (--device-profile).
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgs,
    /// What to show
    #[arg(long, default_value = "plan")]
    stage: Stage,
    /// Compile for this kind of device instead of the chosen one; `list` lists them
    #[arg(long, value_name = "NAME")]
    device_profile: Option<String>,
    /// Token rows of the step
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    rows: u32,
    /// Show logits being given back, not just the best token
    #[arg(long)]
    logits: bool,
    /// Show how each kernel's work is cut, and why so: by rule, or as `zinc tune` found
    #[arg(long, conflicts_with = "stage")]
    why: bool,
    /// Only kernels whose template or name contains this
    #[arg(long, value_name = "TEXT")]
    kernel: Option<String>,
    /// Show every launch of every layer with its arguments
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if arguments.device_profile.as_deref() == Some("list") {
        let lines: Vec<String> = PROFILES.iter().map(|p| format!("{:<10} {}", p.name, p.about)).collect();
        return print_line(&lines.join("\n"));
    }
    let source = Source::open(&arguments.model, None)?;
    let text = match arguments.stage {
        _ if arguments.why => why_text(arguments, &source)?,
        Stage::Spec => source.model.spec.to_string(),
        Stage::Graph => source.model.graph.to_string(),
        Stage::Plan if arguments.full => compile(arguments, &source)?.to_string(),
        Stage::Plan => plan_text(&compile(arguments, &source)?)?,
        Stage::Kernel => kernels_text(&compile(arguments, &source)?, arguments, |k| Ok(k.to_string()))?,
        Stage::Spirv => kernels_text(&compile(arguments, &source)?, arguments, spirv)?,
        Stage::Machine => {
            let index = device::vulkan_index(&arguments.compute)?;
            kernels_text(&compile(arguments, &source)?, arguments, |k| machine(index, k))?
        }
    };
    print_line(text.trim_end())
}

/// What is compiled for: abilities, and what was tuned.
struct Target {
    caps: Caps,
    record: Option<Record>,
}

/// The device that was asked for.
fn target(arguments: &Arguments) -> Result<Target> {
    match &arguments.device_profile {
        Some(name) => {
            let known = || PROFILES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            let profile = profiles::find(name)
                .ok_or_else(|| usage(format!("there is no device profile {name}; there are: {}", known())))?;
            Ok(Target { caps: (profile.caps)(), record: None })
        }
        None => {
            let opened = device::open(&arguments.compute)?;
            say!("device: {} ({})", opened.device.description(), opened.why);
            Ok(Target { caps: opened.device.caps().clone(), record: opened.record })
        }
    }
}

/// What the compiler is given besides the graph.
struct Asked {
    kv: Arc<KvLayout>,
    bucket: Bucket,
    choices: Choices,
}

fn asked(arguments: &Arguments, source: &Source, target: &Target) -> Result<Asked> {
    let context = arguments.compute.context(source.model.spec.context, None);
    let context = context.max(arguments.rows).next_multiple_of(PAGE_TOKENS);
    let kv = Arc::new(KvLayout::new(&source.model.graph, arguments.compute.kv(), context / PAGE_TOKENS));
    let tail = if arguments.logits { Tail::Logits } else { Tail::Greedy };
    let bucket = Bucket { tokens: arguments.rows, outputs: 1, context, sequences: 1, tail };
    let tuned = Arc::new(target.record.as_ref().map(Record::tuned).unwrap_or_default());
    let act = arguments.compute.act(target.caps.native);
    let invariant = arguments.compute.batch_invariant;
    let choices = Choices { act, invariant, tuned, ..Choices::default() };
    Ok(Asked { kv, bucket, choices })
}

fn compile(arguments: &Arguments, source: &Source) -> Result<Plan> {
    let target = target(arguments)?;
    let Asked { kv, bucket, choices } = asked(arguments, source, &target)?;
    Ok(zinc_compiler::compile(&source.model.graph, &kv, bucket, &target.caps, &choices)?)
}

/// How the work of each kernel with a choice is cut, and why.
fn why_text(arguments: &Arguments, source: &Source) -> Result<String> {
    let target = target(arguments)?;
    if target.caps.native {
        bail!("this device runs the plan natively: there is nothing to choose; name a GPU with --device-profile");
    }
    let Asked { kv, bucket, choices } = asked(arguments, source, &target)?;
    let tunables = zinc_compiler::tunables(&source.model.graph, &kv, bucket, &target.caps, &choices)?;
    let plan = zinc_compiler::compile(&source.model.graph, &kv, bucket, &target.caps, &choices)?;
    let uses: HashSet<NodeId> = tunables.iter().flat_map(|t| &t.uses).map(|u| u.node).collect();
    let mut out = String::new();
    for t in tunables {
        let (cuts, record) = (&t.cuts, target.record.as_ref());
        if arguments.kernel.as_ref().is_some_and(|text| !cuts.key.contains(text.as_str())) {
            continue;
        }
        let launches = if t.uses.len() == 1 { "1 launch".into() } else { format!("{} launches", t.uses.len()) };
        writeln!(out, "{}, {launches}\n    {}: {}", cuts.key, cuts.used, reason(cuts, record))?;
        for q in record.into_iter().flat_map(|r| &r.quarantine).filter(|q| q.key == cuts.key) {
            writeln!(out, "    {} is quarantined with this driver: {}", q.cut, q.reason)?;
        }
    }
    let chosen = |l: &Launch| l.region.last().is_some_and(|node| uses.contains(node));
    let mut others: BTreeMap<&str, usize> = BTreeMap::new();
    for launch in plan.launches().filter(|l| !chosen(l)) {
        *others.entry(launch.template).or_default() += 1;
    }
    let others: Vec<String> = others.into_iter().map(|(name, n)| format!("{name} ({n})")).collect();
    writeln!(out, "\nLaunches without a choice, cut by rule: {}.", others.join(", "))?;
    writeln!(
        out,
        "A cut is: subgroups x rows at a time x turns, units of 32 weights loaded together, loads ahead or not."
    )?;
    Ok(out)
}

/// Why the cut in use is in use.
fn reason(cuts: &Cuts, record: Option<&Record>) -> String {
    let legal = cuts.all.len();
    let Some(verdict) = record.and_then(|r| r.results.get(&cuts.key)) else {
        return format!("as the rule says; not tuned ({legal} cuts to choose from, see `zinc tune`)");
    };
    let micros = |seconds: f64| format!("{:.2} µs", seconds * 1e6);
    let tried = format!("{} of {legal} cuts tried with {}", verdict.tried.len(), verdict.model);
    if cuts.used == verdict.cut && cuts.used != cuts.all[0] {
        let (gain, now, before) = (100.0 * verdict.gain(), micros(verdict.seconds), micros(verdict.rule_seconds));
        return format!(
            "tuned: {gain:.1} % faster than by rule ({now}, {before} with {}); {tried}; verified against the CPU",
            verdict.rule
        );
    }
    if verdict.cut != verdict.rule {
        return format!(
            "as the rule says, although {} was found faster: it is quarantined or not legal here",
            verdict.cut
        );
    }
    format!("as the rule says; none was found that is faster ({}); {tried}", micros(verdict.rule_seconds))
}

/// The operations a launch computes and the formats of the weights it reads.
fn fused(plan: &Plan, launch: &Launch) -> String {
    let mut formats = vec![];
    let mut names: Vec<&str> = vec![];
    for node in &launch.region {
        let op = plan.graph.op(*node);
        names.push(op.name());
        if let Some(weight) = op.weight() {
            let format = plan.graph.weight_of(weight).format.name;
            if !formats.contains(&format) {
                formats.push(format);
            }
        }
    }
    let formats = if formats.is_empty() { String::new() } else { format!(" ({})", formats.join(", ")) };
    if names.is_empty() {
        return "(first part of the next)".into();
    }
    format!("{}{formats}", names.join(" + "))
}

fn plan_text(plan: &Plan) -> Result<String> {
    let mut out = String::new();
    let b = plan.bucket;
    writeln!(
        out,
        "plan for {} rows, {} outputs ({:?}), context {}; activations {}, K and V {}",
        b.tokens,
        b.outputs,
        b.tail,
        b.context,
        act_name(plan.act),
        plan.kv.types
    )?;
    let launches: Vec<&Launch> = plan.launches().collect();
    writeln!(
        out,
        "{} launches, {} barriers, {} kernels; scratch {} bytes, inputs {}, output {}, K and V {}",
        launches.len(),
        plan.barriers(),
        plan.kernels.len(),
        plan.scratch_bytes,
        plan.inputs.bytes,
        plan.output_bytes,
        plan.kv.bytes
    )?;
    writeln!(out, "\n    #  template                 {:<16} {:>12} {:>14}  computes", "grid", "bytes", "FLOPs")?;
    let lines = plan_lines(plan)?;
    let mut at = 0;
    while let Some((layer, _)) = lines.get(at) {
        let layer = *layer;
        let end = at + lines[at..].iter().take_while(|l| l.0 == layer).count();
        if layer == u32::MAX {
            writeln!(out, "outside layers")?
        } else {
            writeln!(out, "layer {layer}")?
        }
        for (i, (_, line)) in lines[at..end].iter().enumerate() {
            writeln!(out, "{:>5}  {line}", at + i)?;
        }
        let size = end - at;
        let body = |from: usize| lines.get(from..from + size).map(|l| l.iter().map(|x| &x.1).collect::<Vec<_>>());
        let mut next = end;
        while layer != u32::MAX && body(next) == body(at) && lines[next].0 == lines[next + size - 1].0 {
            next += size;
        }
        match (next - end) / size {
            0 => {}
            1 => writeln!(out, "layer {}: the same", layer + 1)?,
            n => writeln!(out, "layers {} to {}: the same", layer + 1, layer as usize + n)?,
        }
        at = next;
    }
    totals(&launches, &mut out)?;
    Ok(out)
}

/// One line for each launch or barrier, with its layer.
fn plan_lines(plan: &Plan) -> Result<Vec<(u32, String)>> {
    let mut lines: Vec<(u32, String)> = vec![];
    for entry in &plan.entries {
        match entry {
            Entry::Launch(l) => {
                let grid = l.grid.map(|n| n.to_string()).join(" x ");
                let line = format!("{:<24} {grid:<16} {:>12} {:>14}  {}", l.template, l.bytes, l.flops, fused(plan, l));
                lines.push((l.layer, line));
            }
            // A barrier stands before what waits for it.
            Entry::Barrier => lines.push((0, "- barrier".into())),
        }
    }
    for i in (0..lines.len()).rev() {
        if lines[i].1 == "- barrier" {
            lines[i].0 = lines.get(i + 1).map_or(u32::MAX, |l| l.0);
        }
    }
    Ok(lines)
}

fn totals(launches: &[&Launch], out: &mut String) -> Result<()> {
    let mut by_template: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for l in launches {
        let row = by_template.entry(l.template).or_default();
        *row = (row.0 + 1, row.1 + l.bytes, row.2 + l.flops);
    }
    writeln!(out, "\n{:<28} {:>8} {:>16} {:>18}  what it is", "template", "launches", "bytes", "FLOPs")?;
    for (name, (n, bytes, flops)) in &by_template {
        let summary = TEMPLATES.iter().find(|t| t.name == *name).map_or("", |t| t.summary);
        writeln!(out, "{name:<28} {n:>8} {bytes:>16} {flops:>18}  {summary}")?;
    }
    let sum = by_template.values().fold((0, 0, 0), |a, r| (a.0 + r.0, a.1 + r.1, a.2 + r.2));
    writeln!(out, "{:<28} {:>8} {:>16} {:>18}", "all", sum.0, sum.1, sum.2)?;
    Ok(())
}

/// Each distinct kernel with a heading that says who uses it.
fn kernels_text(plan: &Plan, arguments: &Arguments, show: impl Fn(&Kernel) -> Result<String>) -> Result<String> {
    if plan.kernels.is_empty() {
        bail!("this device runs the plan natively and has no kernels; name a GPU with --device-profile (or `list`)");
    }
    let mut out = String::new();
    for (i, kernel) in plan.kernels.iter().enumerate() {
        let users: Vec<&Launch> = plan.launches().filter(|l| l.kernel.is_some_and(|k| k.0 as usize == i)).collect();
        let template = users.first().map_or("unused", |l| l.template);
        let wanted = |text: &String| template.contains(text.as_str()) || kernel.name.contains(text.as_str());
        if !arguments.kernel.as_ref().is_none_or(wanted) {
            continue;
        }
        writeln!(out, "; kernel {i}: {template}, {} launches", users.len())?;
        writeln!(out, "{}", show(kernel)?)?;
    }
    if out.is_empty() {
        let names: Vec<&str> = plan.kernels.iter().map(|k| k.name.as_str()).collect();
        bail!("no kernel matches; there are: {}", names.join(", "));
    }
    Ok(out)
}

/// The driver's statistics of a kernel, under the driver's names.
fn machine(index: usize, kernel: &Kernel) -> Result<String> {
    let stats = zinc_vulkan::compile_only(index, std::slice::from_ref(kernel), false)?;
    let mut out = format!("{}, {} lanes", kernel.name, kernel.workgroup_size);
    for (name, value) in stats.iter().flat_map(|s| &s.raw) {
        write!(out, "\n  {name}: {value}")?;
    }
    Ok(out)
}

fn spirv(kernel: &Kernel) -> Result<String> {
    let modes = zinc_spirv::FloatModes { rte_f16: true, preserve_f32: true };
    let words = zinc_spirv::emit(kernel, modes).with_context(|| format!("kernel {}", kernel.name))?;
    Ok(zinc_spirv::disassemble(&words)?)
}
