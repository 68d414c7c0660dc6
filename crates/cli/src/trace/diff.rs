//! `skep trace --diff A.json B.json`: what changed between two reports.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::args::{SortBy, TraceArgs};
use crate::failure::{Failure, Result};
use crate::files;
use crate::printer::{Output, Printer, check_apart, one_line};
use crate::report::cut;
use crate::units;

/// Rows when nothing else is asked for.
const ROWS: usize = 30;
/// Longest name that others are aligned to.
const NAME_COLUMN: usize = 48;

/// What `skep trace --json` wrote, as far as it is compared.
#[derive(Deserialize)]
struct Report {
    wall_ns: u64,
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    module: String,
    #[serde(flatten)]
    figures: Figures,
}

/// Figures of one function in one report.
#[derive(Deserialize, Serialize, Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Figures {
    calls: u64,
    /// `None`: the calls were not timed.
    total_ns: Option<u64>,
    self_ns: Option<u64>,
    #[serde(default, skip_serializing)]
    error_ns: u64,
    #[serde(default, skip_serializing)]
    self_error_ns: u64,
}

/// One function in both reports.
#[derive(Serialize, Debug)]
struct Row {
    name: String,
    module: String,
    /// `None`: it was not called.
    before: Option<Figures>,
    after: Option<Figures>,
    calls_diff: i128,
    total_diff_ns: i128,
    self_diff_ns: i128,
    /// The difference of the self times is not larger than what estimating them leaves open.
    uncertain: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    before_wall_ns: u64,
    after_wall_ns: u64,
    functions: &'a [Row],
}

/// Compares two reports, and prints what changed most.
pub fn run(args: &TraceArgs, printer: Printer) -> Result<u8> {
    let [before, after] = args.diff.as_slice() else {
        return Err(Failure::environment("--diff takes two reports"));
    };
    check_apart(args.shown.report.output.as_deref(), &[], &[before, after])?;
    let (before, after) = (read(before)?, read(after)?);
    let output = Output::open(args.shown.report.output.as_deref())?;
    let mut rows = rows(&before, &after);
    sort(&mut rows, args.shown.sort);
    let limit = match (args.shown.limit, args.shown.report.json) {
        (Some(0), _) | (None, true) => usize::MAX,
        (limit, _) => limit.unwrap_or(ROWS),
    };
    let shown = rows.get(..limit.min(rows.len())).unwrap_or_default();
    if args.shown.report.json {
        let (before_wall_ns, after_wall_ns) = (before.wall_ns, after.wall_ns);
        printer.json(output, &Document { before_wall_ns, after_wall_ns, functions: shown })?;
        return Ok(0);
    }
    let width = output.width();
    printer.data(output, |out| table(out, shown, width))?;
    printer.note(&format!(
        "wall time: {} before, {} after",
        units::time(before.wall_ns),
        units::time(after.wall_ns)
    ));
    if shown.iter().any(|r| r.uncertain) {
        printer.note(
            "~ differences that are not larger than the errors of estimated times (`--exact` times every call)",
        );
    }
    if shown.len() < rows.len() {
        let more = rows.len() - shown.len();
        printer.note(&format!(
            "{}; `--limit 0` shows all",
            units::count(more as u64, "more function")
        ));
    }
    Ok(0)
}

fn read(path: &Path) -> Result<Report> {
    let name = path.display();
    let bytes = files::read(path)
        .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Failure::environment(format!("`{name}` is not a report that can be compared: {e}"))
            .hint("`skep trace PATTERN… --json -o FILE -- COMMAND` writes one")
    })
}

fn rows(before: &Report, after: &Report) -> Vec<Row> {
    type Both = (Option<Figures>, Option<Figures>);
    let mut all: BTreeMap<(&str, &str), Both> = BTreeMap::new();
    // Functions of one name in a module are added up: that they are two is not in their names.
    for f in &before.functions {
        let (sum, _) = all.entry((&f.name, &f.module)).or_default();
        *sum = Some(sum.map_or(f.figures, |sum| add(sum, f.figures)));
    }
    for f in &after.functions {
        let (_, sum) = all.entry((&f.name, &f.module)).or_default();
        *sum = Some(sum.map_or(f.figures, |sum| add(sum, f.figures)));
    }
    let row = |((name, module), (before, after)): ((&str, &str), Both)| {
        let (a, b) = (before.unwrap_or_default(), after.unwrap_or_default());
        let diff = |a: Option<u64>, b: Option<u64>| {
            i128::from(b.unwrap_or(0)) - i128::from(a.unwrap_or(0))
        };
        let self_diff_ns = diff(a.self_ns, b.self_ns);
        let error = (a.self_error_ns as f64).hypot(b.self_error_ns as f64);
        Row {
            name: name.to_owned(),
            module: module.to_owned(),
            before,
            after,
            calls_diff: i128::from(b.calls) - i128::from(a.calls),
            total_diff_ns: diff(a.total_ns, b.total_ns),
            self_diff_ns,
            uncertain: error > 0.0 && self_diff_ns.unsigned_abs() as f64 <= error,
        }
    };
    all.into_iter().map(row).collect()
}

fn add(a: Figures, b: Figures) -> Figures {
    let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    };
    Figures {
        calls: a.calls.saturating_add(b.calls),
        total_ns: sum(a.total_ns, b.total_ns),
        self_ns: sum(a.self_ns, b.self_ns),
        error_ns: a.error_ns.saturating_add(b.error_ns),
        self_error_ns: a.self_error_ns.saturating_add(b.self_error_ns),
    }
}

/// Sorts by how much changed, in either direction; equal rows by name.
fn sort(rows: &mut [Row], by: SortBy) {
    let changed = |r: &Row| match by {
        SortBy::Calls => r.calls_diff.unsigned_abs(),
        SortBy::Total => r.total_diff_ns.unsigned_abs(),
        SortBy::Name => 0,
        SortBy::SelfTime | SortBy::P50 | SortBy::P99 => r.self_diff_ns.unsigned_abs(),
    };
    rows.sort_by(|a, b| {
        let names = || (&a.name, &a.module).cmp(&(&b.name, &b.module));
        changed(b).cmp(&changed(a)).then_with(names)
    });
}

fn table(out: &mut dyn Write, rows: &[Row], width: Option<usize>) -> io::Result<()> {
    let modules: Vec<_> = rows.iter().map(|r| one_line(&r.module)).collect();
    let module_width =
        modules.iter().map(|m| m.chars().count()).max().unwrap_or(0).max("module".len());
    let room = width.map(|w| w.saturating_sub(5 * 11 + 2 + 2 + module_width).max(16));
    let names: Vec<String> = rows.iter().map(|r| cut(&r.name, room)).collect();
    let longest = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let name_width = longest.clamp("function".len(), room.unwrap_or(NAME_COLUMN));
    writeln!(
        out,
        "{:>11}{:>11}{:>11}{:>11}{:>11}  {:name_width$}  module",
        "calls", "after", "self", "after", "diff", "function"
    )?;
    for ((row, name), module) in rows.iter().zip(&names).zip(&modules) {
        let calls = |f: &Option<Figures>| f.map_or_else(|| "-".to_owned(), |f| f.calls.to_string());
        let time = |f: &Option<Figures>| {
            f.and_then(|f| f.self_ns).map_or_else(|| "-".to_owned(), units::time)
        };
        let size = units::time(u64::try_from(row.self_diff_ns.unsigned_abs()).unwrap_or(u64::MAX));
        let diff = match (row.uncertain, row.self_diff_ns) {
            (_, 0) => "=".to_owned(),
            (uncertain, n) => {
                format!(
                    "{}{}{size}",
                    if uncertain { "~" } else { "" },
                    if n < 0 { '-' } else { '+' }
                )
            }
        };
        writeln!(
            out,
            "{:>11}{:>11}{:>11}{:>11}{diff:>11}  {name:name_width$}  {module}",
            calls(&row.before),
            calls(&row.after),
            time(&row.before),
            time(&row.after),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(functions: &str) -> Report {
        serde_json::from_str(&format!("{{\"wall_ns\":5,\"functions\":[{functions}]}}"))
            .expect("a report")
    }

    #[test]
    fn functions_are_compared_by_name_and_module() -> io::Result<()> {
        let f = |name: &str, module: &str, calls: u64, ns: u64, error: u64| {
            format!(
                "{{\"name\":\"{name}\",\"module\":\"{module}\",\"calls\":{calls},\"total_ns\":{ns},\"self_ns\":{ns},\"p50_ns\":1,\"self_error_ns\":{error}}}"
            )
        };
        let before = report(
            &[f("a", "x", 10, 1000, 0), f("gone", "x", 1, 300, 0), f("b", "x", 5, 5000, 400)]
                .join(","),
        );
        let after = report(
            &[
                f("a", "y", 7, 50, 0),
                f("a", "x", 12, 1500, 0),
                f("b", "x", 6, 5100, 300),
                f("a", "x", 1, 7, 0),
            ]
            .join(","),
        );
        let mut all = rows(&before, &after);
        sort(&mut all, SortBy::SelfTime);
        let short: Vec<_> = all
            .iter()
            .map(|r| {
                (r.name.as_str(), r.module.as_str(), r.calls_diff, r.self_diff_ns, r.uncertain)
            })
            .collect();
        assert_eq!(
            short,
            [
                ("a", "x", 3, 507, false),
                ("gone", "x", -1, -300, false),
                ("b", "x", 1, 100, true),
                ("a", "y", 7, 50, false),
            ]
        );
        let mut text = Vec::new();
        table(&mut text, &all, None)?;
        let text = String::from_utf8_lossy(&text);
        let fields: Vec<Vec<&str>> =
            text.lines().map(|l| l.split_ascii_whitespace().collect()).collect();
        assert_eq!(fields[1], ["10", "13", "1.00µs", "1.51µs", "+507ns", "a", "x"]);
        assert_eq!(fields[2], ["1", "-", "300ns", "-", "-300ns", "gone", "x"]);
        assert_eq!(fields[3][4], "~+100ns");
        assert_eq!(fields[4][..4], ["-", "7", "-", "50ns"]);
        Ok(())
    }
}
