//! Processor time of this program's threads, by their names.

use std::time::Duration;

/// Linux counts it in hundredths of a second, whatever its own clock is.
const TICK: Duration = Duration::from_millis(10);

/// Processor time of the threads of this name that live now; `None` where the system does not tell (all but Linux).
pub(crate) fn thread_time(name: &str) -> Option<Duration> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let mut ticks = 0;
    for task in tasks.flatten().map(|entry| entry.path()) {
        // A thread may end between two looks.
        let is_named = |path| std::fs::read_to_string(path).is_ok_and(|comm: String| comm.trim_end() == name);
        if is_named(task.join("comm")) {
            ticks += std::fs::read_to_string(task.join("stat")).ok().as_deref().and_then(ticks_of).unwrap_or(0);
        }
    }
    Some(TICK * ticks)
}

/// User and system time in a line of `/proc/…/stat`: fields 14 and 15, counted from 1. The second field is a name in
/// parentheses that may hold anything.
fn ticks_of(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u32>().ok()? + fields.next()?.parse::<u32>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_look_like_fields() {
        let stat = "7 (a) R (b) S 1 2 3 4 5 6 7 8 9 10 41 1 0 0 20 0 1";
        assert_eq!(ticks_of(stat), Some(42));
        assert_eq!(ticks_of("7 (a"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_busy_thread_is_seen_under_its_name() {
        let busy = std::thread::Builder::new().name("zinc-busy".into()).spawn(|| {
            let mut x = 1u64;
            while thread_time("zinc-busy").is_some_and(|time| time < 2 * TICK) {
                x = std::hint::black_box((0..100_000).fold(x, |x, n| x.wrapping_mul(31).wrapping_add(n)));
            }
            x
        });
        busy.expect("a thread").join().expect("it sees its own time pass");
        assert_eq!(thread_time("zinc-nobody"), Some(Duration::ZERO));
    }
}
