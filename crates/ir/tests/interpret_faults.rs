//! One planted fault of each kind: the interpreter must name it, and must not when it is repaired.

use zinc_ir::kernel::interpret::{Access, Fault, FaultKind, Memory, Options, run};
use zinc_ir::kernel::*;

/// Runs the text on one 64-byte-per-lane buffer `$y` (read-write), one 256-byte `$x` (read-only) and one
/// uninitialised `$u`, over two tiles of two subgroups of four lanes.
fn launch(header: &str, body: &str, seed: u64) -> Result<Vec<u8>, Fault> {
    let text = format!(
        "kernel planted workgroup 8 subgroup 4\narg x read\narg y readwrite\narg u readwrite\n{header}\n{{\n{body}\n}}\n"
    );
    let kernel = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let args = [
        memory.bind("x", (0..=255).collect(), Access::Read),
        memory.bind("y", vec![1; 1024], Access::ReadWrite),
        memory.bind_uninitialised("u", 1024),
    ];
    run(&kernel, &args, [2, 1, 1], &mut memory, &Options { seed, check_races: true })?;
    Ok(memory.bytes(args[1]).unwrap().to_vec())
}

/// The same fault in every order of execution.
fn fault(header: &str, body: &str) -> Fault {
    let faults: Vec<Fault> = (0..8).map(|seed| launch(header, body, seed).unwrap_err()).collect();
    for f in &faults {
        assert_eq!(std::mem::discriminant(&f.kind), std::mem::discriminant(&faults[0].kind), "{f}");
    }
    faults.into_iter().next().unwrap()
}

#[track_caller]
fn fine(header: &str, body: &str) {
    for seed in 0..8 {
        if let Err(e) = launch(header, body, seed) {
            panic!("{e}");
        }
    }
}

macro_rules! assert_fault {
    ($fault:expr, $pattern:pat $(if $guard:expr)?) => {
        let fault = $fault;
        assert!(matches!(&fault.kind, $pattern $(if $guard)?), "{fault}");
    };
}

/// Byte offset of the lane's own U32 over both tiles.
const OWN: &str = "%0: u32 = shl tile.0, 3\n%1: u32 = add %0, local_id\n%2: u32 = shl %1, 2\n";

fn own(rest: &str) -> String {
    format!("{OWN}{rest}")
}

#[test]
fn out_of_bounds() {
    // The last lane of the last tile reads one element too far.
    let f = fault("", &own("%3: u32x4 = load [$x + %2 + 184] align 4"));
    assert_fault!(f.clone(), FaultKind::OutOfBounds { bytes: 16, .. });
    assert_eq!((f.tile, f.lane), ([1, 0, 0], 7));
    assert_eq!(&*f.op, "%3: u32x4 = load [$x + %2 + 184] align 4");
    assert!(f.to_string().contains("\"x\" has 256 bytes"), "{f}");
    fine("", &own("%3: u32x4 = load [$x + %2 + 180] align 4"));
    // Before the first range, in the gap between two, and stores.
    assert_fault!(fault("", "%3: u32 = load [64_u64 + 0] align 4"), FaultKind::OutOfBounds { .. });
    assert_fault!(fault("", "%3: u32 = load [$x + 2048] align 4"), FaultKind::OutOfBounds { .. });
    assert_fault!(fault("", "store [$y + 1022] align 2, 1"), FaultKind::Invalid(_));
    assert_fault!(fault("", "store [$y + 1024] align 4, 1"), FaultKind::OutOfBounds { .. });
}

#[test]
fn misaligned() {
    let f = fault("", &own("%3: u32x4 = load [$x + %2] align 16"));
    assert_fault!(f.clone(), FaultKind::Misaligned { align: 16, .. });
    assert!(!f.lane.is_multiple_of(4));
    fine("", &own("%3: u32x4 = load [$x + %2] align 4"));
    assert_fault!(fault("", "%3: u32 = atomic_add [$y + 2], 1"), FaultKind::Misaligned { align: 4, .. });
}

#[test]
fn write_to_a_read_only_range() {
    // Through arithmetic that hides the argument from the verifier.
    let hide = "%0: u64 = max $x, 1_u64\n";
    let f = fault("", &format!("{hide}store [%0 + 0] align 4, 1"));
    assert_fault!(f, FaultKind::ReadOnlyRange { label } if label == "x");
    assert_fault!(fault("", &format!("{hide}%9: u32 = atomic_add [%0 + 0], 1")), FaultKind::ReadOnlyRange { .. });
}

#[test]
fn unwritten_global_memory() {
    let f = fault("", &own("%3: u32 = load [$u + %2] align 4"));
    assert_fault!(f, FaultKind::Uninitialised { label, .. } if label == "u");
    fine("", &own("store [$u + %2] align 4, 7\n%3: u32 = load [$u + %2] align 4"));
}

const SHARED: &str = "shared s u32 8";

#[test]
fn shared_memory_bounds_and_content() {
    let write = "shared_store @s[local_id], 1\nbarrier\n";
    let f = fault(SHARED, &format!("{write}%0: u32 = add local_id, 1\n%1: u32 = shared_load @s[%0]"));
    assert_fault!(f, FaultKind::SharedOutOfBounds { index: 8, len: 8, .. });
    fine(SHARED, &format!("{write}%0: u32 = sub 7, local_id\n%1: u32 = shared_load @s[%0]"));
    // Only the first seven lanes write; the first tile's content must not leak into the second.
    let f = fault(
        SHARED,
        "%9: bool = eq tile.0, 0\n%8: bool = lt local_id, 7\n%7: bool = or %9, %8\nif %7 {\n shared_store @s[local_id], 1\n}\nbarrier\n%1: u32 = shared_load @s[local_id]",
    );
    assert_fault!(f.clone(), FaultKind::SharedUninitialised { index: 7, .. });
    assert_eq!(f.tile, [1, 0, 0]);
}

#[test]
fn shared_races() {
    let other_subgroup = "%0: u32 = xor local_id, 4\n";
    let neighbour = "%0: u32 = xor local_id, 1\n";
    for partner in [other_subgroup, neighbour] {
        // Read after write without a barrier; every lane wrote its own element in the interval before.
        let body = format!(
            "shared_store @s[local_id], 0\nbarrier\n{partner}shared_store @s[local_id], 1\n%1: u32 = shared_load @s[%0]"
        );
        assert_fault!(fault(SHARED, &body), FaultKind::SharedRace { .. });
        fine(SHARED, &body.replace("1\n%1", "1\nbarrier\n%1"));
        // Write after read.
        let body = format!(
            "shared_store @s[local_id], 0\nbarrier\n{partner}%1: u32 = shared_load @s[%0]\nshared_store @s[local_id], 1"
        );
        assert_fault!(fault(SHARED, &body), FaultKind::SharedRace { .. });
        fine(SHARED, &body.replace("\nshared_store @s[local_id], 1", "\nbarrier\nshared_store @s[local_id], 1"));
    }
    // Write after write, of lanes of one subgroup and of the same value.
    assert_fault!(fault(SHARED, "%0: u32 = shr local_id, 1\nshared_store @s[%0], 3"), FaultKind::SharedRace { .. });
    // A barrier in a loop orders the rounds only if there is one at each turn.
    let turn = "for %0: u32 from 0 to 3 step 1 {\nshared_store @s[local_id], %0\nbarrier\n%1: u32 = sub 7, local_id\n%2: u32 = shared_load @s[%1]\nBARRIER}";
    assert_fault!(fault(SHARED, &turn.replace("BARRIER", "")), FaultKind::SharedRace { .. });
    fine(SHARED, &turn.replace("BARRIER", "barrier\n"));
}

#[test]
fn a_barrier_of_the_subgroup_orders_its_shared_accesses_only() {
    let exchange = |partner: &str, barrier: &str| {
        format!(
            "shared_store @s[local_id], 0\nbarrier\n%0: u32 = xor local_id, {partner}\nshared_store @s[local_id], 1\n{barrier}\n%1: u32 = shared_load @s[%0]"
        )
    };
    assert_fault!(fault(SHARED, &exchange("1", "")), FaultKind::SharedRace { .. });
    fine(SHARED, &exchange("1", "subgroup_barrier"));
    // Lanes of the other subgroup.
    assert_fault!(fault(SHARED, &exchange("4", "subgroup_barrier")), FaultKind::SharedRace { .. });
    fine(SHARED, &exchange("4", "barrier"));
    // A matrix that the subgroup stored itself.
    let header = "shared m f16 128";
    let matrix = "%0: u32 = shl subgroup_id, 6\n%1: mat.acc.8x8.f16 = matrix_splat 0x3c00_f16\nmatrix_store @m[%0] stride 8 row, %1\nBARRIER\n%2: mat.a.8x8.f16 = matrix_load @m[%0] stride 8 row";
    assert_fault!(fault(header, &matrix.replace("BARRIER\n", "")), FaultKind::SharedRace { .. });
    fine(header, &matrix.replace("BARRIER", "subgroup_barrier"));
    // Global memory.
    let global =
        own("store [$y + %2] align 4, 1\nsubgroup_barrier\n%3: u32 = xor %2, 4\n%4: u32 = load [$y + %3] align 4");
    assert_fault!(fault("", &global), FaultKind::GlobalRace { .. });
    fine("", &global.replace("subgroup_barrier", "barrier"));
    let f = fault("", "%0: bool = lt lane, 2\nif %0 {\nsubgroup_barrier\n}");
    assert_fault!(f, FaultKind::Divergent { .. });
}

#[test]
fn global_races() {
    // Two tiles write one place; a barrier does not help.
    let f = fault("", "%0: bool = eq local_id, 0\nbarrier\nif %0 {\n store [$y + 0] align 4, 1\n}");
    assert_fault!(f.clone(), FaultKind::GlobalRace { .. });
    assert!(f.to_string().contains("by lane 0 of tile"), "{f}");
    // One tile reads what another writes.
    let f = fault("", &own("store [$y + %2] align 4, 1\n%3: u32 = load [$y + 0] align 4"));
    assert_fault!(f, FaultKind::GlobalRace { .. });
    // Lanes of one tile, without and with a barrier between.
    let swap = "%0: u32 = shl tile.0, 3\n%1: u32 = add %0, local_id\n%2: u32 = shl %1, 2\n%3: u32 = xor %2, MASK\nstore [$y + %2] align 4, 1\nBARRIER%4: u32 = load [$y + %3] align 4";
    for mask in ["4", "16"] {
        let swap = swap.replace("MASK", mask);
        assert_fault!(fault("", &swap.replace("BARRIER", "")), FaultKind::GlobalRace { .. });
        fine("", &swap.replace("BARRIER", "barrier\n"));
    }
    // Of several readers, the last one writes: the others still race with it.
    let lanes = "%0: bool = eq tile.0, 0\n%1: bool = ge local_id, 4\n%2: bool = and %0, %1\nif %2 {\n%3: u32 = load [$y + 0] align 4\n%4: bool = eq lane, 3\nif %4 {\nstore [$y + 0] align 4, 1\n}\n}";
    assert_fault!(fault("", lanes), FaultKind::GlobalRace { .. });
    let tiles = "%0: bool = eq local_id, 0\nif %0 {\n%3: u32 = load [$y + 0] align 4\n%4: bool = eq tile.0, 0\nif %4 {\nstore [$y + 0] align 4, 1\n}\n}";
    assert_fault!(fault("", tiles), FaultKind::GlobalRace { .. });
    // Bytes of one word from different lanes are no race; overlapping halves are.
    let bytes = "%0: u32 = shl tile.0, 3\n%1: u32 = add %0, local_id\nstore [$y + %1] align 1, 5_u8";
    fine("", bytes);
    let wide = "%0: u32 = shl tile.0, 3\n%1: u32 = add %0, local_id\n%2: u8x2 = compose 5_u8, 6_u8\nstore [$y + %1] align 1, %2";
    assert_fault!(fault("", wide), FaultKind::GlobalRace { .. });
    // A word first, then a byte inside it by another lane.
    let inside = own("store [$y + %2] align 4, 1\n%4: u32 = xor %2, 5\nstore [$y + %4] align 1, 5_u8");
    assert_fault!(fault("", &inside), FaultKind::GlobalRace { .. });
}

#[test]
fn atomics_race_only_with_plain_accesses() {
    let count = "%0: u32 = atomic_add [$y + 0], 1\n";
    fine("", count);
    assert_fault!(fault("", &format!("{count}%1: u32 = load [$y + 0] align 4")), FaultKind::GlobalRace { .. });
    assert_fault!(fault("", &format!("barrier\n{count}store [$y + 0] align 4, 1")), FaultKind::GlobalRace { .. });
    assert_fault!(fault("", &format!("store [$y + 0] align 4, 1\n{count}")), FaultKind::GlobalRace { .. });
    // One lane adds, one other lane of the same tile reads or writes; with a barrier between it is fine.
    let two = |first: &str, second: &str, between: &str| {
        format!(
            "%20: bool = eq tile.0, 0\n%21: bool = eq local_id, 0\n%22: bool = eq local_id, 5\n%23: bool = and %20, %21\n%24: bool = and %20, %22\nif %23 {{\n{first}\n}}\n{between}if %24 {{\n{second}\n}}"
        )
    };
    let add = "%0: u32 = atomic_add [$y + 0], 1";
    for other in ["store [$y + 0] align 4, 1", "%1: u32 = load [$y + 0] align 4"] {
        for (first, second) in [(add, other), (other, add)] {
            assert_fault!(fault("", &two(first, second, "")), FaultKind::GlobalRace { .. });
            fine("", &two(first, second, "barrier\n"));
        }
    }
}

#[test]
fn broken_read_only_promise() {
    // The lane's own element: no race, but the promise is wrong, whichever comes first.
    let f = fault("", &own("%3: u32 = load [$y + %2] align 4 readonly\nstore [$y + %2] align 4, 1"));
    assert_fault!(f, FaultKind::BrokenPromise { label, .. } if label == "y");
    let f = fault("", &own("store [$y + %2] align 4, 1\n%3: u32 = load [$y + %2] align 4 readonly"));
    assert_fault!(f, FaultKind::BrokenPromise { .. });
    fine("", &own("%3: u32 = load [$y + %2] align 4\nstore [$y + %2] align 4, 1"));
    fine("", &own("%3: u32 = load [$y + %2 + 64] align 4 readonly\nstore [$y + %2] align 4, 1"));
}

#[test]
fn barrier_divergence() {
    // Some lanes of a subgroup; a whole subgroup that ends; two different barriers; different trip counts.
    let f = fault("", "%0: bool = lt local_id, 2\nif %0 {\nbarrier\n}");
    assert_fault!(f.clone(), FaultKind::BarrierDivergence(_));
    assert_eq!((&*f.op, f.lane), ("barrier", 2));
    let f = fault("", "%0: bool = eq subgroup_id, 0\nif %0 {\nbarrier\n}");
    assert_fault!(f.clone(), FaultKind::BarrierDivergence(_));
    assert_eq!(f.lane, 4);
    let f = fault("", "%0: bool = eq subgroup_id, 0\nif %0 {\nbarrier\n} else {\nbarrier\n}");
    assert_fault!(f, FaultKind::BarrierDivergence(_));
    let f = fault("", "%0: u32 = add subgroup_id, 1\nfor %1: u32 from 0 to %0 step 1 {\nbarrier\n}");
    assert_fault!(f, FaultKind::BarrierDivergence(_));
    fine("", "%0: bool = eq tile.0, 0\nif %0 {\nbarrier\n}\nfor %1: u32 from 0 to tile.0 step 1 {\nbarrier\n}");
}

#[test]
fn subgroup_operations_with_missing_lanes() {
    let body = |op: &str| format!("%0: bool = ne lane, 3\nif %0 {{\n{op}\n}}");
    for op in ["%1: u32 = subgroup_add lane", "%1: u32 = shuffle_xor lane, 1", "%1: u32 = shuffle lane, 0"] {
        let f = fault("", &body(op));
        assert_fault!(f.clone(), FaultKind::Divergent { active: 3, size: 4 });
        assert_eq!(f.lane % 4, 3);
        fine("", &body(op).replace("ne lane", "ne subgroup_id"));
    }
    let f = fault("", &body("%1: mat.acc.8x8.f32 = matrix_splat 0.0"));
    assert_fault!(f, FaultKind::Divergent { .. });
    assert_fault!(
        fault("", "%0: u32 = add lane, 1\n%1: u32 = shuffle lane, %0"),
        FaultKind::ShuffleLane { lane: 4, .. }
    );
}

#[test]
fn words_beyond_a_table() {
    fine("", "%0: u32 = table lane, 5, 6, 7, 8");
    let f = fault("", "%0: u32 = table lane, 5, 6, 7");
    assert_fault!(f.clone(), FaultKind::TableIndex { index: 3, len: 3 });
    assert_eq!(f.lane % 4, 3);
    // Only where the lane takes part.
    fine("", "%0: bool = ne lane, 3\nif %0 {\n%1: u32 = table lane, 5, 6, 7\n}");
}

#[test]
fn undefined_arithmetic() {
    let f = fault("", "%0: u32 = add lane, 29\n%1: u32 = shl 1, %0");
    assert_fault!(f.clone(), FaultKind::Shift { by: 32, width: 32 });
    assert_eq!(f.lane % 4, 3);
    fine("", "%0: u32 = add lane, 28\n%1: u32 = shl 1, %0");
    fine("", "%0: u64 = convert lane\n%1: u64 = add %0, 60_u64\n%2: u64 = shl 1_u64, %1");
    assert_fault!(fault("", "%0: u32 = div 7, lane"), FaultKind::Division { dividend: 7, divisor: 0 });
    assert_fault!(fault("", "%0: u32 = rem 7, lane"), FaultKind::Division { .. });
    assert_fault!(fault("", "%0: i32 = div -2147483648_i32, -1_i32"), FaultKind::Division { .. });
    assert_fault!(fault("", "%0: i32 = rem -7_i32, 2_i32"), FaultKind::Division { .. });
    fine("", "%0: i32 = div -7_i32, 2_i32");
    assert_fault!(fault("", "%0: u8 = convert 256.0"), FaultKind::Conversion { to: "u8", .. });
    assert_fault!(fault("", "%0: u32 = convert -1.0"), FaultKind::Conversion { to: "u32", .. });
    assert_fault!(fault("", "%0: i32 = convert 0x7fc00000_f32"), FaultKind::Conversion { .. });
    fine("", "%0: u8 = convert 255.9\n%1: u32 = convert -0.9\n%2: i32 = convert -2147483648.0");
    // Masked lanes do not count.
    fine("", "%0: bool = ne lane, 0\nif %0 {\n%1: u32 = div 7, lane\n}");
}

#[test]
fn loop_bounds() {
    let f = fault("", "for %0: u32 from 0 to 3 step lane {\n}");
    assert_fault!(f.clone(), FaultKind::LoopBounds { end: 3, step: 0 });
    assert_eq!(f.lane % 4, 0);
    let f = fault("", "%1: u32 = sub 4294967295, lane\nfor %0: u32 from 0 to %1 step 4294967290 {\n}");
    assert_fault!(f, FaultKind::LoopBounds { .. });
    // No iteration, no overflow.
    fine("", "%1: u32 = sub 4294967295, lane\nfor %0: u32 from %1 to %1 step 4294967290 {\n}");
}

#[test]
fn matrix_faults() {
    let header = "shared m f16 72";
    let load = |from: &str| format!("%9: mat.a.8x8.f16 = matrix_load {from} row");
    assert_fault!(fault(header, &load("[$x + lane] stride 8")), FaultKind::NotUniform("offset"));
    assert_fault!(fault(header, &load("[$x + 0] stride lane")), FaultKind::NotUniform("stride"));
    assert_fault!(fault(header, &load("[$x + 8] stride 8")), FaultKind::Misaligned { align: 16, .. });
    assert_fault!(fault(header, &load("[$x + 0] stride 12")), FaultKind::Misaligned { align: 16, .. });
    assert_fault!(fault(header, &load("[$x + 0] stride 24")), FaultKind::OutOfBounds { .. });
    assert_fault!(fault(header, &load("@m[0] stride 8")), FaultKind::SharedUninitialised { index: 0, .. });
    assert_fault!(fault(header, &load("@m[4] stride 8")), FaultKind::Misaligned { align: 16, .. });
    assert_fault!(fault(header, &load("@m[16] stride 8")), FaultKind::SharedUninitialised { index: 16, .. });
    fine(header, &load("[$x + 128] stride 8"));
    let fill = "%0: bool = eq subgroup_id, 0\n%1: mat.acc.8x8.f16 = matrix_splat 0x3c00_f16\nif %0 {\nmatrix_store @m[0] stride 8 row, %1\n}\n";
    // Which lane wrote which element is unknown: even the storing subgroup needs a barrier.
    let back = "if %0 {\n%2: mat.a.8x8.f16 = matrix_load @m[0] stride 8 row\n}";
    assert_fault!(fault(header, &format!("{fill}{back}")), FaultKind::SharedRace { .. });
    fine(header, &format!("{fill}barrier\n{back}"));
    assert_fault!(
        fault(header, &format!("{fill}barrier\n{}", load("@m[16] stride 8"))),
        FaultKind::SharedUninitialised { index: 64, .. }
    );
    // Rows that overlap within one store.
    assert_fault!(fault(header, &fill.replace("stride 8", "stride 0")), FaultKind::SharedRace { .. });
    let global = "%1: mat.acc.8x8.f32 = matrix_splat 1.0\n%2: u32 = shl tile.0, 9\n%3: u32 = shl subgroup_id, 8\n%4: u32 = add %2, %3\nmatrix_store [$y + %4] stride 8 row, %1";
    fine(header, global);
    assert_fault!(
        fault(header, &global.replace("shl subgroup_id, 8", "shl subgroup_id, 7")),
        FaultKind::GlobalRace { .. }
    );
}

#[test]
fn launch_errors() {
    let kernel = parse("kernel k workgroup 4 subgroup 4\narg x read\narg n word\n{\n}\n").unwrap();
    let launch = |args: &[u64], grid| run(&kernel, args, grid, &mut Memory::new(), &Options::default());
    launch(&[0, 1], [1, 1, 1]).unwrap();
    assert_fault!(launch(&[0], [1, 1, 1]).unwrap_err(), FaultKind::ArgCount { given: 1, expected: 2 });
    assert_fault!(launch(&[0, 1 << 32], [1, 1, 1]).unwrap_err(), FaultKind::WideWord { .. });
    assert_fault!(launch(&[0, 1], [1, 0, 1]).unwrap_err(), FaultKind::Grid(_));
    assert_fault!(launch(&[0, 1], [65536, 65536, 1]).unwrap_err(), FaultKind::Grid(_));
}

#[test]
fn races_can_be_left_unchecked() {
    let kernel =
        parse("kernel k workgroup 4 subgroup 4\narg y readwrite\n{\nstore [$y + 0] align 4, lane\n}\n").unwrap();
    let mut memory = Memory::new();
    let y = memory.bind("y", vec![0; 4], Access::ReadWrite);
    let mut go = |check_races| run(&kernel, &[y], [1, 1, 1], &mut memory, &Options { seed: 0, check_races });
    assert_fault!(go(true).unwrap_err(), FaultKind::GlobalRace { .. });
    go(false).unwrap();
}

#[test]
fn the_seed_changes_the_order_of_tiles_and_subgroups() {
    // Each lane leaves its ticket: the tickets show who came when.
    let body = "%0: u32 = atomic_add [$y + 512], 1\n%9: u32 = shl tile.0, 3\n%1: u32 = add %9, local_id\n%2: u32 = shl %1, 2\nstore [$y + %2] align 4, %0\n%3: u32 = atomic_add [$y + 512], 1";
    let orders: std::collections::HashSet<Vec<u8>> =
        (0..64).map(|seed| launch("", body, seed).unwrap()[..64].to_vec()).collect();
    // Two orders of tiles, in each tile at least the two orders of subgroups and interleavings.
    assert!(orders.len() >= 8, "{} orders", orders.len());
    assert_eq!(launch("", body, 5).unwrap(), launch("", body, 5).unwrap());
}

#[test]
fn memory_binding() {
    let mut memory = Memory::new();
    let a = memory.bind("a", vec![0; 100], Access::Read);
    assert!(a > u32::MAX as u64 && a.is_multiple_of(256));
    memory.bind_at(16, "low", vec![1, 2], Access::Read).unwrap();
    assert_eq!(memory.bytes(16), Some(&[1, 2][..]));
    let error = memory.bind_at(a + 99, "b", vec![0; 4], Access::Read).unwrap_err();
    assert_eq!(error.other, "a");
    memory.bind_at(u64::MAX - 2, "end", vec![0; 4], Access::Read).unwrap_err();
    let c = memory.bind("c", vec![0; 4], Access::ReadWrite);
    assert!(c > a + 100);
    memory.bytes_mut(c).unwrap()[0] = 9;
    assert_eq!(memory.bytes(c).unwrap()[0], 9);
    assert_eq!(memory.bytes(c + 1), None);
}
