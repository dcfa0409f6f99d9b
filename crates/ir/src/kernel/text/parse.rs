//! Text → kernel.
//!
//! ```text
//! tokens ─► header, blocks (recursive) ─► Kernel; run `verify` on it
//! ```

use super::super::inst::*;
use super::super::verify::MAX_DEPTH;
use super::lexer::{Token, tokens};
use super::names::*;
use std::collections::HashMap;

/// Why a text is no kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// What was found and what was expected.
    pub message: String,
}

/// Reads the text form of a kernel. The result prints as the text it came from, up to comments, spacing and value
/// numbers; it is not verified.
///
/// # Errors
/// The first line that does not follow the grammar in the module docs.
pub fn parse(text: &str) -> Result<Kernel, ParseError> {
    let mut p = Parser {
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
        kernel: Kernel {
            name: String::new(),
            workgroup_size: 0,
            subgroup_size: 0,
            args: vec![],
            shared: vec![],
            ops: vec![],
            types: vec![],
            body: vec![],
        },
        numbered: HashMap::new(),
        leaves: HashMap::new(),
    };
    p.header()?;
    p.sign('{')?;
    let (body, yields) = p.block()?;
    if !yields.is_empty() {
        return p.fail("the body of a kernel yields nothing");
    }
    p.kernel.body = body;
    match p.next() {
        Token::End => Ok(p.kernel),
        other => p.expected("the end of the text", &other),
    }
}

type Result<T, E = ParseError> = std::result::Result<T, E>;

/// What identifies a leaf, so that each is made once.
#[derive(PartialEq, Eq, Hash)]
enum Leaf {
    Const(Type, u64),
    Arg(u32),
    Builtin(Builtin),
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
    kernel: Kernel,
    numbered: HashMap<u32, Value>,
    leaves: HashMap<Leaf, Value>,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)].0
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    /// Fails at the token read last.
    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        let last = self.at.saturating_sub(1).min(self.tokens.len() - 1);
        Err(ParseError { line: self.tokens[last].1, message: message.into() })
    }

    fn expected<T>(&self, what: &str, found: &Token) -> Result<T> {
        self.fail(format!("expected {what}, found {}", found.describe()))
    }

    fn sign(&mut self, c: char) -> Result<()> {
        match self.next() {
            Token::Sign(s) if s == c => Ok(()),
            other => self.expected(&format!("`{c}`"), &other),
        }
    }

    fn word(&mut self, what: &str) -> Result<String> {
        match self.next() {
            Token::Word(w) => Ok(w),
            other => self.expected(what, &other),
        }
    }

    fn keyword(&mut self, keyword: &str) -> Result<()> {
        match self.next() {
            Token::Word(w) if w == keyword => Ok(()),
            other => self.expected(&format!("`{keyword}`"), &other),
        }
    }

    /// True, and the token is taken, when it is `token`.
    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == token;
        self.at += found as usize;
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(w) if w == word);
        self.at += found as usize;
        found
    }

    fn integer<T: std::str::FromStr>(&mut self) -> Result<T> {
        let token = self.next();
        let parsed = match &token {
            Token::Number(n) => n.parse().ok(),
            _ => None,
        };
        match parsed {
            Some(n) => Ok(n),
            None => self.expected("an integer in range", &token),
        }
    }

    fn ty(&mut self) -> Result<Type> {
        let name = self.word("a type")?;
        match find_type(&name) {
            Some(ty) => Ok(ty),
            None => self.fail(format!("no type `{name}`: write e.g. f32, u32x4 or mat.acc.8x8.f32")),
        }
    }

    fn header(&mut self) -> Result<()> {
        self.keyword("kernel")?;
        self.kernel.name = self.word("a name")?;
        self.keyword("workgroup")?;
        self.kernel.workgroup_size = self.integer()?;
        self.keyword("subgroup")?;
        self.kernel.subgroup_size = self.integer()?;
        loop {
            if self.take_word("arg") {
                let name = self.word("a name")?;
                let kind = self.word("read, write, readwrite or word")?;
                let Some(kind) = find(&ARG_KINDS, &kind) else {
                    return self.fail(format!("no argument kind `{kind}`: read, write, readwrite or word"));
                };
                self.kernel.args.push(Arg { name, kind });
            } else if self.take_word("shared") {
                let name = self.word("a name")?;
                let ty = self.ty()?;
                let len = self.integer()?;
                self.kernel.shared.push(Shared { name, ty, len });
            } else {
                return Ok(());
            }
        }
    }

    // ---- values -------------------------------------------------------------------------------------------

    fn new_value(&mut self, op: Op, ty: Type) -> Value {
        self.kernel.ops.push(op);
        self.kernel.types.push(ty);
        Value(self.kernel.ops.len() as u32 - 1)
    }

    fn leaf(&mut self, leaf: Leaf) -> Value {
        if let Some(v) = self.leaves.get(&leaf) {
            return *v;
        }
        let (op, ty) = match &leaf {
            Leaf::Const(ty, bits) => (Op::Const(*bits), *ty),
            Leaf::Arg(n) => {
                let word = self.kernel.args[*n as usize].kind == ArgKind::Word;
                (Op::Arg(*n), if word { Type::U32 } else { Type::U64 })
            }
            Leaf::Builtin(b) => (Op::Builtin(*b), Type::U32),
        };
        let v = self.new_value(op, ty);
        self.leaves.insert(leaf, v);
        v
    }

    fn value(&mut self) -> Result<Value> {
        let token = self.next();
        match &token {
            Token::Percent(n) => match self.numbered.get(n) {
                Some(v) => Ok(*v),
                None => self.fail(format!("%{n} is used before it is defined")),
            },
            Token::Dollar(name) => match self.kernel.args.iter().position(|a| a.name == *name) {
                Some(n) => Ok(self.leaf(Leaf::Arg(n as u32))),
                None => self.fail(format!("no argument `${name}`: declare it with `arg`")),
            },
            Token::Number(text) => match number(text) {
                Some((ty, bits)) => Ok(self.leaf(Leaf::Const(ty, bits))),
                None => self.fail(format!("`{text}` is no number: write e.g. 7, 2.0, -3_i32, 0x3c00_f16")),
            },
            Token::Word(w) if w == "true" || w == "false" => {
                Ok(self.leaf(Leaf::Const(Type::BOOL, (w == "true") as u64)))
            }
            Token::Word(w) => match find(&BUILTINS, w) {
                Some(b) => Ok(self.leaf(Leaf::Builtin(b))),
                None => self.expected("a value", &token),
            },
            _ => self.expected("a value", &token),
        }
    }

    fn comma_value(&mut self) -> Result<Value> {
        self.sign(',')?;
        self.value()
    }

    /// `%3: f32`, not yet bound to a value.
    fn binding(&mut self) -> Result<(u32, Type)> {
        let token = self.next();
        let Token::Percent(n) = token else { return self.expected("`%` and a number", &token) };
        self.sign(':')?;
        Ok((n, self.ty()?))
    }

    fn bind(&mut self, number: u32, v: Value) -> Result<()> {
        match self.numbered.insert(number, v) {
            None => Ok(()),
            Some(_) => self.fail(format!("%{number} is defined twice")),
        }
    }

    fn params(&mut self, bindings: &[(u32, Type)]) -> Result<Vec<Value>> {
        let mut params = vec![];
        for (number, ty) in bindings {
            let v = self.new_value(Op::Param, *ty);
            self.bind(*number, v)?;
            params.push(v);
        }
        Ok(params)
    }

    /// `[base + offset]`, `[base + offset + imm]`.
    fn address(&mut self) -> Result<(Value, Value, u32)> {
        self.sign('[')?;
        let base = self.value()?;
        self.sign('+')?;
        let offset = self.value()?;
        let imm = if self.take(&Token::Sign('+')) { self.integer()? } else { 0 };
        self.sign(']')?;
        Ok((base, offset, imm))
    }

    /// As [`Parser::address`], where there is no room for a displacement.
    fn plain_address(&mut self) -> Result<(Value, Value)> {
        match self.address()? {
            (base, offset, 0) => Ok((base, offset)),
            _ => self.fail("this operation has no constant displacement: add it to the offset"),
        }
    }

    /// `@array[index]`.
    fn element(&mut self) -> Result<(u32, Value)> {
        let token = self.next();
        let Token::At(name) = &token else { return self.expected("`@` and a shared array", &token) };
        let Some(array) = self.kernel.shared.iter().position(|s| s.name == *name) else {
            return self.fail(format!("no shared array `@{name}`: declare it with `shared`"));
        };
        self.sign('[')?;
        let index = self.value()?;
        self.sign(']')?;
        Ok((array as u32, index))
    }

    fn align(&mut self) -> Result<u8> {
        self.keyword("align")?;
        self.integer()
    }

    // ---- operations ---------------------------------------------------------------------------------------

    /// Operations up to the closing brace, which is taken, and what the block yields.
    fn block(&mut self) -> Result<(Block, Vec<Value>)> {
        self.depth += 1;
        if self.depth > MAX_DEPTH + 1 {
            return self.fail(format!("nested deeper than {MAX_DEPTH}"));
        }
        let mut block = vec![];
        let mut yields = vec![];
        loop {
            if self.take(&Token::Sign('}')) {
                self.depth -= 1;
                return Ok((block, yields));
            }
            if self.take_word("yield") {
                yields.push(self.value()?);
                while self.take(&Token::Sign(',')) {
                    yields.push(self.value()?);
                }
                self.sign('}')?;
                self.depth -= 1;
                return Ok((block, yields));
            }
            block.push(self.statement()?);
        }
    }

    fn statement(&mut self) -> Result<Value> {
        let mut bindings = vec![];
        if matches!(self.peek(), Token::Percent(_)) {
            bindings.push(self.binding()?);
            while self.take(&Token::Sign(',')) {
                bindings.push(self.binding()?);
            }
            self.sign('=')?;
        }
        let name = self.word("an operation or `}`")?;
        let op = match name.as_str() {
            "if" => return self.if_(&bindings),
            "for" => return self.for_(&bindings),
            _ => self.simple(&name)?,
        };
        match (&op, &bindings[..]) {
            (op, []) if is_statement(op) => Ok(self.new_value(op.clone(), Type::Void)),
            (op, _) if is_statement(op) => self.fail(format!("`{name}` has no result")),
            (_, [(number, ty)]) => {
                let v = self.new_value(op, *ty);
                self.bind(*number, v)?;
                Ok(v)
            }
            _ => self.fail(format!("`{name}` has one result: write `%n: type = {name} …`")),
        }
    }

    fn simple(&mut self, name: &str) -> Result<Op> {
        if let Some(op) = find(&UNARY, name) {
            return Ok(Op::Unary(op, self.value()?));
        }
        if let Some(op) = find(&BINARY, name) {
            return Ok(Op::Binary(op, self.value()?, self.comma_value()?));
        }
        if let Some(op) = find(&REDUCE, name) {
            return Ok(Op::SubgroupReduce(op, self.value()?));
        }
        Ok(match name {
            "fma" => Op::Fma(self.value()?, self.comma_value()?, self.comma_value()?),
            "select" => Op::Select(self.value()?, self.comma_value()?, self.comma_value()?),
            "convert" => Op::Convert(self.value()?),
            "bitcast" => Op::Bitcast(self.value()?),
            "compose" => Op::Compose(self.values()?),
            "table" => {
                let (index, mut words) = (self.value()?, vec![]);
                while self.take(&Token::Sign(',')) {
                    words.push(self.integer()?);
                }
                Op::Table(index, words)
            }
            "extract" => {
                let a = self.value()?;
                self.sign(',')?;
                Op::Extract(a, self.integer()?)
            }
            "dot4_ss" | "dot4_us" => {
                let (a, b, acc) = (self.value()?, self.comma_value()?, self.comma_value()?);
                Op::Dot4 { a, b, acc, a_signed: name == "dot4_ss" }
            }
            "shuffle" => Op::SubgroupShuffle(self.value()?, self.comma_value()?),
            "shuffle_xor" => {
                let a = self.value()?;
                self.sign(',')?;
                Op::SubgroupShuffleXor(a, self.integer()?)
            }
            "barrier" => Op::Barrier,
            "subgroup_barrier" => Op::SubgroupBarrier,
            _ => return self.memory(name),
        })
    }

    fn memory(&mut self, name: &str) -> Result<Op> {
        Ok(match name {
            "load" => {
                let (base, offset, imm) = self.address()?;
                let align = self.align()?;
                Op::Load { base, offset, imm, align, read_only: self.take_word("readonly") }
            }
            "store" => {
                let (base, offset, imm) = self.address()?;
                let align = self.align()?;
                Op::Store { base, offset, imm, align, value: self.comma_value()? }
            }
            "atomic_add" => {
                let (base, offset) = self.plain_address()?;
                let value = self.comma_value()?;
                let order = if self.take_word("relaxed") { Order::Relaxed } else { Order::AcquireRelease };
                Op::AtomicAdd { base, offset, value, order }
            }
            "grid_barrier" => {
                let (base, offset) = self.plain_address()?;
                Op::GridBarrier { base, offset }
            }
            "shared_load" => {
                let (array, index) = self.element()?;
                Op::SharedLoad { array, index }
            }
            "shared_store" => {
                let (array, index) = self.element()?;
                Op::SharedStore { array, index, value: self.comma_value()? }
            }
            "matrix_load" => {
                let (memory, stride, column_major) = self.matrix_memory()?;
                Op::MatrixLoad { memory, stride, column_major }
            }
            "matrix_store" => {
                let (memory, stride, column_major) = self.matrix_memory()?;
                Op::MatrixStore { memory, stride, column_major, value: self.comma_value()? }
            }
            "matrix_splat" => Op::MatrixSplat(self.value()?),
            "matrix_element" => {
                let a = self.value()?;
                self.sign(',')?;
                Op::MatrixElement(a, self.integer()?)
            }
            "matrix_compose" => Op::MatrixCompose(self.values()?),
            "matrix_mul_add" => Op::MatrixMulAdd(self.value()?, self.comma_value()?, self.comma_value()?),
            _ => return self.fail(format!("no operation `{name}`")),
        })
    }

    /// One value or more.
    fn values(&mut self) -> Result<Vec<Value>> {
        let mut values = vec![self.value()?];
        while self.take(&Token::Sign(',')) {
            values.push(self.value()?);
        }
        Ok(values)
    }

    fn matrix_memory(&mut self) -> Result<(MatrixMemory, Value, bool)> {
        let memory = if matches!(self.peek(), Token::At(_)) {
            let (array, index) = self.element()?;
            MatrixMemory::Shared { array, index }
        } else {
            let (base, offset) = self.plain_address()?;
            MatrixMemory::Global { base, offset }
        };
        self.keyword("stride")?;
        let stride = self.value()?;
        let order = self.word("`row` or `column`")?;
        match order.as_str() {
            "row" => Ok((memory, stride, false)),
            "column" => Ok((memory, stride, true)),
            _ => self.fail(format!("expected `row` or `column`, found `{order}`")),
        }
    }

    fn if_(&mut self, bindings: &[(u32, Type)]) -> Result<Value> {
        let cond = self.value()?;
        self.sign('{')?;
        let (then, then_yield) = self.block()?;
        let (otherwise, else_yield) = if self.take_word("else") {
            self.sign('{')?;
            self.block()?
        } else {
            (vec![], vec![])
        };
        let results = self.params(bindings)?;
        let op = Op::If { cond, then, then_yield, otherwise, else_yield, results };
        Ok(self.new_value(op, Type::Void))
    }

    fn for_(&mut self, bindings: &[(u32, Type)]) -> Result<Value> {
        let index = self.binding()?;
        self.keyword("from")?;
        let start = self.value()?;
        self.keyword("to")?;
        let end = self.value()?;
        self.keyword("step")?;
        let step = self.value()?;
        let unroll = self.take_word("unroll");
        let mut inside = vec![];
        let mut init = vec![];
        if self.take_word("with") {
            loop {
                inside.push(self.binding()?);
                self.sign('=')?;
                init.push(self.value()?);
                if !self.take(&Token::Sign(',')) {
                    break;
                }
            }
        }
        self.sign('{')?;
        let index = self.params(&[index])?[0];
        let carried = self.params(&inside)?;
        let (body, body_yield) = self.block()?;
        let results = self.params(bindings)?;
        let op = Op::For { start, end, step, index, init, carried, body, body_yield, results, unroll };
        Ok(self.new_value(op, Type::Void))
    }
}

/// Does the operation stand without a result?
fn is_statement(op: &Op) -> bool {
    matches!(
        op,
        Op::Store { .. }
            | Op::SharedStore { .. }
            | Op::MatrixStore { .. }
            | Op::Barrier
            | Op::SubgroupBarrier
            | Op::GridBarrier { .. }
    )
}

/// Type and bits of a literal.
fn number(text: &str) -> Option<(Type, u64)> {
    let (digits, suffix) = match text.split_once('_') {
        Some((digits, suffix)) => (digits, Some(suffix)),
        None => (text, None),
    };
    let Some(suffix) = suffix else {
        let float = digits.contains(['.', 'e']);
        return if float {
            let x: f32 = digits.parse().ok()?;
            x.is_finite().then_some((Type::F32, x.to_bits() as u64))
        } else {
            Some((Type::U32, digits.parse::<u32>().ok()? as u64))
        };
    };
    let ty = find_type(suffix)?;
    let Type::Vec(scalar, 1) = ty else { return None };
    let bits = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None if scalar == Scalar::I32 => digits.parse::<i32>().ok()? as u32 as u64,
        None => digits.parse().ok()?,
    };
    let width = if scalar == Scalar::Bool { 1 } else { scalar.bytes() * 8 };
    (width == 64 || bits >> width == 0).then_some((ty, bits))
}
