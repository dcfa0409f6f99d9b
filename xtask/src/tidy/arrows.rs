//! Which crate may name which: the arrows of the architecture, and who may use the crates that define a layer.
//!
//! ```text
//!  crates/*/Cargo.toml ─dependencies (not dev-)─► ARROWS, OWNERS
//! ```

use super::{Finding, Text};

/// A crate and the crates of ours that it may name.
const ARROWS: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("gguf", &[]),
    ("spirv", &["ir"]),
    ("cpu", &["ir"]),
    ("vulkan", &["spirv", "ir"]),
    ("models", &["gguf", "ir"]),
    ("text", &["gguf"]),
    ("compiler", &["ir"]),
    ("engine", &["compiler", "ir"]),
    ("predict", &["ir"]),
    ("tuner", &["compiler", "ir"]),
    ("snapshots", &["engine", "ir"]),
    ("serve", &["engine", "text", "ir"]),
    (
        "zinc",
        &[
            "serve",
            "snapshots",
            "engine",
            "compiler",
            "predict",
            "tuner",
            "models",
            "text",
            "vulkan",
            "cpu",
            "spirv",
            "gguf",
            "ir",
        ],
    ),
];

/// A crate from outside and the only crates of ours that may depend on it.
const OWNERS: &[(&str, &[&str])] = &[
    ("ash", &["vulkan"]),
    ("rspirv", &["spirv"]),
    ("memmap2", &["gguf", "cpu"]),
    ("tokenizers", &["text"]),
    ("minijinja", &["text"]),
    ("anyhow", &["zinc"]),
    ("clap", &["zinc"]),
];

pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts {
        let Some(name) = text.path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let mut find = |line, message| findings.push(Finding { path: text.path.clone(), line, message });
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
            find(0, format!("crate `{name}` has no row in ARROWS of xtask/src/tidy/arrows.rs"));
            continue;
        };
        for (line, dependency) in dependencies(&text.text) {
            if let Some(ours) = dependency.strip_prefix("zinc-") {
                if !allowed.contains(&ours) {
                    find(line, format!("`{name}` must not name `{ours}`; it may name: {}", list(allowed)));
                }
            } else if let Some((_, owners)) = OWNERS.iter().find(|(outside, _)| *outside == dependency)
                && !owners.contains(&name)
            {
                find(line, format!("only {} may depend on `{dependency}`", list(owners)));
            }
        }
    }
    findings
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_string() } else { names.join(", ") }
}

/// Line (from 1) and name of every dependency that ends up in the product.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            // [dependencies], [build-dependencies], [target.'…'.dependencies], [dependencies.NAME]
            let (table, name) = match section.rsplit_once("dependencies.") {
                Some((before, name)) => (format!("{before}dependencies"), Some(name)),
                None => (section.to_string(), None),
            };
            let product = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
            inside = product && name.is_none();
            if let (true, Some(name)) = (product, name) {
                found.push((number + 1, name.trim_matches('"')));
            }
        } else if inside && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((number + 1, name.trim_matches('"')));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Text, check, dependencies};

    #[test]
    fn reads_every_form_of_dependency() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\nzinc-ir.workspace = true\nhalf = { version = \"2\" }\n\
            # zinc-gguf = \"1\"\n[dev-dependencies]\nzinc-cpu.workspace = true\n[dependencies.serde]\nversion = \"1\"\n\
            [target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n[build-dependencies]\ncc = \"1\"\n[dev-dependencies.proptest]\n";
        let names: Vec<&str> = dependencies(manifest).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["zinc-ir", "half", "serde", "libc", "cc"]);
    }

    #[test]
    fn finds_a_forbidden_arrow() {
        let text = |path: &str, text: &str| Text { path: path.to_string(), text: text.to_string() };
        let bad = [text("crates/ir/Cargo.toml", "[dependencies]\nzinc-gguf = {}\nash = \"0\"\n")];
        let lines: Vec<usize> = check(&bad).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
        let good = [text("crates/vulkan/Cargo.toml", "[dependencies]\nzinc-ir = {}\nash = \"0\"\n")];
        assert!(check(&good).is_empty());
        assert_eq!(check(&[text("crates/new/Cargo.toml", "")]).len(), 1);
    }
}
