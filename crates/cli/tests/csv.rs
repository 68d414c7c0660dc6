//! `skep trace --csv`: what a reader of CSV that is not ours makes of it.

mod common;

use std::process::Command;

use common::{LEAVES, Skep, fails, json, out, target};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, skip};

/// Prints the rows that python's reader finds, as JSON.
const READER: &str = "import csv, json, sys
print(json.dumps(list(csv.DictReader(open(sys.argv[1], newline=''), strict=True))))";

const PROGRAM: &str = "
volatile int sink;
__attribute__((noinline)) int operator\"\"_odd(const char *, unsigned long n) { sink += n; return sink; }
__attribute__((noinline)) int add(int a, char b) { asm(\"\"); return a + b; }
int main() { for (int i = 0; i < 3; i++) add(i, 1); \"a\"_odd; }
";

#[test]
fn other_readers_find_the_same_as_in_json() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("odd.cc");
    std::fs::write(&source, PROGRAM).unwrap();
    let program = Cc::cxx().args(&["-O1"]).compile(&[&source], &dir.path().join("odd"));
    let program = program.to_str().unwrap();
    let file = skep.path("report.csv");
    let file = file.to_str().unwrap();
    let printed = out(&skep, &["trace", "odd:*", "--csv", "-o", file, "--", program]);
    assert_eq!(printed, "", "all of it is in the file");
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{text}");
    if !has_command("python3") {
        return skip("python3");
    }
    let read = Command::new("python3").args(["-c", READER, file]).output().unwrap();
    let rows = json(&read.stdout);
    let report = json(out(&skep, &["trace", "odd:*", "--json", "--", program]).as_bytes());
    let names = |rows: &serde_json::Value| {
        let key = |f: &serde_json::Value| {
            let text = |k: &str| f[k].as_str().map(str::to_owned).unwrap_or(f[k].to_string());
            ["name", "function", "module", "path", "calls", "running"]
                .map(|k| if f[k].is_null() { String::new() } else { text(k) })
                .concat()
        };
        let mut all: Vec<String> = rows.as_array().unwrap().iter().map(key).collect();
        all.sort();
        all
    };
    assert_eq!(names(&rows), names(&report["functions"]), "{text}");
    assert!(text.contains("\"add(int, char)\",odd,3,"), "{text}");
    assert!(text.lines().any(|l| l.contains("\"\"\"\"")), "{text}");
}

#[test]
fn rows_are_sorted_and_cut_as_in_the_table() {
    let skep = Skep::new();
    let args = ["trace", "target:*", "--csv", "--sort", "calls", "--limit", "1", "--", target()];
    let text = out(&skep, &args);
    let lines: Vec<&str> = text.lines().collect();
    let [head, row] = lines.as_slice() else { panic!("{text}") };
    assert!(head.starts_with("function,module,calls,total_ns,self_ns,"), "{head}");
    assert!(row.starts_with(&format!("leaf,target,{LEAVES},")), "{row}");
    for other in ["--json", "--tree", "--args"] {
        fails(&skep, &["trace", "x", "--csv", other, "--", "true"], 2, "cannot be used with");
    }
}
