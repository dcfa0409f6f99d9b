//! Pre-tokenizers: how a byte-level vocabulary cuts a text into words before it merges bytes.
//!
//! ```text
//! text ─rule 1─► pieces ─rule 2─► smaller pieces … ─► words (merges never cross them)
//! ```
//!
//! One row per cut; a model file names its row in `tokenizer.ggml.pre`. Each rule is a regular
//! expression: its matches and the gaps between them become pieces for the next rule.
//!
//! The rules here are the models' own, in a form that needs no look-around, so that they run on
//! an automaton: the usual end `\s+(?!\S)|\s+` (a run of white space leaves its last character
//! to the word after it) is written [`RUN`], and [`Rule::find`] gives that character back.

use regex::Regex;

/// A run of white space that gives its last character back if a word follows.
const RUN: &str = r"\s+";

/// A row of the table.
pub(crate) struct Row {
    /// The names under which files call for this row.
    names: &'static [&'static str],
    /// Expressions, applied one after the other. `{run}` at the end is [`RUN`].
    rules: &'static [&'static str],
    /// A word that is a token as it stands is taken whole, whatever its merges say.
    pub(crate) ignore_merges: bool,
    /// Begin a text with BOS where the file does not say.
    pub(crate) add_bos: bool,
    /// llama.cpp's detokenizer drops spaces before punctuation for this row.
    pub(crate) clean_spaces: bool,
}

const PLAIN: Row = Row { names: &[], rules: &[], ignore_merges: false, add_bos: false, clean_spaces: false };

/// English contractions, in either case.
macro_rules! contractions {
    () => {
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    };
}

/// The cut of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|{run}";

/// The cut of GPT-4 (cl100k) with `$digits` as the rule for numbers.
macro_rules! gpt4 {
    ($digits:literal) => {
        concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|", $digits, r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|{run}")
    };
}

/// The cut of GPT-4o (o200k): words part where lower case turns into upper case. `$tail` is
/// what may follow a word, `$digits` the rule for numbers.
macro_rules! gpt4o {
    ($tail:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $tail,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|{run}"
        )
    };
}

/// The cut of DeepSeek V3, third rule.
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|{run}"
);

/// Letters with case, as DeepSeek's first models list them.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}",
    r"\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}",
    r"\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}",
    r"\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-",
    r"\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}",
    r"\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}",
    r"\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}",
    r"\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}",
    r"\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}",
    r"\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}",
    r"\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}",
    r"\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-",
    r"\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+",
);

/// Han and neighbours, as DeepSeek's first models have it.
const HAN: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";

/// The cut of BLOOM: up to a space or a mark of punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+";

/// Every pre-tokenizer there is. The first row is also that of a file which names none.
const ROWS: &[Row] = &[
    Row {
        names: &["default"],
        rules: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        clean_spaces: true,
        ..PLAIN
    },
    Row {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "exaone4",
        ],
        rules: &[GPT2],
        clean_spaces: true,
        ..PLAIN
    },
    Row { names: &["trillion", "granite-docling"], rules: &[GPT2], ..PLAIN },
    Row { names: &["smollm", "command-r"], rules: &[r"\p{N}", GPT2], ..PLAIN },
    Row {
        names: &["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        rules: &[r"\p{N}", GPT2],
        clean_spaces: true,
        ..PLAIN
    },
    Row {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        rules: &[gpt4!(r"\p{N}{1,3}")],
        ignore_merges: true,
        add_bos: true,
        clean_spaces: true,
    },
    Row { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], rules: &[gpt4!(r"\p{N}{1,3}")], clean_spaces: true, ..PLAIN },
    Row { names: &["glm4", "glm5"], rules: &[gpt4!(r"\p{N}{1,3}")], ignore_merges: true, clean_spaces: true, ..PLAIN },
    Row {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2"],
        rules: &[gpt4!(r"\p{N}")],
        ..PLAIN
    },
    Row { names: &["megrez", "stablelm2"], rules: &[gpt4!(r"\p{N}")], clean_spaces: true, ..PLAIN },
    Row {
        names: &["qwen35"],
        rules: &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|{run}"
        )],
        ..PLAIN
    },
    Row {
        names: &["minicpm5"],
        rules: &[r"\p{N}{1,3}", gpt4!(r"\p{N}+")],
        ignore_merges: true,
        clean_spaces: true,
        ..PLAIN
    },
    Row {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        rules: &[gpt4o!(concat!("(?:", contractions!(), ")?"), r"\p{N}{1,3}")],
        ..PLAIN
    },
    Row { names: &["tekken"], rules: &[gpt4o!("", r"\p{N}")], ignore_merges: true, add_bos: true, ..PLAIN },
    Row {
        names: &["deepseek-llm"],
        rules: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+",
            r"\s+$",
            HAN,
            r"\p{N}+",
        ],
        ..PLAIN
    },
    Row { names: &["deepseek-coder"], rules: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"], ..PLAIN },
    Row {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        rules: &[r"\p{N}{1,3}", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+", DEEPSEEK3],
        ..PLAIN
    },
    Row {
        names: &["falcon"],
        rules: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        clean_spaces: true,
        ..PLAIN
    },
    Row {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        rules: &[concat!(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|{run}"
        )],
        ..PLAIN
    },
    Row {
        names: &["seed-coder"],
        rules: &[concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|{run}")],
        ..PLAIN
    },
    Row { names: &["bloom", "gpt3-finnish"], rules: &[BLOOM], clean_spaces: true, ..PLAIN },
    Row { names: &["poro-chat"], rules: &[BLOOM], ..PLAIN },
    Row { names: &["viking"], rules: &[BLOOM, r"\p{N}"], ..PLAIN },
];

/// Gemma 4 merges over the text of a whole line.
pub(crate) const LINES: Row =
    Row { names: &["gemma4"], rules: &[r"[^\n]+|\n+"], add_bos: true, clean_spaces: true, ..PLAIN };

/// All names that [`row`] knows.
pub(crate) fn known_names() -> Vec<&'static str> {
    ROWS.iter().flat_map(|row| row.names).copied().collect()
}

/// The row with this name; without a name, `default`.
pub(crate) fn row(name: Option<&str>) -> Option<&'static Row> {
    let name = name.unwrap_or("default");
    ROWS.iter().find(|row| row.names.contains(&name))
}

/// The compiled rules of a row.
pub(crate) struct PreTokenizer {
    rules: Vec<Rule>,
}

struct Rule {
    regex: Regex,
    /// The rule ends in [`RUN`].
    gives_back: bool,
    /// Line ends belong to an alternative of their own, which gives nothing back.
    keeps_line_ends: bool,
}

impl PreTokenizer {
    pub(crate) fn new(row: &Row) -> Result<Self, regex::Error> {
        let rules = row.rules.iter().map(|rule| Rule::new(rule)).collect::<Result<_, _>>()?;
        Ok(PreTokenizer { rules })
    }

    /// Calls `word` with each word of `text`, in order; together they are the text.
    pub(crate) fn for_each_word(&self, text: &str, mut word: impl FnMut(&str)) {
        let Some((last, first)) = self.rules.split_last() else {
            return word(text);
        };
        let mut pieces = vec![(0, text.len())];
        for rule in first {
            let mut cut = Vec::with_capacity(pieces.len());
            for (start, end) in pieces {
                rule.for_each_piece(&text[start..end], |a, b| cut.push((start + a, start + b)));
            }
            pieces = cut;
        }
        for (start, end) in pieces {
            let piece = &text[start..end];
            last.for_each_piece(piece, |a, b| word(&piece[a..b]));
        }
    }
}

impl Rule {
    fn new(rule: &str) -> Result<Self, regex::Error> {
        let pattern = rule.replace("{run}", RUN);
        let regex = regex::RegexBuilder::new(&pattern)
            // The classes of all Unicode letters make big automata; the default of 2 MB throws
            // states away again and again on texts of several scripts.
            .dfa_size_limit(16 << 20)
            .build()?;
        Ok(Rule { regex, gives_back: pattern.len() != rule.len(), keeps_line_ends: rule.contains(r"\s*[\r\n]") })
    }

    fn for_each_piece(&self, text: &str, mut piece: impl FnMut(usize, usize)) {
        let mut done = 0;
        while let Some((start, end)) = self.find(text, done) {
            if start > done {
                piece(done, start);
            }
            piece(start, end);
            done = end;
        }
        if done < text.len() {
            piece(done, text.len());
        }
    }

    /// The first match from `from` on; never empty.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.regex.find_at(text, from).filter(|found| !found.is_empty())?;
        let (start, end) = (found.start(), found.end());
        let run = found.as_str();
        let last = run.chars().next_back()?;
        let gives_back = self.gives_back
            && end < text.len()
            && last.is_whitespace()
            && last.len_utf8() < run.len()
            && !(self.keeps_line_ends && matches!(last, '\r' | '\n'))
            && run.chars().all(char::is_whitespace);
        Some((start, end - if gives_back { last.len_utf8() } else { 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let row = if name == "gemma4" { &LINES } else { row(Some(name)).unwrap() };
        let mut words = Vec::new();
        PreTokenizer::new(row).unwrap().for_each_word(text, |word| words.push(word.to_owned()));
        assert_eq!(words.concat(), text);
        words
    }

    #[test]
    fn every_row_compiles_and_has_its_own_names() {
        let mut names = known_names();
        for row in ROWS {
            PreTokenizer::new(row).unwrap();
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name stands in two rows");
    }

    /// All rules of all rows, and their published form with look-around.
    fn rules() -> Vec<(Rule, fancy_regex::Regex)> {
        let rules = ROWS.iter().chain([&LINES]).flat_map(|row| row.rules);
        let mut rules: Vec<&str> = rules.copied().collect();
        rules.sort_unstable();
        rules.dedup();
        let published = |rule: &str| rule.replace("{run}", r"\s+(?!\S)|\s+");
        let both = |rule| {
            let published = fancy_regex::Regex::new(&published(rule)).unwrap();
            (Rule::new(rule).unwrap(), published)
        };
        rules.into_iter().map(both).collect()
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(500))]

        #[test]
        fn every_rule_cuts_as_its_published_form(
            text in "[ \t\r\n\u{a0}\u{3000}a-cA-C\u{e9}\u{c9}\u{4e00}\u{ac00}\u{300}\u{1f600}0-9\u{664}'sStTlLrReE.,!/(_-]{0,24}",
        ) {
            static RULES: std::sync::LazyLock<Vec<(Rule, fancy_regex::Regex)>> =
                std::sync::LazyLock::new(rules);
            for (rule, published) in RULES.iter() {
                let mut pieces = Vec::new();
                rule.for_each_piece(&text, |start, end| pieces.push((start, end)));
                let (mut expected, mut done) = (Vec::new(), 0);
                for found in published.find_iter(&text) {
                    let found = found.unwrap();
                    if found.start() > done {
                        expected.push((done, found.start()));
                    }
                    expected.push((found.start(), found.end()));
                    done = found.end();
                }
                if done < text.len() {
                    expected.push((done, text.len()));
                }
                proptest::prop_assert_eq!(&pieces, &expected, "{}", rule.regex.as_str());
            }
        }
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_word() {
        assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(words("gpt-2", "a\n\nb  "), ["a", "\n", "\n", "b", "  "]);
        assert_eq!(words("gpt-2", "a\t\tb"), ["a", "\t", "\t", "b"]);
        assert_eq!(words("llama-bpe", "a\n\n  b"), ["a", "\n\n", " ", " b"]);
        assert_eq!(words("llama-bpe", "a  \u{3000}b"), ["a", "  ", "\u{3000}b"]);
        assert_eq!(words("llama-bpe", "   "), ["   "]);
        assert_eq!(words("llama-bpe", "\r\n \r\nx"), ["\r\n \r\n", "x"]);
    }

    #[test]
    fn numbers_part_as_each_model_has_it() {
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("gpt-2", " 12345"), [" 12345"]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("tekken", "aBc 12"), ["a", "Bc", " ", "1", "2"]);
    }

    #[test]
    fn words_part_at_their_case_in_gpt_4o() {
        assert_eq!(words("gpt-4o", "fooBar's HTTPServer"), ["foo", "Bar's", " HTTPServer"]);
        assert_eq!(words("gpt-4o", "a/b\n"), ["a", "/b", "\n"]);
    }

    #[test]
    fn gemma_4_cuts_at_line_ends_only() {
        assert_eq!(words("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
    }
}
