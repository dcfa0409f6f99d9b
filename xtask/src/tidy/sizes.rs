//! How long files and functions are: a limit on files, a report on both.

use super::Finding;
use super::source::{Source, item_end, line_of, occurrences};

/// A file longer than this does not show one idea whole.
const FILE_LINES: usize = 900;

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let long = sources.iter().filter(|source| source.code.lines().count() > FILE_LINES);
    long.map(|source| Finding {
        path: source.path.clone(),
        line: 0,
        message: format!("{} lines; the limit is {FILE_LINES}: split it by idea", source.code.lines().count()),
    })
    .collect()
}

/// The `count` longest files and functions, one a line.
pub(super) fn report(sources: &[Source], count: usize) -> Vec<String> {
    let mut files: Vec<(usize, String)> =
        sources.iter().map(|source| (source.code.lines().count(), source.path.clone())).collect();
    let mut functions: Vec<(usize, String)> = sources.iter().flat_map(functions).collect();
    let mut lines = Vec::new();
    for (what, list) in [("file", &mut files), ("function", &mut functions)] {
        list.sort_by(|a, b| b.cmp(a));
        lines.extend(list.iter().take(count).map(|(length, name)| format!("longest {what}: {length:>4} lines {name}")));
    }
    lines
}

/// Lines and `path:line name` of every function with a body, tests and examples left out.
fn functions(source: &Source) -> Vec<(usize, String)> {
    let code = &source.product;
    let starts = occurrences(code, "fn").filter(|&start| code[start..].starts_with("fn "));
    let measured = starts.filter_map(|start| {
        let name: String = code[start + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let item = &code[start..body_end(code, start)];
        (!name.is_empty() && item.ends_with('}')).then(|| {
            let place = format!("{}:{} {name}", source.path, line_of(code, start));
            (item.matches('\n').count() + 1, place)
        })
    });
    measured.collect()
}

/// Like [`item_end`], but not misled by the semicolon of an array type (`[u8; 4]`) in the signature.
fn body_end(code: &str, start: usize) -> usize {
    let mut depth = 0;
    for (offset, c) in code[start..].char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' | ';' if depth == 0 => return item_end(code, start + offset),
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::{Source, check, functions};

    #[test]
    fn measures_functions() {
        let text = "fn a(b: [u8; 4]) -> u8 {\n    if c {\n    }\n}\ntrait T { fn d(&self); }\nfn e() {}\n";
        let found = functions(&Source::read("crates/x/src/a.rs", text));
        let expected = [(4, "crates/x/src/a.rs:1 a".to_string()), (1, "crates/x/src/a.rs:6 e".to_string())];
        assert_eq!(found, expected);
    }

    #[test]
    fn long_files() {
        assert_eq!(check(&[Source::read("crates/x/src/a.rs", &"\n".repeat(901))]).len(), 1);
        assert_eq!(check(&[Source::read("crates/x/src/a.rs", &"\n".repeat(900))]).len(), 0);
    }
}
