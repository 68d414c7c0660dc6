//! What `skep trace` reports: the statistics of all threads added up, sorted, as a table or as
//! JSON. CSV is made from the fields of JSON.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use skep_text::field_key;
use skep_text::fields::{Fields, Text};

use crate::args::SortBy;
use crate::estimate::Stat;
use crate::order;
use crate::printer::one_line;
use crate::units;

/// How long something was traced, and when that ended.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Wall {
    #[serde(rename = "wall_ns")]
    pub ns: u64,
    pub ended_unix_ns: u64,
}

impl Wall {
    /// What took so long and ended so long ago.
    pub fn new(ns: u64, ago: Duration) -> Self {
        let ended = SystemTime::now() - ago;
        let since = ended.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { ns, ended_unix_ns: since.as_nanos() as u64 }
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
    pub error_ns: Option<u64>,
    /// The same for the self time; [`carry`] adds the errors of callees.
    pub self_error_ns: Option<u64>,
    /// As in [`Stat`].
    pub running: u64,
    /// The median; `None` when no call has returned.
    pub p50_ns: Option<u64>,
    /// What one call in a hundred took longer than.
    pub p99_ns: Option<u64>,
}

impl From<Stat> for Figures {
    fn from(stat: Stat) -> Self {
        let [p50_ns, p99_ns] = stat.percentiles([50.0, 99.0]);
        let Stat { calls, total_ns, self_ns, error_ns, running, .. } = stat;
        Self {
            calls,
            total_ns,
            self_ns,
            error_ns,
            self_error_ns: error_ns,
            running,
            p50_ns,
            p99_ns,
        }
    }
}

/// Carries the errors of estimated times into the self times of callers: what untimed callees took
/// is subtracted from those.
///
/// Nobody wrote down whose callees were estimated, so the time in callees counts with the error of
/// all estimated times together.
pub fn carry(rows: &mut [Row<'_>]) {
    let estimated =
        || rows.iter().filter_map(|r| Some((r.stat.error_ns? as f64, r.stat.total_ns as f64)));
    let (error, total) =
        estimated().fold((0.0, 0.0), |(e, t), (error, total)| (e + error, t + total));
    if total <= 0.0 {
        return;
    }
    let share = (error / total).min(1.0);
    for row in rows {
        let callees = row.stat.total_ns.saturating_sub(row.stat.self_ns) as f64 * share;
        if callees >= 1.0 {
            row.stat.self_error_ns =
                Some(callees.hypot(row.stat.error_ns.unwrap_or(0) as f64) as u64);
        }
    }
}

/// One function in the report. There can be a hundred thousand of them, so rows are small and
/// borrow what they can.
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
    /// Where functions have several rows: which one this is.
    pub part: Option<Part<'a>>,
}

/// The calls of a function that a row has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part<'a> {
    /// From this caller; `None`: from no traced function.
    Caller(Option<Cow<'a, str>>),
    /// On this thread.
    Thread {
        /// Its process.
        pid: u32,
        /// Its number.
        tid: u32,
        /// Its name, as last known.
        name: &'a str,
    },
    /// In this process.
    Process {
        /// Its number.
        pid: u32,
        /// The name of its first thread.
        name: &'a str,
    },
}

impl Part<'_> {
    /// The column's name.
    fn title(&self) -> &'static str {
        match self {
            Self::Caller(_) => "caller",
            Self::Thread { .. } => "thread",
            Self::Process { .. } => "process",
        }
    }

    /// What the column has.
    pub fn text(&self, room: Option<usize>) -> String {
        match self {
            Self::Caller(name) => cut(name.as_deref().unwrap_or(NOT_TRACED), room),
            Self::Thread { tid: id, name, .. } | Self::Process { pid: id, name } => {
                format!("{}/{id}", one_line(name))
            }
        }
    }
}

/// How a caller that is no traced function is named.
pub const NOT_TRACED: &str = "(not traced)";

impl Row<'_> {
    fn module(&self) -> &str {
        file_name(self.path)
    }

    /// A time that was measured; `None` where calls were only counted, which is not the same as 0
    /// ns. In one process of several the function may have been timed.
    fn time(&self, ns: u64) -> Option<u64> {
        (self.entry_only.is_none() || self.stat.total_ns > 0).then_some(ns)
    }

    /// Tells whether its times are estimates: where calls were only counted there are none.
    pub fn is_estimated(&self) -> bool {
        self.time(0).is_some() && self.stat.error_ns.is_some()
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
    let name = path.bytes().rposition(|b| b == b'/').and_then(|at| path.get(at + 1..));
    name.unwrap_or(path)
}

/// Returns the first `count` rows in the order of a column: largest first, names from a to z. Equal rows
/// go by name, so that the order is always the same.
pub fn sorted<'r, 'a>(rows: &'r [Row<'a>], by: SortBy, count: usize) -> Vec<&'r Row<'a>> {
    let number = |r: &Row<'_>| match by {
        SortBy::Calls => r.stat.calls,
        SortBy::Total => r.stat.total_ns,
        SortBy::SelfTime => r.stat.self_ns,
        SortBy::P50 => r.stat.p50_ns.unwrap_or(0),
        SortBy::P99 => r.stat.p99_ns.unwrap_or(0),
        SortBy::Name => 0,
    };
    let rest = |a: &Row<'_>, b: &Row<'_>| a.path.cmp(b.path).then_with(|| a.part.cmp(&b.part));
    order::sorted(rows, count, number, |row| &row.name, rest)
}

/// A function in JSON. Reports can have a hundred thousand of them, so [`Function::write`] does what
/// a serializer does in a third of the instructions.
#[cfg_attr(test, derive(serde::Serialize))]
#[derive(Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub module: &'a str,
    /// `null`: no traced function.
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    pub caller: Option<Option<&'a str>>,
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    pub pid: Option<u32>,
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    pub tid: Option<u32>,
    /// The name of the thread, else of the process.
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    pub comm: Option<&'a str>,
    pub calls: u64,
    pub total_ns: Option<u64>,
    pub self_ns: Option<u64>,
    pub p50_ns: Option<u64>,
    pub p99_ns: Option<u64>,
    /// Why there are no times.
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    pub entry_only: Option<&'a str>,
    /// Not all calls were timed.
    pub estimated: bool,
    /// With 95 % confidence the total is not further off than this.
    pub error_ns: u64,
    /// The same for the self time.
    pub self_error_ns: u64,
    /// Calls that had not returned at the end.
    pub running: u64,
    pub path: &'a str,
    /// Where it differs from the name.
    #[cfg_attr(test, serde(skip_serializing_if = "Option::is_none"))]
    symbol: Option<&'a str>,
}

impl Function<'_> {
    /// Writes it as JSON.
    pub fn write(&self, out: &mut Text) {
        let mut fields = Fields::begin(out);
        fields.text(field_key!("name"), self.name);
        fields.text(field_key!("module"), self.module);
        match self.caller {
            Some(Some(caller)) => fields.text(field_key!("caller"), caller),
            Some(None) => fields.null(field_key!("caller")),
            None => {}
        }
        for (key, id) in [(field_key!("pid"), self.pid), (field_key!("tid"), self.tid)] {
            if let Some(id) = id {
                fields.number(key, id.into());
            }
        }
        if let Some(comm) = self.comm {
            fields.text(field_key!("comm"), comm);
        }
        fields.number(field_key!("calls"), self.calls);
        fields.number_or_null(field_key!("total_ns"), self.total_ns);
        fields.number_or_null(field_key!("self_ns"), self.self_ns);
        fields.number_or_null(field_key!("p50_ns"), self.p50_ns);
        fields.number_or_null(field_key!("p99_ns"), self.p99_ns);
        if let Some(why) = self.entry_only {
            fields.text(field_key!("entry_only"), why);
        }
        fields.flag(field_key!("estimated"), self.estimated);
        fields.number(field_key!("error_ns"), self.error_ns);
        fields.number(field_key!("self_error_ns"), self.self_error_ns);
        fields.number(field_key!("running"), self.running);
        fields.text(field_key!("path"), self.path);
        if let Some(symbol) = self.symbol {
            fields.text(field_key!("symbol"), symbol);
        }
        fields.end();
    }
}

impl<'a> From<&'a Row<'_>> for Function<'a> {
    fn from(row: &'a Row<'_>) -> Self {
        let (caller, pid, tid, comm) = match &row.part {
            None => (None, None, None, None),
            Some(Part::Caller(caller)) => (Some(caller.as_deref()), None, None, None),
            Some(Part::Thread { pid, tid, name }) => (None, Some(*pid), Some(*tid), Some(*name)),
            Some(Part::Process { pid, name }) => (None, Some(*pid), None, Some(*name)),
        };
        Self {
            name: &row.name,
            module: row.module(),
            caller,
            pid,
            tid,
            comm,
            calls: row.stat.calls,
            total_ns: row.time(row.stat.total_ns),
            self_ns: row.time(row.stat.self_ns),
            p50_ns: row.stat.p50_ns,
            p99_ns: row.stat.p99_ns,
            entry_only: row.entry_only,
            estimated: row.is_estimated(),
            error_ns: row.stat.error_ns.unwrap_or(0),
            self_error_ns: row.stat.self_error_ns.unwrap_or(0),
            running: row.stat.running,
            path: row.path,
            symbol: (row.symbol != row.name).then_some(row.symbol),
        }
    }
}

/// Longest name that others are aligned to.
const NAME_COLUMN: usize = 48;

/// Writes the table. `width` cuts names so that lines fit on a screen.
pub fn table(out: &mut dyn Write, rows: &[&Row<'_>], width: Option<usize>) -> io::Result<()> {
    let none = || "-".to_owned();
    let percentile = |ns: Option<u64>| ns.map_or_else(none, units::time);
    let modules: Vec<Cow<'_, str>> = rows.iter().map(|r| one_line(r.module())).collect();
    let module_width =
        modules.iter().map(|m| m.chars().count()).max().unwrap_or(0).max("module".len());
    let part = rows.first().and_then(|r| r.part.as_ref());
    let room = width.map(|w| {
        let room = w.saturating_sub(10 + 2 * 10 + 2 * 9 + 2 + 2 + module_width);
        if part.is_some() { (room.saturating_sub(2) / 2).max(16) } else { room.max(16) }
    });
    let names: Vec<String> = rows.iter().map(|r| cut(&r.name, room)).collect();
    let name_width = names
        .iter()
        .map(|n| n.chars().count())
        .max()
        .unwrap_or(0)
        .clamp("function".len(), room.unwrap_or(NAME_COLUMN));
    writeln!(
        out,
        "{:>10}{:>10}{:>10}{:>9}{:>9}  {:name_width$}  {}",
        "calls",
        "total",
        "self",
        "p50",
        "p99",
        "function",
        match part {
            Some(part) => format!("{:module_width$}  {}", "module", part.title()),
            None => "module".to_owned(),
        }
    )?;
    for ((row, name), module) in rows.iter().zip(&names).zip(&modules) {
        let stat = &row.stat;
        writeln!(
            out,
            "{:>10}{:>10}{:>10}{:>9}{:>9}  {name:name_width$}  {}",
            stat.calls,
            row.time(stat.total_ns).map_or_else(none, |ns| marked(ns, stat.error_ns, stat.running)),
            row.time(stat.self_ns).map_or_else(none, |ns| marked(
                ns,
                stat.self_error_ns,
                stat.running
            )),
            percentile(stat.p50_ns),
            percentile(stat.p99_ns),
            match &row.part {
                Some(part) => format!("{module:module_width$}  {}", part.text(room)),
                None => module.to_string(),
            }
        )?;
    }
    Ok(())
}

/// Marks a time: `~` in front of an estimate, `+` behind one to which calls that still ran at the
/// end add what they took until then.
fn marked(ns: u64, error_ns: Option<u64>, running: u64) -> String {
    format!(
        "{}{}{}",
        if error_ns.is_some() { "~" } else { "" },
        units::time(ns),
        if running > 0 { "+" } else { "" }
    )
}

/// A name in one line, cut to the room that there is.
pub fn cut(name: &str, room: Option<usize>) -> String {
    let name = one_line(name);
    match room {
        Some(room) if name.chars().count() > room => {
            name.chars().take(room.saturating_sub(1)).chain(['…']).collect()
        }
        _ => name.into_owned(),
    }
}

/// Most names given as examples of a reason.
const EXAMPLES: usize = 4;
/// Most characters they take.
const EXAMPLES_LENGTH: usize = 60;
/// Most reasons given.
const REASONS: usize = 6;

/// Says how many functions were not attached for which reason, most frequent first; `all` names
/// every one.
pub fn skipped_lines(skipped: &[Skipped], all: bool) -> Vec<String> {
    if all {
        return skipped
            .iter()
            .map(|s| {
                let (module, function) = (one_line(file_name(&s.path)), one_line(&s.function));
                format!("  {module}:{function}: {}", s.reason)
            })
            .collect();
    }
    let mut groups: BTreeMap<String, Vec<&Skipped>> = BTreeMap::new();
    for s in skipped {
        groups.entry(without_numbers(&s.reason)).or_default().push(s);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_cached_key(|(_, members)| Reverse(members.len() as u64));
    let line = |(general, members): (String, Vec<&Skipped>)| {
        let reason = match members.as_slice() {
            [first, rest @ ..] if rest.iter().all(|m| m.reason == first.reason) => {
                first.reason.clone()
            }
            _ => general,
        };
        let mut length = 0;
        let short = |name: &Cow<'_, str>| {
            length += name.chars().count() + 2;
            length <= EXAMPLES_LENGTH
        };
        let names = members.iter().take(EXAMPLES).map(|m| one_line(&m.function));
        let mut names: Vec<Cow<'_, str>> = names.take_while(short).collect();
        if names.len() < members.len() {
            names.push("…".into());
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
        let hex = digits
            .strip_prefix("0x")
            .is_some_and(|h| !h.is_empty() && h.bytes().all(|b| b.is_ascii_hexdigit()));
        let decimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if hex || decimal { word.replace(digits, "N") } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Running;
    use crate::estimate::tests::{CLOCK, Written, bytes};

    fn row<'a>(name: &'a str, value: &Written) -> Row<'a> {
        Row {
            name: name.into(),
            symbol: name,
            path: "/lib/libx.so.1",
            entry_only: None,
            stat: Stat::sum(&[value.part()], CLOCK, Running::default()).into(),
            part: None,
        }
    }

    #[test]
    fn rows_sort_by_any_column_and_then_by_name() {
        let rows = vec![
            row("b", &bytes(1, 9, 2, &[(3, 1)])),
            row("a", &bytes(1, 8, 5, &[(3, 1)])),
            row("c", &bytes(7, 1, 1, &[(0, 7)])),
        ];
        let order = |rows: &[&Row<'_>]| rows.iter().map(|r| r.name.as_ref()).collect::<String>();
        for (by, want) in [
            (SortBy::Calls, "cab"),
            (SortBy::Total, "bac"),
            (SortBy::SelfTime, "abc"),
            (SortBy::Name, "abc"),
            (SortBy::P99, "bac"),
        ] {
            assert_eq!(order(&sorted(&rows, by, usize::MAX)), want, "{by:?}");
        }
    }

    /// A function may be called anything by whoever wrote the program; the terminal obeyed such names.
    #[test]
    fn names_steer_no_terminal_and_stay_in_their_line() -> io::Result<()> {
        let mut rows = [row("\x1b[2Jx\ny", &bytes(1, 9, 2, &[(3, 1)]))];
        rows[0].path = "/lib/\x1b.so";
        let mut out = Vec::new();
        for part in [
            None,
            Some(Part::Caller(Some("\r".into()))),
            Some(Part::Process { pid: 1, name: "\t" }),
        ] {
            rows[0].part = part;
            table(&mut out, &rows.each_ref(), None)?;
        }
        let text = String::from_utf8_lossy(&out);
        let shown: Vec<&str> = text
            .lines()
            .skip(1)
            .step_by(2)
            .filter_map(|l| l.split_once("  \\"))
            .map(|(_, l)| l)
            .collect();
        assert_eq!(
            shown,
            [
                r"033[2Jx\012y  \033.so",
                r"033[2Jx\012y  \033.so  \015",
                r"033[2Jx\012y  \033.so  \011/1"
            ]
        );
        let skipped = [Skipped { function: "\n".into(), path: "/l".into(), reason: "why".into() }];
        assert_eq!(skipped_lines(&skipped, true), [r"  l:\012: why"]);
        assert_eq!(skipped_lines(&skipped, false), [r"     1  why: \012"]);
        Ok(())
    }

    #[test]
    fn rows_with_equal_numbers_go_by_name() {
        let names: Vec<String> = (0..500).map(|n| format!("{:03}", n * 7919 % 500)).collect();
        let with = |name: &String| bytes(name[2..].parse().unwrap(), 1, 1, &[]);
        let values: Vec<_> = names.iter().map(with).collect();
        let rows: Vec<_> = names.iter().zip(&values).map(|(n, v)| row(n, v)).collect();
        let mut naive: Vec<_> = names.iter().map(|n| (Reverse(&n[2..]), &n[..])).collect();
        naive.sort_unstable();
        // A function without calls has no row in a report, but sorts all the same.
        let rows = sorted(&rows, SortBy::Calls, usize::MAX);
        assert!(rows.iter().map(|row| &*row.name).eq(naive.iter().map(|(_, name)| *name)));
    }

    /// The first rows are those of the whole order.
    #[test]
    fn the_first_rows_are_sorted_alone() {
        let names: Vec<String> = (0..300).map(|n| format!("{:03}", n * 7919 % 300)).collect();
        let with = |name: &String| bytes(name[2..].parse().unwrap(), 1, 1, &[]);
        let values: Vec<_> = names.iter().map(with).collect();
        let rows: Vec<Row<'_>> = names.iter().zip(&values).map(|(n, v)| row(n, v)).collect();
        let names = |count| -> Vec<&str> {
            sorted(&rows, SortBy::Calls, count).into_iter().map(|row| &*row.name).collect()
        };
        let whole = names(usize::MAX);
        assert_eq!(whole.len(), 300);
        for count in [0, 1, 2, 29, 30, 31, 150, 299, 300, 301] {
            assert_eq!(names(count), whole[..count.min(300)], "{count}");
        }
    }

    #[test]
    fn the_table_is_aligned_and_cut_to_the_screen() {
        let rows = [
            row("short", &bytes(12, 1_500_000, 999, &[(6, 12)])),
            row("ns::a_long_name(int, char const*)", &bytes(1, 0, 0, &[])),
        ];
        let text = |width| {
            let mut out = Vec::new();
            table(&mut out, &rows.each_ref(), width).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            text(None),
            "     calls     total      self      p50      p99  function                           module\n        \
             12    1.50ms     999ns     96ns    127ns  short                              libx.so.1\n         \
             1       0ns       0ns        -        -  ns::a_long_name(int, char const*)  libx.so.1\n"
        );
        let mut counted = row("counted", &bytes(3, 0, 0, &[]));
        counted.entry_only = Some("returns twice");
        let mut out = Vec::new();
        table(&mut out, &[&counted], None).unwrap();
        assert!(
            String::from_utf8(out).unwrap().ends_with(
                "         3         -         -        -        -  counted   libx.so.1\n"
            )
        );
        let narrow = text(Some(80));
        assert!(
            narrow.lines().all(|l| l.chars().count() <= 80)
                && narrow.contains("ns::a_long_name(in…"),
            "{narrow}"
        );
    }

    #[test]
    fn estimates_and_running_calls_are_marked() {
        let mut all =
            [row("f", &bytes(2, 300, 200, &[(7, 2)])), row("g", &bytes(2, 1000, 100, &[(7, 2)]))];
        all[0].stat.error_ns = Some(30);
        all[0].stat.self_error_ns = Some(30);
        all[1].stat.running = 1;
        carry(&mut all);
        let mut out = Vec::new();
        table(&mut out, &all.each_ref(), None).unwrap();
        let text = String::from_utf8(out).unwrap();
        let times: Vec<Vec<&str>> =
            text.lines().skip(1).map(|l| l.split_whitespace().skip(1).take(2).collect()).collect();
        assert_eq!(times, [["~300ns", "~200ns"], ["1.00µs+", "~100ns+"]]);
        // A tenth of its callees' 100 ns beside its own 30; a tenth of 900.
        assert_eq!(all.map(|r| r.stat.self_error_ns), [Some(31), Some(90)]);
    }

    /// As it is written, which is as a serializer does it.
    fn written(row: &Row<'_>) -> String {
        let (function, mut out) = (Function::from(row), Text::default());
        function.write(&mut out);
        let text = String::from_utf8(out.bytes().to_vec()).unwrap();
        assert_eq!(text, serde_json::to_string(&function).unwrap());
        text
    }

    #[test]
    fn rows_of_all_kinds_are_written_as_a_serializer_does() {
        let thread = Part::Thread { pid: 7, tid: u32::MAX, name: "a \"thread\"" };
        let parts = [
            Part::Caller(None),
            Part::Caller(Some("std::vector<int>".into())),
            thread,
            Part::Process { pid: 0, name: "" },
        ];
        for part in parts.into_iter().map(Some).chain([None]) {
            for error_ns in [None, Some(12)] {
                let mut row = row("operator\\", &bytes(u64::MAX, 300, 200, &[(7, 2)]));
                row.symbol = "_Zmangled";
                row.part = part.clone();
                (row.stat.error_ns, row.stat.self_error_ns) = (error_ns, error_ns);
                assert!(written(&row).contains(r#""symbol":"_Zmangled""#));
            }
        }
    }

    #[test]
    fn json_has_the_promised_keys() {
        let row = row("f", &bytes(2, 300, 200, &[(7, 2)]));
        assert_eq!(
            written(&row),
            r#"{"name":"f","module":"libx.so.1","calls":2,"total_ns":300,"self_ns":200,"p50_ns":192,"p99_ns":254,"estimated":false,"error_ns":0,"self_error_ns":0,"running":0,"path":"/lib/libx.so.1"}"#
        );
    }

    #[test]
    fn no_times_are_not_zero_times() {
        let mut row = row("f", &bytes(2, 0, 0, &[]));
        row.entry_only = Some("returns twice");
        // None of the calls was timed.
        row.stat.error_ns = Some(0);
        assert!(!row.is_estimated());
        assert_eq!(
            written(&row),
            r#"{"name":"f","module":"libx.so.1","calls":2,"total_ns":null,"self_ns":null,"p50_ns":null,"p99_ns":null,"entry_only":"returns twice","estimated":false,"error_ns":0,"self_error_ns":0,"running":0,"path":"/lib/libx.so.1"}"#
        );
    }

    #[test]
    fn reasons_that_differ_in_numbers_are_one_group() {
        let skip = |function: &str, reason: &str| Skipped {
            function: function.into(),
            path: "/lib/libx.so".into(),
            reason: reason.into(),
        };
        let all = [
            skip("one", "denied: it returns twice"),
            skip("a", "jump from 0x7f10 of the file to +2 of the function"),
            skip("b", "jump from 0xab of the file to +11 of the function"),
            skip("c", "jump from 0xab of the file to +11 of the function"),
            skip("d", "jump from 0xab of the file to +11 of the function"),
            skip("e", "jump from 0xab of the file to +11 of the function"),
        ];
        assert_eq!(
            skipped_lines(&all, false),
            [
                "     5  jump from N of the file to +N of the function: a, b, c, d, …",
                "     1  denied: it returns twice: one"
            ]
        );
        let many: Vec<_> =
            (b'a'..b'k').map(|c| skip("f", &format!("reason {}", char::from(c)))).collect();
        let lines = skipped_lines(&many, false);
        assert_eq!(
            (lines.len(), lines.last().map(String::as_str)),
            (7, Some("     4  for 4 other reasons"))
        );
        assert_eq!(skipped_lines(&all[..1], true), ["  libx.so:one: denied: it returns twice"]);
    }
}
