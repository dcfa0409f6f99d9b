//! Kernel → text.
//!
//! ```text
//! Kernel ─► header, then each block: number what it defines, print it ─► Printed { text, where each op starts }
//! ```

use super::super::inst::*;
use super::super::verify::MAX_DEPTH;
use super::names::*;
use std::fmt::Write;

pub(super) struct Printed {
    pub(super) text: String,
    /// Where the name ends: what follows is the identity.
    pub(super) name_end: usize,
    /// Operations by the byte their line starts at.
    pub(super) starts: Vec<(Value, usize)>,
}

pub(super) struct Printer<'k> {
    kernel: &'k Kernel,
    out: Printed,
    numbers: Vec<Option<u32>>,
    next: u32,
    depth: usize,
}

/// `text` never fails to grow.
macro_rules! put {
    ($p:expr, $($arg:tt)*) => { write!($p.out.text, $($arg)*).expect("writing to a string") };
}

impl<'k> Printer<'k> {
    pub(super) fn print(kernel: &'k Kernel) -> Printed {
        let out = Printed { text: String::new(), name_end: 0, starts: vec![] };
        let mut p = Printer { kernel, out, numbers: vec![None; kernel.ops.len()], next: 0, depth: 0 };
        let legal = |c: char| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '_' };
        let name: String = kernel.name.chars().map(legal).collect();
        let starts_well = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        put!(p, "kernel {}{name}", if starts_well { "" } else { "_" });
        p.out.name_end = p.out.text.len();
        put!(p, " workgroup {} subgroup {}\n", kernel.workgroup_size, kernel.subgroup_size);
        for a in &kernel.args {
            put!(p, "arg {} {}\n", a.name, spell(&ARG_KINDS, &a.kind));
        }
        for s in &kernel.shared {
            put!(p, "shared {} {} {}\n", s.name, spell_type(s.ty), s.len);
        }
        put!(p, "{{\n");
        p.block(&kernel.body, &[]);
        put!(p, "}}\n");
        p.out
    }

    fn block(&mut self, block: &[Value], yields: &[Value]) {
        self.depth += 1;
        let indent = "  ".repeat(self.depth);
        for &v in block {
            self.out.starts.push((v, self.out.text.len()));
            put!(self, "{indent}");
            // Only malformed kernels nest that deep (or in a circle).
            if self.depth > MAX_DEPTH + 1 || v.0 as usize >= self.kernel.ops.len() {
                put!(self, "?\n");
                continue;
            }
            self.op(v);
            put!(self, "\n");
        }
        if !yields.is_empty() {
            let yields = self.list(yields);
            put!(self, "{indent}yield {yields}\n");
        }
        self.depth -= 1;
    }

    /// Numbers `v` and gives `%3: f32`.
    fn define(&mut self, v: Value) -> String {
        let Some(number) = self.numbers.get_mut(v.0 as usize) else { return "%?".to_string() };
        *number = Some(self.next);
        self.next += 1;
        format!("%{}: {}", self.next - 1, spell_type(self.kernel.ty(v)))
    }

    fn define_all(&mut self, values: &[Value]) -> String {
        values.iter().map(|v| self.define(*v)).collect::<Vec<_>>().join(", ")
    }

    fn list(&self, values: &[Value]) -> String {
        values.iter().map(|v| self.value(*v)).collect::<Vec<_>>().join(", ")
    }

    /// How an operand looks.
    fn value(&self, v: Value) -> String {
        if v.0 as usize >= self.kernel.ops.len().min(self.kernel.types.len()) {
            return "%?".to_string();
        }
        match self.kernel.op(v) {
            Op::Const(bits) => literal(self.kernel.ty(v), *bits),
            Op::Arg(n) => match self.kernel.args.get(*n as usize) {
                Some(a) => format!("${}", a.name),
                None => "$?".to_string(),
            },
            Op::Builtin(b) => spell(&BUILTINS, b).to_string(),
            _ => self.numbers[v.0 as usize].map_or("%?".to_string(), |n| format!("%{n}")),
        }
    }

    fn address(&self, base: Value, offset: Value, imm: u32) -> String {
        let imm = if imm == 0 { String::new() } else { format!(" + {imm}") };
        format!("[{} + {}{imm}]", self.value(base), self.value(offset))
    }

    fn element(&self, array: u32, index: Value) -> String {
        let name = self.kernel.shared.get(array as usize).map_or("?", |s| &s.name);
        format!("@{name}[{}]", self.value(index))
    }

    fn matrix_memory(&self, memory: &MatrixMemory, stride: Value, column_major: bool) -> String {
        let place = match memory {
            MatrixMemory::Global { base, offset } => self.address(*base, *offset, 0),
            MatrixMemory::Shared { array, index } => self.element(*array, *index),
        };
        let order = if column_major { "column" } else { "row" };
        format!("{place} stride {} {order}", self.value(stride))
    }

    fn op(&mut self, v: Value) {
        let text = match self.kernel.op(v) {
            Op::If { .. } | Op::For { .. } => return self.control(v),
            Op::Const(_) | Op::Arg(_) | Op::Builtin(_) | Op::Param => "?".to_string(),
            Op::Unary(op, a) => format!("{} {}", spell(&UNARY, op), self.value(*a)),
            Op::Binary(op, a, b) => format!("{} {}", spell(&BINARY, op), self.list(&[*a, *b])),
            Op::Fma(a, b, c) => format!("fma {}", self.list(&[*a, *b, *c])),
            Op::Select(c, a, b) => format!("select {}", self.list(&[*c, *a, *b])),
            Op::Convert(a) => format!("convert {}", self.value(*a)),
            Op::Bitcast(a) => format!("bitcast {}", self.value(*a)),
            Op::Compose(parts) => format!("compose {}", self.list(parts)),
            Op::Table(index, words) => {
                let words: Vec<String> = words.iter().map(|w| format!(", {w}")).collect();
                format!("table {}{}", self.value(*index), words.concat())
            }
            Op::Extract(a, lane) => format!("extract {}, {lane}", self.value(*a)),
            Op::Dot4 { a, b, acc, a_signed } => {
                format!("dot4_{} {}", if *a_signed { "ss" } else { "us" }, self.list(&[*a, *b, *acc]))
            }
            Op::Load { base, offset, imm, align, read_only } => {
                let address = self.address(*base, *offset, *imm);
                format!("load {address} align {align}{}", if *read_only { " readonly" } else { "" })
            }
            Op::Store { base, offset, imm, align, value } => {
                format!("store {} align {align}, {}", self.address(*base, *offset, *imm), self.value(*value))
            }
            Op::AtomicAdd { base, offset, value, order } => {
                let order = if *order == Order::Relaxed { " relaxed" } else { "" };
                format!("atomic_add {}, {}{order}", self.address(*base, *offset, 0), self.value(*value))
            }
            Op::SharedLoad { array, index } => format!("shared_load {}", self.element(*array, *index)),
            Op::SharedStore { array, index, value } => {
                format!("shared_store {}, {}", self.element(*array, *index), self.value(*value))
            }
            Op::SubgroupReduce(op, a) => format!("{} {}", spell(&REDUCE, op), self.value(*a)),
            Op::SubgroupShuffleXor(a, mask) => format!("shuffle_xor {}, {mask}", self.value(*a)),
            Op::SubgroupShuffle(a, lane) => format!("shuffle {}", self.list(&[*a, *lane])),
            Op::Barrier => "barrier".to_string(),
            Op::SubgroupBarrier => "subgroup_barrier".to_string(),
            Op::GridBarrier { base, offset } => format!("grid_barrier {}", self.address(*base, *offset, 0)),
            Op::MatrixLoad { memory, stride, column_major } => {
                format!("matrix_load {}", self.matrix_memory(memory, *stride, *column_major))
            }
            Op::MatrixStore { memory, stride, column_major, value } => {
                let place = self.matrix_memory(memory, *stride, *column_major);
                format!("matrix_store {place}, {}", self.value(*value))
            }
            Op::MatrixSplat(a) => format!("matrix_splat {}", self.value(*a)),
            Op::MatrixMulAdd(a, b, c) => format!("matrix_mul_add {}", self.list(&[*a, *b, *c])),
            Op::MatrixElement(a, i) => format!("matrix_element {}, {i}", self.value(*a)),
            Op::MatrixCompose(parts) => format!("matrix_compose {}", self.list(parts)),
        };
        if self.kernel.types.get(v.0 as usize) == Some(&Type::Void) {
            put!(self, "{text}");
        } else {
            let result = self.define(v);
            put!(self, "{result} = {text}");
        }
    }

    fn control(&mut self, v: Value) {
        let indent = "  ".repeat(self.depth);
        match self.kernel.op(v) {
            Op::If { cond, then, then_yield, otherwise, else_yield, results } => {
                let cond = self.value(*cond);
                self.results(results);
                put!(self, "if {cond} {{\n");
                self.block(then, then_yield);
                if !otherwise.is_empty() || !else_yield.is_empty() {
                    put!(self, "{indent}}} else {{\n");
                    self.block(otherwise, else_yield);
                }
            }
            Op::For { start, end, step, index, init, carried, body, body_yield, results, unroll } => {
                let bounds = [*start, *end, *step].map(|b| self.value(b));
                let init: Vec<String> = init.iter().map(|i| self.value(*i)).collect();
                self.results(results);
                let index = self.define(*index);
                let [start, end, step] = bounds;
                put!(self, "for {index} from {start} to {end} step {step}{}", if *unroll { " unroll" } else { "" });
                for (i, (c, init)) in carried.iter().zip(init).enumerate() {
                    let param = self.define(*c);
                    put!(self, "{} {param} = {init}", if i == 0 { " with" } else { "," });
                }
                put!(self, " {{\n");
                self.block(body, body_yield);
            }
            _ => {}
        }
        put!(self, "{indent}}}");
    }

    fn results(&mut self, results: &[Value]) {
        if !results.is_empty() {
            let results = self.define_all(results);
            put!(self, "{results} = ");
        }
    }
}

/// A constant, such that reading it back gives the type and the bits.
fn literal(ty: Type, bits: u64) -> String {
    match ty {
        Type::BOOL if bits <= 1 => (bits == 1).to_string(),
        Type::U32 => bits.to_string(),
        Type::I32 => format!("{}_i32", bits as u32 as i32),
        Type::F32 if f32::from_bits(bits as u32).is_finite() => format!("{:?}", f32::from_bits(bits as u32)),
        Type::Vec(s @ (Scalar::U64 | Scalar::U16 | Scalar::U8), 1) => format!("{bits}_{}", spell(&SCALARS, &s)),
        other => format!("{bits:#x}_{}", spell_type(other)),
    }
}
