//! A bench's result: one row a case, ours beside a rival, printed, as JSON, and kept by date.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::machine;
use super::sample::Sample;
use crate::{output, root};

/// One case.
pub struct Row {
    /// What was measured, in words that stay the same from record to record.
    pub case: String,
    /// What ours cost.
    pub ours: Sample,
    /// Who it is compared with, and what that cost; `None` when the rival is not on this machine.
    pub rival: Option<(String, Sample)>,
}

impl Row {
    /// What the numbers are: nanoseconds, or what the case says behind its last comma.
    fn unit(&self) -> &'static str {
        let of_case = self.case.rsplit_once(", ").map_or("", |(_, unit)| unit);
        ["bytes", "per_mille"].into_iter().find(|unit| *unit == of_case).unwrap_or("ns")
    }

    fn ratio(&self) -> Option<f64> {
        let rival = self.rival.as_ref().filter(|_| self.ours.median != 0.0);
        rival.map(|(_, rival)| rival.median / self.ours.median)
    }

    fn json(&self) -> Value {
        let unit = self.unit();
        json!({
            "case": self.case,
            format!("ours_{unit}"): round(self.ours.median),
            format!("ours_spread_{unit}"): [round(self.ours.low), round(self.ours.high)],
            "rival": self.rival.as_ref().map(|(name, _)| name),
            format!("rival_{unit}"): self.rival.as_ref().map(|(_, rival)| round(rival.median)),
            format!("rival_spread_{unit}"): self.rival.as_ref().map(|(_, rival)| [round(rival.low), round(rival.high)]),
            "ratio": self.ratio().map(round),
        })
    }
}

/// Three digits after the point: more would pretend.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The rows as one document.
pub fn json(rows: &[Row]) -> String {
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    serde_json::to_string_pretty(&rows).expect("numbers and strings are always JSON")
}

/// The rows as aligned columns.
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<52} {:>12} {:>23}  {:<28} {:>12} {:>7}\n",
        "case", "ours", "low..high", "rival", "rival", "ratio"
    );
    for row in rows {
        let time = |value: f64| match row.unit() {
            "ns" => time(value),
            "bytes" => format!("{value:.1} B"),
            unit => format!("{value:.1} {unit}"),
        };
        let (name, rival) = match &row.rival {
            Some((name, rival)) => (name.as_str(), time(rival.median)),
            None => ("-", "-".to_owned()),
        };
        let spread = format!("{}..{}", time(row.ours.low), time(row.ours.high));
        let ratio = row.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            text,
            "{:<52} {:>12} {spread:>23}  {name:<28} {rival:>12} {ratio:>7}",
            row.case,
            time(row.ours.median)
        )
        .expect("writing into a string does not fail");
    }
    text
}

fn time(ns: f64) -> String {
    match ns.abs() {
        x if x < 1e3 => format!("{ns:.2} ns"),
        x if x < 1e6 => format!("{:.2} us", ns / 1e3),
        x if x < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Keeps the rows, and what they were measured on, as `benches/record/DATE-NAME.json`.
pub fn record(name: &str, rows: &[Row]) -> Result<PathBuf> {
    let date = output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let dir = root().join("benches/record");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    let path = dir.join(format!("{}-{name}.json", date.trim()));
    let document = json!({
        "bench": name,
        "date": date.trim(),
        "commit": machine::commit()?,
        "cpu": machine::cpu(),
        "mitigations": machine::mitigations(),
        "load": std::fs::read_to_string("/proc/loadavg").ok().map(|text| text.trim().to_owned()),
        "kernel": said(Command::new("uname").arg("-r")),
        "rustc": said(Command::new("rustc").arg("--version")),
        "cc": said(Command::new("gcc").arg("--version")),
        "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    let text =
        serde_json::to_string_pretty(&document).expect("numbers and strings are always JSON");
    std::fs::write(&path, text + "\n")
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}

/// The first line a command prints; nothing when it cannot.
fn said(command: &mut Command) -> Option<String> {
    output(command).ok().and_then(|text| text.lines().next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_agreed_keys_and_the_ratio_is_rival_by_ours() {
        let sample = |median| Sample { median, low: median - 1.0, high: median + 1.0 };
        let row = Row {
            case: "c".into(),
            ours: sample(5.0),
            rival: Some(("uftrace".into(), sample(80.0))),
        };
        let value = row.json();
        assert_eq!(
            (&value["ours_ns"], &value["rival_ns"], &value["ratio"]),
            (&json!(5.0), &json!(80.0), &json!(16.0))
        );
        let alone = Row { case: "c".into(), ours: sample(5.0), rival: None };
        assert_eq!((&alone.json()["rival"], &alone.json()["ratio"]), (&Value::Null, &Value::Null));
        let memory = Row { case: "m: memory, bytes".into(), ours: sample(24.0), rival: None };
        assert_eq!(
            (&memory.json()["ours_bytes"], &memory.json()["ours_ns"]),
            (&json!(24.0), &Value::Null)
        );
        let lost = Row {
            case: "received, lost, per_mille".into(),
            ours: sample(0.0),
            rival: Some(("C".into(), sample(3.0))),
        };
        assert_eq!(
            (&lost.json()["ours_per_mille"], &lost.json()["ratio"]),
            (&json!(0.0), &Value::Null)
        );
        let text = table(&[row, alone, memory, lost]);
        assert!(text.contains("16.00") && text.contains("24.0 B"), "{text}");
    }
}
