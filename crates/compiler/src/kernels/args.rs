//! Declares kernel arguments and the operands behind them in one go.

use crate::prune::prune;
use crate::template::{Access, Emission, LaunchSketch, Operand};
use std::cell::RefCell;
use std::collections::HashMap;
use zinc_ir::kernel::{ArgKind, Builder, Kernel, Val};

/// The arguments of a kernel under construction.
pub(crate) struct Args<'b> {
    b: &'b Builder,
    list: &'b RefCell<Vec<(Operand, Access)>>,
    names: RefCell<HashMap<String, u32>>,
}

impl<'b> Args<'b> {
    pub(crate) fn read(&self, name: &str, operand: Operand) -> Val<'b> {
        self.declare(name, operand, Access::Read, ArgKind::Read)
    }
    pub(crate) fn write(&self, name: &str, operand: Operand) -> Val<'b> {
        self.declare(name, operand, Access::Write, ArgKind::Write)
    }
    pub(crate) fn read_write(&self, name: &str, operand: Operand) -> Val<'b> {
        self.declare(name, operand, Access::ReadWrite, ArgKind::ReadWrite)
    }
    /// Memory that the launch reads only where it has written.
    pub(crate) fn write_read(&self, name: &str, operand: Operand) -> Val<'b> {
        self.declare(name, operand, Access::WriteRead, ArgKind::ReadWrite)
    }

    /// Argument names are unique in a kernel: the second `weight` becomes `weight2`.
    fn declare(&self, name: &str, operand: Operand, access: Access, kind: ArgKind) -> Val<'b> {
        let mut names = self.names.borrow_mut();
        let count = names.entry(name.to_string()).or_insert(0);
        *count += 1;
        let unique = if *count == 1 { name.to_string() } else { format!("{name}{count}") };
        self.list.borrow_mut().push((operand, access));
        self.b.arg(&unique, kind)
    }
}

/// Builds one launch: `body` declares arguments and writes the kernel.
pub(crate) fn launch(
    name: impl Into<String>,
    workgroup: u32,
    subgroup: u32,
    grid: [u32; 3],
    body: impl for<'b> FnOnce(&'b Builder, &Args<'b>),
) -> LaunchSketch {
    let (kernel, args) = build(name.into(), workgroup, subgroup, body);
    LaunchSketch { kernel, grid, args }
}

fn build(
    name: String,
    workgroup: u32,
    subgroup: u32,
    body: impl for<'b> FnOnce(&'b Builder, &Args<'b>),
) -> (Kernel, Vec<(Operand, Access)>) {
    let list = RefCell::new(vec![]);
    let b = Builder::new(name, workgroup, subgroup);
    body(&b, &Args { b: &b, list: &list, names: RefCell::default() });
    (prune(b.finish()), list.into_inner())
}

/// One launch without scratch, as an emission.
pub(crate) fn single(
    name: impl Into<String>,
    workgroup: u32,
    subgroup: u32,
    grid: [u32; 3],
    body: impl for<'b> FnOnce(&'b Builder, &Args<'b>),
) -> Emission {
    Emission { launches: vec![launch(name, workgroup, subgroup, grid, body)], temps: vec![], cuts: None }
}
