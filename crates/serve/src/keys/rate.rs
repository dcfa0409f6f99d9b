//! So many in a minute: a vessel that runs dry evenly.

use std::time::Duration;

/// Time in which a full vessel runs dry.
const MINUTE: f64 = 60.0;

/// How much of a limit per minute is taken. Whoever has taken nothing for a minute may take all of it at once; over any
/// long time it is no more than the limit. Times count from any one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    taken: f64,
    at: Duration,
}

impl Rate {
    /// Takes `amount`, or says how long until that can be had. More than the limit is given where nothing else is taken, and
    /// makes the next one wait for longer.
    pub(crate) fn take(&mut self, amount: u64, limit: u64, now: Duration) -> Result<(), Duration> {
        self.settle(limit, now);
        let (amount, limit) = (amount as f64, limit as f64);
        let over = self.taken + amount.min(limit) - limit;
        // What is left of rounding is no reason to wait.
        if over > 1e-6 {
            return Err(Duration::from_secs_f64(over / limit * MINUTE));
        }
        self.taken += amount;
        Ok(())
    }

    /// Takes more than was taken at first (negative: less), whatever the limit.
    pub(crate) fn correct(&mut self, by: i64) {
        self.taken = (self.taken + by as f64).max(0.0);
    }

    /// What can be taken now, and how long until all can.
    pub(crate) fn left(&mut self, limit: u64, now: Duration) -> (u64, Duration) {
        self.settle(limit, now);
        let left = (limit as f64 - self.taken).max(0.0).floor() as u64;
        (left, Duration::from_secs_f64(self.taken / limit as f64 * MINUTE))
    }

    fn settle(&mut self, limit: u64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.taken = (self.taken - passed * limit as f64 / MINUTE).max(0.0);
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
        (0..60).for_each(|i| assert_eq!(rate.take(1, 60, at(1.0)), Ok(()), "{i}"));
        assert_eq!(rate.take(1, 60, at(1.0)), Err(at(1.0)));
        assert_eq!((rate.take(1, 60, at(2.0)), rate.left(60, at(2.0))), (Ok(()), (0, at(60.0))));
        assert_eq!(rate.take(5, 60, at(3.0)), Err(at(4.0)));
        // A giant goes alone, and is paid for.
        assert_eq!(rate.take(600, 60, at(62.0)), Ok(()));
        assert_eq!(rate.take(1, 60, at(62.0)), Err(at(541.0)));
        rate.correct(-590);
        assert_eq!(rate.left(60, at(62.0)).0, 50);
        assert_eq!(rate.left(60, at(10.0)).0, 50, "time does not run back");
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
