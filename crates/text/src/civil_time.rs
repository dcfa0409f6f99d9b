//! A date and time of day as people write it, and Python's `strftime` of it.
//!
//! ```text
//! seconds since 1970 ─► year, month, day, hour, minute, second ─format─► text
//! ```

/// A date and time of day in some place; which place, it does not know. The default is the start
/// of 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// Days since 1 January 1970.
    days: i64,
    /// Seconds since midnight, below 86400.
    second_of_day: u32,
}

impl Default for CivilTime {
    fn default() -> Self {
        CivilTime::from_unix_seconds(0)
    }
}

const SECONDS_OF_DAY: i64 = 86_400;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

impl CivilTime {
    /// The time this many seconds after the start of 1970; for local time, add the offset of the
    /// time zone before. Times more than a million years away count as a million.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        let far = 366_000_000 * SECONDS_OF_DAY;
        let seconds = seconds.clamp(-far, far);
        CivilTime { days: seconds.div_euclid(SECONDS_OF_DAY), second_of_day: seconds.rem_euclid(SECONDS_OF_DAY) as u32 }
    }

    /// Midnight at the beginning of a day; `None` if there is no such day, or it is not within ten thousand years.
    pub fn from_date(year: i64, month: i64, day: i64) -> Option<Self> {
        let (month, day) = (u32::try_from(month).ok()?, u32::try_from(day).ok()?);
        if !(-10_000..=10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        let (march, years) = if month > 2 { (month - 3, year) } else { (month + 9, year - 1) };
        let (era, year_of_era) = (years.div_euclid(400), years.rem_euclid(400));
        let day_of_year = i64::from((153 * march + 2) / 5 + day - 1);
        let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
        let time = CivilTime { days, second_of_day: 0 };
        // The 31st of a shorter month is another day.
        (time.date() == (year, month, day)).then_some(time)
    }

    /// Seconds after the start of 1970.
    pub fn unix_seconds(self) -> i64 {
        self.days * SECONDS_OF_DAY + i64::from(self.second_of_day)
    }

    /// Year, month and day, the latter two counted from 1.
    pub fn date(self) -> (i64, u32, u32) {
        // Years that begin in March put the leap day at the end; 400 of them have 146097 days.
        let days = self.days + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let (month, year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        (era * 400 + year_of_era + year, month as u32, day as u32)
    }

    /// Days since 1 January of the same year, that day being 1.
    fn day_of_year(self) -> u32 {
        let (year, month, day) = self.date();
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        before[month as usize - 1] + day + u32::from(leap && month > 2)
    }

    /// Python's `strftime(format)` in English. `%-d` and the like leave out the zeros before a
    /// number. A code that is not known stays as it is.
    pub fn strftime(self, format: &str) -> String {
        let mut out = String::new();
        let mut rest = format;
        while let Some((before, code)) = rest.split_once('%') {
            out.push_str(before);
            let (bare, code) = match code.strip_prefix('-') {
                Some(code) => (true, code),
                None => (false, code),
            };
            let mut after = code.chars();
            let letter = after.next();
            match letter.and_then(|letter| self.field(letter)) {
                Some(field) if bare => {
                    let short = field.trim_start_matches(['0', ' ']);
                    out.push_str(if short.is_empty() { "0" } else { short });
                }
                Some(field) => out.push_str(&field),
                None => {
                    out.push_str(if bare { "%-" } else { "%" });
                    out.extend(letter);
                }
            }
            rest = after.as_str();
        }
        out.push_str(rest);
        out
    }

    fn field(self, letter: char) -> Option<String> {
        let (year, month, day) = self.date();
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let hour12 = (hour + 11) % 12 + 1;
        let weekday = (self.days + 4).rem_euclid(7) as usize;
        let month_name = MONTHS[month as usize - 1];
        let two = |number: u32| Some(format!("{number:02}"));
        match letter {
            'Y' => Some(year.to_string()),
            'y' => Some(format!("{:02}", year.rem_euclid(100))),
            'm' => two(month),
            'd' => two(day),
            'e' => Some(format!("{day:2}")),
            'H' => two(hour),
            'I' => two(hour12),
            'M' => two(minute),
            'S' => two(self.second_of_day % 60),
            'f' => Some("000000".to_owned()),
            'p' => Some(if hour < 12 { "AM" } else { "PM" }.to_owned()),
            'B' => Some(month_name.to_owned()),
            'b' | 'h' => Some(month_name[..3].to_owned()),
            'A' => Some(WEEKDAYS[weekday].to_owned()),
            'a' => Some(WEEKDAYS[weekday][..3].to_owned()),
            'w' => Some(weekday.to_string()),
            'u' => Some(if weekday == 0 { 7 } else { weekday }.to_string()),
            'j' => Some(format!("{:03}", self.day_of_year())),
            'F' => Some(self.strftime("%Y-%m-%d")),
            'T' | 'X' => Some(self.strftime("%H:%M:%S")),
            'R' => Some(self.strftime("%H:%M")),
            'D' | 'x' => Some(self.strftime("%m/%d/%y")),
            'c' => Some(self.strftime("%a %b %e %H:%M:%S %Y")),
            // A time that does not know its place has no zone; so it is in Python.
            'Z' | 'z' => Some(String::new()),
            'n' => Some("\n".to_owned()),
            't' => Some("\t".to_owned()),
            '%' => Some("%".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_python_does() {
        // 2025-07-26 12:34:56, a Saturday.
        let time = CivilTime::from_unix_seconds(1_753_533_296);
        assert_eq!(time.strftime("%Y-%m-%d %H:%M:%S"), "2025-07-26 12:34:56");
        assert_eq!(time.strftime("%d %b %Y, %A %B"), "26 Jul 2025, Saturday July");
        assert_eq!(time.strftime("%-m/%-d %I %p %j %y %a"), "7/26 12 PM 207 25 Sat");
        assert_eq!(time.strftime("100%% %Q %"), "100% %Q %");
        assert_eq!(time.strftime("%c|%Z"), "Sat Jul 26 12:34:56 2025|");
    }

    #[test]
    fn days_are_found_and_lost_days_are_not() {
        for days in (-800_000..800_000).step_by(13) {
            let time = CivilTime { days, second_of_day: 0 };
            let (year, month, day) = time.date();
            assert_eq!(CivilTime::from_date(year, month.into(), day.into()), Some(time));
        }
        assert_eq!(CivilTime::from_date(2026, 12, 1).map(CivilTime::unix_seconds), Some(1_796_083_200));
        for (year, month, day) in
            [(2027, 2, 29), (2027, 4, 31), (2027, 0, 1), (2027, 13, 1), (2027, 1, 0), (1 << 40, 1, 1)]
        {
            assert_eq!(CivilTime::from_date(year, month, day), None);
        }
    }

    #[test]
    fn days_at_the_edges() {
        let at = |seconds| CivilTime::from_unix_seconds(seconds).strftime("%F %T %j %w");
        assert_eq!(at(0), "1970-01-01 00:00:00 001 4");
        assert_eq!(at(-1), "1969-12-31 23:59:59 365 3");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 060 2");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 060 1");
        assert_eq!(CivilTime::from_unix_seconds(0).strftime("%-H %I"), "0 12");
        let _ = at(i64::MIN) + &at(i64::MAX);
    }
}
