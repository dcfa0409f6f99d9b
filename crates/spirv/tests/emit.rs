//! Every operation of the IR has a valid, deterministic SPIR-V form that says what it should about memory.

use rspirv::binary::Disassemble;
use std::path::{Path, PathBuf};
use std::process::Command;
use zinc_ir::kernel::*;
use zinc_spirv::{EmitError, FloatModes, emit, push_layout, requirements};

const MODES: FloatModes = FloatModes { rte_f16: true, preserve_f32: true };

fn disassemble(kernel: &Kernel) -> String {
    let words = emit(kernel, MODES).expect("emits");
    rspirv::dr::load_words(words).expect("parses").disassemble()
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// spirv-val of the test driver set, or of the search path: the command up to its own arguments.
fn spirv_val() -> Option<Vec<String>> {
    let usr = root().join("target/zinc-test/mesa-26.1/usr");
    let lib = usr.join("lib/x86_64-linux-gnu");
    let (loader, tool) = (lib.join("ld-linux-x86-64.so.2"), usr.join("bin/spirv-val"));
    if loader.exists() && tool.exists() {
        let paths = [loader, "--library-path".into(), lib, tool];
        return Some(paths.iter().map(|p| p.display().to_string()).collect());
    }
    Command::new("spirv-val").arg("--version").output().ok().map(|_| vec!["spirv-val".to_string()])
}

/// Writes the module where the project's spirv-val job finds it, and checks it at once if the tool is there.
fn validate(kernel: &Kernel) {
    for (suffix, modes) in [("", MODES), (".plain", FloatModes::default())] {
        let words = emit(kernel, modes).expect("emits");
        let folder = root().join("target/zinc-test/spirv");
        std::fs::create_dir_all(&folder).expect("folder");
        let file = folder.join(format!("spirv-{}{suffix}.spv", kernel.name));
        std::fs::write(&file, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()).expect("written");
        let Some(command) = spirv_val() else {
            println!("not run: no spirv-val");
            return;
        };
        let out = Command::new(&command[0])
            .args(&command[1..])
            .args(["--target-env", "vulkan1.3", "--scalar-block-layout"])
            .arg(&file)
            .output()
            .expect("spirv-val runs");
        let said = String::from_utf8_lossy(&out.stderr).to_string() + &String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{}: {said}\n{}", kernel.name, disassemble(kernel));
    }
}

/// Loads of every type and width, stores of them back.
fn memory() -> Kernel {
    let b = Builder::new("memory", 64, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::ReadWrite));
    let layer = b.arg("layer", ArgKind::Word);
    let i = b.tile(0) * 64 + b.local_id() + layer;
    for scalar in [Scalar::I8, Scalar::U8, Scalar::U16, Scalar::F16, Scalar::I32, Scalar::U32, Scalar::F32, Scalar::U64]
    {
        for lanes in [1, 2, 4] {
            let ty = Type::Vec(scalar, lanes);
            let v = b.load(ty, x, i * ty.bytes(), scalar.bytes() as u8);
            b.store(y, i * ty.bytes(), v, scalar.bytes() as u8);
        }
    }
    let wide = b.load_at(Type::U32X4, x, i * 16, 48, 16, false);
    b.store(y, i * 16, wide, 16);
    let old = b.atomic_add(y, b.u32(64), wide.lane(2), Order::AcquireRelease);
    b.store(y, b.u32(0), old, 4);
    b.finish()
}

/// Every arithmetic operation on every class of type it has.
fn arithmetic() -> Kernel {
    let b = Builder::new("arithmetic", 32, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let i = b.local_id();
    let next = std::cell::Cell::new(0);
    let put = |v: Val<'_>| {
        next.set(next.get() + 16);
        b.store(y, b.u32(next.get()), v, 4);
    };
    for lanes in [1, 4] {
        let at = i * (4 * lanes as u32);
        let (f, g) =
            (b.load(Type::Vec(Scalar::F32, lanes), x, at, 4), b.load(Type::Vec(Scalar::F32, lanes), x, at + 4, 4));
        for v in [
            f.exp(),
            f.log(),
            f.sqrt(),
            f.inv_sqrt(),
            f.sin(),
            f.cos(),
            f.tanh(),
            f.abs(),
            f.floor(),
            f.round_even(),
            -f,
        ] {
            put(v);
        }
        for v in [f + g, f - g, f * g, f / g, f % g, f.min(g), f.max(g), f.pow(g), b.fma(f, g, f)] {
            put(v);
        }
        for v in [f.eq(g), f.ne(g), f.lt(g), f.le(g), f.gt(g), f.ge(g)] {
            put(v.select(f, g));
            put(v.to(Scalar::U32));
            put(((v & !v) | (v ^ f.eq(f))).select(g, f));
        }
        put(f.to(Scalar::F16).to(Scalar::F32));
        let (u, w) = (f.to(Scalar::U32), f.bitcast(Type::Vec(Scalar::U32, lanes)));
        for v in [u + w, u - w, u * w, u / w, u % w, u.min(w), u.max(w), u & w, u | w, u ^ w, u << w, u >> w, !u] {
            put(v);
        }
        let (s, t) = (f.to(Scalar::I32), w.bitcast(Type::Vec(Scalar::I32, lanes)));
        for v in [s + t, s - t, s * t, s / t, s % t, s.min(t), s.max(t), s >> t, s << t, -s] {
            put(v);
        }
        for v in [s.lt(t), s.le(t), s.gt(t), s.ge(t), u.lt(w), u.le(w), u.gt(w), u.ge(w), s.eq(t), u.ne(w)] {
            put(v.select(s, t));
        }
        for v in [u.to(Scalar::U8).to(Scalar::F32), s.to(Scalar::I8).to(Scalar::F32), u.to(Scalar::U16).to(Scalar::F32)]
        {
            put(v);
        }
        for v in [s.to(Scalar::I8).to(Scalar::I32), s.to(Scalar::I8).to(Scalar::U32), u.to(Scalar::U8).to(Scalar::I32)]
        {
            put(v);
        }
        put((u.to(Scalar::U64) * w.to(Scalar::U64)).to(Scalar::U32));
        put(f.ne(g).to(Scalar::F32));
        put(u.to(Scalar::Bool).select(f, g));
    }
    let word = b.load(Type::U32, x, i * 4, 4);
    put(b.dot4(word, word + 1, b.i32(7), true));
    put(b.dot4(word, word + 1, b.i32(-7), false));
    let halves = word.bitcast(Type::Vec(Scalar::F16, 2));
    put(b.fma(halves, halves, halves).bitcast(Type::U32));
    put((halves.lane(0) + b.f16_bits(0x3c00)).to(Scalar::F32));
    put(word.bitcast(Type::Vec(Scalar::U8, 4)).to(Scalar::F32).sum_lanes());
    b.finish()
}

/// Nested choices and loops with values that leave them, shared memory and barriers inside.
fn control() -> Kernel {
    let b = Builder::new("control", 64, 16);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let tile = b.shared("tile", Type::F32X4, 64);
    let bytes = b.shared("bytes", Type::Vec(Scalar::U8, 1), 64);
    let id = b.local_id();
    let sums = b.for_(b.u32(0), b.u32(8), 2, &[b.f32x4(0.0), b.u32(0)], |k, c| {
        let v = b.load(Type::F32X4, x, (k * 64 + id) * 16, 16);
        b.shared_store(tile, id, v);
        b.shared_store(bytes, id, k.to(Scalar::U8));
        b.barrier();
        let other = b.shared_load(tile, id ^ 1);
        let picked = b.if_else(
            other.lane(0).gt(0.0),
            || {
                let inner = b.for_with(b.u32(0), b.u32(4), b.u32(1), &[other], true, |_, c| vec![c[0] * 2.0]);
                vec![inner[0], b.u32(1)]
            },
            || vec![c[0], b.shared_load(bytes, id).to(Scalar::U32)],
        );
        b.barrier();
        vec![c[0] + picked[0], c[1] + picked[1]]
    });
    b.if_(id.lt(32), || b.store(y, id * 16, sums[0], 16));
    b.if_(sums[1].gt(2), || b.if_(id.eq(0), || b.store(y, b.u32(4096), sums[1], 4)));
    b.finish()
}

/// All subgroup operations.
fn subgroups() -> Kernel {
    let b = Builder::new("subgroups", 128, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let f = b.load(Type::Vec(Scalar::F32, 2), x, b.local_id() * 8, 8);
    let u = b.load(Type::U32, x, b.lane() * 4, 4);
    let s = u.bitcast(Type::I32);
    let sums = f.subgroup_add() + f.subgroup_min() + f.subgroup_max() + f.shuffle_xor(5);
    b.store(y, b.local_id() * 8, sums, 8);
    let ints = u.subgroup_add() + u.subgroup_max() + u.subgroup_min() + u.shuffle(b.lane() ^ 3);
    b.store(y, b.subgroup_id() * 4, ints, 4);
    b.store(y, b.tile(2) * 4, s.subgroup_add() + s.subgroup_max() + s.subgroup_min(), 4);
    b.finish()
}

/// Matrices of halves and of signed bytes, through global and shared memory.
fn matrices() -> Kernel {
    let b = Builder::new("matrices", 32, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::ReadWrite));
    let staging = b.shared("staging", Type::F16, 256);
    for (input, acc) in [(Scalar::F16, Scalar::F32), (Scalar::I8, Scalar::I32)] {
        let of = |scalar, usage| MatrixType { scalar, rows: 16, cols: 16, usage };
        let global = |base: Val<'_>| MatrixMemory::Global { base: base.value(), offset: b.u32(256).value() };
        let left = b.matrix_load(of(input, MatrixUse::A), global(x), b.u32(16), false);
        let right = match input {
            Scalar::F16 => {
                let shared = MatrixMemory::Shared { array: staging, index: b.u32(0).value() };
                b.matrix_store(left, shared, b.u32(16), false);
                b.barrier();
                b.matrix_load(of(input, MatrixUse::B), shared, b.u32(16), true)
            }
            _ => b.matrix_load(of(input, MatrixUse::B), global(x), b.u32(16), true),
        };
        let zero = if acc == Scalar::F32 { b.f32(0.0) } else { b.i32(0) };
        let sum = b.matrix_mul_add(left, right, b.matrix_splat(of(acc, MatrixUse::Acc), zero));
        b.matrix_store(sum, global(y), b.u32(16), false);
    }
    b.finish()
}

/// A store before a barrier that another lane reads after it.
fn exchange() -> Kernel {
    let b = Builder::new("exchange", 64, 32);
    let y = b.arg("y", ArgKind::ReadWrite);
    b.store(y, b.local_id() * 4, b.local_id(), 4);
    b.barrier();
    let other = b.load_at(Type::U32, y, (b.local_id() ^ 33) * 4, 0, 4, false);
    b.barrier();
    b.store(y, b.local_id() * 4, other, 4);
    b.finish()
}

fn all() -> Vec<Kernel> {
    vec![memory(), arithmetic(), control(), subgroups(), matrices(), exchange()]
}

#[test]
fn every_operation_is_valid_vulkan_1_3() {
    all().iter().for_each(validate);
}

#[test]
fn the_same_kernel_gives_the_same_words() {
    for kernel in all() {
        let renamed = Kernel { name: "another name".into(), ..kernel.clone() };
        assert_eq!(emit(&kernel, MODES), emit(&renamed, MODES), "{}", kernel.name);
    }
}

#[test]
fn read_only_loads_say_so_and_every_global_access_is_aligned() {
    let b = Builder::new("copy", 64, 32);
    let (x, y) = (b.arg("x", ArgKind::Read), b.arg("y", ArgKind::Write));
    let v = b.load(Type::U32X4, x, b.local_id() * 16, 16);
    b.store(y, b.local_id() * 16, v, 16);
    let text = disassemble(&b.finish());
    assert_eq!(count(&text, "NonWritable"), 1, "one of the two block types\n{text}");
    assert_eq!(count(&text, "Restrict"), 1, "{text}");
    assert_eq!(count(&text, "Aligned 16"), 2, "{text}");
    assert_eq!(count(&text, "NonPrivatePointer"), 0, "{text}");
    assert!(!text.contains("OpCapability StorageBuffer8BitAccess") && !text.contains("OpCapability Int8"), "{text}");
}

#[test]
fn only_barriers_with_conflicting_global_accesses_order_global_memory() {
    // AcquireRelease | WorkgroupMemory | MakeAvailable | MakeVisible, without and with UniformMemory.
    let (workgroup, both) = (0x6108, 0x6148);
    let constant = |text: &str, value: u32| text.contains(&format!("OpConstant  %{}  {value}\n", uint(text)));
    let text = disassemble(&control());
    assert!(constant(&text, workgroup) && !constant(&text, both), "{text}");
    let text = disassemble(&exchange());
    assert!(constant(&text, both) && !constant(&text, workgroup), "{text}");
}

/// Id number of the 32-bit integer type in a disassembly.
fn uint(text: &str) -> &str {
    let line = text.lines().find(|l| l.contains("OpTypeInt 32 0")).expect("a 32-bit integer");
    line.trim().trim_start_matches('%').split(' ').next().expect("an id")
}

#[test]
fn sums_are_not_contracted_and_fma_is() {
    let b = Builder::new("sums", 32, 32);
    let y = b.arg("y", ArgKind::ReadWrite);
    let f = b.load_at(Type::F32, y, b.u32(0), 0, 4, false);
    b.store(y, b.u32(4), f * f + f - f * 3.0, 4);
    b.store(y, b.u32(8), b.fma(f, f, f), 4);
    let text = disassemble(&b.finish());
    assert_eq!(count(&text, "NoContraction"), 2, "the sum and the difference\n{text}");
    assert_eq!(count(&text, "OpExtInst"), 2, "import and one Fma\n{text}");
}

#[test]
fn arguments_are_packed_addresses_first() {
    let b = Builder::new("args", 32, 32);
    let (_, _) = (b.arg("a", ArgKind::Read), b.arg("b", ArgKind::Write));
    let (_, _) = (b.arg("n", ArgKind::Word), b.arg("m", ArgKind::Word));
    let layout = push_layout(&b.finish());
    assert_eq!((layout.offsets, layout.bytes), (vec![0, 8, 16, 20], 24));
}

#[test]
fn requirements_name_what_is_used_and_nothing_else() {
    let r = requirements(&matrices());
    let shapes: Vec<_> = r.shapes.iter().copied().collect();
    assert!(shapes.contains(&(16, 16, 16, Scalar::F16, Scalar::F32)), "{shapes:?}");
    assert!(shapes.contains(&(16, 16, 16, Scalar::I8, Scalar::I32)), "{shapes:?}");
    assert!(r.matrix && r.float16 && r.int8 && !r.dot && !r.atomics && r.shared_bytes == 512);
    let r = requirements(&exchange());
    assert!(!r.matrix && !r.float16 && !r.int8 && !r.storage16 && !r.subgroups);
    assert_eq!((r.workgroup_size, r.subgroup_size, r.push_bytes), (64, 32, 8));
}

#[test]
fn malformed_kernels_are_typed_errors() {
    let mut kernel = exchange();
    kernel.body.reverse();
    assert!(matches!(emit(&kernel, MODES), Err(EmitError::Undefined { .. })));
    let mut kernel = exchange();
    kernel.body.push(Value(9999));
    assert!(matches!(emit(&kernel, MODES), Err(EmitError::Undefined { value: Value(9999), .. })));
    let mut kernel = exchange();
    kernel.args.clear();
    assert!(matches!(emit(&kernel, MODES), Err(EmitError::OutOfRange { what: "argument", .. })));
}

/// Up to 128 bytes, which every device has; beyond, the push constants are an address. (The sample `many_arguments` runs.)
#[test]
fn arguments_beyond_push_constants_lie_in_memory() {
    for (count, in_memory, push_bytes) in [(16, false, 128), (17, true, 8)] {
        let b = Builder::new("many", 32, 32);
        for i in 0..count {
            b.arg(&format!("a{i}"), ArgKind::Read);
        }
        let kernel = b.finish();
        let layout = push_layout(&kernel);
        assert_eq!((layout.bytes, layout.in_memory(), layout.push_bytes()), (8 * count, in_memory, push_bytes));
        assert_eq!(requirements(&kernel).push_bytes, push_bytes);
    }
}

#[test]
fn every_sample_is_valid_vulkan_1_3_at_every_subgroup_size() {
    for size in [4, 8, 16, 32, 64] {
        for sample in zinc_ir::kernel::samples::all(size) {
            let name = format!("sample-{}-{size}", sample.kernel.name);
            validate(&Kernel { name, ..sample.kernel });
        }
    }
}
