//! Tiles that work together: what grid barriers and ordered atomics order, and what they do not.

use zinc_ir::kernel::interpret::{Access, Fault, FaultKind, Memory, Options, run};
use zinc_ir::kernel::samples::{Sample, all};
use zinc_ir::kernel::*;

/// Runs the text over three tiles of two subgroups of four lanes, with `$y`, 1024 bytes that start with 0.
fn launch(header: &str, body: &str, seed: u64) -> Result<Vec<u8>, Fault> {
    let text = format!("kernel planted workgroup 8 subgroup 4\narg y readwrite\n{header}\n{{\n{body}\n}}\n");
    let kernel = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut memory = Memory::new();
    let args = [memory.bind("y", vec![0; 1024], Access::ReadWrite)];
    run(&kernel, &args, [3, 1, 1], &mut memory, &Options { seed, check_races: true })?;
    Ok(memory.bytes(args[0]).unwrap().to_vec())
}

#[track_caller]
fn faults(body: &str) -> Vec<Fault> {
    (0..16).map(|seed| launch("shared s u32 8", body, seed).unwrap_err()).collect()
}

#[track_caller]
fn fine(body: &str) {
    for seed in 0..16 {
        if let Err(e) = launch("shared s u32 8", body, seed) {
            panic!("{e}");
        }
    }
}

fn grid_fault(f: &Fault, part: &str) -> bool {
    matches!(&f.kind, FaultKind::GridBarrier(detail) if detail.contains(part))
}

/// Byte offset of the lane's own word (behind the counters) in %2, that of the next tile's lane in %5.
const OWN: &str = "%0: u32 = shl tile.0, 3\n%1: u32 = add %0, local_id\n%2: u32 = shl %1, 2\n%3: u32 = add %2, 32\n%4: u32 = rem %3, 96\n%5: u32 = add %4, 64\n%6: u32 = add %2, 64\n";

fn own(rest: &str) -> String {
    format!("{OWN}{rest}").replace("OWN", "%6").replace("NEXT", "%5")
}

const WRITE_THEN_READ: &str =
    "store [$y + OWN] align 4, %1\nBARRIER%9: u32 = load [$y + NEXT] align 4\nBEHINDstore [$y + OWN] align 4, %9";

#[test]
fn a_grid_barrier_orders_tiles() {
    let with =
        |barrier: &str, behind: &str| own(&WRITE_THEN_READ.replace("BARRIER", barrier).replace("BEHIND", behind));
    let grid = "grid_barrier [$y + 0]\n";
    fine(&with(grid, grid));
    let y = launch("", &with(grid, grid), 3).unwrap();
    let words: Vec<u32> = y.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    assert_eq!(words[0], 6, "three tiles passed two barriers");
    assert_eq!(words[16..40], [(8..24).collect::<Vec<u32>>(), (0..8).collect()].concat());
    // Without either, and with a barrier that orders the tile alone, it is a race.
    for (first, second) in [("", grid), (grid, ""), ("barrier\n", grid), (grid, "barrier\n")] {
        for f in faults(&with(first, second)) {
            assert!(matches!(f.kind, FaultKind::GlobalRace { .. }), "{first:?}, {second:?}: {f}");
        }
    }
}

#[test]
fn a_grid_barrier_is_a_barrier_of_the_workgroup_too() {
    let shared = "shared_store @s[local_id], 1\nBARRIER%1: u32 = sub 7, local_id\n%2: u32 = shared_load @s[%1]";
    fine(&shared.replace("BARRIER", "grid_barrier [$y + 0]\n"));
    let alone = format!("grid_barrier [$y + 0]\n{}", shared.replace("BARRIER", ""));
    assert!(
        faults(&alone)
            .iter()
            .all(|f| matches!(f.kind, FaultKind::SharedRace { .. } | FaultKind::SharedUninitialised { .. }))
    );
}

#[test]
fn a_tile_that_never_comes_is_reported() {
    let body = "%0: bool = lt tile.0, 2\nif %0 {\n  grid_barrier [$y + 0]\n}";
    for f in faults(body) {
        assert!(grid_fault(&f, "this tile ends without reaching it"), "{f}");
        assert_eq!((f.tile, &*f.op), ([2, 0, 0], "grid_barrier [$y + 0]"));
    }
    // A lane of the tile, and a subgroup.
    for lanes in ["lane", "local_id", "subgroup_id"] {
        let body = format!("%0: bool = eq {lanes}, 1\nif %0 {{\n  grid_barrier [$y + 0]\n}}");
        for f in faults(&body) {
            assert!(matches!(f.kind, FaultKind::BarrierDivergence(_)), "{lanes}: {f}");
        }
    }
    // One tile more rounds than the others.
    let body = "%0: bool = eq tile.0, 1\n%1: u32 = select %0, 3, 2\nfor %2: u32 from 0 to %1 step 1 {\n  grid_barrier [$y + 0]\n}";
    assert!(faults(body).iter().all(|f| grid_fault(f, "ends without reaching it")));
}

#[test]
fn tiles_at_different_barriers_are_reported() {
    let body = "%0: bool = eq tile.0, 1\nif %0 {\n  grid_barrier [$y + 0]\n} else {\n  grid_barrier [$y + 0]\n}";
    assert!(faults(body).iter().all(|f| grid_fault(f, "waits at another one")));
    // Part of a tile at a workgroup barrier.
    let body = "%0: bool = eq subgroup_id, 1\nif %0 {\n  barrier\n} else {\n  grid_barrier [$y + 0]\n}";
    assert!(faults(body).iter().all(|f| matches!(f.kind, FaultKind::BarrierDivergence(_))));
}

#[test]
fn the_counter_is_checked() {
    fine("grid_barrier [$y + 4]\ngrid_barrier [$y + 8]\ngrid_barrier [$y + 4]");
    let by_tile = "%0: u32 = shl tile.0, 2\ngrid_barrier [$y + %0]";
    assert!(faults(by_tile).iter().all(|f| grid_fault(f, "its counter is at")));
    let by_lane = "%0: u32 = shl local_id, 2\ngrid_barrier [$y + %0]";
    assert!(faults(by_lane).iter().all(|f| grid_fault(f, "another address than for an earlier lane")));
    let used = "%0: u32 = atomic_add [$y + 0], 1\ngrid_barrier [$y + 0]\ngrid_barrier [$y + 4]";
    fine(used);
    let used = "%9: bool = eq local_id, 0\n%8: bool = eq tile.0, 0\n%7: bool = and %8, %9\nif %7 {\n%0: u32 = atomic_add [$y + 0], 1\n}\ngrid_barrier [$y + 0]";
    assert!(faults(used).iter().all(|f| grid_fault(f, "let it be 0 before the launch")));
    let read = "%0: u32 = load [$y + 0] align 4\ngrid_barrier [$y + 0]";
    assert!(faults(read).iter().all(|f| matches!(f.kind, FaultKind::GlobalRace { .. })));
    assert!(faults("grid_barrier [$y + 1024]").iter().all(|f| matches!(f.kind, FaultKind::OutOfBounds { .. })));
    assert!(faults("grid_barrier [$y + 2]").iter().all(|f| matches!(f.kind, FaultKind::Misaligned { .. })));
}

/// The verifier finds before the run what the interpreter finds during it.
#[test]
fn grid_barriers_need_control_that_is_the_same_everywhere() {
    let problem = |body: &str| {
        let text = format!(
            "kernel k workgroup 8 subgroup 4\narg x read\narg y readwrite\narg n word\nshared s u32 8\n{{\n{body}\n}}\n"
        );
        verify(&parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))).map_err(|e| e.problem)
    };
    let under = |cond: &str| problem(&format!("{cond}\nif %0 {{\n  grid_barrier [$y + 0]\n}}"));
    for same in [
        "%0: bool = lt $n, 3",
        "%0: bool = lt grid_size.0, 3",
        "%1: u32 = load [$x + 4] align 4 readonly\n%0: bool = eq %1, 0",
    ] {
        assert_eq!(under(same), Ok(()), "{same}");
    }
    let differs = [
        "%0: bool = eq tile.0, 0",
        "%0: bool = eq lane, 0",
        "%1: u32 = load [$y + 4] align 4\n%0: bool = eq %1, 0",
        "shared_store @s[local_id], 1\nbarrier\n%1: u32 = shared_load @s[0]\n%0: bool = eq %1, 0",
        "%1: u32 = for %2: u32 from 0 to tile.0 step 1 with %3: u32 = 0 {\n yield %2\n}\n%0: bool = eq %1, 0",
    ];
    for cond in differs {
        assert!(matches!(under(cond), Err(Problem::NotUniform { scope: "grid", .. })), "{cond}: {:?}", under(cond));
    }
    let loops = "for %0: u32 from 0 to $n step 1 {\n grid_barrier [$y + 0]\n}";
    assert_eq!(problem(loops), Ok(()));
    assert!(problem(&loops.replace("from 0", "from tile.0")).is_err());
    assert!(problem(&loops.replace("step 1", "step grid_size.1")).is_ok());
    assert!(problem("grid_barrier [$y + tile.0]").is_err());
    assert_eq!(problem("grid_barrier [$x + 0]"), Err(Problem::WritesReadArg("x".to_string())));
}

fn sample(name: &str) -> Sample {
    all(8).into_iter().find(|s| s.kernel.name == name).unwrap()
}

/// The sample with its kernel's text changed.
fn changed(name: &str, from: &str, to: &str) -> Sample {
    let mut sample = sample(name);
    let text = sample.kernel.to_string();
    assert!(text.contains(from), "{text}");
    sample.kernel = parse(&text.replacen(from, to, 1)).unwrap();
    sample
}

/// What 32 seeds find: how many runs end in a race, how many well.
fn races(sample: &Sample) -> (usize, usize) {
    let mut counts = (0, 0);
    for seed in 0..32 {
        match sample.interpret(&Options { seed, check_races: true }) {
            Ok(()) => counts.1 += 1,
            Err(e) => {
                assert!(e.to_string().contains("race on"), "{e}");
                counts.0 += 1;
            }
        }
    }
    counts
}

#[test]
fn the_last_arriver_may_read_what_all_have_left() {
    assert_eq!(races(&sample("last_arriver")), (0, 32));
    assert_eq!(
        races(&changed("last_arriver", "atomic_add [$counter + 0], 1", "atomic_add [$counter + 0], 1 relaxed")),
        (32, 0)
    );
    // Either barrier: in front of the atomic, which publishes what the other lanes wrote, and behind it.
    assert_eq!(races(&changed("last_arriver", "barrier\n", "")), (32, 0));
    let text = sample("last_arriver").kernel.to_string();
    let second = text.rfind("barrier\n").unwrap();
    let mut unguarded = sample("last_arriver");
    unguarded.kernel = parse(&format!("{}{}", &text[..second], &text[second + 8..])).unwrap();
    for seed in 0..32 {
        let e = unguarded.interpret(&Options { seed, check_races: true }).unwrap_err().to_string();
        assert!(e.contains("race on") || e.contains("never wrote"), "{e}");
    }
}

/// Who does not come last has no right to read.
#[test]
fn an_early_reader_is_found() {
    let early = changed("last_arriver", "= sub grid_size.0, 1", "= sub grid_size.0, 2");
    let (found, missed) = races(&early);
    assert_eq!((found, missed), (32, 0), "the fourth of five reads what the fifth still writes");
}
