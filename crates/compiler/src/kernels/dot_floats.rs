//! Mat-vecs with F32 inputs: float weights, and `--act f32`.

use super::dot::{InputKind, Inputs, Norm, WeightRow, by_format, first_column, load16, unit_at};
use zinc_ir::kernel::{Builder, Val};
use zinc_ir::quant::{Run, UNIT, Weights};

/// This lane's sums `[r][n]` over its units, then the inputs' squares `[n]` if there is a norm.
pub(super) fn accumulate<'a, 'b>(
    b: &'b Builder,
    subgroup: u32,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    norm: Option<Norm<'b>>,
) -> Vec<Val<'b>> {
    let (n, r) = (inputs.rows.len(), rows.len());
    let units = rows[0].weight.cols / UNIT;
    let (full, tail) = (units / subgroup, units % subgroup);
    let squares = if norm.is_some() { n } else { 0 };
    let zero = vec![b.f32(0.0); r * n + squares];
    let step = |unit: Val<'b>, acc: &[Val<'b>]| add_unit(b, rows, inputs, norm, unit, acc);
    let acc = match full {
        0 => zero,
        _ => b.for_(b.u32(0), b.u32(full), 1, &zero, |i, acc| step(i * subgroup + b.lane(), acc)),
    };
    if tail == 0 {
        return acc;
    }
    let unit = b.lane() + full * subgroup;
    b.if_else(b.lane().lt(tail), || step(unit, &acc), || acc.clone())
}

/// Adds one unit of every row to the accumulators `[r][n]`, and the inputs' squares after them.
pub(super) fn add_unit<'a, 'b>(
    b: &'b Builder,
    rows: &[WeightRow<'a, 'b>],
    inputs: &Inputs<'b>,
    norm: Option<Norm<'b>>,
    unit: Val<'b>,
    acc: &[Val<'b>],
) -> Vec<Val<'b>> {
    debug_assert!(matches!(inputs.kind, InputKind::Floats(_)));
    let n = inputs.rows.len();
    let mut acc = acc.to_vec();
    for (group, members) in by_format(rows).iter().enumerate() {
        let format = rows[members[0]].weight.format;
        let decoded: Vec<[Run<'b>; 2]> = members
            .iter()
            .map(|&i| (format.emit_unit)(&unit_at(b, rows[i].weight, rows[i].base, rows[i].row, unit)))
            .collect();
        for run in 0..2 {
            let col = first_column(format, unit, &decoded[0][run]);
            for j in 0..n {
                let own = inputs.column.map_or(col, |first| col + first);
                let raw = load16(b, inputs.base, inputs.rows[j] + own * 4);
                let x = match norm {
                    Some(norm) => {
                        let gain = load16(b, norm.weight, col * 4);
                        [0, 1, 2, 3].map(|k| raw[k] * gain[k])
                    }
                    None => raw,
                };
                if norm.is_some() && group == 0 {
                    let at = rows.len() * n + j;
                    acc[at] = acc[at] + dot16(b, &raw, &raw);
                }
                let biased = decoded.iter().any(|d| matches!(d[run].weights, Weights::Bytes { bias: Some(_), .. }));
                let sum = biased.then(|| ((x[0] + x[1]) + (x[2] + x[3])).sum_lanes());
                for (runs, &i) in decoded.iter().zip(members) {
                    acc[i * n + j] = add_run(b, &runs[run].weights, &x, sum, acc[i * n + j]);
                }
            }
        }
    }
    acc
}

fn dot16<'b>(b: &'b Builder, x: &[Val<'b>; 4], y: &[Val<'b>; 4]) -> Val<'b> {
    let mut sum = x[0] * y[0];
    for k in 1..4 {
        sum = b.fma(x[k], y[k], sum);
    }
    sum.sum_lanes()
}

/// acc + Σ w·x over a run: scale · Σ q·x + bias · Σ x.
fn add_run<'b>(b: &'b Builder, weights: &Weights<'b>, x: &[Val<'b>; 4], sum: Option<Val<'b>>, acc: Val<'b>) -> Val<'b> {
    let product = dot16(b, &weights.levels(), x);
    match weights {
        Weights::Floats(_) => acc + product,
        Weights::Bytes { scale, bias, .. } => {
            let acc = b.fma(product, *scale, acc);
            match (bias, sum) {
                (Some(bias), Some(sum)) => b.fma(*bias, sum, acc),
                _ => acc,
            }
        }
    }
}
