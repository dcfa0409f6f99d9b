//! What each key is using and has used, and whether it may use more.
//!
//! ```text
//! Accounts ─of(name)─► Account ─┐
//!                       Rules ──┴─► Caller ─admit, reserve─► or a Refusal: how long to wait
//! ```
//!
//! Tokens are reserved when a request comes, prompts and as many of its answers' as it names a limit for, and corrected when
//! it ends. One that names no limit may thus overdraw a quota by its answers; the next request finds that.

use super::ledger::{Ledger, Spent, until_next};
use super::rate::{Rate, Taken};
use super::rules::Rules;
use super::salt;
use crate::model::unix_seconds;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zinc_engine::{Salt, Share};

/// Whose requests are when there are no keys.
const ANYONE: &str = "anyone";

/// All accounts of a server. They stay when keys are read anew, and so do their counts.
#[derive(Debug)]
pub(crate) struct Accounts {
    began: Instant,
    ledger: Option<Arc<Ledger>>,
    by_name: Mutex<HashMap<String, Arc<Account>>>,
}

/// What is counted under one name.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    /// Names it for the engine.
    pub(crate) number: u32,
    /// Rates count time from here.
    began: Instant,
    state: Mutex<State>,
    pub(crate) meter: Meter,
}

#[derive(Debug, Default)]
struct State {
    requests: Rate,
    tokens: Rate,
    /// Running and waiting sequences.
    sequences: u64,
    /// Tokens of requests that have not ended.
    reserved: u64,
    spent: Spent,
}

/// What has been used since the server was started.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) requests: AtomicU64,
    pub(crate) prompt: AtomicU64,
    pub(crate) cached: AtomicU64,
    pub(crate) completion: AtomicU64,
    /// Nanoseconds of the device.
    pub(crate) time: AtomicU64,
    /// Microjoules.
    pub(crate) energy: AtomicU64,
}

/// Who asks: whose request it is, and what that one may do.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: Arc<Account>,
    pub(crate) rules: Arc<Rules>,
    /// There are no keys, and none but this machine is let in: nobody is a stranger.
    trusted: bool,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many requests in a minute.
    Requests { limit: u64, wait: Duration },
    /// Too many tokens in a minute.
    Tokens { limit: u64, asked: u64, wait: Duration },
    /// A quota has been used up, or would be. `wait`: until the next period begins.
    Quota { period: &'static str, limit: u64, used: u64, asked: u64, wait: Option<Duration> },
    /// Too many sequences at the same time.
    Parallel { limit: u64 },
    /// More sequences in one request than there may ever be.
    Never { limit: u64, asked: u64 },
}

impl Accounts {
    pub(crate) fn new(ledger: Option<Arc<Ledger>>) -> Accounts {
        Accounts { began: Instant::now(), ledger, by_name: Mutex::default() }
    }

    /// Whoever has these rules, or anyone.
    ///
    /// `local`: none but this machine is let in.
    pub(crate) fn caller(&self, rules: Option<Arc<Rules>>, local: bool) -> Caller {
        let trusted = rules.is_none() && local;
        let rules = rules.unwrap_or_else(|| Arc::new(Rules::named(ANYONE)));
        let mut by_name = lock(&self.by_name);
        let number = by_name.len() as u32 + 1;
        let account = by_name.entry(rules.name.clone()).or_insert_with(|| {
            let spent = self.ledger.as_ref().map_or(Spent::default(), |ledger| ledger.history(&rules.name));
            let state = Mutex::new(State { spent, ..State::default() });
            Arc::new(Account { name: rules.name.clone(), number, began: self.began, state, meter: Meter::default() })
        });
        Caller { account: account.clone(), rules, trusted }
    }

    /// All that have asked so far, in order.
    pub(crate) fn all(&self) -> Vec<Arc<Account>> {
        let mut all: Vec<Arc<Account>> = lock(&self.by_name).values().cloned().collect();
        all.sort_by_key(|account| account.number);
        all
    }

    pub(crate) fn ledger(&self) -> Option<&Arc<Ledger>> {
        self.ledger.as_ref()
    }
}

impl Account {
    /// A request has ended: `reserved` tokens become `used` ones. `taken`: what it took of a limit per minute.
    pub(super) fn settle(&self, sequences: u64, reserved: u64, used: u64, taken: Option<Taken>) {
        let mut state = lock(&self.state);
        state.sequences -= sequences;
        state.reserved -= reserved;
        state.spent.add(used, unix_seconds());
        if let Some(taken) = taken {
            state.tokens.correct(taken, used);
        }
    }
}

impl Caller {
    /// The part of the engine that a request gets which asks for this priority. Among strangers, one may step back, but not
    /// push in.
    pub(crate) fn share(&self, asked: i32) -> Share {
        let asked = if self.trusted { asked } else { asked.max(0) };
        Share {
            owner: self.account.number,
            weight: NonZeroU32::new(self.rules.weight).unwrap_or(NonZeroU32::MIN),
            priority: self.rules.priority.saturating_add(asked),
        }
    }

    /// Keeps what is computed for a request that asks for this salt apart from what others may know.
    pub(crate) fn salt(&self, asked: Option<Salt>) -> Option<Salt> {
        if self.rules.own_cache { Some(salt::of_key(&self.rules.name, asked)) } else { asked }
    }

    /// Counts a request, if it may be made now.
    pub(crate) fn admit(&self) -> Result<(), Refusal> {
        let Some(limit) = self.rules.requests_per_minute else { return Ok(()) };
        let now = self.account.began.elapsed();
        let taken = lock(&self.account.state).requests.take(1, limit, now);
        taken.map(|_| ()).map_err(|wait| Refusal::Requests { limit, wait })
    }

    /// Takes what a request may need at most: `least` to `wanted` sequences and, all together, tokens. Gives the number of
    /// sequences, and what was taken of a limit per minute.
    pub(super) fn reserve(&self, least: u64, wanted: u64, tokens: u64) -> Result<(u64, Option<Taken>), Refusal> {
        let mut state = lock(&self.account.state);
        let mut sequences = wanted;
        if let Some(limit) = self.rules.parallel {
            sequences = wanted.min(limit.saturating_sub(state.sequences));
            if least > limit {
                return Err(Refusal::Never { limit, asked: least });
            }
            if sequences < least {
                return Err(Refusal::Parallel { limit });
            }
        }
        self.quotas(&state, tokens)?;
        let taken = self.rules.tokens_per_minute.map(|limit| {
            let taken = state.tokens.take(tokens, limit, self.account.began.elapsed());
            taken.map_err(|wait| Refusal::Tokens { limit, asked: tokens, wait })
        });
        let taken = taken.transpose()?;
        state.sequences += sequences;
        state.reserved += tokens;
        Ok((sequences, taken))
    }

    fn quotas(&self, state: &State, asked: u64) -> Result<(), Refusal> {
        let (rules, spent, now) = (&self.rules, &state.spent, unix_seconds());
        let (day, month) = until_next(now);
        for (period, limit, used, wait) in [
            ("a day", rules.tokens_per_day, spent.in_day(now), Some(day)),
            ("a month", rules.tokens_per_month, spent.in_month(now), Some(month)),
            ("all", rules.tokens, spent.in_all, None),
        ] {
            let used = used + state.reserved;
            if let Some(limit) = limit.filter(|limit| used.saturating_add(asked) > *limit) {
                return Err(Refusal::Quota { period, limit, used, asked, wait: wait.map(Duration::from_secs) });
            }
        }
        Ok(())
    }

    /// OpenAI's headers about what is left of the limits per minute.
    pub(crate) fn headers(&self) -> Vec<(&'static str, String)> {
        let (mut state, now) = (lock(&self.account.state), self.account.began.elapsed());
        let mut rows = vec![];
        if let Some(limit) = self.rules.requests_per_minute {
            let (left, reset) = state.requests.left(limit, now);
            rows.push(("x-ratelimit-limit-requests", limit.to_string()));
            rows.push(("x-ratelimit-remaining-requests", left.to_string()));
            rows.push(("x-ratelimit-reset-requests", spell(reset)));
        }
        if let Some(limit) = self.rules.tokens_per_minute {
            let (left, reset) = state.tokens.left(limit, now);
            rows.push(("x-ratelimit-limit-tokens", limit.to_string()));
            rows.push(("x-ratelimit-remaining-tokens", left.to_string()));
            rows.push(("x-ratelimit-reset-tokens", spell(reset)));
        }
        rows
    }
}

impl Meter {
    pub(super) fn add(&self, [prompt, cached, completion, time, energy]: [u64; 5]) {
        self.requests.fetch_add(1, Relaxed);
        for (counter, amount) in [
            (&self.prompt, prompt),
            (&self.cached, cached),
            (&self.completion, completion),
            (&self.time, time),
            (&self.energy, energy),
        ] {
            counter.fetch_add(amount, Relaxed);
        }
    }
}

/// A time as OpenAI's headers spell it: `120ms`, `7.5s`, `6m0s`.
fn spell(time: Duration) -> String {
    let ms = time.as_micros().div_ceil(1000);
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..60_000 => format!("{}s", ms as f64 / 1e3),
        _ => format!("{}m{}s", ms / 60_000, (ms % 60_000).div_ceil(1000).min(59)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::Charge;
    use super::*;
    use crate::room::Room;

    fn charge(caller: &Caller, sequences: usize, tokens: u64) -> Result<Charge, Refusal> {
        let seats = Room::new(100).enter(1, 100, sequences, sequences).expect("there is room");
        Charge::new(caller, None, String::new(), seats, sequences, tokens)
    }

    fn caller(limits: &str) -> Caller {
        let mut rules = Rules::named("a");
        limits.split_whitespace().try_for_each(|limit| rules.set(limit)).expect("known limits");
        Accounts::new(None).caller(Some(Arc::new(rules)), true)
    }

    #[test]
    fn what_is_reserved_counts_until_it_is_known_what_was_used() {
        let a = caller("tokens=100 parallel=3");
        let first = charge(&a, 2, 60).expect("there is room");
        assert_eq!(charge(&a, 2, 1).err(), Some(Refusal::Parallel { limit: 3 }));
        assert_eq!(charge(&a, 4, 1).err(), Some(Refusal::Never { limit: 3, asked: 4 }));
        let seats = Room::new(100).enter(1, 100, 1, 32).expect("there is room");
        let rest = Charge::new(&a, None, String::new(), seats, 1, 1).map(|charge| charge.sequences());
        assert_eq!(rest, Ok(1), "as many as may be");
        let refusal = charge(&a, 1, 41).err();
        assert_eq!(refusal, Some(Refusal::Quota { period: "all", limit: 100, used: 60, asked: 41, wait: None }));
        first.started(20, 0);
        (0..10).for_each(|_| first.token());
        drop(first);
        assert_eq!(lock(&a.account.state).sequences, 0);
        assert!(charge(&a, 1, 71).is_err());
        let rest = charge(&a, 1, 70);
        assert!(rest.is_ok(), "30 of 100 were used");
    }

    #[test]
    fn periods_begin_anew_and_say_when() {
        let a = caller("tokens-per-day=10 tokens-per-month=12");
        let refused = |asked| charge(&a, 1, asked).err();
        assert!(
            matches!(refused(11), Some(Refusal::Quota { period: "a day", wait: Some(w), .. }) if w.as_secs() <= 86_400)
        );
        lock(&a.account.state).spent.add(12, unix_seconds() - 86_400);
        let today = unix_seconds() / 86_400 * 86_400;
        let (_, month) = until_next(today - 86_400);
        // Yesterday may have been in another month.
        assert_eq!(refused(1).is_some(), month > 86_400);
        assert_eq!(until_next(1_798_675_200 + 3600), (82_800, 82_800), "New Year's Eve");
    }

    #[test]
    fn limits_per_minute_are_told_in_headers() {
        let a = caller("rpm=2 tpm=1000");
        assert!(caller("").headers().is_empty() && caller("").admit().is_ok());
        assert!(a.admit().is_ok() && a.admit().is_ok());
        assert!(matches!(a.admit(), Err(Refusal::Requests { limit: 2, wait }) if wait <= Duration::from_secs(30)));
        let first = charge(&a, 1, 900).expect("there is room");
        let refusal = charge(&a, 1, 500).err();
        assert!(
            matches!(refusal, Some(Refusal::Tokens { limit: 1000, asked: 500, wait }) if wait <= Duration::from_secs(24))
        );
        first.started(100, 0);
        drop(first);
        let headers: HashMap<&str, String> = a.headers().into_iter().collect();
        assert_eq!((&*headers["x-ratelimit-limit-requests"], &*headers["x-ratelimit-remaining-requests"]), ("2", "0"));
        assert!(headers["x-ratelimit-remaining-tokens"].parse::<u64>().expect("a number") >= 900);
        assert_eq!(headers.len(), 6);
    }

    #[test]
    fn strangers_do_not_push_in() {
        let accounts = Accounts::new(None);
        let priorities = |caller: Caller| [-7, 7].map(|asked| caller.share(asked).priority);
        let with_key = Rules { priority: -1, ..Rules::named("a") };
        assert_eq!(priorities(accounts.caller(None, true)), [-7, 7], "on one's own machine one may");
        assert_eq!(priorities(accounts.caller(None, false)), [0, 7], "not where anyone is let in");
        assert_eq!(priorities(accounts.caller(Some(Arc::new(with_key)), true)), [-1, 6]);
    }

    #[test]
    fn times_are_spelled_as_openai_does() {
        let spell = |ms| spell(Duration::from_millis(ms));
        assert_eq!([0, 120, 1000, 7660, 60_000, 360_500].map(spell), ["0ms", "120ms", "1s", "7.66s", "1m0s", "6m1s"]);
    }

    #[test]
    fn accounts_stay_when_keys_come_anew() {
        let accounts = Accounts::new(None);
        let [one, two] = ["one", "two"].map(|name| accounts.caller(Some(Arc::new(Rules::named(name))), true));
        let again = accounts.caller(Some(Arc::new(Rules { weight: 7, ..Rules::named("one") })), true);
        assert!(Arc::ptr_eq(&one.account, &again.account) && !Arc::ptr_eq(&one.account, &two.account));
        assert_eq!((again.rules.weight, accounts.caller(None, true).account.name.as_str()), (7, "anyone"));
        assert_eq!(accounts.all().len(), 3);
    }
}
