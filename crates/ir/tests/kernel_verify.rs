//! One broken kernel per rule, and for uniformity the nearest one that is fine.

use zinc_ir::kernel::*;

const HEADER: &str =
    "arg x read\narg y write\narg z readwrite\narg n word\nshared s f32 64\nshared h f16 64\nshared q f16x4 64\n";

fn kernel(body: &str) -> Kernel {
    let text = format!("kernel k workgroup 64 subgroup 32\n{HEADER}{{\n{body}\n}}\n");
    parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[track_caller]
fn fine(body: &str) {
    if let Err(e) = verify(&kernel(body)) {
        panic!("{e}");
    }
}

fn problem(body: &str) -> Problem {
    let error = verify(&kernel(body)).expect_err(body);
    assert_eq!(error.kernel, "k");
    error.problem
}

#[track_caller]
fn type_error(body: &str, rule: &str) {
    match verify(&kernel(body)).expect_err(body) {
        VerifyError { problem: Problem::Types(text), .. } => assert!(text.contains(rule), "{text:?} for {body}"),
        other => panic!("{other} for {body}"),
    }
}

#[test]
fn errors_show_the_operation() {
    let error = verify(&kernel("%0: u32 = add $n, 1\n%1: f32 = add %0, %0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel k, at `%1: f32 = add %0, %0`: type error: arithmetic gives the operands' type, a comparison gives bools"
    );
}

#[test]
fn types_of_arithmetic() {
    type_error("%0: u32 = add $n, 1.0", "one type");
    type_error("%0: u32 = lt $n, 1", "comparison gives bools");
    type_error("%0: u8 = add 1_u8, 2_u8", "does not take operands");
    type_error("%0: bool = eq true, false", "does not take operands");
    type_error("%0: f32 = rem 1.0, 2.0", "does not take operands");
    type_error("%0: f32 = and 1.0, 2.0", "does not take operands");
    type_error("%0: u32 = pow $n, 2", "does not take operands");
    type_error("%0: u32 = neg $n", "neg takes");
    type_error("%0: f16 = exp 0x3c00_f16", "the rest take f32");
    type_error("%0: f32 = not 1.0", "not takes");
    type_error("%0: u32 = fma $n, $n, $n", "fma takes floats");
    type_error("%0: f32 = fma 1.0, 2.0, 0x3c00_f16", "one type");
    type_error("%0: f32 = select $n, 1.0, 2.0", "the condition");
    type_error("%0: f32 = select true, 1.0, 2", "both choices");
    type_error("%0: f32 = convert 1.0", "changes the type");
    type_error("%0: u32 = convert true", "bools do not convert");
    type_error("%0: f32x2 = convert $n", "keeps the lanes");
    type_error("%0: f32x2 = bitcast $n", "keeps the size");
    type_error("%0: u32 = bitcast true", "memory form");
    type_error("%0: f32x2 = compose 1.0, 2.0, 3.0", "one scalar per lane");
    type_error("%0: f32x2 = compose 1.0, 2", "scalars of the vector's type");
    type_error("%0: f32 = extract 1.0, 1", "existing lane");
    type_error("%0: i32 = dot4_ss $n, 1, 2", "accumulates in i32");
    type_error("%0: u32 = dot4_ss $n, 1, 2_i32", "gives i32");
    type_error("%0: u32 = table 1.0, 5", "is a u32");
    type_error("%0: f32 = table $n, 5", "gives a u32");
    type_error("%0: u32 = table $n", "1 to 4096 words");
    type_error("%0: f16 = subgroup_add 0x3c00_f16", "take i32, u32 and f32");
    type_error("%0: u32 = shuffle_xor $n, 32", "below the subgroup size");
    type_error("%0: u32 = shuffle $n, 1.0", "is a u32");
    fine("%0: f32x2 = compose 1.0, 2.0\n%1: boolx2 = lt %0, %0\n%2: f32x2 = select %1, %0, %0\n%3: boolx2 = not %1");
}

#[test]
fn accesses() {
    type_error("%0: f32 = load [$n + 0] align 4", "u64 base");
    type_error("%0: f32 = load [$x + 1.0] align 4", "u32 byte offset");
    assert_eq!(problem("%0: f32 = load [$x + 0] align 2"), Problem::Align { align: 2, scalar: 4 });
    assert_eq!(problem("%0: f32 = load [$x + 0] align 12"), Problem::Align { align: 12, scalar: 4 });
    assert_eq!(problem("%0: f32 = load [$x + 0] align 32"), Problem::Align { align: 32, scalar: 4 });
    assert_eq!(problem("%0: u64x4 = load [$x + 0] align 8"), Problem::Width(32));
    assert_eq!(problem("%0: bool = load [$x + 0] align 4"), Problem::Width(4));
    fine("%0: u8x4 = load [$x + 0] align 1\n%1: u64x2 = load [$x + 0] align 8\nstore [$y + 3] align 1, %0");
    type_error("%0: u32 = atomic_add [$z + 0], 1.0", "atomics add u32");
    type_error("%0: f16 = shared_load @s[0]", "element type");
    type_error("shared_store @s[0], 1", "element type");
    type_error("shared_store @s[1.0], 1.0", "index is a u32");
}

#[test]
fn argument_kinds() {
    let read = |name: &str| Problem::WritesReadArg(name.to_string());
    let write = |name: &str| Problem::ReadsWriteArg(name.to_string());
    assert_eq!(problem("store [$x + 0] align 4, 1"), read("x"));
    assert_eq!(problem("%0: u32 = load [$y + 0] align 4"), write("y"));
    assert_eq!(problem("%0: u32 = load [$y + 0] align 4 readonly"), write("y"));
    assert_eq!(problem("%0: u32 = atomic_add [$y + 0], 1"), write("y"));
    assert_eq!(problem("%0: u32 = atomic_add [$x + 0], 1"), read("x"));
    fine("%0: u32 = atomic_add [$z + 0], 1\nstore [$z + 4] align 4, 1\n%1: u32 = load [$z + 8] align 4");
    // Through additions, on either side.
    assert_eq!(problem("%0: u64 = add 8_u64, $x\n%1: u64 = add %0, 16_u64\nstore [%1 + 0] align 4, 1"), read("x"));
    let matrix = "%0: mat.acc.8x8.f32 = matrix_splat 1.0\nmatrix_store [$x + 0] stride 8 row, %0";
    assert_eq!(problem(matrix), read("x"));
    assert_eq!(problem("%0: mat.a.8x8.f16 = matrix_load [$y + 0] stride 8 row"), write("y"));
}

#[test]
fn matrices() {
    let load = "%0: mat.a.8x16.f16 = matrix_load [$x + 0] stride 16 row\n%1: mat.b.16x8.f16 = matrix_load @h[0] stride 8 row\n%2: mat.acc.8x8.f32 = matrix_splat 0.0\n";
    fine(&format!("{load}%3: mat.acc.8x8.f32 = matrix_mul_add %0, %1, %2\nmatrix_store @s[0] stride 8 column, %3"));
    type_error(&format!("{load}%3: mat.acc.8x8.f32 = matrix_mul_add %1, %0, %2"), "operands are a matrix A");
    type_error(&format!("{load}%3: mat.acc.8x8.f16 = matrix_mul_add %0, %1, %2"), "accumulator keeps");
    type_error(
        &format!(
            "{load}%3: mat.b.8x8.f16 = matrix_load @h[0] stride 8 row\n%4: mat.acc.8x8.f32 = matrix_mul_add %0, %3, %2"
        ),
        "m×k, k×n",
    );
    type_error("%0: mat.a.8x8.f16 = matrix_load @s[0] stride 8 row", "scalars of the matrix's type");
    // Vectors must not straddle rows; which way a line runs is the layout's.
    fine("%0: mat.a.8x16.f16 = matrix_load @q[0] stride 4 row");
    type_error("%0: mat.a.8x6.f16 = matrix_load @q[0] stride 4 row", "that divide a row");
    fine("%0: mat.a.8x6.f16 = matrix_load @q[0] stride 4 column");
    type_error("%0: mat.a.8x8.u64 = matrix_load [$x + 0] stride 8 row", "elements f16, f32");
    type_error("%0: mat.a.8x8.f16 = matrix_splat 1.0", "scalar of its element type");
    type_error("%0: f32 = matrix_splat 1.0", "needs a matrix type");
    let sum = "%0: mat.acc.8x8.f32 = matrix_splat 0.0\n%1: mat.acc.8x8.f32 = add %0, %0";
    fine(sum);
    type_error(&sum.replace("add", "max"), "does not take operands");
    type_error(&sum.replace("f32", "i32").replace("0.0", "0_i32"), "does not take operands");
    let elements = "%0: mat.acc.8x8.f32 = matrix_splat 0.0\n%1: f32 = matrix_element %0, 1\n%2: mat.acc.8x8.f32 = matrix_compose %1, %1";
    fine(elements);
    type_error(&elements.replace("%0, 1", "%0, 2"), "rows * columns / subgroup size elements");
    type_error(&elements.replace("%1: f32", "%1: f16"), "matrix's element type");
    type_error(&elements.replace("compose %1, %1", "compose %1"), "rows * columns / subgroup size elements");
    type_error(&elements.replace("compose %1, %1", "compose %1, 0_i32"), "scalars of the matrix's type");
    type_error(&elements.replace("acc.8x8", "acc.3x8"), "equal parts of an accumulator");
    type_error(&elements.replace("acc.8x8", "a.8x8"), "equal parts of an accumulator");
    type_error("%0: f32 = matrix_element 1.0, 0", "needs a matrix type");
    let integers = "%0: mat.a.8x8.u8 = matrix_splat 1_u8\n%1: mat.b.8x8.i8 = matrix_splat 0x1_i8\n%2: mat.acc.8x8.i32 = matrix_splat 0_i32\n%3: mat.acc.8x8.i32 = matrix_mul_add %0, %1, %2";
    fine(integers);
    type_error(&integers.replace("b.8x8.i8", "b.8x8.f16").replace("0x1_i8", "0x1_f16"), "f16×f16");
    fine("%0: mat.acc.8x8.f32 = matrix_splat 0.0\n%1: mat.acc.8x8.f16 = convert %0");
    type_error("%0: mat.acc.8x8.f32 = matrix_splat 0.0\n%1: mat.a.8x8.f16 = convert %0", "shape and role");
}

#[test]
fn control_types() {
    type_error("if $n {\n}", "one bool");
    type_error("%0: f32 = if true {\nyield 1.0\n} else {\nyield 1\n}", "results' types");
    type_error("%0: f32 = if true {\nyield 1.0\n}", "results' types");
    type_error("for %0: u32 from 0 to 1.0 step 1 {\n}", "u32");
    type_error("%2: f32 = for %0: u32 from 0 to 4 step 1 with %1: f32 = 0 {\nyield 1.0\n}", "same types");
    type_error("%2: f32 = for %0: u32 from 0 to 4 step 1 with %1: f32 = 0.0 {\n}", "same types");
    assert!(matches!(problem("for %0: u32 from 0 to 4 step 0 {\n}"), Problem::Loop(_)));
    assert!(matches!(problem("for %0: u32 from 0 to 4294967295 step 1 {\n}"), Problem::Loop(_)));
    assert!(matches!(problem("for %0: u32 from 0 to $n step 1 unroll {\n}"), Problem::Loop(_)));
    fine("for %0: u32 from 0 to 4294967294 step 1 {\n}");
}

#[test]
fn scopes() {
    let mut k =
        kernel("%0: bool = eq $n, 0\nif %0 {\n%1: u32 = add $n, 1\n}\n%2: u32 = add $n, 2\n%3: u32 = add %2, 3");
    verify(&k).unwrap();
    // The last operation now uses what the branch defined.
    let inner = k.ops.iter().position(|op| matches!(op, Op::If { .. })).unwrap();
    let Op::If { then, .. } = &k.ops[inner] else { panic!() };
    let hidden = then[0];
    let last = *k.body.last().unwrap();
    let Op::Binary(_, a, _) = &mut k.ops[last.0 as usize] else { panic!() };
    *a = hidden;
    assert_eq!(verify(&k).unwrap_err().problem, Problem::NotVisible(hidden.0));
    // Or itself.
    let Op::Binary(_, a, _) = &mut k.ops[last.0 as usize] else { panic!() };
    *a = last;
    assert_eq!(verify(&k).unwrap_err().problem, Problem::NotVisible(last.0));
    // Or nothing at all.
    let Op::Binary(_, a, _) = &mut k.ops[last.0 as usize] else { panic!() };
    *a = Value(9999);
    assert_eq!(verify(&k).unwrap_err().problem, Problem::UnknownValue(9999));
}

#[test]
fn structure() {
    let good = kernel("%0: u32 = add $n, 1\nif true {\n}");
    let broken = |change: &dyn Fn(&mut Kernel)| {
        let mut k = good.clone();
        change(&mut k);
        // Printing never fails, whatever the kernel.
        let _ = k.to_string();
        verify(&k).unwrap_err().problem
    };
    let add = good.body[0];
    let leaf = Value(good.ops.iter().position(|op| matches!(op, Op::Arg(_))).unwrap() as u32);
    assert_eq!(broken(&|k| k.body.push(add)), Problem::DefinedTwice(add.0));
    assert_eq!(broken(&|k| k.body.push(leaf)), Problem::Listed);
    assert_eq!(broken(&|k| k.body.push(Value(77))), Problem::UnknownValue(77));
    assert!(matches!(broken(&|k| k.types.truncate(3)), Problem::UnknownValue(_)));
    assert!(matches!(broken(&|k| k.subgroup_size = 24), Problem::Sizes { .. }));
    assert!(matches!(broken(&|k| k.workgroup_size = 48), Problem::Sizes { .. }));
    assert!(matches!(broken(&|k| k.workgroup_size = 2048), Problem::Sizes { .. }));
    assert!(matches!(broken(&|k| k.workgroup_size = 0), Problem::Sizes { .. }));
    assert_eq!(broken(&|k| k.args[1].name = "x".into()), Problem::Name("x".into()));
    assert_eq!(broken(&|k| k.args[1].name = "a b".into()), Problem::Name("a b".into()));
    assert_eq!(broken(&|k| k.shared[1].name = "s".into()), Problem::Name("s".into()));
    assert_eq!(broken(&|k| k.args.swap(2, 3)), Problem::ArgOrder("z".into()));
    assert!(matches!(broken(&|k| k.shared[0].len = 0), Problem::SharedArray { .. }));
    assert!(matches!(broken(&|k| k.shared[0].len = u32::MAX), Problem::SharedArray { .. }));
    assert!(matches!(broken(&|k| k.shared[0].ty = Type::BOOL), Problem::SharedArray { .. }));
    // An If inside itself, and a claimed result that is no parameter.
    let at = good.body[1];
    let inside = |k: &mut Kernel| {
        let Op::If { then, .. } = &mut k.ops[at.0 as usize] else { panic!() };
        then.push(at);
    };
    assert_eq!(broken(&inside), Problem::DefinedTwice(at.0));
    let claims = |k: &mut Kernel| {
        let Op::If { then_yield, else_yield, results, .. } = &mut k.ops[at.0 as usize] else { panic!() };
        for values in [then_yield, else_yield, results] {
            values.push(add);
        }
    };
    assert_eq!(broken(&claims), Problem::NotParam(add.0));
    let wide_constant = |k: &mut Kernel| {
        k.ops.push(Op::Const(1 << 32));
        k.types.push(Type::U32);
    };
    assert!(matches!(broken(&wide_constant), Problem::Types(_)));
    let bad_axis = |k: &mut Kernel| {
        k.ops.push(Op::Builtin(Builtin::Tile(3)));
        k.types.push(Type::U32);
    };
    assert!(matches!(broken(&bad_axis), Problem::Types(_)));
    let no_array = |k: &mut Kernel| {
        k.ops[add.0 as usize] = Op::SharedLoad { array: 7, index: leaf };
    };
    assert_eq!(broken(&no_array), Problem::UnknownArray(7));
    let unknown_arg = |k: &mut Kernel| k.ops[leaf.0 as usize] = Op::Arg(9);
    assert!(matches!(broken(&unknown_arg), Problem::Types(_)));
}

#[test]
fn nesting_depth() {
    // From the inside out, deeper than the parser would take.
    let mut k = kernel("");
    k.ops = vec![Op::Const(1)];
    k.types = vec![Type::BOOL];
    k.body = vec![];
    for _ in 0..=MAX_DEPTH {
        let then = std::mem::take(&mut k.body);
        let cond = Value(0);
        let op = Op::If { cond, then, then_yield: vec![], otherwise: vec![], else_yield: vec![], results: vec![] };
        k.ops.push(op);
        k.types.push(Type::Void);
        k.body = vec![Value(k.ops.len() as u32 - 1)];
        let _ = k.to_string();
    }
    assert_eq!(verify(&k).unwrap_err().problem, Problem::TooDeep);
}

// ---- uniformity -------------------------------------------------------------------------------------------------

#[track_caller]
fn divergent(body: &str, expected: &str) {
    match verify(&kernel(body)).expect_err(body).problem {
        Problem::NotUniform { scope, .. } => assert_eq!(scope, expected, "{body}"),
        other => panic!("{other} for {body}"),
    }
    verify_structure(&kernel(body)).unwrap();
}

/// A condition on `value`, around `op`.
fn around(define: &str, value: &str, op: &str) -> String {
    format!("{define}\n%90: bool = lt {value}, 7\nif %90 {{\n{op}\n}}")
}

#[test]
fn barriers_need_workgroup_uniform_control() {
    let barrier = |define: &str, value: &str| around(define, value, "barrier");
    fine(&barrier("", "$n"));
    fine(&barrier("", "tile.1"));
    fine(&barrier("%0: u32 = load [$x + $n] align 4 readonly\n%1: u32 = mul %0, tile.0", "%1"));
    divergent(&barrier("", "lane"), "workgroup");
    divergent(&barrier("", "local_id"), "workgroup");
    divergent(&barrier("", "subgroup_id"), "workgroup");
    divergent(&barrier("%0: u32 = subgroup_max lane", "%0"), "workgroup");
    divergent(&barrier("%0: u32 = load [$x + lane] align 4 readonly", "%0"), "workgroup");
    divergent(&barrier("%0: u32 = atomic_add [$z + 0], 1", "%0"), "workgroup");
    // A value read back from one shared element is one value for all.
    fine(
        "shared_store @s[local_id], 1.0\nbarrier\n%0: f32 = shared_load @s[3]\n%1: bool = lt %0, 2.0\nif %1 {\nbarrier\n}",
    );
    divergent(
        "shared_store @s[local_id], 1.0\nbarrier\n%0: f32 = shared_load @s[lane]\n%1: bool = lt %0, 2.0\nif %1 {\nbarrier\n}",
        "workgroup",
    );
    // In the other branch, and nested.
    divergent("%0: bool = eq lane, 0\nif %0 {\n} else {\nbarrier\n}", "workgroup");
    divergent("%0: bool = eq lane, 0\nif %0 {\nif true {\nbarrier\n}\n}", "workgroup");
}

#[test]
fn subgroup_operations_need_subgroup_uniform_control() {
    for op in [
        "%9: u32 = subgroup_add lane",
        "%9: u32 = shuffle_xor lane, 1",
        "%9: u32 = shuffle lane, 0",
        "%9: mat.acc.8x8.f32 = matrix_splat 0.0",
        "%9: mat.a.8x8.f16 = matrix_load [$x + 0] stride 8 row",
    ] {
        fine(&around("", "subgroup_id", op));
        fine(&around("%0: u32 = subgroup_max lane", "%0", op));
        fine(&around("%0: u32 = shuffle lane, 3", "%0", op));
        divergent(&around("", "lane", op), "subgroup");
        divergent(&around("%0: u32 = shuffle lane, lane", "%0", op), "subgroup");
        divergent(&around("%0: u32 = shuffle_xor lane, 1", "%0", op), "subgroup");
    }
}

#[test]
fn loops_are_control_too() {
    let body = |end: &str, op: &str| format!("for %1: u32 from 0 to {end} step 1 {{\n{op}\n}}");
    fine(&body("$n", "barrier"));
    divergent(&body("subgroup_id", "barrier"), "workgroup");
    fine(&body("subgroup_id", "%2: f32 = subgroup_add 1.0"));
    divergent(&body("lane", "%2: f32 = subgroup_add 1.0"), "subgroup");
    divergent("for %1: u32 from lane to 32 step 1 {\nbarrier\n}", "workgroup");
    // The index is uniform when start and step are, whatever the end.
    fine("for %1: u32 from 0 to 8 step $n {\n%2: bool = eq %1, 4\nif %2 {\nbarrier\n}\n}");
    // What leaves a loop of varying length varies, though it starts and steps uniformly.
    let count = "%3: u32 = for %1: u32 from 0 to END step 1 with %2: u32 = 0 {\n%4: u32 = add %2, 1\nyield %4\n}\n%5: bool = eq %3, 4\nif %5 {\nbarrier\n}";
    fine(&count.replace("END", "$n"));
    divergent(&count.replace("END", "lane"), "workgroup");
    // Carried values become varying through the yield, seen by uses earlier in the body.
    let carried = "%3: u32, %7: u32 = for %1: u32 from 0 to 4 step 1 with %2: u32 = 0, %6: u32 = 0 {\n%5: bool = eq %2, 4\nif %5 {\nbarrier\n}\nyield %6, NEXT\n}";
    fine(&carried.replace("NEXT", "$n"));
    divergent(&carried.replace("NEXT", "lane"), "workgroup");
}

#[test]
fn choices_by_varying_conditions_vary() {
    let chosen = |cond: &str| {
        format!(
            "%0: bool = lt {cond}, 3\n%1: u32 = if %0 {{\nyield 1\n}} else {{\nyield 2\n}}\n%2: bool = eq %1, 1\nif %2 {{\nbarrier\n}}"
        )
    };
    fine(&chosen("$n"));
    divergent(&chosen("lane"), "workgroup");
    // A matrix cannot be chosen by lanes.
    let matrix = |cond: &str| {
        format!(
            "%0: bool = lt {cond}, 3\n%1: mat.acc.8x8.f32 = matrix_splat 0.0\n%2: mat.acc.8x8.f32 = if %0 {{\nyield %1\n}} else {{\nyield %1\n}}"
        )
    };
    fine(&matrix("subgroup_id"));
    divergent(&matrix("lane"), "subgroup");
}

#[test]
fn matrix_operands_are_uniform() {
    // What a lane holds varies, and may: but all lanes hold their parts together.
    let splat = "%0: mat.acc.8x8.f32 = matrix_splat 0.0\n%1: f32 = matrix_element %0, 1";
    divergent(&format!("{splat}\n%2: bool = lt %1, 1.0\nif %2 {{\nbarrier\n}}"), "workgroup");
    let under = |cond: &str, body: &str| format!("{splat}\n%2: bool = lt {cond}, 3\nif %2 {{\n{body}\n}}");
    for body in [
        "%3: f32 = matrix_element %0, 0",
        "%3: mat.acc.8x8.f32 = matrix_compose %1, %1",
        "%3: mat.acc.8x8.f32 = mul %0, %0",
        "subgroup_barrier",
    ] {
        fine(&under("subgroup_id", body));
        divergent(&under("lane", body), "subgroup");
    }
    fine("%9: mat.a.8x8.f16 = matrix_load [$x + subgroup_id] stride $n row");
    divergent("%9: mat.a.8x8.f16 = matrix_load [$x + lane] stride 8 row", "subgroup");
    divergent("%9: mat.a.8x8.f16 = matrix_load [$x + 0] stride lane row", "subgroup");
    divergent("%9: mat.a.8x8.f16 = matrix_load @h[lane] stride 8 row", "subgroup");
    divergent("%0: f32 = convert lane\n%9: mat.acc.8x8.f32 = matrix_splat %0", "subgroup");
}

#[test]
fn one_subgroup_is_the_workgroup() {
    let text = "kernel k workgroup 32 subgroup 32\n{\n%0: u32 = subgroup_max lane\n%1: bool = eq %0, subgroup_id\nif %1 {\nbarrier\n}\n}\n";
    verify(&parse(text).unwrap()).unwrap();
    assert!(verify(&parse(&text.replace("workgroup 32", "workgroup 64")).unwrap()).is_err());
}
