//! The report as a plot: arithmetic intensity against attained rate, both logarithmic, with the measured roofs.
//!
//! ```text
//! FLOP/s │      ┌──────── matrices         a point per kind of launch, larger the more time it takes;
//!        │    ╱─┴──────── multiply-adds    kinds without FLOPs stand at the left edge, by their bandwidth
//!        │  ╱ read        ● 2
//!        └──────────────── FLOP/byte
//! ```
//!
//! Colours are named in one place and change with the viewer's colour scheme; numbers beside points refer to the list at the
//! side.

use super::{Limits, Roofline};
use std::fmt::Write;

/// Size of the picture, and the corners of the plot in it.
const SIZE: [f64; 2] = [960.0, 560.0];
const LEFT_TOP: [f64; 2] = [78.0, 64.0];
const RIGHT_BOTTOM: [f64; 2] = [600.0, 490.0];

const STYLE: &str = "
  svg { --back: #ffffff; --ink: #1f2328; --soft: #656d76; --grid: #d8dee4; --roof: #0969da; --a: #bc4c00; --b: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    svg { --back: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #30363d; --roof: #58a6ff; --a: #f0883e; --b: #3fb950; }
  }
  text { font: 12px system-ui, sans-serif; fill: var(--ink); }
  .title { font-size: 15px; font-weight: 600; }
  .soft { fill: var(--soft); }
  .back { fill: var(--back); }
  .grid { stroke: var(--grid); stroke-width: 1; }
  .roof { stroke: var(--roof); stroke-width: 2; fill: none; }
  .name { fill: var(--roof); }
  circle { fill-opacity: 0.8; }
  .a { fill: var(--a); stroke: var(--back); }
  .b { fill: var(--b); stroke: var(--back); }
  .a.none, .b.none { fill: var(--back); stroke-width: 2; }
  .a.none { stroke: var(--a); }
  .b.none { stroke: var(--b); }
  .number { font-size: 11px; font-weight: 600; stroke: var(--back); stroke-width: 3px; paint-order: stroke; }
  .na { fill: var(--a); }
  .nb { fill: var(--b); }
";

/// A kind of launch in the plot.
struct Point<'a> {
    test: usize,
    name: &'a str,
    /// FLOPs per byte; 0: it has no FLOPs.
    intensity: f64,
    /// FLOP/s, or bytes per second of a kind without FLOPs.
    rate: f64,
    /// Part of the test's time.
    share: f64,
    attained: f64,
}

/// Logarithmic axes over whole decades.
struct Axes {
    /// log10 of the first and last value, horizontally and vertically.
    decades: [[f64; 2]; 2],
}

impl Axes {
    fn around(limits: &Limits, points: &[Point<'_>]) -> Axes {
        let peaks = [limits.fma, limits.dot4, limits.matrix.unwrap_or(limits.fma)];
        let top = peaks.into_iter().fold(0.0, f64::max);
        let with_flops = || points.iter().filter(|p| p.intensity > 0.0);
        let mut x = [top / limits.read, 0.1];
        for p in with_flops() {
            x = [x[0].max(p.intensity), x[1].min(p.intensity)];
        }
        let x = [(x[1] / 1.5).log10().floor(), (x[0] * 1.5).log10().ceil()];
        // The lowest of the points, and of the read roof at the left edge.
        let edge = 10f64.powf(x[0]);
        let rates = points.iter().map(|p| if p.intensity > 0.0 { p.rate } else { p.rate * edge });
        let low = rates.filter(|r| *r > 0.0).fold(limits.read * edge, f64::min);
        // Far below everything of interest, a point is drawn at the bottom.
        let y = [low.log10().floor().max(top.log10() - 8.0), (top * 1.2).log10().ceil()];
        Axes { decades: [x, y] }
    }

    fn x(&self, value: f64) -> f64 {
        let [low, high] = self.decades[0];
        let part = ((value.max(1e-30).log10() - low) / (high - low)).clamp(0.0, 1.0);
        LEFT_TOP[0] + part * (RIGHT_BOTTOM[0] - LEFT_TOP[0])
    }

    fn y(&self, value: f64) -> f64 {
        let [low, high] = self.decades[1];
        let part = ((value.max(1e-30).log10() - low) / (high - low)).clamp(0.0, 1.0);
        RIGHT_BOTTOM[1] - part * (RIGHT_BOTTOM[1] - LEFT_TOP[1])
    }

    fn edge(&self) -> f64 {
        10f64.powf(self.decades[0][0])
    }
}

/// The picture of some tests (name and report) of one model on one device, as an SVG document.
pub(crate) fn plot(title: &str, tests: &[(String, &Roofline)]) -> String {
    let mut out = String::new();
    if let Some((_, first)) = tests.first() {
        let points = points(tests);
        let axes = Axes::around(&first.limits, &points);
        // Writing to a string cannot fail.
        draw(title, tests, &first.limits, &axes, &points, &mut out).ok();
    }
    out
}

fn points<'a>(tests: &[(String, &'a Roofline)]) -> Vec<Point<'a>> {
    let mut points = vec![];
    for (test, (_, r)) in tests.iter().enumerate() {
        for (name, k) in r.rows().into_iter().filter(|(_, k)| k.tells()) {
            let work = k.work.max(1e-12);
            let moved = if k.flops > 0 { k.flops } else { k.bytes };
            points.push(Point {
                test,
                name,
                intensity: k.flops as f64 / k.bytes.max(1) as f64,
                rate: moved as f64 / work,
                share: k.work / r.parts().max(1e-12),
                attained: k.attained(),
            });
        }
    }
    points
}

fn draw(
    title: &str,
    tests: &[(String, &Roofline)],
    limits: &Limits,
    axes: &Axes,
    points: &[Point<'_>],
    out: &mut String,
) -> std::fmt::Result {
    let [width, height] = SIZE;
    let height = height.max(110.0 + 17.0 * (points.len() + tests.len()) as f64 + 24.0 * tests.len() as f64);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">"#
    )?;
    writeln!(out, "<title>{}</title>\n<style>{STYLE}</style>", escape(title))?;
    writeln!(out, r#"<rect class="back" width="{width}" height="{height}"/>"#)?;
    writeln!(out, r#"<text class="title" x="24" y="30">{}</text>"#, escape(title))?;
    grid(axes, out)?;
    roofs(limits, axes, out)?;
    marks(axes, points, out)?;
    list(tests, points, out)?;
    writeln!(out, "</svg>")
}

/// The points, large ones first so that they hide none, then their numbers.
fn marks(axes: &Axes, points: &[Point<'_>], out: &mut String) -> std::fmt::Result {
    let place = |p: &Point<'_>| match p.intensity > 0.0 {
        true => (axes.x(p.intensity), axes.y(p.rate)),
        false => (axes.x(axes.edge()), axes.y(p.rate * axes.edge())),
    };
    let radius = |p: &Point<'_>| 4.0 + 8.0 * p.share.clamp(0.0, 1.0).sqrt();
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| points[*b].share.total_cmp(&points[*a].share));
    for p in order.iter().filter_map(|i| points.get(*i)) {
        let ((x, y), none) = (place(p), if p.intensity > 0.0 { "" } else { " none" });
        let class = if p.test == 0 { "a" } else { "b" };
        writeln!(out, r#"<circle class="{class}{none}" cx="{x:.1}" cy="{y:.1}" r="{:.1}"/>"#, radius(p))?;
    }
    // Numbers stand to the right of their points, and move down where one stands already.
    order.sort_by(|a, b| place(&points[*a]).1.total_cmp(&place(&points[*b]).1));
    let mut taken: Vec<(f64, f64)> = vec![];
    for i in order {
        let Some(p) = points.get(i) else { continue };
        let (x, mut y) = (place(p).0 + radius(p) + 3.0, place(p).1 + 4.0);
        while let Some(other) = taken.iter().find(|t| (t.0 - x).abs() < 18.0 && (t.1 - y).abs() < 11.0) {
            y = other.1 + 11.5;
        }
        taken.push((x, y));
        let class = if p.test == 0 { "na" } else { "nb" };
        writeln!(out, r#"<text class="number {class}" x="{x:.1}" y="{y:.1}">{}</text>"#, i + 1)?;
    }
    Ok(())
}

fn grid(axes: &Axes, out: &mut String) -> std::fmt::Result {
    let ([left, top], [right, bottom]) = (LEFT_TOP, RIGHT_BOTTOM);
    for decade in axes.decades[0][0] as i32..=axes.decades[0][1] as i32 {
        let x = axes.x(10f64.powi(decade));
        writeln!(out, r#"<line class="grid" x1="{x:.1}" y1="{top}" x2="{x:.1}" y2="{bottom}"/>"#)?;
        writeln!(
            out,
            r#"<text class="soft" x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            bottom + 18.0,
            power(decade)
        )?;
    }
    for decade in axes.decades[1][0] as i32..=axes.decades[1][1] as i32 {
        let y = axes.y(10f64.powi(decade));
        writeln!(out, r#"<line class="grid" x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#)?;
        writeln!(
            out,
            r#"<text class="soft" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 8.0,
            y + 4.0,
            power(decade)
        )?;
    }
    let (x, y) = ((left + right) / 2.0, bottom + 40.0);
    writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">operations per byte</text>"#)?;
    writeln!(out, r#"<text x="24" y="{:.1}">operations per second</text>"#, top - 12.0)
}

/// The read roof up to each peak, and the peaks from there on.
fn roofs(limits: &Limits, axes: &Axes, out: &mut String) -> std::fmt::Result {
    let mut peaks = vec![("multiply-adds", limits.fma), ("byte dot products", limits.dot4)];
    peaks.extend(limits.matrix.map(|rate| ("matrices", rate)));
    peaks.sort_by(|a, b| a.1.total_cmp(&b.1));
    let top = peaks.iter().map(|p| p.1).fold(0.0, f64::max);
    let end = 10f64.powf(axes.decades[0][1]);
    // The diagonal leaves the plot below where it is under the lowest decade.
    let start = axes.edge().max(10f64.powf(axes.decades[1][0]) / limits.read);
    let line = |from: [f64; 2], to: [f64; 2]| {
        let ([x1, y1], [x2, y2]) = ([axes.x(from[0]), axes.y(from[1])], [axes.x(to[0]), axes.y(to[1])]);
        format!(r#"<path class="roof" d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}"/>"#)
    };
    writeln!(out, "{}", line([start, start * limits.read], [top / limits.read, top]))?;
    let mut above = f64::INFINITY;
    for (name, rate) in peaks {
        writeln!(out, "{}", line([rate / limits.read, rate], [end, rate]))?;
        // Names of peaks that are close to each other keep their distance.
        let y = (axes.y(rate) - 6.0).min(above - 14.0);
        above = y;
        let words = format!("{name} {}/s", short(rate));
        writeln!(
            out,
            r#"<text class="name" x="{:.1}" y="{y:.1}" text-anchor="end">{words}</text>"#,
            RIGHT_BOTTOM[0] - 4.0
        )?;
    }
    let middle = (start * (top / limits.read)).sqrt();
    let (x, y) = (axes.x(middle) - 8.0, axes.y(middle * limits.read) - 8.0);
    writeln!(out, r#"<text class="name" x="{x:.1}" y="{y:.1}" text-anchor="end">read {}B/s</text>"#, short(limits.read))
}

/// What the numbers stand for, per test, and the sentence.
fn list(tests: &[(String, &Roofline)], points: &[Point<'_>], out: &mut String) -> std::fmt::Result {
    let x = RIGHT_BOTTOM[0] + 28.0;
    let mut y = LEFT_TOP[1];
    for (test, (name, _)) in tests.iter().enumerate() {
        writeln!(out, r#"<text class="title" x="{x}" y="{y}">{}</text>"#, escape(name))?;
        writeln!(out, r#"<text class="soft" x="{:.1}" y="{y}" text-anchor="end">of limit</text>"#, SIZE[0] - 90.0)?;
        writeln!(out, r#"<text class="soft" x="{:.1}" y="{y}" text-anchor="end">time</text>"#, SIZE[0] - 24.0)?;
        for (i, p) in points.iter().enumerate().filter(|(_, p)| p.test == test) {
            y += 17.0;
            let class = if p.test == 0 { "na" } else { "nb" };
            let bare = if p.intensity > 0.0 { "" } else { " *" };
            writeln!(
                out,
                r#"<text x="{x}" y="{y}"><tspan class="{class}">{}</tspan> {}{bare}</text>"#,
                i + 1,
                escape(p.name)
            )?;
            writeln!(
                out,
                r#"<text x="{:.1}" y="{y}" text-anchor="end">{:.0} %</text>"#,
                SIZE[0] - 90.0,
                100.0 * p.attained
            )?;
            writeln!(
                out,
                r#"<text x="{:.1}" y="{y}" text-anchor="end">{:.1} %</text>"#,
                SIZE[0] - 24.0,
                100.0 * p.share
            )?;
        }
        y += 41.0;
    }
    if points.iter().any(|p| p.intensity <= 0.0) {
        writeln!(
            out,
            r#"<text class="soft" x="{x}" y="{:.1}">* no arithmetic: at the left edge, by bandwidth</text>"#,
            y - 17.0
        )?;
    }
    Ok(())
}

/// A power of ten in short.
fn power(decade: i32) -> String {
    if decade < 0 { format!("{:.*}", -decade as usize, 10f64.powi(decade)) } else { short(10f64.powi(decade)) }
}

fn short(rate: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (size, name) = units.into_iter().find(|(size, _)| rate >= *size).unwrap_or((1.0, ""));
    let n = rate / size;
    if n.fract().abs() < 1e-9 || n >= 100.0 { format!("{n:.0}{name}") } else { format!("{n:.1}{name}") }
}

fn escape(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect::<String>().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    /// Checks that elements nest, attributes are quoted and text is escaped; gives how often each element occurs.
    fn parse(text: &str) -> std::collections::HashMap<String, usize> {
        let (mut open, mut counts) = (vec![], std::collections::HashMap::new());
        let mut rest = text;
        while let Some(start) = rest.find('<') {
            let words = &rest[..start];
            assert!(!words.contains('>') || open.last() == Some(&"style".to_string()), "stray > in {words}");
            for (at, _) in words.match_indices('&') {
                let known = ["&amp;", "&lt;", "&gt;"].iter().any(|e| words[at..].starts_with(e));
                assert!(known, "unescaped & in {words}");
            }
            let end = rest[start..].find('>').expect("tags end") + start;
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "elements nest");
                continue;
            }
            let (inner, closed) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
            let name = inner.split_whitespace().next().expect("a name").to_string();
            assert_eq!(inner.matches('"').count() % 2, 0, "quotes pair: {inner}");
            assert_eq!(inner.matches('=').count() * 2, inner.matches('"').count(), "attributes are quoted: {inner}");
            assert!(!inner.contains("NaN") && !inner.contains("inf"), "{inner}");
            *counts.entry(name.clone()).or_insert(0) += 1;
            if !closed {
                open.push(name);
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} stay open; {rest}");
        counts
    }

    #[test]
    fn the_plot_is_well_formed() {
        let r = sample();
        let svg = plot("a <model> & a card", &[("tg2".to_string(), &r), ("pp2".to_string(), &r)]);
        let counts = parse(&svg);
        assert_eq!((counts["svg"], counts["circle"]), (1, 4), "a point per kind and test");
        assert_eq!(counts["path"], 3, "a roof for memory and each peak");
        assert!(svg.contains("a &lt;model&gt; &amp; a card") && svg.contains("prefers-color-scheme: dark"));
        assert!(plot("nothing", &[]).is_empty());
    }

    #[test]
    fn points_lie_below_their_roofs() {
        let r = sample();
        let tests = [("tg2".to_string(), &r)];
        let points = points(&tests);
        let axes = Axes::around(&r.limits, &points);
        let matvec = points.iter().find(|p| p.name == "matvec").expect("a point");
        assert_eq!(matvec.intensity, 2.0);
        let roof = axes.y(2.0 * r.limits.read);
        assert!(axes.y(matvec.rate) > roof && axes.y(matvec.rate) < RIGHT_BOTTOM[1]);
        let norm = points.iter().find(|p| p.name == "rms_norm").expect("a point");
        assert!(axes.y(norm.rate * axes.edge()) >= axes.y(axes.edge() * r.limits.read));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([short(4.59e12), short(1e3), short(250e9), short(7.0)], ["4.6T", "1k", "250G", "7"]);
        assert_eq!([power(-2), power(0), power(13)], ["0.01", "1", "10T"]);
    }
}
