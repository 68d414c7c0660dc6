//! `skep export`: reports of `skep trace --json` as metrics for Prometheus and OpenTelemetry, and as
//! tables in Parquet.

mod parquet;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::args::{ExportArgs, ExportFormat};
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer, check_apart};

/// Largest report that is read: a hundred thousand functions are a tenth of it.
const LARGEST: u64 = 1 << 28;

/// What `skep trace --json` wrote, as far as it becomes metrics.
struct Report {
    wall_ns: u64,
    missed: u64,
    functions: Vec<Function>,
}

/// Times are missing where calls were only counted.
struct Function {
    name: String,
    module: String,
    calls: u64,
    /// [`TOTAL`] and so on.
    times: [Option<u64>; 4],
}

const TOTAL: usize = 0;
const SELF: usize = 1;
const P50: usize = 2;
const P99: usize = 3;

impl Report {
    /// Takes it out of a document; fails with the key that is missing. Functions of one name and
    /// module are added up: percentiles of several are not known.
    fn of(document: &Value) -> Result<Self, &'static str> {
        let (mut functions, mut places) = (Vec::<Function>::new(), BTreeMap::new());
        for f in document["functions"].as_array().ok_or("functions")? {
            let text = |key: &'static str| f[key].as_str().map(str::to_owned).ok_or(key);
            let (name, module) = (text("name")?, text("module")?);
            let calls = f["calls"].as_u64().ok_or("calls")?;
            let times = ["total_ns", "self_ns", "p50_ns", "p99_ns"].map(|key| f[key].as_u64());
            let place = *places.entry((name.clone(), module.clone())).or_insert(functions.len());
            let Some(known) = functions.get_mut(place) else {
                functions.push(Function { name, module, calls, times });
                continue;
            };
            known.calls = known.calls.saturating_add(calls);
            for which in [TOTAL, SELF] {
                let all = [known.times[which], times[which]];
                known.times[which] = all.into_iter().flatten().reduce(u64::saturating_add);
            }
            (known.times[P50], known.times[P99]) = (None, None);
        }
        let wall_ns = document["wall_ns"].as_u64().ok_or("wall_ns")?;
        Ok(Self { wall_ns, missed: document["missed"].as_u64().unwrap_or(0), functions })
    }
}

/// Reads a report and writes it for another system.
pub fn run(args: &ExportArgs, printer: Printer) -> Result<u8> {
    let again = |(at, (name, _)): &(usize, &(String, String))| {
        args.labels.iter().take(*at).any(|(before, _)| before == name)
    };
    if let Some((_, (name, _))) = args.labels.iter().enumerate().find(again) {
        return Err(Failure::environment(format!("--label: `{name}` is given twice")));
    }
    for (name, _) in &args.labels {
        check_label(args.format, name)
            .map_err(|why| Failure::environment(format!("--label: `{name}` {why}")))?;
    }
    let is_table = matches!(args.format, ExportFormat::Parquet);
    if is_table && args.output.is_none() && io::stdout().is_terminal() {
        return Err(Failure::environment("a table in Parquet is nothing for a terminal")
            .hint("write it to a file: `-o FILE.parquet`"));
    }
    let (report, end) = read(&args.report)?;
    check_apart(args.output.as_deref(), &[], &[&args.report])?;
    let output = Output::open(args.output.as_deref())?;
    match args.format {
        ExportFormat::Prometheus => {
            printer.data(output, |out| prometheus(out, &report, &args.labels))?;
        }
        ExportFormat::Otlp => printer.data(output, |out| otlp(out, &report, &args.labels, end))?,
        ExportFormat::Parquet => {
            printer.data(output, |out| parquet::write(out, &report, &args.labels, end))?;
        }
    }
    Ok(0)
}

/// Fails with what is wrong unless a label may have this name.
fn check_label(format: ExportFormat, name: &str) -> Result<(), &'static str> {
    let is_attribute = matches!(format, ExportFormat::Otlp);
    let is_word =
        |c: char| c.is_ascii_alphanumeric() || c == '_' || (is_attribute && matches!(c, '.' | '-'));
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_word) {
        return Err(match is_attribute {
            true => "is no name of letters, digits, `_`, `.` and `-` that begins with a letter",
            false => "is no name of letters, digits and `_` that begins with a letter",
        });
    }
    match format {
        ExportFormat::Otlp if name == SDK => Err("is an attribute of skep's own"),
        ExportFormat::Parquet if parquet::is_own(name) => Err("is a column of skep's own"),
        _ if ["function", "module", "quantile"].contains(&name) => Err("is a label of skep's own"),
        // The bounds of histograms, and nothing else.
        ExportFormat::Prometheus if name == "le" => Err("is a label of Prometheus's own"),
        _ => Ok(()),
    }
}

/// Returns the report, and when its trace ended: as it says, or, if it is an older one, when it was
/// written.
fn read(path: &Path) -> Result<(Report, SystemTime)> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { format!("`{}`", path.display()) };
    let unreadable = |e: io::Error| Failure::environment(format!("cannot read {name}: {e}"));
    let mut text = Vec::new();
    let end = if is_stdin {
        io::stdin().take(LARGEST + 1).read_to_end(&mut text).map_err(unreadable)?;
        SystemTime::now()
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let written = file.metadata().and_then(|m| m.modified()).map_err(unreadable)?;
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(unreadable)?;
        written
    };
    if text.len() as u64 > LARGEST {
        return Err(Failure::environment(format!("{name} has more than {LARGEST} bytes")));
    }
    let wrong = |what: String| {
        Failure::environment(format!("{name} is not a report: {what}"))
            .hint("`skep trace --json -o FILE` writes one")
    };
    let document: Value = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let report = Report::of(&document).map_err(|key| wrong(format!("it has no `{key}`")))?;
    let said = document["ended_unix_ns"].as_u64().map(|ns| UNIX_EPOCH + Duration::from_nanos(ns));
    Ok((report, said.unwrap_or(end)))
}

type Labels = [(String, String)];

/// Writes nanoseconds as seconds, exactly.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes the text format (prometheus.io/docs/instrumenting/exposition_formats).
fn prometheus(out: &mut dyn Write, report: &Report, labels: &Labels) -> io::Result<()> {
    let own: String = labels.iter().map(|(n, v)| format!(",{n}=\"{}\"", escaped(v))).collect();
    let series = |f: &Function| {
        format!("function=\"{}\",module=\"{}\"{own}", escaped(&f.name), escaped(&f.module))
    };
    head(out, "skep_calls_total", "counter", "Calls of the function.")?;
    for f in &report.functions {
        writeln!(out, "skep_calls_total{{{}}} {}", series(f), f.calls)?;
    }
    head(out, "skep_call_seconds", "summary", "Time of a call, callees included.")?;
    for f in &report.functions {
        let Some(total) = f.times[TOTAL] else { continue };
        let labels = series(f);
        for (quantile, ns) in [("0.5", f.times[P50]), ("0.99", f.times[P99])] {
            let Some(ns) = ns.map(seconds) else { continue };
            writeln!(out, "skep_call_seconds{{{labels},quantile=\"{quantile}\"}} {ns}")?;
        }
        writeln!(out, "skep_call_seconds_sum{{{labels}}} {}", seconds(total))?;
        writeln!(out, "skep_call_seconds_count{{{labels}}} {}", f.calls)?;
    }
    head(out, "skep_self_seconds_total", "counter", "Time in the function itself.")?;
    for f in &report.functions {
        let Some(ns) = f.times[SELF] else { continue };
        writeln!(out, "skep_self_seconds_total{{{}}} {}", series(f), seconds(ns))?;
    }
    let labels = own.trim_start_matches(',');
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    head(out, "skep_wall_seconds_total", "counter", "Time that was traced.")?;
    writeln!(out, "skep_wall_seconds_total{labels} {}", seconds(report.wall_ns))?;
    head(out, "skep_missed_total", "counter", "Calls that were not counted.")?;
    writeln!(out, "skep_missed_total{labels} {}", report.missed)
}

fn head(out: &mut dyn Write, name: &str, kind: &str, help: &str) -> io::Result<()> {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

/// A value between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A metric of OpenTelemetry: its name, unit and description, whether it only grows, and its value
/// for a function.
type Metric = (&'static str, &'static str, &'static str, bool, fn(&Function) -> Option<String>);

fn time(f: &Function, which: usize) -> Option<String> {
    f.times[which].map(|ns| format!("\"asDouble\":{}", seconds(ns)))
}

const METRICS: [Metric; 5] = [
    ("skep.calls", "{call}", "Calls of the function.", true, |f| {
        Some(format!("\"asInt\":\"{}\"", f.calls))
    }),
    ("skep.time", "s", "Time of its calls, callees included.", true, |f| time(f, TOTAL)),
    ("skep.self_time", "s", "Time in the function itself.", true, |f| time(f, SELF)),
    ("skep.call.p50", "s", "Median of the times of its calls.", false, |f| time(f, P50)),
    ("skep.call.p99", "s", "What one call in a hundred took longer than.", false, |f| time(f, P99)),
];

/// The attribute that says who measured.
const SDK: &str = "telemetry.sdk.name";

/// Writes an `ExportMetricsServiceRequest` in the JSON form of OTLP, where 64-bit numbers are texts.
fn otlp(out: &mut dyn Write, report: &Report, labels: &Labels, end: SystemTime) -> io::Result<()> {
    let end = end.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos();
    let start = end.saturating_sub(u128::from(report.wall_ns));
    let times = format!("\"startTimeUnixNano\":\"{start}\",\"timeUnixNano\":\"{end}\"");
    let attribute = |key: &str, value: &str| {
        format!("{{\"key\":\"{key}\",\"value\":{{\"stringValue\":{}}}}}", Value::from(value))
    };
    let mut resource = vec![attribute(SDK, "skep")];
    resource.extend(labels.iter().map(|(name, value)| attribute(name, value)));
    write!(
        out,
        "{{\"resourceMetrics\":[{{\"resource\":{{\"attributes\":[{}]}},\"scopeMetrics\":[{{\
         \"scope\":{{\"name\":\"skep\",\"version\":\"{}\"}},\"metrics\":[",
        resource.join(","),
        env!("CARGO_PKG_VERSION")
    )?;
    for (name, unit, what, grows, value) in METRICS {
        write!(out, "{{\"name\":\"{name}\",\"unit\":\"{unit}\",\"description\":\"{what}\",")?;
        // 2: cumulative, since the trace began.
        out.write_all(match grows {
            true => b"\"sum\":{\"aggregationTemporality\":2,\"isMonotonic\":true,\"dataPoints\":[",
            false => b"\"gauge\":{\"dataPoints\":[".as_slice(),
        })?;
        let mut comma = "";
        for f in &report.functions {
            let Some(value) = value(f) else { continue };
            let of = [attribute("function", &f.name), attribute("module", &f.module)].join(",");
            write!(out, "{comma}{{\"attributes\":[{of}],{value},{times}}}")?;
            comma = ",";
        }
        out.write_all(b"]}},")?;
    }
    writeln!(
        out,
        "{{\"name\":\"skep.missed\",\"unit\":\"{{call}}\",\"description\":\"Calls that were not counted.\",\
         \"sum\":{{\"aggregationTemporality\":2,\"isMonotonic\":true,\"dataPoints\":[\
         {{\"asInt\":\"{}\",{times}}}]}}}}]}}]}}]}}",
        report.missed
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let document = json!({
            "command": ["x"], "wall_ns": 2_000_000_000_u64, "missed": 3,
            "functions": [
                {"name": "operator\"\\", "module": "a b", "calls": 4, "total_ns": 1_500_000_000_u64, "self_ns": 500_000_000, "p50_ns": 1000, "p99_ns": null},
                {"name": "f", "module": "libc.so.6", "calls": 7, "total_ns": null, "self_ns": null, "p50_ns": null, "p99_ns": null},
                {"name": "f", "module": "libc.so.6", "calls": 1, "total_ns": 1_000_000_000, "self_ns": 1, "p50_ns": 5, "p99_ns": 5},
            ],
        });
        Report::of(&document).expect("a report")
    }

    /// `service.name`, the attribute that all collectors look for, was refused.
    #[test]
    fn names_of_labels_are_those_of_the_format() {
        use ExportFormat::{Otlp, Parquet, Prometheus};
        for (name, good) in [
            ("host_1", &[Otlp, Parquet, Prometheus][..]),
            ("service.name", &[Otlp]),
            ("k8s.pod-name", &[Otlp]),
            ("le", &[Otlp, Parquet]),
            ("calls", &[Otlp, Prometheus]),
            ("telemetry.sdk.name", &[]),
            ("function", &[]),
            ("1a", &[]),
            (".a", &[]),
            ("a\"b", &[]),
            ("", &[]),
        ] {
            for format in [Otlp, Parquet, Prometheus] {
                let got = check_label(format, name);
                assert_eq!(got.is_ok(), good.contains(&format), "{name}: {format:?} {got:?}");
            }
        }
    }

    #[test]
    fn prometheus_has_each_series_once() {
        let (mut out, labels) = (Vec::new(), [("job".to_owned(), "we\"b".to_owned())]);
        prometheus(&mut out, &report(), &labels).expect("memory");
        let text = String::from_utf8(out).expect("text");
        let values: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        let (odd, f) = (
            r#"function="operator\"\\",module="a b",job="we\"b""#,
            r#"function="f",module="libc.so.6",job="we\"b""#,
        );
        let want = [
            format!("skep_calls_total{{{odd}}} 4"),
            format!("skep_calls_total{{{f}}} 8"),
            format!("skep_call_seconds{{{odd},quantile=\"0.5\"}} 0.000001"),
            format!("skep_call_seconds_sum{{{odd}}} 1.5"),
            format!("skep_call_seconds_count{{{odd}}} 4"),
            format!("skep_call_seconds_sum{{{f}}} 1"),
            format!("skep_call_seconds_count{{{f}}} 8"),
            format!("skep_self_seconds_total{{{odd}}} 0.5"),
            format!("skep_self_seconds_total{{{f}}} 0.000000001"),
            r#"skep_wall_seconds_total{job="we\"b"} 2"#.to_owned(),
            r#"skep_missed_total{job="we\"b"} 3"#.to_owned(),
        ];
        assert_eq!(values, want);
    }

    #[test]
    fn otlp_has_numbers_as_texts_and_times_from_the_report() {
        let end = UNIX_EPOCH + Duration::from_secs(100);
        let mut out = Vec::new();
        otlp(&mut out, &report(), &[("host.name".to_owned(), "a\"".to_owned())], end)
            .expect("memory");
        let request: Value = serde_json::from_slice(&out).expect("JSON");
        let of = &request["resourceMetrics"][0];
        let host = &of["resource"]["attributes"][1];
        assert_eq!(
            (&host["key"], &host["value"]["stringValue"]),
            (&json!("host.name"), &json!("a\""))
        );
        let metrics = of["scopeMetrics"][0]["metrics"].as_array().expect("a list");
        let named = |name: &str| metrics.iter().find(|m| m["name"] == name).expect("it is there");
        let calls = &named("skep.calls")["sum"]["dataPoints"];
        assert_eq!(calls[1]["asInt"], "8");
        assert_eq!(calls[0]["startTimeUnixNano"], "98000000000");
        assert_eq!(calls[0]["timeUnixNano"], "100000000000");
        assert_eq!(named("skep.time")["sum"]["dataPoints"][0]["asDouble"], 1.5);
        assert_eq!(named("skep.call.p50")["gauge"]["dataPoints"].as_array().map(Vec::len), Some(1));
        assert_eq!(named("skep.missed")["sum"]["dataPoints"][0]["asInt"], "3");
    }
}
