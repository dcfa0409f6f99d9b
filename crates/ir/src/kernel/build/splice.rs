//! A finished kernel's body as a part of another kernel.
//!
//! ```text
//! Kernel + Leaves (what its arguments, tile, grid and arrays are here) ─splice─► its operations in the open block
//! ```
//!
//! The operations stay the very same; only what they are applied to is renamed.

use super::super::inst::*;
use super::{Builder, Val};

/// What the leaves of a spliced kernel become.
pub struct Leaves<'b> {
    /// A value for each argument.
    pub args: Vec<Val<'b>>,
    /// Tile index along each axis.
    pub tile: [Val<'b>; 3],
    /// Tiles along each axis.
    pub grid: [Val<'b>; 3],
    /// Lane within its workgroup. Lanes of a subgroup stay together: lane ids are what they are here.
    pub local_id: Val<'b>,
    /// Subgroup within its workgroup.
    pub subgroup_id: Val<'b>,
    /// For each of its shared arrays one of this kernel, of the same type, and the element (U32) where it begins there.
    pub shared: Vec<(u32, Val<'b>)>,
    /// Which lanes may store to global memory (a Bool), if not all: the others compute for nothing.
    pub only: Option<Val<'b>>,
}

impl Builder {
    /// Appends the body of `kernel`, which must be well-formed. Run twice in one tile (in a loop, say), it needs a
    /// barrier between if it has shared arrays.
    ///
    /// # Panics
    /// As all of the builder, when the leaves do not fit the kernel, and when not all lanes of a kernel with atomics,
    /// stores of matrices or grid barriers may write.
    pub fn splice<'b>(&'b self, kernel: &Kernel, leaves: &Leaves<'b>) {
        {
            let own = &self.state.borrow().kernel;
            assert!(own.subgroup_size == kernel.subgroup_size, "{}: subgroups of another size", kernel.name);
            let fits = |(array, (here, _)): (&Shared, &(u32, Val<'_>))| {
                let here = &own.shared[*here as usize];
                here.ty == array.ty && here.len >= array.len
            };
            let total = |op: &Op| matches!(op, Op::AtomicAdd { .. } | Op::MatrixStore { .. } | Op::GridBarrier { .. });
            assert!(leaves.only.is_none() || !kernel.ops.iter().any(total), "{}: all lanes or none", kernel.name);
            assert!(kernel.shared.len() == leaves.shared.len(), "{}: shared arrays", kernel.name);
            assert!(kernel.shared.iter().zip(&leaves.shared).all(fits), "{}: a shared array does not fit", kernel.name);
        }
        let mut copy = Copy { to: self, kernel, leaves, renamed: vec![None; kernel.ops.len()] };
        copy.leaves();
        let body = copy.block(&kernel.body);
        self.state.borrow_mut().blocks.last_mut().expect("an open block").extend(body);
    }
}

/// A body on its way into another kernel.
struct Copy<'b, 'k> {
    to: &'b Builder,
    kernel: &'k Kernel,
    leaves: &'k Leaves<'b>,
    renamed: Vec<Option<Value>>,
}

impl Copy<'_, '_> {
    fn leaves(&mut self) {
        for (i, op) in self.kernel.ops.iter().enumerate() {
            let new = match op {
                Op::Const(bits) => self.to.constant(self.kernel.types[i], *bits),
                Op::Arg(n) => self.leaves.args[*n as usize],
                Op::Builtin(Builtin::Tile(axis)) => self.leaves.tile[*axis as usize],
                Op::Builtin(Builtin::GridSize(axis)) => self.leaves.grid[*axis as usize],
                Op::Builtin(Builtin::LocalId) => self.leaves.local_id,
                Op::Builtin(Builtin::SubgroupId) => self.leaves.subgroup_id,
                Op::Builtin(Builtin::Lane) => self.to.lane(),
                _ => continue,
            };
            assert!(new.ty() == self.kernel.types[i], "{}: a leaf of another type", self.kernel.name);
            self.renamed[i] = Some(new.v);
        }
    }

    fn get(&self, v: Value) -> Value {
        self.renamed[v.0 as usize].expect("defined before use")
    }

    fn all(&self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|v| self.get(*v)).collect()
    }

    fn define(&mut self, v: Value, op: Op) -> Value {
        let new = self.to.define(op, self.kernel.ty(v));
        self.renamed[v.0 as usize] = Some(new);
        new
    }

    fn params(&mut self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|v| self.define(*v, Op::Param)).collect()
    }

    fn block(&mut self, block: &Block) -> Block {
        let mut copied = vec![];
        block.iter().for_each(|v| self.operation(*v, &mut copied));
        copied
    }

    fn operation(&mut self, v: Value, copied: &mut Block) {
        let mut op = self.kernel.op(v).clone();
        for operand in op.operands_mut() {
            *operand = self.get(*operand);
        }
        match &mut op {
            Op::If { then, then_yield, otherwise, else_yield, results, .. } => {
                for (block, yields) in [(then, then_yield), (otherwise, else_yield)] {
                    *block = self.block(block);
                    *yields = self.all(yields);
                }
                *results = self.params(results);
            }
            Op::For { index, carried, body, body_yield, results, .. } => {
                *index = self.define(*index, Op::Param);
                *carried = self.params(carried);
                *body = self.block(body);
                *body_yield = self.all(body_yield);
                *results = self.params(results);
            }
            Op::SharedLoad { array, index }
            | Op::SharedStore { array, index, .. }
            | Op::MatrixLoad { memory: MatrixMemory::Shared { array, index }, .. }
            | Op::MatrixStore { memory: MatrixMemory::Shared { array, index }, .. } => {
                let (here, first) = self.leaves.shared[*array as usize];
                *array = here;
                if self.to.const_bits(first.v) != Some(0) {
                    *index = self.to.define(Op::Binary(BinOp::Add, *index, first.v), Type::U32);
                    copied.push(*index);
                }
            }
            _ => {}
        }
        let masked = self.leaves.only.filter(|_| matches!(op, Op::Store { .. }));
        let new = self.define(v, op);
        copied.push(match masked {
            None => new,
            Some(cond) => self.to.define(only_if(cond.v, new), Type::Void),
        });
    }
}

fn only_if(cond: Value, statement: Value) -> Op {
    let [then_yield, otherwise, else_yield, results] = [const { vec![] }; 4];
    Op::If { cond, then: vec![statement], then_yield, otherwise, else_yield, results }
}
