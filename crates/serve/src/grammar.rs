//! Answers that must follow a grammar: JSON of a schema, a regular expression, a choice of texts, or Lark.
//!
//! ```text
//! response_format, structured_outputs ─► Grammar ─Grammars.compile─► Rule ─► engine: which tokens may come next
//! ```
//!
//! A grammar is never left open: one that cannot be compiled is an error before anything is generated, and where it
//! allows no token any more the answer ends with an error.

use crate::error::ApiError;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};
use std::fmt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use zinc_engine::Constraint;
use zinc_text::Tokenizer;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
    /// JSON that this schema describes.
    Schema(Value),
    /// Text that this regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Text of this Lark grammar.
    Lark(String),
}

impl Grammar {
    /// Any JSON object.
    pub(crate) fn object() -> Grammar {
        Grammar::Schema(json!({"type": "object"}))
    }

    /// Refuses what would take very long to compile, and says why.
    fn check(&self) -> Result<(), String> {
        let bytes = match self {
            Grammar::Schema(schema) => schema.to_string().len(),
            Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
            Grammar::Choice(texts) if texts.is_empty() => return Err("has nothing to choose from".into()),
            Grammar::Choice(texts) if texts.len() > CHOICES => return Err(format!("may have {CHOICES} texts at most")),
            Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
        };
        if bytes > BYTES {
            return Err(format!("is a grammar of {bytes} bytes, but {BYTES} are the most"));
        }
        let mut steps = vec![];
        match self {
            Grammar::Schema(schema) => multiples(schema, &mut steps),
            Grammar::Lark(text) => {
                // What is no JSON there is an error of the grammar, or a comment.
                for after in text.split("%json").skip(1) {
                    let first = serde_json::Deserializer::from_str(after).into_iter::<Value>().next();
                    first.into_iter().flatten().for_each(|schema| multiples(&schema, &mut steps));
                }
            }
            Grammar::Regex(_) | Grammar::Choice(_) => {}
        }
        match countable(&steps) {
            true => Ok(()),
            false => Err(format!(
                "has a `multipleOf` with too many digits: all of them, with what they have in common, may be {UNITS} of \
                 the last digit at most"
            )),
        }
    }

    fn top_level(self) -> TopLevelGrammar {
        match self {
            Grammar::Schema(schema) => TopLevelGrammar::from_json_schema(compact(schema)),
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(&regex),
            Grammar::Choice(texts) => {
                // A JSON string is a Lark string too.
                let texts: Vec<String> = texts.into_iter().map(|text| Value::String(text).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}\n", texts.join(" | ")))
            }
            Grammar::Lark(grammar) => TopLevelGrammar::from_lark(grammar),
        }
    }
}

/// All numbers called `multipleOf` in a schema.
fn multiples(schema: &Value, found: &mut Vec<f64>) {
    match schema {
        Value::Object(members) => {
            found.extend(members.get("multipleOf").and_then(Value::as_f64));
            members.values().for_each(|value| multiples(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| multiples(value, found)),
        _ => {}
    }
}

/// Is the least common multiple of these numbers small, in units of the last decimal place that any of them has?
fn countable(steps: &[f64]) -> bool {
    let whole = |x: f64| (x - x.round()).abs() <= 1e-9 * x.abs();
    let place = (0..=4).map(|p| 10f64.powi(p)).find(|unit| steps.iter().all(|step| whole(step * unit)));
    let Some(unit) = place else { return false };
    let mut common = 1u64;
    for step in steps {
        let units = (step * unit).round();
        if !(1.0..=UNITS as f64).contains(&units) {
            return false;
        }
        let units = units as u64;
        let (mut a, mut b) = (common, units);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        common = common / a * units;
        if common > UNITS {
            return false;
        }
    }
    true
}

/// The schema with one way of writing: small models fall into writing white space without end where they may.
pub(crate) fn compact(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map,
        // `true` and `false` are schemas as well.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    if !schema.contains_key("x-guidance") {
        let options = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        schema.insert("x-guidance".into(), options);
    }
    schema.into()
}

/// Compiles grammars for one vocabulary.
pub(crate) struct Grammars {
    /// `None`: the model has no token that ends a text.
    factory: Option<ParserFactory>,
    /// A permit for each grammar that may be compiled at the same time.
    pub(crate) places: Arc<Semaphore>,
}

/// Grammars that are compiled at the same time.
const PLACES: usize = 2;

/// Most bytes of a grammar.
pub(crate) const BYTES: usize = 64 << 10;

/// Most texts to choose from.
const CHOICES: usize = 1000;

/// Most units of `multipleOf`: each is a state of an automaton, per digit.
const UNITS: u64 = 10_000;

/// Longest token that a grammar's vocabulary has; longer ones (rows of spaces) are never allowed.
const LONGEST: usize = 200;

impl Grammars {
    /// Prepares a vocabulary of `size` tokens, of which the tokenizer may know fewer.
    pub(crate) fn new(tokenizer: &Tokenizer, size: u32, end_tokens: &[u32]) -> Grammars {
        let ends: Vec<u32> = end_tokens.iter().copied().filter(|t| *t < size).collect();
        let places = Arc::new(Semaphore::new(PLACES));
        let Some(first) = ends.first() else { return Grammars { factory: None, places } };
        let words: Vec<Vec<u8>> = (0..size).map(|token| word(tokenizer, token)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, *first), &words).with_eos_tokens(&ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).ok();
        if let Some(factory) = &mut factory {
            factory.quiet().limits_mut().verbose_errors = false;
        }
        Grammars { factory, places }
    }

    /// Makes a rule of a grammar; `name` is the parameter it came in. May take long.
    pub(crate) fn compile(&self, grammar: Grammar, name: &str) -> Result<Rule, ApiError> {
        let missing = || ApiError::unsupported(name, ": the model has no token that ends a text");
        let wrong = |why: &str| ApiError::parameter(name, format!("`{name}` {why}"));
        grammar.check().map_err(|why| wrong(&why))?;
        let factory = self.factory.as_ref().ok_or_else(missing)?;
        let mut matcher = Matcher::new(factory.create_parser(grammar.top_level()));
        // Some faults show only when the first token is asked for, or has been taken.
        let first = matcher.compute_mask_or_eos();
        let tried = first.and_then(|mask| {
            if let Some(token) = mask.first_bit_set() {
                let mut trial = matcher.deep_clone();
                trial.consume_token(token as u32)?;
                trial.compute_mask_or_eos()?;
            }
            Ok(mask)
        });
        match tried {
            Ok(mask) if !mask.is_zero() => Ok(Rule { matcher, mask: None }),
            Ok(_) => Err(wrong("allows no text at all")),
            Err(error) => Err(wrong(&format!("cannot be used: {}", reason(&error)))),
        }
    }
}

/// What an error says of the grammar; its later lines tell of the compiler's inside.
fn reason(error: &impl fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// A token as the grammars' library writes it: bytes, control tokens marked.
fn word(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let bytes = |special| tokenizer.token_bytes(token, special).unwrap_or_default().into_owned();
    let (plain, spelled) = (bytes(false), bytes(true));
    let word = match plain.is_empty() && !spelled.is_empty() {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &spelled[..]].concat(),
        false => plain,
    };
    if word.len() > LONGEST { vec![] } else { word }
}

/// A compiled grammar, and how far a text has come in it.
pub(crate) struct Rule {
    matcher: Matcher,
    mask: Option<SimpleVob>,
}

impl Clone for Rule {
    fn clone(&self) -> Rule {
        Rule { matcher: self.matcher.deep_clone(), mask: None }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rule")
    }
}

impl Constraint for Rule {
    fn allowed(&mut self) -> Option<&[u32]> {
        match self.matcher.compute_mask_or_eos() {
            Ok(mask) if !mask.is_zero() => Some(self.mask.insert(mask).as_slice()),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(error = reason(&error), "a grammar has failed");
                None
            }
        }
    }

    fn accept(&mut self, token: u32) -> bool {
        let taken = self.matcher.consume_token(token);
        if let Err(error) = &taken {
            tracing::warn!(error = reason(error), "a grammar has failed");
        }
        taken.is_ok()
    }
}

/// Some text of a grammar: any of the tokens that may come is taken at each step. Free text (wherever nearly any byte may
/// come) is a few letters, then `closer`.
#[cfg(test)]
pub(crate) fn walk(grammar: Grammar, seed: u64, closer: &str) -> String {
    const END: u32 = 299;
    let tokenizer = Tokenizer::synthetic(300).expect("a tokenizer");
    let mut rule = Grammars::new(&tokenizer, 320, &[END]).compile(grammar, "x").expect("a rule");
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % n
    };
    let mut text: Vec<u8> = vec![];
    let mut planned: Vec<u8> = vec![];
    while text.len() < 2000 {
        let mask = rule.allowed().expect("something may come").to_vec();
        let may = |t: u32| mask[t as usize / 32] >> (t % 32) & 1 == 1;
        let bytes: Vec<u8> = (0..=255).filter(|b| may(u32::from(*b))).collect();
        if bytes.is_empty() || may(END) && random(2) == 0 {
            return String::from_utf8(text).expect("UTF-8");
        }
        if planned.is_empty() && bytes.len() > 90 {
            planned = (0..random(4)).map(|_| b'a' + random(26) as u8).chain(closer.bytes()).rev().collect();
        }
        let next = planned.pop().filter(|b| bytes.contains(b)).unwrap_or_else(|| {
            planned.clear();
            bytes[random(bytes.len())]
        });
        assert!(rule.accept(u32::from(next)));
        text.push(next);
    }
    panic!("it does not end: {}", String::from_utf8_lossy(&text));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammars() -> (Tokenizer, Grammars) {
        let tokenizer = Tokenizer::synthetic(300).expect("a tokenizer");
        let grammars = Grammars::new(&tokenizer, 320, &[299]);
        (tokenizer, grammars)
    }

    /// Bytes that may come next, and whether the text may end.
    fn next(rule: &mut Rule) -> (String, bool) {
        let mask = rule.allowed().expect("something may come").to_vec();
        let may = |t: u32| mask[t as usize / 32] >> (t % 32) & 1 == 1;
        ((0..256).filter(|t| may(*t)).map(|t| char::from(t as u8)).collect(), may(299))
    }

    #[test]
    fn a_rule_allows_what_its_grammar_allows() {
        let (_, grammars) = grammars();
        let mut rule = grammars.compile(Grammar::Regex("a[bc]?".into()), "x").expect("a rule");
        assert_eq!(next(&mut rule), ("a".into(), false));
        let mut other = rule.clone();
        assert!(rule.accept(u32::from(b'a')) && !other.accept(u32::from(b'b')));
        assert_eq!(next(&mut rule), ("bc".into(), true));
        let mut rule = grammars.compile(Grammar::Choice(vec!["yes\"".into(), "no".into()]), "x").expect("a rule");
        assert_eq!(next(&mut rule), ("ny".into(), false));
        for byte in b"yes\"" {
            assert!(rule.accept(u32::from(*byte)));
        }
        assert_eq!(next(&mut rule), (String::new(), true));
    }

    #[test]
    fn what_cannot_be_compiled_is_an_error_that_names_the_parameter() {
        let (tokenizer, grammars) = grammars();
        let wide: Map<String, Value> = (0..600).map(|i| (format!("m{i}"), json!({"type": "string"}))).collect();
        for grammar in [
            Grammar::Schema(json!({"type": "no such type"})),
            Grammar::Schema(json!(false)),
            Grammar::Regex("(".into()),
            Grammar::Lark("start: undefined".into()),
            // The first token of its answers shows that it is too large.
            Grammar::Schema(json!({"type": "object", "properties": wide, "additionalProperties": false})),
            Grammar::Choice(vec![]),
            Grammar::Choice(vec!["x".into(); CHOICES + 1]),
            Grammar::Regex("x".repeat(BYTES + 1)),
            Grammar::Schema(json!({"type": "number", "multipleOf": 99_999_999})),
            Grammar::Schema(json!({"type": "number", "multipleOf": 0.123456})),
            Grammar::Schema(json!({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]})),
            Grammar::Lark("start: %json {\"type\": \"integer\", \"multiple\\u004ff\": 1000003}".into()),
        ] {
            let error = grammars.compile(grammar.clone(), "here").expect_err("it makes no sense");
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("here")), "{grammar:?}");
        }
        for step in [json!(0.01), json!(7), json!(UNITS)] {
            let schema = json!({"type": "number", "multipleOf": step});
            assert!(grammars.compile(Grammar::Schema(schema), "here").is_ok(), "{step}");
        }
        let many: Vec<String> = (0..CHOICES).map(|i| format!("text {i} of many")).collect();
        assert!(grammars.compile(Grammar::Choice(many), "here").is_ok());
        let endless = Grammars::new(&tokenizer, 300, &[]);
        assert!(endless.compile(Grammar::object(), "here").is_err());
    }
}
