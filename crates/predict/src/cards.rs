//! The cards that speed is predicted for: published figures, and what others and we measured of their kind.
//!
//! ```text
//! CARDS row ─► caps (what the compiler needs) · streaming rate · wave64 per SIMD · cost of a launch
//! ```
//!
//! Every figure that is not from a data sheet has its basis beside it. Nothing here depends on a model.

use zinc_ir::device::{Caps, MatrixShape};
use zinc_ir::kernel::Scalar;

/// A figure and how far off it may be (half-width, same unit).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The figure.
    pub value: f64,
    /// It may be this much lower or higher.
    pub spread: f64,
}

const fn figure(value: f64, spread: f64) -> Figure {
    Figure { value, spread }
}

/// Vector registers of one SIMD, for subgroups of 64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Registers {
    /// Registers of 64 lanes.
    pub file: u32,
    /// They are given out in multiples of this.
    pub granule: u32,
}

/// A graphics card.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Name for `--gpu`.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Its chip, as drivers and [`crate::rates`] call it.
    pub chip: &'static str,
    /// Device memory, in GiB.
    pub memory_gib: f64,
    /// Device memory that a model can have, in GiB: less the driver's and a desktop's share.
    pub usable_gib: f64,
    /// Bandwidth of the data sheet, in GB/s.
    pub published_gbps: f64,
    /// Share of it that a streaming read reaches.
    pub streaming: Figure,
    /// Compute units, or multiprocessors.
    pub units: u32,
    /// SIMDs that issue one vector instruction of 32 lanes per clock each.
    pub simds: u32,
    /// Clock under load, in GHz: the data sheet's game clock.
    pub clock_ghz: f64,
    /// Registers that decide how many subgroups are resident, where known.
    pub registers: Option<Registers>,
    /// Last-level cache, in MiB.
    pub cache_mib: u32,
    /// A launch that waits for the one before, without work, in µs.
    pub launch_us: Figure,
    /// Until a launch's loads fill the memory system, and until its last workgroup is done, in µs.
    pub ramp_us: Figure,
    /// What a step costs beyond its launches (submission, waiting, reading the answer), in µs.
    pub step_us: Figure,
    /// What the model of a step leaves out, as a share of the time: no run on the card has shown it yet.
    pub unproven: f64,
    /// Lanes per subgroup that Zinc uses there.
    pub subgroup: u32,
    /// Workgroup memory, in KiB.
    pub shared_kib: u32,
    /// It has matrix units of 16 × 16 × 16.
    pub matrices: bool,
    /// Where the figures that no data sheet has come from.
    pub basis: &'static str,
}

/// All cards.
pub static CARDS: &[Card] = &[
    Card {
        name: "rx7600xt",
        title: "Radeon RX 7600 XT",
        chip: "navi33",
        memory_gib: 16.0,
        usable_gib: 15.2,
        published_gbps: 288.0,
        // Nobody has published one for this chip; RDNA3 cards reach 0.90 to 0.92, small memory systems rather more.
        streaming: figure(0.92, 0.03),
        units: 32,
        simds: 64,
        clock_ghz: 2.47,
        registers: Some(Registers { file: 512, granule: 8 }),
        cache_mib: 32,
        launch_us: figure(0.85, 0.4),
        ramp_us: figure(1.25, 0.5),
        step_us: figure(40.0, 40.0),
        unproven: 0.08,
        subgroup: 64,
        shared_kib: 64,
        matrices: true,
        basis: "launch cost and streaming share of the RX 7900 XTX; not measured on this card",
    },
    Card {
        name: "rx7900xtx",
        title: "Radeon RX 7900 XTX",
        chip: "navi31",
        memory_gib: 24.0,
        usable_gib: 23.0,
        published_gbps: 960.0,
        // 868 to 884 GB/s with 16-byte loads.
        streaming: figure(0.915, 0.015),
        units: 96,
        simds: 192,
        clock_ghz: 2.3,
        registers: Some(Registers { file: 768, granule: 12 }),
        cache_mib: 96,
        // 0.82 to 0.88 in a serial chain of 941 launches, 1.48 alone.
        launch_us: figure(0.85, 0.3),
        ramp_us: figure(1.25, 0.5),
        step_us: figure(40.0, 40.0),
        unproven: 0.08,
        subgroup: 64,
        shared_kib: 64,
        matrices: true,
        basis: "streaming reads and launch chains that others published; no Zinc run",
    },
    Card {
        name: "rx9070xt",
        title: "Radeon RX 9070 XT",
        chip: "gfx1201",
        memory_gib: 16.0,
        usable_gib: 15.2,
        published_gbps: 640.0,
        // 611.8 GB/s on the same chip.
        streaming: figure(0.956, 0.015),
        units: 64,
        simds: 128,
        clock_ghz: 2.4,
        registers: Some(Registers { file: 768, granule: 12 }),
        cache_mib: 64,
        launch_us: figure(1.04, 0.3),
        ramp_us: figure(1.25, 0.5),
        step_us: figure(40.0, 40.0),
        unproven: 0.08,
        subgroup: 64,
        shared_kib: 64,
        // Mesa 25.0, whose compiler the rates come from, has none for this chip; decoding does not use them.
        matrices: false,
        basis: "streaming reads and launch chains that others published; no Zinc run",
    },
    Card {
        name: "h200",
        title: "NVIDIA H200 SXM",
        chip: "h200",
        memory_gib: 140.4,
        usable_gib: 138.0,
        published_gbps: 4800.0,
        // 4590 GB/s through Vulkan, 4430 with few workgroups.
        streaming: figure(0.956, 0.01),
        units: 132,
        simds: 528,
        clock_ghz: 1.9,
        registers: None,
        cache_mib: 60,
        // 1.74 with one workgroup, 2.17 with 528, 2.51 with 1056.
        launch_us: figure(2.2, 0.3),
        // SmolLM2's launches, which move next to nothing, cost 4.5 µs each in a row.
        ramp_us: figure(2.0, 0.6),
        // Two steps in flight hide the submission (70 µs when each is waited for).
        step_us: figure(5.0, 5.0),
        // Rates of arithmetic are estimates; docs/internals/rdna.md has predictions beside measurements.
        unproven: 0.2,
        subgroup: 32,
        shared_kib: 48,
        matrices: true,
        basis: "microbenchmarks through Vulkan (driver 580); rates of arithmetic fitted to launches of llama3.1-8b in eight formats",
    },
];

/// The card of this name.
///
/// # Errors
/// [`UnknownCard`], which lists the known ones.
pub fn card(name: &str) -> Result<&'static Card, UnknownCard> {
    let found = CARDS.iter().find(|c| c.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| UnknownCard {
        asked: name.to_string(),
        known: CARDS.iter().map(|c| c.name).collect::<Vec<_>>().join(", "),
    })
}

/// There is no such card.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("no figures for the card {asked}; there are: {known}")]
pub struct UnknownCard {
    asked: String,
    known: String,
}

impl Card {
    /// Rate of a streaming read, in GB/s.
    pub fn streaming_gbps(&self) -> f64 {
        self.published_gbps * self.streaming.value
    }

    /// Rate, in GB/s, of a kernel that takes in `bytes_per_clock` bytes of weights per clock of one SIMD when all
    /// data is at hand.
    pub fn arithmetic_gbps(&self, bytes_per_clock: f64) -> f64 {
        bytes_per_clock * self.simds as f64 * self.clock_ghz
    }

    /// Subgroups of 64 lanes resident on a SIMD for a kernel of so many vector registers, as far as registers decide.
    pub fn waves(&self, vgprs: u32) -> Option<u32> {
        let r = self.registers?;
        Some((r.file / vgprs.max(1).next_multiple_of(r.granule)).min(16))
    }

    /// Abilities as the driver reports them.
    pub fn caps(&self) -> Caps {
        let square = |acc| MatrixShape { m: 16, n: 16, k: 16, input: Scalar::F16, acc };
        Caps {
            native: false,
            subgroup_size: self.subgroup,
            matrix_lanes: self.subgroup.min(32),
            max_workgroup: 1024,
            max_shared_bytes: self.shared_kib << 10,
            max_grid: [65535; 3],
            matrices: if self.matrices { vec![square(Scalar::F32), square(Scalar::F16)] } else { vec![] },
            quads: false,
            parallel_tiles: self.units * 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_card_is_answered_with_the_known_ones() {
        let error = card("rtx5090").unwrap_err().to_string();
        for c in CARDS {
            assert!(error.contains(c.name), "{error}");
            assert_eq!(card(&c.name.to_uppercase()).map(|found| found.name), Ok(c.name));
        }
    }

    #[test]
    fn resident_subgroups_follow_the_register_file() {
        let waves = |name: &str, vgprs| card(name).expect("known").waves(vgprs);
        assert_eq!([32, 48, 64, 65, 128].map(|v| waves("rx7600xt", v)), [16, 10, 8, 7, 4].map(Some));
        assert_eq!([48, 96, 97, 128].map(|v| waves("rx9070xt", v)), [16, 8, 7, 5].map(Some));
        assert_eq!(waves("h200", 64), None);
    }
}
