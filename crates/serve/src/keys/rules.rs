//! What a key may do: the rest of its line in the file of keys.
//!
//! ```text
//! sk-… | sha256:…   name=alice weight=2 priority=1 rpm=60 tpm=100000 tokens-per-day=1000000 parallel=8 cache=own expires=2027-01-31
//! ```

use zinc_text::CivilTime;

/// What a key may do. A limit that is `None` is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whose it is: what it uses is counted under this name. Keys of the same name share what they use.
    pub name: String,
    /// Its share of the engine when others wait too, beside theirs.
    pub weight: u32,
    /// Whoever has a lower one comes first.
    pub priority: i32,
    /// Requests in a minute.
    pub requests_per_minute: Option<u64>,
    /// Tokens in a minute, of prompts and answers.
    pub tokens_per_minute: Option<u64>,
    /// Tokens in a day (UTC).
    pub tokens_per_day: Option<u64>,
    /// Tokens in a calendar month (UTC).
    pub tokens_per_month: Option<u64>,
    /// Tokens in all.
    pub tokens: Option<u64>,
    /// Sequences at the same time, waiting ones included.
    pub parallel: Option<u64>,
    /// Its prompts are known to keys of its name only. Otherwise whoever asks what another has asked can tell so: the answer
    /// comes sooner, and counts the tokens that were cached.
    pub own_cache: bool,
    /// It opens nothing from this second since 1970 on.
    pub expires: Option<u64>,
}

/// Largest weight.
const MOST_WEIGHT: u64 = 1000;
/// Largest priority, and least when negative.
const MOST_PRIORITY: i32 = 100;

impl Rules {
    /// Those of a key of which only the name is known.
    pub fn named(name: impl Into<String>) -> Rules {
        Rules {
            name: name.into(),
            weight: 1,
            priority: 0,
            requests_per_minute: None,
            tokens_per_minute: None,
            tokens_per_day: None,
            tokens_per_month: None,
            tokens: None,
            parallel: None,
            own_cache: false,
            expires: None,
        }
    }

    /// Takes one `WHAT=VALUE` of a line; an error says what is wrong with it.
    pub(crate) fn set(&mut self, text: &str) -> Result<(), String> {
        let (what, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not WHAT=VALUE"))?;
        match what {
            "name" => self.name = name(value)?,
            "weight" => self.weight = count(what, value, MOST_WEIGHT)? as u32,
            "priority" => self.priority = priority(value)?,
            "rpm" => self.requests_per_minute = Some(count(what, value, u32::MAX.into())?),
            "tpm" => self.tokens_per_minute = Some(count(what, value, u32::MAX.into())?),
            "tokens-per-day" => self.tokens_per_day = Some(count(what, value, u64::MAX)?),
            "tokens-per-month" => self.tokens_per_month = Some(count(what, value, u64::MAX)?),
            "tokens" => self.tokens = Some(count(what, value, u64::MAX)?),
            "parallel" => self.parallel = Some(count(what, value, u32::MAX.into())?),
            "cache" => self.own_cache = own(value)?,
            "expires" => self.expires = Some(date(value)?),
            _ => {
                return Err(format!(
                    "`{what}` is not known; there are name, weight, priority, rpm, tpm, tokens-per-day, tokens-per-month, \
                     tokens, parallel, cache and expires"
                ));
            }
        }
        Ok(())
    }

    /// Its limits as they are written in a file, without the name.
    pub fn limits(&self) -> String {
        let number = |n: Option<u64>| n.map(|n| n.to_string());
        let rows = [
            ("weight", (self.weight != 1).then(|| self.weight.to_string())),
            ("priority", (self.priority != 0).then(|| self.priority.to_string())),
            ("rpm", number(self.requests_per_minute)),
            ("tpm", number(self.tokens_per_minute)),
            ("tokens-per-day", number(self.tokens_per_day)),
            ("tokens-per-month", number(self.tokens_per_month)),
            ("tokens", number(self.tokens)),
            ("parallel", number(self.parallel)),
            ("cache", self.own_cache.then(|| "own".to_owned())),
            ("expires", self.expires.map(day)),
        ];
        let rows = rows.into_iter().filter_map(|(what, value)| value.map(|value| format!("{what}={value}")));
        rows.collect::<Vec<_>>().join(" ")
    }
}

fn name(value: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    match !value.is_empty() && value.len() <= 64 && value.chars().all(fits) {
        true => Ok(value.to_owned()),
        false => Err(format!("the name `{value}` must be 1 to 64 letters, digits, or any of - _ . @")),
    }
}

fn count(what: &str, value: &str, most: u64) -> Result<u64, String> {
    let read = value.replace('_', "").parse().ok().filter(|n| (1..=most).contains(n));
    read.ok_or_else(|| format!("{what} is `{value}`, but must be a whole number from 1 to {most}"))
}

fn priority(value: &str) -> Result<i32, String> {
    let read = value.parse().ok().filter(|n: &i32| n.abs() <= MOST_PRIORITY);
    read.ok_or_else(|| format!("priority is `{value}`, but must be from -{MOST_PRIORITY} to {MOST_PRIORITY}"))
}

/// Does it have a cache of its own?
fn own(value: &str) -> Result<bool, String> {
    match value {
        "own" => Ok(true),
        "shared" => Ok(false),
        _ => Err(format!("cache is `{value}`, but must be own or shared")),
    }
}

/// The end of a day, in seconds since 1970.
fn date(value: &str) -> Result<u64, String> {
    let wrong =
        || format!("expires is `{value}`, but must be a day such as 2027-01-31, the last on which the key opens");
    let parts: Option<Vec<i64>> = value.split('-').map(|part| part.parse().ok()).collect();
    let [year, month, day] = parts.ok_or_else(wrong)?.try_into().map_err(|_| wrong())?;
    let midnight = CivilTime::from_date(year, month, day).ok_or_else(wrong)?.unix_seconds();
    u64::try_from(midnight + 86_400).map_err(|_| wrong())
}

/// The day before this second, as [`date`] reads it.
fn day(seconds: u64) -> String {
    let (year, month, day) = CivilTime::from_unix_seconds(seconds as i64 - 1).date();
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        let text = "weight=2 priority=-3 rpm=60 tpm=100000 tokens-per-day=5 tokens-per-month=6 tokens=7 parallel=8 \
                    cache=own expires=2028-02-29";
        let mut rules = Rules::named("a");
        text.split(' ').try_for_each(|part| rules.set(part)).expect("all are known");
        assert_eq!((rules.limits().as_str(), rules.expires), (text, Some(1_835_481_600)));
        assert_eq!(Rules::named("a").limits(), "");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, says) in [
            ("weight", "WHAT=VALUE"),
            ("speed=3", "`speed` is not known"),
            ("weight=0", "from 1 to 1000"),
            ("rpm=-1", "whole number"),
            ("cache=mine", "own or shared"),
            ("priority=101", "from -100 to 100"),
            ("name=a b", "letters"),
            ("name=", "letters"),
            ("expires=2027-02-29", "such as"),
            ("expires=soon", "such as"),
        ] {
            let error = Rules::named("a").set(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
