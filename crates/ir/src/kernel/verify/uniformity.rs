//! Which values and which control flow are the same for all lanes.
//!
//! ```text
//! body ─► level of every value (fixpoint over loops) ─► barriers, subgroup and matrix operations under control
//!                                                       flow of a low enough level
//! ```
//!
//! Four levels: the same over the grid, over the workgroup, over each subgroup, varying. "The same" is meant for the
//! lanes that run the operation together. A load from a uniform address is uniform even when it is not
//! `read_only`: lanes that read one place in one barrier interval see one value, or there is a race, which is an
//! error by itself (the interpreter reports it). Over the grid only `read_only` loads are: ordered atomics may let one
//! tile read before and another after a write.

use super::super::inst::*;
use super::{Found, Problem};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    Grid,
    Workgroup,
    Subgroup,
    Varying,
}

pub(super) fn check(kernel: &Kernel) -> Result<(), Found> {
    // With one subgroup per workgroup both scopes are one.
    let subgroup = if kernel.workgroup_size == kernel.subgroup_size { Level::Workgroup } else { Level::Subgroup };
    let mut pass = Pass { kernel, subgroup, levels: vec![Level::Grid; kernel.ops.len()], changed: false };
    for (i, op) in kernel.ops.iter().enumerate() {
        if let Op::Builtin(b) = op {
            pass.levels[i] = match b {
                Builtin::GridSize(_) => Level::Grid,
                Builtin::Tile(_) => Level::Workgroup,
                Builtin::SubgroupId => subgroup,
                Builtin::LocalId | Builtin::Lane if kernel.workgroup_size == 1 => Level::Workgroup,
                Builtin::LocalId => Level::Varying,
                Builtin::Lane if kernel.subgroup_size == 1 => Level::Workgroup,
                Builtin::Lane => Level::Varying,
            };
        }
    }
    // Levels only rise, so this ends after at most three rises per value.
    loop {
        pass.changed = false;
        pass.block(&kernel.body);
        if !pass.changed {
            break;
        }
    }
    pass.require(&kernel.body, Level::Grid)
}

struct Pass<'k> {
    kernel: &'k Kernel,
    /// Level of what is the same over a subgroup.
    subgroup: Level,
    levels: Vec<Level>,
    changed: bool,
}

impl Pass<'_> {
    fn level(&self, v: Value) -> Level {
        self.levels[v.0 as usize]
    }

    fn raise(&mut self, v: Value, to: Level) {
        let level = &mut self.levels[v.0 as usize];
        if to > *level {
            *level = to;
            self.changed = true;
        }
    }

    fn block(&mut self, block: &Block) {
        for &v in block {
            match self.kernel.op(v) {
                Op::If { cond, then, then_yield, otherwise, else_yield, results } => {
                    self.block(then);
                    self.block(otherwise);
                    for ((r, a), b) in results.iter().zip(then_yield).zip(else_yield) {
                        self.raise(*r, self.level(*cond).max(self.level(*a)).max(self.level(*b)));
                    }
                }
                Op::For { start, end, step, index, init, carried, body, body_yield, results, .. } => {
                    // Lanes inside the body are in the same iteration; only what leaves depends on the count.
                    self.raise(*index, self.level(*start).max(self.level(*step)));
                    let count = self.level(*start).max(self.level(*end)).max(self.level(*step));
                    for (c, i) in carried.iter().zip(init) {
                        self.raise(*c, self.level(*i));
                    }
                    self.block(body);
                    for ((c, y), r) in carried.iter().zip(body_yield).zip(results) {
                        self.raise(*c, self.level(*y));
                        self.raise(*r, self.level(*c).max(count));
                    }
                }
                op => {
                    let level = self.result_level(op);
                    self.raise(v, level);
                }
            }
        }
    }

    fn result_level(&self, op: &Op) -> Level {
        let mut joined = Level::Grid;
        op.for_each_operand(|o| joined = joined.max(self.level(o)));
        match op {
            Op::AtomicAdd { .. } => Level::Varying,
            Op::Load { read_only: false, .. } | Op::SharedLoad { .. } => joined.max(Level::Workgroup),
            // A matrix belongs to its subgroup as a whole.
            Op::MatrixLoad { .. } | Op::MatrixSplat(_) | Op::MatrixMulAdd(..) | Op::MatrixCompose(_) => {
                joined.min(self.subgroup)
            }
            Op::MatrixElement(..) => Level::Varying,
            Op::SubgroupReduce(..) => joined.min(self.subgroup),
            Op::SubgroupShuffle(a, lane) => {
                let broadcast = if self.level(*lane) <= self.subgroup { self.subgroup } else { Level::Varying };
                self.level(*a).min(broadcast)
            }
            _ => joined,
        }
    }

    /// Checks a block that runs under control flow of level `control`.
    fn require(&self, block: &Block, control: Level) -> Result<(), Found> {
        for &v in block {
            let at = |problem| (Some(v), problem);
            let under = |allowed: Level, scope| {
                if control <= allowed { Ok(()) } else { Err(at(flow(scope))) }
            };
            match self.kernel.op(v) {
                Op::Barrier => under(Level::Workgroup, "workgroup")?,
                Op::GridBarrier { base, offset } => {
                    under(Level::Grid, "grid")?;
                    if self.level(*base).max(self.level(*offset)) > Level::Grid {
                        let (what, hint) = ("the counter of a grid barrier", "compute its address from arguments");
                        return Err(at(Problem::NotUniform { what, scope: "grid", hint }));
                    }
                }
                Op::SubgroupReduce(..)
                | Op::SubgroupShuffle(..)
                | Op::SubgroupShuffleXor(..)
                | Op::SubgroupBarrier
                | Op::MatrixMulAdd(..)
                | Op::MatrixElement(..)
                | Op::MatrixCompose(_) => {
                    under(self.subgroup, "subgroup")?;
                }
                Op::MatrixLoad { memory, stride, .. } | Op::MatrixStore { memory, stride, .. } => {
                    under(self.subgroup, "subgroup")?;
                    let (a, b) = match memory {
                        MatrixMemory::Global { base, offset } => (base, offset),
                        MatrixMemory::Shared { index, .. } => (index, index),
                    };
                    for operand in [a, b, stride] {
                        self.uniform_operand(*operand).map_err(at)?;
                    }
                }
                Op::MatrixSplat(x) => {
                    under(self.subgroup, "subgroup")?;
                    self.uniform_operand(*x).map_err(at)?;
                }
                Op::Convert(_) | Op::Binary(..) if matches!(self.kernel.ty(v), Type::Matrix(_)) => {
                    under(self.subgroup, "subgroup")?;
                }
                Op::If { cond, then, otherwise, results, .. } => {
                    let inner = control.max(self.level(*cond));
                    self.matrices(results, inner).map_err(at)?;
                    self.require(then, inner)?;
                    self.require(otherwise, inner)?;
                }
                Op::For { start, end, step, body, results, .. } => {
                    let bounds = self.level(*start).max(self.level(*end)).max(self.level(*step));
                    let inner = control.max(bounds);
                    self.matrices(results, inner).map_err(at)?;
                    self.require(body, inner)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn uniform_operand(&self, v: Value) -> Result<(), Problem> {
        if self.level(v) <= self.subgroup {
            return Ok(());
        }
        let hint = "compute it from constants, arguments, tiles, the subgroup id or subgroup reductions";
        Err(Problem::NotUniform { what: "the operand of a matrix operation", scope: "subgroup", hint })
    }

    /// A matrix cannot be chosen lane by lane.
    fn matrices(&self, results: &[Value], inner: Level) -> Result<(), Problem> {
        let any = results.iter().any(|r| matches!(self.kernel.ty(*r), Type::Matrix(_)));
        if any && inner > self.subgroup { Err(flow("subgroup")) } else { Ok(()) }
    }
}

fn flow(scope: &'static str) -> Problem {
    let hint = "make the enclosing conditions and loop bounds uniform, or move the operation out of them";
    Problem::NotUniform { what: "control flow", scope, hint }
}
