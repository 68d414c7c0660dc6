//! `skep trace --coverage`: the same functions as gcc's own instrumentation finds, in a build without
//! it, and hooks that are gone after the first call.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::{Skep, fails, json, out, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::skip::{has_command, skip};

const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
static volatile long sink;
N void never(void) { sink += 1; }
N void often(int n) { sink += n; }
N void
of_two_lines(int a,
             int b)
{ sink += a + b; }
N void in_child(void) { sink += 3; }
N void in_thread(int n) { sink += 2 * n; }
N void *work(void *p) { for (int i = 0; i < 1000; i++) { in_thread(i); often(i); } return p; }
N void also_never(int n) { sink += n; never(); }
N void aligned_one(void) { sink += 5; }
int main(int argc, char **argv) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(t + i, 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    of_two_lines(1, 2);
    pid_t child = fork();
    if (!child) { in_child(); often(1); return 0; }
    waitpid(child, 0, 0);
    if (argc > 5) also_never(argc);
    aligned_one();
    return 0;
}
"#;

/// Compiles the program.
fn build(dir: &TempDir, name: &str, flags: &[&str]) -> String {
    let source = dir.path().join("covered.c");
    fs::write(&source, PROGRAM).expect("written");
    let flags: Vec<&str> = ["-g", "-O1", "-pthread"].iter().chain(flags).copied().collect();
    let path = Cc::c().args(&flags).compile(&[&source], &dir.path().join(name));
    path.to_str().expect("text").to_owned()
}

/// Functions with their lines and whether they were called, of an lcov file.
fn of_lcov(text: &str, source: &str) -> BTreeMap<String, (u32, bool)> {
    let record = text.split("end_of_record").find(|r| {
        r.lines().any(|l| l.strip_prefix("SF:").is_some_and(|file| file.ends_with(source)))
    });
    let mut all = BTreeMap::new();
    for line in record.expect("the source").lines() {
        if let Some((line, name)) = line.strip_prefix("FN:").and_then(|l| l.split_once(',')) {
            all.insert(name.to_owned(), (line.parse().expect("a line"), false));
        }
        if let Some((count, name)) = line.strip_prefix("FNDA:").and_then(|l| l.split_once(',')) {
            all.get_mut(name).expect("FN is before FNDA").1 = count != "0";
        }
    }
    all
}

#[test]
fn the_functions_are_those_that_gcov_finds() {
    if !has_command("gcov") {
        return skip("gcov");
    }
    let (dir, skep) = (TempDir::new(), Skep::new());
    // gcc's own, in a build of its own.
    let instrumented = build(&dir, "instrumented", &["--coverage"]);
    let ran = Command::new(&instrumented).current_dir(dir.path()).status().expect("it runs");
    assert!(ran.success());
    let find = |end: &str| {
        let files = fs::read_dir(dir.path()).expect("a folder").flatten();
        files.map(|f| f.path()).find(|p| p.to_string_lossy().ends_with(end)).expect("written")
    };
    let gcov = Command::new("gcov")
        .args(["--json-format", "--stdout"])
        .arg(find(".gcda"))
        .current_dir(dir.path())
        .output()
        .expect("gcov");
    let gcov = json(&gcov.stdout);
    let mut want = BTreeMap::new();
    for f in gcov["files"][0]["functions"].as_array().expect("functions") {
        let line = |key: &str| f[key].as_u64().expect("a line") as u32;
        let name = f["name"].as_str().expect("a name").to_owned();
        let lines = line("start_line")..=line("end_line");
        want.insert(name, (lines, f["execution_count"].as_u64() > Some(0)));
    }
    assert_eq!(want.len(), 9, "{gcov}");

    let plain = build(&dir, "plain", &[]);
    let file = skep.path("covered.info");
    let file = file.to_str().expect("text");
    let table = out(&skep, &["trace", "plain:*", "--coverage", file, "--", &plain]);
    let found = of_lcov(&fs::read_to_string(file).expect("written"), "covered.c");
    assert!(found.keys().eq(want.keys()), "{found:?} {want:?}");
    for (name, (lines, called)) in &want {
        let (line, found) = found[name];
        // Where a declaration takes several lines, the first one with code counts here.
        assert!(lines.contains(&line), "{name}: {line} is not in {lines:?}");
        assert_eq!(found, *called, "{name}");
    }
    let row: Vec<&str> = table.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!((row[1], row[3]), ("7", "plain"), "{table}");
}

#[test]
fn xml_and_json_say_the_same() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let plain = build(&dir, "plain", &[]);
    let file = skep.path("covered.xml");
    let file = file.to_str().expect("text");
    let args = ["trace", "plain:*", "--coverage", file, "--json", "--", &plain];
    let report = json(out(&skep, &args).as_bytes());
    let xml = fs::read_to_string(file).expect("written");
    let functions = report["functions"].as_array().expect("functions");
    let of = |name: &str| functions.iter().find(|f| f["name"] == name).expect("it was hooked");
    for (name, called) in [("often", true), ("in_child", true), ("never", false)] {
        assert_eq!(of(name)["called"], called, "{name}");
        assert!(of(name)["file"].as_str().expect("a file").ends_with("covered.c"));
        let (line, hits) = (&of(name)["line"], u8::from(called));
        let method = format!(
            "<method name=\"{name}\" signature=\"\" line-rate=\"{hits}\" branch-rate=\"0\" complexity=\"0\"><lines><line number=\"{line}\" hits=\"{hits}\"/>"
        );
        assert!(xml.contains(&method), "{method}: {xml}");
    }
    assert!(xml.contains("lines-covered=\"7\" lines-valid=\"9\""), "{xml}");
    if has_command("python3") {
        let check = "import sys, xml.dom.minidom; print(len(xml.dom.minidom.parse(sys.argv[1]).getElementsByTagName('method')))";
        let parsed = Command::new("python3").args(["-c", check, file]).output().expect("python3");
        assert_eq!(text(&parsed.stdout).trim(), "9", "{}", text(&parsed.stderr));
    }
}

/// Prints the first bytes of a function before and after it was called.
const BYTES: &str = r#"
#include <stdio.h>
static volatile long sink;
__attribute__((noinline, noclone, aligned(16))) long hot(long n) { sink += n; return sink + n; }
static void print(void) {
    const unsigned char *code = (const unsigned char *)hot;
    for (int i = 0; i < 5; i++) printf("%02x", code[i]);
    puts("");
}
int main(void) {
    print();
    for (int i = 0; i < 1000; i++) hot(i);
    print();
    return 0;
}
"#;

#[test]
fn after_the_first_call_the_function_is_as_it_was() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("bytes.c");
    fs::write(&source, BYTES).expect("written");
    let program = Cc::c().args(&["-O1"]).compile(&[&source], &dir.path().join("bytes"));
    let program = program.to_str().expect("text");
    let alone = text(&Command::new(program).output().expect("it runs").stdout);
    let original = alone.lines().next().expect("bytes").to_owned();
    let file = skep.path("bytes.info");
    let args = ["trace", "bytes:hot", "--coverage", file.to_str().expect("text"), "--", program];
    let printed = out(&skep, &args);
    let lines: Vec<&str> = printed.lines().collect();
    assert_ne!(lines[0], original, "it is hooked: {printed}");
    assert_eq!(lines[1], original, "{printed}");
    let row: Vec<&str> = printed.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!(row, ["1", "1", "100.0", "bytes"], "{printed}");
    // Without debug information there is nothing for lcov, which is said.
    let said = skep.run(args);
    assert!(text(&said.stderr).contains("source lines of 1 function are not known"));

    for other in ["--tree", "--args", "--exact", "--min=1ms", "--sort=calls"] {
        let args = ["trace", "x", "--coverage", "x.info", other, "--", "true"];
        fails(&skep, &args, 2, "cannot be used with");
    }
    let args = ["trace", "bytes:hot", "--coverage", "/nowhere/x", "--", program];
    fails(&skep, &args, 2, "cannot create");
}

/// The agent itself calls the C library while it takes a hook out, and its heap does while it is
/// locked: the first call of such a function is an event in the middle of that.
#[test]
fn all_functions_of_a_program_that_forks_are_covered() {
    let skep = Skep::new();
    let file = skep.path("all.info");
    let file = file.to_str().expect("text");
    let script = "for i in 1 2 3; do x=$(echo $i; (true) & wait); done; echo $x | cat";
    let (shell, last) =
        if has_command("bash") { ("bash", "all done") } else { ("/bin/sh", "all done") };
    let script = format!("{script}; echo {last}");
    for _ in 0..3 {
        let args = ["trace", "*", "--coverage", file, "--", shell, "-c", &script];
        let printed = out(&skep, &args);
        assert!(printed.starts_with("3\nall done\n"), "{printed}");
        let rows: Vec<&str> = printed.lines().filter(|l| l.contains("libc")).collect();
        assert_eq!(rows.len(), 1, "{printed}");
        let cells: Vec<&str> = rows[0].split_whitespace().collect();
        let called: u32 = cells[1].parse().expect("a number");
        assert!(called > 100, "{printed}");
    }
}
