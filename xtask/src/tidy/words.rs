//! Words that only some crates may say, and names that no module may have.

use super::Finding;
use super::source::{Source, line_of, occurrences};

/// One rule about words in code.
struct Rule {
    words: &'static [&'static str],
    /// Folders where the words are at home.
    home: &'static [&'static str],
    /// Whether tests elsewhere may use them too.
    free_in_tests: bool,
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        words: &["unsafe"],
        home: &["crates/gguf/", "crates/vulkan/", "crates/cpu/"],
        free_in_tests: false,
        why: "unsafe code lives in gguf, vulkan and cpu alone",
    },
    Rule {
        words: &["vk::", "ash::"],
        home: &["crates/vulkan/"],
        free_in_tests: false,
        why: "only vulkan speaks Vulkan; give it a safe function instead",
    },
    Rule {
        words: &["rspirv"],
        home: &["crates/spirv/"],
        free_in_tests: true,
        why: "only spirv knows SPIR-V's instructions",
    },
    Rule {
        words: &["env::var", "env::vars", "env::var_os", "env::vars_os", "env::args", "env::args_os"],
        home: &["crates/zinc/", "xtask/"],
        free_in_tests: true,
        why: "only the binary reads arguments and environment; pass the value in",
    },
];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] =
    &["utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "shared", "stuff"];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for rule in RULES.iter().filter(|rule| !rule.home.iter().any(|home| source.path.starts_with(home))) {
            let code = if rule.free_in_tests { &source.product } else { &source.code };
            for word in rule.words {
                findings.extend(occurrences(code, word).map(|offset| Finding {
                    path: source.path.clone(),
                    line: line_of(code, offset),
                    message: format!("`{word}`: {}", rule.why),
                }));
            }
        }
        let parts = source.path.strip_suffix(".rs").unwrap_or(&source.path).split('/');
        for name in parts.filter(|part| EMPTY_NAMES.contains(part)) {
            let message = format!("`{name}` says nothing about what is inside: name the idea");
            findings.push(Finding { path: source.path.clone(), line: 0, message });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn findings(path: &str, text: &str) -> usize {
        check(&[Source::read(path, text)]).len()
    }

    #[test]
    fn words_at_home_and_elsewhere() {
        assert_eq!(findings("crates/ir/src/a.rs", "fn a() { unsafe { b() } }"), 1);
        assert_eq!(findings("crates/cpu/src/a.rs", "fn a() { unsafe { b() } }"), 0);
        assert_eq!(findings("crates/ir/tests/a.rs", "fn a() { unsafe { b() } }"), 1);
        assert_eq!(findings("crates/vulkan/src/a.rs", "fn a(b: vk::Buffer) { std::env::var(c) }"), 1);
        assert_eq!(findings("crates/ir/tests/a.rs", "fn a() { std::env::var(c) }"), 0);
    }

    #[test]
    fn empty_names() {
        assert_eq!(findings("crates/ir/src/utils.rs", ""), 1);
        assert_eq!(findings("crates/ir/tests/common/mod.rs", ""), 1);
        assert_eq!(findings("crates/ir/src/quant.rs", ""), 0);
    }
}
