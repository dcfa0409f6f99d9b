//! Declares kernel arguments and the operands behind them in one go.

use crate::template::{Access, Emission, LaunchSketch, Operand};
use std::cell::RefCell;
use zinc_ir::kernel::{ArgKind, Builder, Kernel, Val};

/// The arguments of a kernel under construction.
pub(crate) struct Args<'b> {
    b: &'b Builder,
    list: &'b RefCell<Vec<(Operand, Access)>>,
}

impl<'b> Args<'b> {
    pub(crate) fn read(&self, name: &str, operand: Operand) -> Val<'b> {
        self.list.borrow_mut().push((operand, Access::Read));
        self.b.arg(name, ArgKind::Read)
    }
    pub(crate) fn write(&self, name: &str, operand: Operand) -> Val<'b> {
        self.list.borrow_mut().push((operand, Access::Write));
        self.b.arg(name, ArgKind::Write)
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
    body(&b, &Args { b: &b, list: &list });
    (b.finish(), list.into_inner())
}

/// One launch without scratch, as an emission.
pub(crate) fn single(
    name: impl Into<String>,
    workgroup: u32,
    subgroup: u32,
    grid: [u32; 3],
    body: impl for<'b> FnOnce(&'b Builder, &Args<'b>),
) -> Emission {
    Emission { launches: vec![launch(name, workgroup, subgroup, grid, body)], temps: vec![] }
}
