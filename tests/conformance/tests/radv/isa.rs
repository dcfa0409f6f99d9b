//! What a straight-line kernel's machine code costs: every instruction once, in cycles of one SIMD.
//!
//! ```text
//! text of the driver ─one instruction per line─► class ─► cycles of the vector unit, of workgroup memory; bytes loaded
//! ```
//!
//! The compiler's own "Inverse Throughput" is the larger of this and latency / resident subgroups, with guessed weights
//! for branches and loops: kernels written out straight keep few subgroups resident, and it would measure that.

/// Costs of some code.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Cycles of the vector unit.
    pub(crate) vector: f64,
    /// Cycles of workgroup memory, whose 128 bytes per clock two SIMDs share.
    pub(crate) shared: f64,
    /// Bytes that a subgroup loads from global memory.
    pub(crate) loaded: f64,
}

impl Cost {
    /// Of the busiest unit.
    pub(crate) fn cycles(&self) -> f64 {
        self.vector.max(self.shared)
    }
}

impl std::ops::Sub for Cost {
    type Output = Cost;
    fn sub(self, other: Cost) -> Cost {
        Cost {
            vector: self.vector - other.vector,
            shared: self.shared - other.shared,
            loaded: self.loaded - other.loaded,
        }
    }
}

/// Vector instructions that can be issued in pairs: one cycle for 64 lanes instead of two.
const PAIRED: &[&str] = &[
    "v_fma_f32",
    "v_fmac_f32",
    "v_fmaak_f32",
    "v_fmamk_f32",
    "v_mul_f32",
    "v_add_f32",
    "v_sub_f32",
    "v_subrev_f32",
    "v_fma_f16",
    "v_fmac_f16",
    "v_mul_f16",
    "v_add_f16",
    "v_sub_f16",
    "v_max_f32",
    "v_min_f32",
    "v_mov_b32",
    "v_cndmask_b32",
    "v_dot2_f32_f16",
    "v_dot2_f32_bf16",
];
/// A quarter of the usual rate.
const QUARTER: &[&str] = &[
    "v_exp_f32",
    "v_log_f32",
    "v_rcp_f32",
    "v_rsq_f32",
    "v_sqrt_f32",
    "v_sin_f32",
    "v_cos_f32",
    "v_mul_lo_u32",
    "v_mul_hi_u32",
    "v_mul_hi_i32",
    "v_mad_u64_u32",
    "v_mad_i64_i32",
];

/// Costs of a whole kernel for subgroups of 64 lanes.
pub(crate) fn cost(assembly: &str) -> Cost {
    total(assembly, instruction)
}

/// Costs of a whole kernel for subgroups of 32 lanes. Nothing is issued in pairs but what the compiler has paired.
pub(crate) fn cost_of_32(assembly: &str) -> Cost {
    total(assembly, |line| {
        let Cost { vector, shared, loaded } = instruction(line);
        let vector = match line {
            _ if line.starts_with("v_wmma") => vector,
            _ => (vector / 2.0).ceil(),
        };
        Cost { vector, shared: shared / 2.0, loaded: loaded / 2.0 }
    })
}

/// Cycles of matrices.
pub(crate) fn matrices(assembly: &str) -> f64 {
    let is = |line: &str| line.starts_with("v_wmma");
    total(assembly, |line| if is(line) { instruction(line) } else { Cost::default() }).vector
}

fn total(assembly: &str, instruction: impl Fn(&str) -> Cost) -> Cost {
    let mut sum = Cost::default();
    let mut last = Cost::default();
    for line in assembly.lines() {
        let line = line.trim();
        let again = line.strip_prefix("(then repeated ").and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        let times = again.unwrap_or_else(|| {
            last = instruction(line);
            1
        });
        for _ in 0..times {
            sum.vector += last.vector;
            sum.shared += last.shared;
            sum.loaded += last.loaded;
        }
    }
    sum
}

fn instruction(line: &str) -> Cost {
    let full = line.split_whitespace().next().unwrap_or_default();
    let dpp = line.contains("quad_perm") || line.contains("row_") || line.contains("dpp");
    let name = ["_e32", "_e64", "_dpp", "_e64_dpp"].iter().find_map(|end| full.strip_suffix(end)).unwrap_or(full);
    let cost = Cost::default();
    if full.starts_with("v_") {
        let cycles = match name {
            _ if QUARTER.contains(&name) => 8.0,
            _ if name.starts_with("v_wmma") => 32.0,
            _ if name.ends_with("_b64") || name.ends_with("_f64") || name.ends_with("_u64") => 4.0,
            _ if PAIRED.contains(&name) && !dpp => 1.0,
            _ => 2.0,
        };
        return Cost { vector: cycles, ..cost };
    }
    if full.starts_with("ds_") {
        return Cost { shared: 64.0 * width(name) / 64.0, ..cost };
    }
    if full.starts_with("global_load") || full.starts_with("buffer_load") {
        return Cost { loaded: 64.0 * width(name), ..cost };
    }
    cost
}

/// Most bytes that 64 lanes wait for at one point of the code, by its order in the text: loads issued, less those that a
/// wait has seen arrive.
pub(crate) fn in_flight(assembly: &str) -> f64 {
    let (mut pending, mut most) = (std::collections::VecDeque::new(), 0.0f64);
    for line in assembly.lines().map(str::trim) {
        if let Some(left) = left_pending(line) {
            while pending.len() > left {
                pending.pop_front();
            }
        }
        let loaded = instruction(line).loaded;
        if loaded > 0.0 {
            pending.push_back(loaded);
            most = most.max(pending.iter().sum());
        }
    }
    most
}

/// Loads that a wait lets be unfinished; the instruction's form depends on the family.
fn left_pending(line: &str) -> Option<usize> {
    if line.starts_with("s_waitcnt ") {
        return line.split("vmcnt(").nth(1)?.split(')').next()?.parse().ok();
    }
    let count = line.strip_prefix("s_wait_loadcnt ").or_else(|| line.strip_prefix("s_wait_loadcnt_dscnt "))?;
    let count = count.split_whitespace().next()?;
    let all = usize::from_str_radix(count.strip_prefix("0x").unwrap_or(count), 16).ok()?;
    // The combined form has loads in the bits above the six of workgroup memory.
    Some(if line.starts_with("s_wait_loadcnt_dscnt") { all >> 8 } else { all })
}

/// Bytes per lane, from the end of a memory instruction's name.
fn width(name: &str) -> f64 {
    let rows = [("b128", 16.0), ("b96", 12.0), ("b64", 8.0), ("b32", 4.0), ("16", 2.0), ("8", 1.0)];
    rows.iter().find(|(end, _)| name.ends_with(end)).map_or(4.0, |(_, bytes)| *bytes)
}

#[test]
fn instructions_are_classed() {
    let text = "BB0:
        v_and_b32_e32 v1, 1, v0                                     ; 36020081
        v_fma_f32 v1, v2, v3, v4
        v_fmac_f32_e32 v1, v2, v3
        v_add_f32_dpp v1, v2, v3 quad_perm:[1,0,3,2]
        v_rsq_f32_e32 v1, v2
        v_dot4_i32_iu8 v30, v8, s0, 0 neg_lo:[1,0,0]
        s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT)
        global_load_b128 v[8:11], v6, s[0:1]
        global_load_u8 v6, v6, s[10:11] offset:1
        ds_load_b32 v1, v2
        s_nop 0
        (then repeated 6 times)
        v_nop
        (then repeated 2 times)";
    // Half of it, but for what is issued in pairs only if all lanes are there.
    assert_eq!(
        cost_of_32(text),
        Cost { vector: 1.0 + 1.0 + 1.0 + 1.0 + 4.0 + 1.0 + 3.0, shared: 2.0, loaded: 32.0 * 17.0 }
    );
    let expected = Cost { vector: 2.0 + 1.0 + 1.0 + 2.0 + 8.0 + 2.0 + 3.0 * 2.0, shared: 4.0, loaded: 64.0 * 17.0 };
    assert_eq!(cost(text), expected);
}

#[test]
fn loads_are_in_flight_until_waited_for() {
    let load = "global_load_b128 v[8:11], v6, s[0:1]\n";
    assert_eq!(in_flight(&load.repeat(3)), 3.0 * 1024.0);
    for wait in ["s_waitcnt vmcnt(1)", "s_wait_loadcnt 0x1                 ; bfc00001", "s_wait_loadcnt_dscnt 0x100"] {
        assert_eq!(in_flight(&format!("{load}{load}{wait}\n{load}")), 2.0 * 1024.0, "{wait}");
    }
    assert_eq!(in_flight(&format!("{load}s_waitcnt lgkmcnt(0)\n{load}")), 2.0 * 1024.0);
}
