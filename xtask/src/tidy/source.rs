//! Rust sources with everything blanked that is not code.
//!
//! ```text
//!  text ─► comments and literals blanked ─► items under #[cfg(test)] blanked ─► Source
//! ```
//!
//! Blanked characters become spaces and line ends stay, so that line numbers hold.

/// One Rust file.
pub(super) struct Source {
    /// From the workspace's folder, with `/`.
    pub(super) path: String,
    /// Code without comments and literals, tests included.
    pub(super) code: String,
    /// The same without tests; empty for a file that is a test as a whole.
    pub(super) product: String,
}

impl Source {
    pub(super) fn read(path: &str, text: &str) -> Self {
        let code = without_literals(text);
        let part = |name: &str| path.split('/').any(|part| part == name);
        let test = ["tests", "benches", "examples", "fuzz"].into_iter().any(part) || path.ends_with("/tests.rs");
        let product = if test { String::new() } else { without_tests(&code) };
        Self { path: path.to_string(), code, product }
    }
}

/// Replaces comments and the contents of string and character literals by spaces.
fn without_literals(text: &str) -> String {
    let input: Vec<char> = text.chars().collect();
    let mut output = String::with_capacity(text.len());
    let mut at = 0;
    while at < input.len() {
        let end = literal_end(&input, at);
        let stop = end.unwrap_or(at + 1).min(input.len());
        for &c in &input[at..stop] {
            output.push(if end.is_some() && c != '\n' { ' ' } else { c });
        }
        at = stop;
    }
    output
}

/// Where the comment or literal that begins at `at` ends (exclusive); `None` if none begins there.
fn literal_end(input: &[char], at: usize) -> Option<usize> {
    let peek = |offset: usize| input.get(at + offset).copied().unwrap_or('\0');
    let in_word = at > 0 && (input[at - 1].is_alphanumeric() || input[at - 1] == '_');
    match peek(0) {
        '/' if peek(1) == '/' => Some(find_from(input, at, |rest| rest[0] == '\n')),
        '/' if peek(1) == '*' => Some(block_comment_end(input, at)),
        '"' => Some(string_end(input, at + 1)),
        'b' | 'c' if !in_word && peek(1) == '"' => Some(string_end(input, at + 2)),
        'b' if !in_word && peek(1) == '\'' => character_end(input, at + 1),
        'b' | 'c' if !in_word && peek(1) == 'r' => raw_string_end(input, at + 2),
        'r' if !in_word => raw_string_end(input, at + 1),
        '\'' => character_end(input, at),
        _ => None,
    }
}

/// First index from `at` whose rest fulfils `found`, or the end.
fn find_from(input: &[char], at: usize, found: impl Fn(&[char]) -> bool) -> usize {
    (at..input.len()).find(|&index| found(&input[index..])).unwrap_or(input.len())
}

fn block_comment_end(input: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut index = at;
    while index + 1 < input.len() {
        match (input[index], input[index + 1]) {
            ('/', '*') => (depth, index) = (depth + 1, index + 2),
            ('*', '/') => {
                (depth, index) = (depth - 1, index + 2);
                if depth == 0 {
                    return index;
                }
            }
            _ => index += 1,
        }
    }
    input.len()
}

/// `at` is behind the opening quote.
fn string_end(input: &[char], at: usize) -> usize {
    let mut index = at;
    while index < input.len() && input[index] != '"' {
        index += if input[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// `at` is behind the `r`.
fn raw_string_end(input: &[char], at: usize) -> Option<usize> {
    let hashes = input[at.min(input.len())..].iter().take_while(|&&c| c == '#').count();
    (input.get(at + hashes) == Some(&'"')).then(|| {
        let closes = |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|&&c| c == '#').count() >= hashes;
        find_from(input, at + hashes + 1, closes) + 1 + hashes
    })
}

/// `at` is the quote; a lifetime is no literal.
fn character_end(input: &[char], at: usize) -> Option<usize> {
    match input.get(at + 1)? {
        '\\' => Some(find_from(input, at + 3, |rest| rest[0] == '\'') + 1),
        _ => (input.get(at + 2) == Some(&'\'')).then_some(at + 3),
    }
}

/// Blanks every item that stands under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut code = code.to_string();
    while let Some(start) = code.find("#[cfg(test)]") {
        let end = item_end(&code, start);
        let blank: String = code[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        code.replace_range(start..end, &blank);
    }
    code
}

/// End of the item that begins at `start`: its closing brace, or a semicolon before any brace.
pub(super) fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0;
    for (offset, c) in code[start..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return start + offset + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return start + offset + 1,
            _ => {}
        }
    }
    code.len()
}

/// Line of a byte offset, from 1.
pub(super) fn line_of(code: &str, offset: usize) -> usize {
    code[..offset].matches('\n').count() + 1
}

/// Byte offsets where `word` stands in `code` and does not continue a longer name to its left, nor, when it ends
/// in a letter, to its right.
pub(super) fn occurrences<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).map(|(offset, _)| offset).filter(move |&offset| {
        let before = code[..offset].chars().next_back();
        let after = code[offset + word.len()..].chars().next();
        let continued = word.ends_with(name) && after.is_some_and(name);
        !before.is_some_and(name) && !continued
    })
}

#[cfg(test)]
mod tests {
    use super::{Source, occurrences};

    #[test]
    fn blanks_what_is_no_code() {
        let text = "// unsafe\n/* /* unsafe */ unsafe */ let a = \"unsafe \\\" unsafe\"; let b = r#\"unsafe \" unsafe\"#;\n\
            let c: &'static str = b\"unsafe\"; let d = '\"'; let e = '\\''; let f = b'\\\\'; unsafe {}\nfn for_r() {}";
        let source = Source::read("crates/x/src/lib.rs", text);
        let places: Vec<usize> = occurrences(&source.code, "unsafe").collect();
        assert_eq!(places, [text.find("unsafe {}").unwrap()]);
        assert_eq!(source.code.lines().count(), text.lines().count());
    }

    #[test]
    fn blanks_tests() {
        let text = "fn a() { one(); }\n#[cfg(test)]\nmod tests { fn b() { two(); } }\n#[cfg(test)]\nuse three;\nfn c() { four(); }";
        let source = Source::read("crates/x/src/lib.rs", text);
        assert!(source.code.contains("two") && source.code.contains("three"));
        assert!(!source.product.contains("two") && !source.product.contains("three"));
        assert!(source.product.contains("one") && source.product.contains("four"));
        assert!(Source::read("crates/x/tests/a.rs", text).product.is_empty());
    }

    #[test]
    fn whole_words_only() {
        assert_eq!(occurrences("unsafe_code my_unsafe unsafe", "unsafe").count(), 1);
        assert_eq!(occurrences("std::env::var_os(x) menv::var", "env::var").count(), 0);
        assert_eq!(occurrences("vk::Buffer rvk::Buffer", "vk::").count(), 1);
    }
}
