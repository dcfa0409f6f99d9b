//! References, scopes, the header.
//!
//! ```text
//! Kernel ─► every handle in range ─► header ─► body, block by block: defined once, visible where used
//! ```

use super::super::inst::*;
use super::{Found, MAX_DEPTH, Problem, types};

pub(super) fn check(kernel: &Kernel) -> Result<(), Found> {
    handles(kernel)?;
    header(kernel).map_err(|problem| (None, problem))?;
    let n = kernel.ops.len();
    let mut scopes = Scopes { kernel, defined: vec![false; n], visible: vec![false; n] };
    for i in 0..n {
        let v = Value(i as u32);
        if matches!(kernel.op(v), Op::Const(_) | Op::Arg(_) | Op::Builtin(_)) {
            types::check(kernel, v).map_err(|problem| (Some(v), problem))?;
            scopes.visible[i] = true;
        }
    }
    scopes.block(&kernel.body, &[], &[], 0)
}

/// After this, indexing by any handle in the kernel is safe.
fn handles(kernel: &Kernel) -> Result<(), Found> {
    if kernel.ops.len() != kernel.types.len() {
        return Err((None, Problem::UnknownValue(kernel.ops.len().min(kernel.types.len()) as u32)));
    }
    let mut bad = None;
    let mut see = |v: Value| {
        if v.0 as usize >= kernel.ops.len() {
            bad = bad.or(Some(v.0));
        }
    };
    kernel.body.iter().copied().for_each(&mut see);
    for op in &kernel.ops {
        op.for_each_operand(&mut see);
        match op {
            Op::If { then, then_yield, otherwise, else_yield, results, .. } => {
                [then, then_yield, otherwise, else_yield, results].into_iter().flatten().copied().for_each(&mut see);
            }
            Op::For { index, carried, body, body_yield, results, .. } => {
                see(*index);
                [carried, body, body_yield, results].into_iter().flatten().copied().for_each(&mut see);
            }
            _ => {}
        }
    }
    bad.map_or(Ok(()), |v| Err((None, Problem::UnknownValue(v))))
}

fn header(kernel: &Kernel) -> Result<(), Problem> {
    let (workgroup, subgroup) = (kernel.workgroup_size, kernel.subgroup_size);
    let sizes_fit = subgroup.is_power_of_two()
        && subgroup <= 128
        && (1..=1024).contains(&workgroup)
        && workgroup.is_multiple_of(subgroup);
    if !sizes_fit {
        return Err(Problem::Sizes { workgroup, subgroup });
    }
    let arg_names = kernel.args.iter().map(|a| &a.name);
    let shared_names = kernel.shared.iter().map(|s| &s.name);
    for names in [arg_names.collect::<Vec<_>>(), shared_names.collect()] {
        for (i, name) in names.iter().enumerate() {
            if !is_identifier(name) || names[..i].contains(name) {
                return Err(Problem::Name(name.to_string()));
            }
        }
    }
    for pair in kernel.args.windows(2) {
        if pair[0].kind == ArgKind::Word && pair[1].kind != ArgKind::Word {
            return Err(Problem::ArgOrder(pair[1].name.clone()));
        }
    }
    shared_arrays(kernel)
}

fn shared_arrays(kernel: &Kernel) -> Result<(), Problem> {
    let mut bytes = 0u64;
    for array in &kernel.shared {
        let fail = |rule| Err(Problem::SharedArray { name: array.name.clone(), rule });
        if !types::has_memory_form(array.ty) {
            return fail("the elements must be scalars or vectors with a memory form");
        }
        if array.len == 0 {
            return fail("the length must not be 0");
        }
        bytes += array.ty.bytes() as u64 * array.len as u64;
        if bytes > 1 << 20 {
            return fail("all arrays together must stay below 1 MiB");
        }
    }
    Ok(())
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

struct Scopes<'k> {
    kernel: &'k Kernel,
    /// Listed in some block already, or claimed as a parameter.
    defined: Vec<bool>,
    /// Usable at the current point.
    visible: Vec<bool>,
}

impl<'k> Scopes<'k> {
    /// Checks a block whose `params` are visible inside it and whose end yields `yields`.
    fn block(&mut self, block: &Block, params: &[Value], yields: &[Value], depth: usize) -> Result<(), Found> {
        let mut own: Vec<Value> = params.to_vec();
        for &p in params {
            self.visible[p.0 as usize] = true;
        }
        for &v in block {
            let at = |problem| (Some(v), problem);
            self.define(v).map_err(at)?;
            let op = self.kernel.op(v);
            if matches!(op, Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param) {
                return Err(at(Problem::Listed));
            }
            let mut hidden = None;
            op.for_each_operand(|o| hidden = hidden.or((!self.visible[o.0 as usize]).then_some(o.0)));
            if let Some(o) = hidden {
                return Err(at(Problem::NotVisible(o)));
            }
            types::check(self.kernel, v).map_err(at)?;
            for &result in self.nested(v, depth)? {
                self.visible[result.0 as usize] = true;
                own.push(result);
            }
            if self.kernel.ty(v) != Type::Void {
                self.visible[v.0 as usize] = true;
                own.push(v);
            }
        }
        if let Some(hidden) = yields.iter().find(|y| !self.visible[y.0 as usize]) {
            return Err((block.last().copied(), Problem::NotVisible(hidden.0)));
        }
        for v in own {
            self.visible[v.0 as usize] = false;
        }
        Ok(())
    }

    /// Checks the blocks of a control operation; gives the values visible after it.
    fn nested(&mut self, v: Value, depth: usize) -> Result<&'k [Value], Found> {
        let kernel = self.kernel;
        let at = |problem| (Some(v), problem);
        let results = match kernel.op(v) {
            Op::If { then, then_yield, otherwise, else_yield, results, .. } => {
                self.params(v, results)?;
                self.deeper(v, depth)?;
                self.block(then, &[], then_yield, depth + 1)?;
                self.block(otherwise, &[], else_yield, depth + 1)?;
                results
            }
            Op::For { index, carried, body, body_yield, results, .. } => {
                self.params(v, results)?;
                let mut params = vec![*index];
                params.extend(carried);
                self.params(v, &params)?;
                self.deeper(v, depth)?;
                self.block(body, &params, body_yield, depth + 1).map_err(|(inner, p)| (inner.or(Some(v)), p))?;
                results
            }
            _ => return Ok(&[]),
        };
        if results.iter().any(|r| kernel.ty(*r) == Type::Void) {
            return Err(at(Problem::Types("results have a value type")));
        }
        Ok(results)
    }

    fn deeper(&self, v: Value, depth: usize) -> Result<(), Found> {
        if depth >= MAX_DEPTH { Err((Some(v), Problem::TooDeep)) } else { Ok(()) }
    }

    fn params(&mut self, v: Value, params: &[Value]) -> Result<(), Found> {
        for &p in params {
            if !matches!(self.kernel.op(p), Op::Param) {
                return Err((Some(v), Problem::NotParam(p.0)));
            }
            self.define(p).map_err(|problem| (Some(v), problem))?;
        }
        Ok(())
    }

    fn define(&mut self, v: Value) -> Result<(), Problem> {
        if std::mem::replace(&mut self.defined[v.0 as usize], true) {
            return Err(Problem::DefinedTwice(v.0));
        }
        Ok(())
    }
}
