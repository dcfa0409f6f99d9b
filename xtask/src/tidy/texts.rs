//! What no tracked text may contain, and what documents must get right.
//!
//! Machine paths and the hosts of package registries belong to one machine's set-up. A path that a document
//! names in backticks or as a link must exist, so that recipes do not rot.

use super::{Finding, Text};
use crate::process::workspace;

/// Beginnings of paths that exist on somebody's machine only. Written in two halves, because this file is
/// checked too.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/Us", "ers/"),
];

/// Words in the host names of package registries, which a package's client knows by itself.
const REGISTRY_WORDS: &[&str] = &["debian", "pypi", "pythonhosted", "crates", "npmjs", "golang"];

/// Documents whose paths must exist.
const DOCUMENTS: &[&str] = &["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"];

/// Folders whose paths are recognised in documents.
const FOLDERS: &[&str] = &["crates/", "xtask/", "tests/", "docs/", ".ci/", "fuzz/", "benches/"];

pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts {
        // Cargo writes the index's address into its lock files itself.
        if !text.path.ends_with("Cargo.lock") {
            findings.extend(forbidden(text));
        }
        if DOCUMENTS.contains(&text.path.as_str()) {
            let absent = named_paths(&text.text).into_iter().filter(|(_, path)| !workspace().join(path).exists());
            findings.extend(absent.map(|(line, path)| Finding {
                path: text.path.clone(),
                line,
                message: format!("`{path}` does not exist"),
            }));
        }
    }
    findings
}

fn forbidden(text: &Text) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.text.lines().enumerate() {
        let mut find = |message| findings.push(Finding { path: text.path.clone(), line: number + 1, message });
        for path in MACHINE_PATHS.iter().filter(|path| begins_a_path(line, path)) {
            find(format!("`{path}…` exists on one machine only"));
        }
        for host in hosts(line).filter(|host| REGISTRY_WORDS.iter().any(|word| host.contains(word))) {
            find(format!("`{host}`: leave the address of a registry to its client"));
        }
    }
    findings
}

/// What looks like a host name: labels joined by dots, ending like one.
fn hosts(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && !"-.".contains(c));
    words.filter(|word| [".org", ".io", ".com", ".net"].iter().any(|end| word.ends_with(end)))
}

/// Whether `start` stands in `line` as the beginning of a path, not in its middle.
fn begins_a_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(offset, _)| {
        let before = line[..offset].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}>)$".contains(c))
    })
}

/// Line and path of everything in backticks or link targets that is a path of this project. A path with a
/// part to be filled in (`NAME`, `<name>`, `*`) counts up to the folder before that part.
fn named_paths(document: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in document.lines().enumerate() {
        let quoted = line.split('`').skip(1).step_by(2);
        let linked = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for word in quoted.chain(linked) {
            let known = FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains(' ');
            if known {
                let open = |part: &&str| part.contains(['<', '*', '{', '…']) || part.contains("NAME");
                let fixed: Vec<&str> = word.split('/').take_while(|part| !open(part)).collect();
                // `path::item` and `path:line` point into a file.
                let path = fixed.join("/");
                found.push((number + 1, path.split(':').next().unwrap_or_default().to_string()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Text, begins_a_path, forbidden, named_paths};

    #[test]
    fn machine_paths_only_at_their_beginning() {
        let path = concat!("/wo", "rk/");
        assert!(begins_a_path(&format!("see {path}x"), path) && begins_a_path(&format!("\"{path}x"), path));
        assert!(!begins_a_path(&format!("target{path}x"), path) && !begins_a_path(&format!("${{HERE}}{path}"), path));
    }

    #[test]
    fn hosts() {
        let text = format!("one\nhttps://mirror-of-{}.example.{}/x\ncrates/ir and docs.{}\n", "debian", "org", "rs");
        let lines: Vec<usize> = forbidden(&Text { path: "a".into(), text }).iter().map(|found| found.line).collect();
        assert_eq!(lines, [2]);
    }

    #[test]
    fn paths_in_documents() {
        let text =
            "add `crates/models/src/arch/NAME.rs` and a row in `crates/ir/src/lib.rs`\n[x](docs/a.md#b) `cargo test`\n";
        let expected = [(1, "crates/models/src/arch"), (1, "crates/ir/src/lib.rs"), (2, "docs/a.md")];
        assert_eq!(named_paths(text), expected.map(|(line, path)| (line, path.to_string())));
    }
}
