//! `skep export`: metrics of a real trace, read by the programs that they are for.

mod common;

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{LEAVES, Skep, fails, json, out, target, text};
use skep_testkit::run::run;
use skep_testkit::skip;
use skep_testkit::skip::has_command;

const LIMIT: Duration = Duration::from_secs(300);

/// Traces the target's functions and returns the report's file.
fn traced(skep: &Skep) -> String {
    let report = skep.path("report.json").display().to_string();
    out(skep, &["trace", "--json", "-o", &report, "target:*", "--", target()]);
    report
}

#[test]
fn prometheus_reads_what_was_traced() {
    let skep = Skep::new();
    let report = traced(&skep);
    let metrics = out(&skep, &["export", "prometheus", &report, "--label", "job=test"]);
    let line =
        format!("skep_calls_total{{function=\"leaf\",module=\"target\",job=\"test\"}} {LEAVES}");
    assert!(metrics.lines().any(|l| l == line), "{metrics}");
    // Each series once, of a metric that was declared.
    let mut series: Vec<&str> = metrics
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.rsplit_once(' '))
        .map(|(s, _)| s)
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all);
    // The same out of a pipe.
    let bytes = std::fs::read(&report).unwrap();
    let piped = skep.run_with(["export", "prometheus", "--label", "job=test"], &bytes);
    assert_eq!(text(&piped.stdout), metrics);
    if !has_command("promtool") {
        return skip("promtool");
    }
    let read = run(Command::new("promtool").args(["check", "metrics"]), metrics.as_bytes(), LIMIT);
    assert_eq!(read.shell_status(), 0, "{}", read.transcript());
}

/// The points of metrics are at the end of the trace, also when the file is copied or the report made
/// later.
#[test]
fn reports_know_when_they_were_made() {
    let skep = Skep::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (before, recording) = (now(), skep.path("recording").display().to_string());
    out(&skep, &["-q", "trace", "target:*", "--exact", "--record", &recording, "--", target()]);
    let after = now();
    let later = skep.path("later.json").display().to_string();
    out(&skep, &["report", &recording, "--json", "-o", &later]);
    assert_eq!(
        Command::new("touch").args(["-d", "2001-01-01", &later]).status().unwrap().code(),
        Some(0)
    );
    let document = json(&std::fs::read(&later).unwrap());
    let of = |key: &str| document[key].as_u64().unwrap_or(0);
    let (ended, wall) = (of("ended_unix_ns"), of("wall_ns"));
    assert!(before < ended - wall && ended < after, "{before} {wall} {ended} {after}");
    let request = out(&skep, &["export", "otlp", &later]);
    assert!(request.contains(&format!("\"timeUnixNano\":\"{ended}\"")), "{ended}: {request}");
    // Reports of older versions do not say it: the file's time is taken.
    let mut old = document;
    old.as_object_mut().unwrap().remove("ended_unix_ns");
    std::fs::write(&later, old.to_string()).unwrap();
    assert!(Command::new("touch").args(["-d", "@1000000000", &later]).status().unwrap().success());
    let request = out(&skep, &["export", "otlp", &later]);
    assert!(request.contains("\"timeUnixNano\":\"1000000000000000000\""), "{request}");
}

#[test]
fn opentelemetry_reads_what_was_traced() {
    let skep = Skep::new();
    let request = out(&skep, &["export", "otlp", &traced(&skep), "--label", "service.name=here"]);
    assert!(json(request.as_bytes())["resourceMetrics"].is_array());
    let script = "
import sys
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
request = Parse(sys.stdin.read(), ExportMetricsServiceRequest())
for metric in request.resource_metrics[0].scope_metrics[0].metrics:
    if metric.name == 'skep.calls':
        for point in metric.sum.data_points:
            names = {a.key: a.value.string_value for a in point.attributes}
            assert point.time_unix_nano > point.start_time_unix_nano > 1600000000 * 10**9
            print(names['function'], point.as_int)
";
    let has = "import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2";
    let mut probe = Command::new("python3");
    if !probe.args(["-c", has]).output().is_ok_and(|o| o.status.success()) {
        return skip("python3 with opentelemetry-proto");
    }
    let read = run(Command::new("python3").args(["-c", script]), request.as_bytes(), LIMIT);
    assert_eq!(read.shell_status(), 0, "{}", read.transcript());
    assert!(text(&read.stdout).contains(&format!("leaf {LEAVES}\n")), "{}", read.transcript());
}

/// Whether Python has a module.
fn has_module(name: &str) -> bool {
    let mut probe = Command::new("python3");
    probe.args(["-c", &format!("import {name}")]).output().is_ok_and(|o| o.status.success())
}

/// Both readers find what the report has, and types that one can count with.
#[test]
fn tables_are_read_by_arrow_and_by_duckdb() {
    let skep = Skep::new();
    let (report, table) = (traced(&skep), skep.path("report.parquet").display().to_string());
    let args = ["export", "parquet", &report, "--label", "host=here", "-o", &table];
    assert_eq!(out(&skep, &args), "");
    let bytes = std::fs::read(&table).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    // The same through a pipe.
    let piped = skep.run_with(["export", "parquet", &report, "--label", "host=here"], b"");
    assert_eq!(piped.stdout, bytes);
    let mut empty = json(&std::fs::read(&report).unwrap());
    empty["functions"] = serde_json::json!([]);
    let none = skep.path("none.parquet").display().to_string();
    let args = ["export", "parquet", "-", "-o", &none];
    assert_eq!(skep.run_with(args, empty.to_string().as_bytes()).shell_status(), 0);
    let check = "
import json, sys
report, rows, empty = json.load(open(sys.argv[1])), ROWS, EMPTY
assert len(rows) == len(report['functions']) and empty == 0
for row, f in zip(rows, report['functions']):
    assert (row['function'], row['module'], row['calls']) == (f['name'], f['module'], f['calls'])
    for key in ['total_ns', 'self_ns', 'p50_ns', 'p99_ns']:
        assert row[key] == f[key], (key, row, f)
    assert row['wall_ns'] == report['wall_ns'] and row['host'] == 'here'
    assert row['time'].year > 2020
print(sum(row['calls'] for row in rows if row['function'] == 'leaf'))
";
    let arrow = "
import pyarrow.parquet as pq
file = pq.ParquetFile(sys.argv[2])
assert file.metadata.metadata[b'missed'] == b'0' and str(file.schema_arrow.field('time').type) == 'timestamp[us, tz=UTC]'
";
    let duck = "
import duckdb
sql = lambda text, name: duckdb.execute(text.replace('FILE', name))
r = sql(\"select * from 'FILE'\", sys.argv[2])
names = [d[0] for d in r.description]
";
    let sides = [
        ("pyarrow", arrow, "file.read().to_pylist()", "pq.read_table(sys.argv[3]).num_rows"),
        (
            "duckdb",
            duck,
            "[dict(zip(names, row)) for row in r.fetchall()]",
            "sql(\"select count(*) from 'FILE'\", sys.argv[3]).fetchone()[0]",
        ),
    ];
    for (module, before, rows, empty) in sides {
        // DuckDB needs pytz for times with a zone.
        if !has_module(module) || module == "duckdb" && !has_module("pytz") {
            skip(&format!("python3 with {module}"));
            continue;
        }
        let check = check.replace("ROWS", rows).replace("EMPTY", empty);
        let script = format!("import sys\n{before}\n{check}");
        let mut python = Command::new("python3");
        let read = run(python.args(["-c", &script, &report, &table, &none]), b"", LIMIT);
        assert_eq!(read.shell_status(), 0, "{module}: {}", read.transcript());
        assert_eq!(text(&read.stdout), format!("{LEAVES}\n"), "{module}");
    }
}

#[test]
fn what_is_no_report_is_said() {
    let skep = Skep::new();
    let file = skep.path("x").display().to_string();
    std::fs::write(&file, "{\"wall_ns\": 1}").unwrap();
    fails(&skep, &["export", "otlp", &file], 2, "is not a report: it has no `functions`");
    fails(&skep, &["export", "otlp", &file], 2, "hint: `skep trace --json -o FILE` writes one");
    fails(&skep, &["export", "otlp", "/no/such"], 2, "cannot read `/no/such`");
    for label in ["job", "1a=b", "function=x", "a b=c", "service.name=web", "le=1"] {
        fails(&skep, &["export", "prometheus", &file, "--label", label], 2, "--label");
    }
    let twice = ["export", "otlp", &file, "--label", "a=1", "--label", "b=2", "--label", "a=3"];
    fails(&skep, &twice, 2, "--label: `a` is given twice");
    let own = ["export", "parquet", &file, "--label", "calls=1"];
    fails(&skep, &own, 2, "--label: `calls` is a column of skep's own");
}
