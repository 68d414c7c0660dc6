//! What `skep trace` reports: the statistics of all threads added up, sorted, as a table or as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

use crate::args::SortBy;
use crate::units;

/// Buckets of the histogram.
const BUCKETS: usize = 64;
/// Bytes of one thread's `struct stat` before the histogram (`bpf/trace.bpf.c`).
const HEAD_SIZE: usize = 72;
/// Bytes of one thread's `struct stat`: with the histogram, and up to whole cache lines.
pub const STAT_SIZE: usize = (HEAD_SIZE + 4 * BUCKETS).next_multiple_of(64);

/// The statistics of one function over all threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Stat {
    /// How often it was entered.
    pub calls: u64,
    /// Time between entry and return; of outermost calls only, where it recurses.
    pub total_ns: u64,
    /// The same without the time in other traced functions.
    pub self_ns: u64,
    /// Not all calls were timed: times are scaled up from those that were.
    pub sampled: bool,
    /// `hist[i]`: calls that took 2^i up to 2^(i+1) ticks, the first from 0.
    hist: [u64; BUCKETS],
    /// Nanoseconds in a tick.
    tick: f64,
}

/// What one thread wrote.
struct Thread<'a> {
    calls: u64,
    untimed: u64,
    timed: u64,
    outermost: u64,
    total: u64,
    own: i64,
    hist: &'a [u8],
}

impl<'a> Thread<'a> {
    fn new(value: &'a [u8]) -> Self {
        let (head, rest) = value.split_at(HEAD_SIZE);
        let hist = rest.get(..4 * BUCKETS).unwrap_or_default();
        let word = |i: usize| head.chunks_exact(8).nth(i).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
        // An untimed call's share of its caller may be more than it took: sums of self times may be below zero for a while.
        let own = word(8).cast_signed();
        Self { calls: word(0), untimed: word(2), timed: word(5), outermost: word(6), total: word(7), own, hist }
    }

    /// How much more than was timed there was, of `timed` calls.
    fn scale(&self, timed: u64) -> f64 {
        if timed == 0 || self.untimed == 0 { 1.0 } else { 1.0 + self.untimed as f64 / timed as f64 }
    }
}

impl Stat {
    /// Adds up a per-CPU value: one `struct stat` after the other. An incomplete one at the end is left out. `tick`: nanoseconds in
    /// a unit of the times.
    pub fn sum(value: &[u8], tick: f64) -> Self {
        let (mut total, mut own) = (0.0, 0.0);
        let mut sum = Self { calls: 0, total_ns: 0, self_ns: 0, sampled: false, hist: [0; BUCKETS], tick };
        for thread in value.chunks_exact(STAT_SIZE).map(Thread::new).filter(|t| t.calls > 0) {
            // Counters come from memory that the traced process can write: no sum of theirs may fail.
            sum.calls = sum.calls.saturating_add(thread.calls);
            sum.sampled |= thread.untimed > 0;
            total += thread.total as f64 * thread.scale(thread.outermost);
            own += thread.own as f64 * thread.scale(thread.timed);
            let scale = thread.scale(thread.timed);
            for (to, from) in sum.hist.iter_mut().zip(thread.hist.chunks_exact(4)) {
                let n = from.try_into().map_or(0, u32::from_le_bytes);
                *to = to.saturating_add((f64::from(n) * scale) as u64);
            }
        }
        sum.total_ns = (total * tick) as u64;
        // Estimates of callees may make a function's own time a little more than its whole time, or less than nothing.
        sum.self_ns = ((own * tick) as u64).min(if sum.total_ns > 0 { sum.total_ns.max(1) } else { u64::MAX });
        sum
    }

    /// Tells below which time the `percent` fastest calls stayed; `None` when no call has returned.
    ///
    /// The histogram knows the bucket; inside it calls are taken to be spread evenly. No call took longer than all
    /// outermost ones together.
    pub fn percentile(&self, percent: f64) -> Option<u64> {
        let count: u64 = self.hist.iter().sum();
        let rank = percent / 100.0 * count as f64;
        let mut before = 0.0;
        for (i, n) in self.hist.iter().enumerate().filter(|(_, n)| **n > 0) {
            let n = *n as f64;
            if before + n >= rank {
                let low = if i == 0 { 0.0 } else { (i as f64).exp2() } * self.tick;
                let high = (i as f64 + 1.0).exp2() * self.tick;
                let value = (low + (high - low) * ((rank - before) / n).clamp(0.0, 1.0)) as u64;
                return Some(value.min(self.total_ns.max(low as u64)));
            }
            before += n;
        }
        None
    }
}

/// What a report says of a function's calls.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// As in [`Stat`].
    pub calls: u64,
    /// As in [`Stat`].
    pub total_ns: u64,
    /// As in [`Stat`].
    pub self_ns: u64,
    /// As in [`Stat`].
    pub sampled: bool,
    /// The median; `None` when no call has returned.
    pub p50_ns: Option<u64>,
    /// What one call in a hundred took longer than.
    pub p99_ns: Option<u64>,
}

impl From<Stat> for Figures {
    fn from(stat: Stat) -> Self {
        let (p50_ns, p99_ns) = (stat.percentile(50.0), stat.percentile(99.0));
        Self { calls: stat.calls, total_ns: stat.total_ns, self_ns: stat.self_ns, sampled: stat.sampled, p50_ns, p99_ns }
    }
}

/// One function in the report. There can be a hundred thousand of them, so rows are small and borrow what they can.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Demangled name.
    pub name: Cow<'a, str>,
    /// The symbol in the file.
    pub symbol: &'a str,
    /// The module's path.
    pub path: &'a str,
    /// Why calls were counted without times, where they were.
    pub entry_only: Option<&'a str>,
    /// What was measured.
    pub stat: Figures,
}

impl Row<'_> {
    fn module(&self) -> &str {
        file_name(self.path)
    }

    /// A time that was measured; `None` where calls were only counted, which is not the same as 0 ns. In one process of several the
    /// function may have been timed.
    fn time(&self, ns: u64) -> Option<u64> {
        (self.entry_only.is_none() || self.stat.total_ns > 0).then_some(ns)
    }
}

/// A function that matched and was not attached, or at its entry only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Demangled name.
    pub function: String,
    /// The module's path.
    pub path: String,
    /// Why not.
    pub reason: String,
}

impl Skipped {
    /// The JSON form.
    pub fn json(&self) -> Value {
        json!({"function": self.function, "module": file_name(&self.path), "reason": self.reason})
    }
}

/// Returns the last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Sorts by a column: largest first, names from a to z. Equal rows go by name, so that the order is always the same.
pub fn sort(rows: &mut [Row<'_>], by: SortBy) {
    let number = |r: &Row<'_>| match by {
        SortBy::Calls => r.stat.calls,
        SortBy::Total => r.stat.total_ns,
        SortBy::SelfTime => r.stat.self_ns,
        SortBy::P50 => r.stat.p50_ns.unwrap_or(0),
        SortBy::P99 => r.stat.p99_ns.unwrap_or(0),
        SortBy::Name => 0,
    };
    rows.sort_by(|a, b| number(b).cmp(&number(a)).then_with(|| a.name.cmp(&b.name)).then_with(|| a.path.cmp(b.path)));
}

/// A function in JSON. Reports can have a hundred thousand of them, so they are written as they stand.
#[derive(Serialize, Debug)]
pub struct Function<'a> {
    name: &'a str,
    module: &'a str,
    calls: u64,
    total_ns: Option<u64>,
    self_ns: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    sampled: bool,
    /// Why there are no times.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry_only: Option<&'a str>,
    path: &'a str,
    /// Where it differs from the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<&'a str>,
}

impl<'a> From<&'a Row<'_>> for Function<'a> {
    fn from(row: &'a Row<'_>) -> Self {
        Self {
            name: &row.name,
            module: row.module(),
            calls: row.stat.calls,
            total_ns: row.time(row.stat.total_ns),
            self_ns: row.time(row.stat.self_ns),
            p50_ns: row.stat.p50_ns,
            p99_ns: row.stat.p99_ns,
            sampled: row.stat.sampled,
            entry_only: row.entry_only,
            path: row.path,
            symbol: (row.symbol != row.name).then_some(row.symbol),
        }
    }
}

/// Longest name that others are aligned to.
const NAME_COLUMN: usize = 48;

/// Writes the table. `width` cuts names so that lines fit on a screen.
pub fn table(out: &mut dyn Write, rows: &[Row<'_>], width: Option<usize>) -> io::Result<()> {
    let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), units::time);
    let module_width = rows.iter().map(|r| r.module().chars().count()).max().unwrap_or(0).max("module".len());
    let room = width.map(|w| w.saturating_sub(10 + 4 * 9 + 2 + 2 + module_width).max(16));
    let names: Vec<String> = rows.iter().map(|r| cut(&r.name, room)).collect();
    let name_width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).clamp("function".len(), room.unwrap_or(NAME_COLUMN));
    writeln!(out, "{:>10}{:>9}{:>9}{:>9}{:>9}  {:name_width$}  module", "calls", "total", "self", "p50", "p99", "function")?;
    for (row, name) in rows.iter().zip(&names) {
        let stat = &row.stat;
        writeln!(
            out,
            "{:>10}{:>9}{:>9}{:>9}{:>9}  {name:name_width$}  {}",
            stat.calls,
            time(row.time(stat.total_ns)),
            time(row.time(stat.self_ns)),
            time(stat.p50_ns),
            time(stat.p99_ns),
            row.module(),
        )?;
    }
    Ok(())
}

fn cut(name: &str, room: Option<usize>) -> String {
    match room {
        Some(room) if name.chars().count() > room => name.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
        _ => name.to_owned(),
    }
}

/// Most names given as examples of a reason.
const EXAMPLES: usize = 4;
/// Most characters they take.
const EXAMPLES_LENGTH: usize = 60;
/// Most reasons given.
const REASONS: usize = 6;

/// Says how many functions were not attached for which reason, most frequent first; `all` names every one.
pub fn skipped_lines(skipped: &[Skipped], all: bool) -> Vec<String> {
    if all {
        return skipped.iter().map(|s| format!("  {}:{}: {}", file_name(&s.path), s.function, s.reason)).collect();
    }
    let mut groups: BTreeMap<String, Vec<&Skipped>> = BTreeMap::new();
    for s in skipped {
        groups.entry(without_numbers(&s.reason)).or_default().push(s);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    let line = |(general, members): (String, Vec<&Skipped>)| {
        let reason = match members.as_slice() {
            [first, rest @ ..] if rest.iter().all(|m| m.reason == first.reason) => first.reason.clone(),
            _ => general,
        };
        let mut length = 0;
        let short = |name: &&str| {
            length += name.chars().count() + 2;
            length <= EXAMPLES_LENGTH
        };
        let mut names: Vec<&str> = members.iter().take(EXAMPLES).map(|m| m.function.as_str()).take_while(short).collect();
        if names.len() < members.len() {
            names.push("…");
        }
        format!("{:>6}  {reason}: {}", members.len(), names.join(", "))
    };
    let rest = groups.split_off(groups.len().min(REASONS));
    let mut lines: Vec<String> = groups.into_iter().map(line).collect();
    if !rest.is_empty() {
        let count: usize = rest.iter().map(|(_, members)| members.len()).sum();
        lines.push(format!("{count:>6}  for {} other reasons", rest.len()));
    }
    lines
}

/// Replaces addresses and numbers, in which otherwise equal reasons differ.
fn without_numbers(reason: &str) -> String {
    let words = reason.split(' ').map(|word| {
        let digits = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let hex = digits.strip_prefix("0x").is_some_and(|h| !h.is_empty() && h.bytes().all(|b| b.is_ascii_hexdigit()));
        let decimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if hex || decimal { word.replace(digits, "N") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `struct stat` as the program writes it.
    fn bytes(calls: u64, total: u64, own: u64, hist: &[(usize, u32)]) -> Vec<u8> {
        sampled(calls, 0, calls, total, own, hist)
    }

    fn sampled(calls: u64, untimed: u64, timed: u64, total: u64, own: u64, hist: &[(usize, u32)]) -> Vec<u8> {
        let words = [calls, 7, untimed, 8, 9, timed, timed, total, own];
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut buckets = [0_u32; BUCKETS];
        for (i, n) in hist {
            buckets[*i] = *n;
        }
        out.extend(buckets.iter().flat_map(|n| n.to_le_bytes()));
        out.resize(STAT_SIZE, 0);
        out
    }

    fn row<'a>(name: &'a str, value: &[u8]) -> Row<'a> {
        Row { name: name.into(), symbol: name, path: "/lib/libx.so.1", entry_only: None, stat: Stat::sum(value, 1.0).into() }
    }

    #[test]
    fn threads_are_added_up() {
        let value = [bytes(2, 10, 6, &[(2, 2)]), bytes(0, 0, 0, &[]), bytes(3, 50, 40, &[(2, 1), (4, 2)])].concat();
        let stat = Stat::sum(&value, 1.0);
        assert_eq!((stat.calls, stat.total_ns, stat.self_ns), (5, 60, 46));
        assert_eq!((stat.hist[2], stat.hist[4], stat.hist.iter().sum::<u64>()), (3, 2, 5));
        assert_eq!(Stat::sum(&value[..STAT_SIZE + 3], 1.0).calls, 2, "half a value is none");
        assert_eq!(Stat::sum(&[bytes(u64::MAX, 0, 0, &[]), bytes(u64::MAX, 0, 0, &[])].concat(), 1.0).calls, u64::MAX);
    }

    #[test]
    fn what_was_not_timed_is_scaled_up_for_each_thread_on_its_own() {
        let value = [sampled(100, 75, 25, 1000, 500, &[(5, 25)]), sampled(10, 0, 10, 900, 800, &[(6, 10)])].concat();
        let stat = Stat::sum(&value, 0.5);
        assert_eq!((stat.calls, stat.total_ns, stat.self_ns), (110, (4000 + 900) / 2, (2000 + 800) / 2));
        assert!(stat.sampled);
        assert_eq!((stat.hist[5], stat.hist[6]), (100, 10));
        assert_eq!(stat.percentile(100.0), Some(64), "ticks are half nanoseconds");
        let odd = Stat::sum(&sampled(9, 1, 0, 0, u64::MAX, &[]), 1.0);
        assert_eq!((odd.total_ns, odd.self_ns), (0, 0), "nothing was timed, and less than nothing is nothing");
    }

    #[test]
    fn percentiles_stay_within_a_factor_of_two_of_the_sorted_times() {
        // An odd linear congruential generator is as good as any here.
        let mut seed = 12345_u64;
        let mut times: Vec<u64> = (0..5000)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (seed >> 33) % (1 << (seed >> 61 << 1).max(1))
            })
            .collect();
        let mut hist = [0_u32; BUCKETS];
        for t in &times {
            hist[t.max(&1).ilog2() as usize] += 1;
        }
        let pairs: Vec<_> = hist.iter().copied().enumerate().collect();
        let stat = Stat::sum(&bytes(5000, times.iter().sum(), 0, &pairs), 1.0);
        times.sort_unstable();
        for percent in [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9] {
            let exact = times[((percent / 100.0 * 5000.0) as usize).clamp(1, 5000) - 1].max(1) as f64;
            let ours = stat.percentile(percent).unwrap().max(1) as f64;
            assert!(ours / exact <= 2.001 && exact / ours <= 2.001, "p{percent}: {ours} for {exact}");
        }
    }

    #[test]
    fn a_percentile_never_exceeds_the_total_and_needs_a_finished_call() {
        assert_eq!(Stat::sum(&bytes(1, 1100, 1100, &[(10, 1)]), 1.0).percentile(99.0), Some(1100));
        assert_eq!(Stat::sum(&bytes(1, 0, 0, &[(10, 1)]), 1.0).percentile(99.0), Some(1024), "a call inside one that still runs");
        assert_eq!(Stat::sum(&bytes(1, 0, 0, &[]), 1.0).percentile(50.0), None);
        let edge = Stat::sum(&bytes(1, u64::MAX, 0, &[(63, 1)]), 1.0).percentile(100.0).unwrap();
        assert!(edge >= 1 << 63);
    }

    #[test]
    fn rows_sort_by_any_column_and_then_by_name() {
        let mut rows = [row("b", &bytes(1, 9, 2, &[(3, 1)])), row("a", &bytes(1, 8, 5, &[(3, 1)])), row("c", &bytes(7, 1, 1, &[(0, 7)]))];
        let order = |rows: &[Row<'_>]| rows.iter().map(|r| r.name.as_ref()).collect::<String>();
        for (by, want) in
            [(SortBy::Calls, "cab"), (SortBy::Total, "bac"), (SortBy::SelfTime, "abc"), (SortBy::Name, "abc"), (SortBy::P99, "bac")]
        {
            sort(&mut rows, by);
            assert_eq!(order(&rows), want, "{by:?}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_cut_to_the_screen() {
        let rows = [row("short", &bytes(12, 1_500_000, 999, &[(6, 12)])), row("ns::a_long_name(int, char const*)", &bytes(1, 0, 0, &[]))];
        let text = |width| {
            let mut out = Vec::new();
            table(&mut out, &rows, width).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(None),
            "     calls    total     self      p50      p99  function                           module\n        \
             12   1.50ms    999ns     96ns    127ns  short                              libx.so.1\n         \
             1      0ns      0ns        -        -  ns::a_long_name(int, char const*)  libx.so.1\n"
        );
        let mut counted = row("counted", &bytes(3, 0, 0, &[]));
        counted.entry_only = Some("returns twice");
        let mut out = Vec::new();
        table(&mut out, &[counted], None).unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("         3        -        -        -        -  counted   libx.so.1\n"));
        let narrow = text(Some(80));
        assert!(narrow.lines().all(|l| l.chars().count() <= 80) && narrow.contains("ns::a_long_name(int,…"), "{narrow}");
    }

    #[test]
    fn json_has_the_promised_keys() {
        let row = row("f", &bytes(2, 300, 200, &[(7, 2)]));
        assert_eq!(
            serde_json::to_string(&Function::from(&row)).unwrap(),
            r#"{"name":"f","module":"libx.so.1","calls":2,"total_ns":300,"self_ns":200,"p50_ns":192,"p99_ns":254,"sampled":false,"path":"/lib/libx.so.1"}"#
        );
    }

    #[test]
    fn no_times_are_not_zero_times() {
        let mut row = row("f", &bytes(2, 0, 0, &[]));
        row.entry_only = Some("returns twice");
        assert_eq!(
            serde_json::to_string(&Function::from(&row)).unwrap(),
            r#"{"name":"f","module":"libx.so.1","calls":2,"total_ns":null,"self_ns":null,"p50_ns":null,"p99_ns":null,"sampled":false,"entry_only":"returns twice","path":"/lib/libx.so.1"}"#
        );
    }

    #[test]
    fn reasons_that_differ_in_numbers_are_one_group() {
        let skip = |function: &str, reason: &str| Skipped { function: function.into(), path: "/lib/libx.so".into(), reason: reason.into() };
        let all = [
            skip("one", "denied: it returns twice"),
            skip("a", "jump from 0x7f10 to +2 of the function"),
            skip("b", "jump from 0xab to +11 of the function"),
            skip("c", "jump from 0xab to +11 of the function"),
            skip("d", "jump from 0xab to +11 of the function"),
            skip("e", "jump from 0xab to +11 of the function"),
        ];
        assert_eq!(
            skipped_lines(&all, false),
            ["     5  jump from N to +N of the function: a, b, c, d, …", "     1  denied: it returns twice: one"]
        );
        let many: Vec<_> = (b'a'..b'k').map(|c| skip("f", &format!("reason {}", char::from(c)))).collect();
        let lines = skipped_lines(&many, false);
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (7, Some("     4  for 4 other reasons")));
        assert_eq!(skipped_lines(&all[..1], true), ["  libx.so:one: denied: it returns twice"]);
    }
}
