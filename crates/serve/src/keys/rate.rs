//! So many in a minute: a vessel that runs dry evenly.

use std::time::Duration;

/// Time in which a full vessel runs dry.
const MINUTE: f64 = 60.0;

/// How much of a limit per minute is taken. Whoever has taken nothing for a minute may take all of it at once; over any
/// long time it is no more than the limit. Times count from any one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    taken: f64,
    /// What has run out by `at`, of all that was ever taken.
    leaked: f64,
    at: Duration,
}

/// What was taken, to be corrected later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Taken {
    amount: u64,
    /// What had run out before.
    leaked: f64,
}

impl Rate {
    /// Takes `amount`, or says how long until that can be had. More than the limit is given where nothing else is taken, and
    /// makes the next one wait for longer.
    pub(crate) fn take(&mut self, amount: u64, limit: u64, now: Duration) -> Result<Taken, Duration> {
        self.settle(limit, now);
        let limit = limit as f64;
        let over = self.taken + (amount as f64).min(limit) - limit;
        // What is left of rounding is no reason to wait.
        if over > 1e-6 {
            return Err(Duration::from_secs_f64(over / limit * MINUTE));
        }
        self.taken += amount as f64;
        Ok(Taken { amount, leaked: self.leaked })
    }

    /// Makes what was taken what was used, whatever the limit. What may have run out of it meanwhile is not given back: that
    /// would be others' by now.
    pub(crate) fn correct(&mut self, taken: Taken, used: u64) {
        let amount = taken.amount as f64;
        let still_there = (amount - (self.leaked - taken.leaked)).max(0.0);
        self.taken = (self.taken - (amount - used as f64).min(still_there)).max(0.0);
    }

    /// What can be taken now, and how long until all can.
    pub(crate) fn left(&mut self, limit: u64, now: Duration) -> (u64, Duration) {
        self.settle(limit, now);
        let left = (limit as f64 - self.taken).max(0.0).floor() as u64;
        (left, Duration::from_secs_f64(self.taken / limit as f64 * MINUTE))
    }

    fn settle(&mut self, limit: u64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        let leaks = (passed * limit as f64 / MINUTE).min(self.taken);
        self.taken -= leaks;
        self.leaked += leaks;
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_gives_what_it_should_and_says_when_there_is_more() {
        let at = Duration::from_secs_f64;
        let mut rate = Rate::default();
        (0..60).for_each(|i| assert!(rate.take(1, 60, at(1.0)).is_ok(), "{i}"));
        assert_eq!(rate.take(1, 60, at(1.0)), Err(at(1.0)));
        assert!(rate.take(1, 60, at(2.0)).is_ok());
        assert_eq!(rate.left(60, at(2.0)), (0, at(60.0)));
        assert_eq!(rate.take(5, 60, at(3.0)), Err(at(4.0)));
        // A giant goes alone, and is paid for.
        let giant = rate.take(600, 60, at(62.0)).expect("nothing else is taken");
        assert_eq!(rate.take(1, 60, at(62.0)), Err(at(541.0)));
        rate.correct(giant, 10);
        assert_eq!(rate.left(60, at(62.0)).0, 50);
        assert_eq!(rate.left(60, at(10.0)).0, 50, "time does not run back");
    }

    #[test]
    fn what_has_run_out_is_not_given_back() {
        let at = Duration::from_secs;
        let mut rate = Rate::default();
        let first = rate.take(60, 60, at(0)).expect("all of it");
        let second = rate.take(30, 60, at(30)).expect("what has run out");
        rate.correct(first, 10);
        assert_eq!(rate.left(60, at(30)).0, 30, "the second has its own");
        rate.correct(second, 50);
        assert_eq!(rate.left(60, at(30)).0, 10, "more than was taken counts in full");
        let late = rate.take(10, 60, at(30)).expect("the rest");
        assert_eq!(rate.left(60, at(300)).0, 60);
        let other = rate.take(40, 60, at(300)).expect("there is room");
        rate.correct(late, 0);
        assert_eq!(rate.left(60, at(300)).0, 20, "nothing is left of it");
        rate.correct(other, 0);
        assert_eq!(rate.left(60, at(300)).0, 60);
    }

    #[test]
    fn over_a_long_time_no_more_than_the_limit_is_given() {
        let (mut rate, mut given) = (Rate::default(), 0);
        for tenth in 0..36_000 {
            given += u64::from(rate.take(3, 100, Duration::from_millis(tenth * 100)).is_ok()) * 3;
        }
        assert!((5997..=6103).contains(&given), "{given} in an hour");
    }
}
