//! `skep trace` by call path: trees, graphs, flame graphs and folded stacks of programs whose calls
//! are known.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use common::{Skep, fails, json, out};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;

const PROGRAM: &str = r#"
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#define N __attribute__((noinline, noclone))
static volatile long sink;
static jmp_buf env;
N long leaf(long n) { for (long i = 0; i < n; i++) sink += i; return sink + 1; }
N long left(long n) { return leaf(n) + leaf(n) + 1; }
N long right(long n) { return leaf(2 * n) + left(n) + 1; }
N long recurse(long n) { return n < 2 ? leaf(1) + 1 : n + recurse(n - 1); }
N void jump(int n) { if (n == 0) longjmp(env, 1); jump(n - 1); sink++; }
N void escape(void) { if (!setjmp(env)) jump(3); leaf(10); }
N void *work(void *p) { for (int i = 0; i < 5; i++) right(100); return p; }
N void last(void) { leaf(3); usleep(20000); exit(0); }
int main(int argc, char **argv) {
    pthread_t t[4];
    int depth = argc > 1 ? atoi(argv[1]) : 5;
    for (int i = 0; i < 4; i++) pthread_create(t + i, 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    for (int i = 0; i < 7; i++) left(1000);
    recurse(depth);
    escape();
    escape();
    last();
}
"#;

fn program(dir: &TempDir) -> String {
    let source = dir.path().join("paths.c");
    fs::write(&source, PROGRAM).expect("written");
    let flags = ["-O1", "-pthread", "-fno-optimize-sibling-calls"];
    let path: PathBuf = Cc::c().args(&flags).compile(&[&source], &dir.path().join("paths"));
    path.to_str().expect("text").to_owned()
}

fn json_of(skep: &Skep, args: &[&str]) -> Json {
    json(out(skep, args).as_bytes())
}

/// The calls of each path, outermost function first.
fn paths(document: &Json) -> BTreeMap<String, u64> {
    let nodes = document["tree"].as_array().expect("a tree");
    let mut names: Vec<String> = Vec::new();
    let mut all = BTreeMap::new();
    for (id, node) in nodes.iter().enumerate() {
        assert_eq!(node["id"].as_u64(), Some(id as u64));
        let name = node["name"].as_str().expect("a name");
        let path = match node["parent"].as_u64() {
            None => name.to_owned(),
            Some(parent) => format!("{};{name}", names[parent as usize]),
        };
        names.push(path.clone());
        assert_eq!(
            all.insert(path, node["calls"].as_u64().expect("calls")),
            None,
            "one node a path"
        );
    }
    all
}

#[test]
fn every_path_has_its_calls() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &program(&dir);
    let document = json_of(&skep, &["trace", "paths:*", "--tree", "--json", "--", program]);
    let got = paths(&document);
    let fact = |n: usize| format!("main{}", ";recurse".repeat(n));
    let mut want = BTreeMap::new();
    for (path, calls) in [
        ("work", 4),
        ("work;right", 20),
        ("work;right;leaf", 20),
        ("work;right;left", 20),
        ("work;right;left;leaf", 40),
        ("main", 1),
        ("main;left", 7),
        ("main;left;leaf", 14),
        ("main;escape", 2),
        ("main;escape;leaf", 2),
        ("main;escape;jump", 2),
        ("main;escape;jump;jump", 2),
        ("main;escape;jump;jump;jump", 2),
        ("main;escape;jump;jump;jump;jump", 2),
        ("main;last", 1),
        ("main;last;leaf", 1),
    ] {
        want.insert(path.to_owned(), calls);
    }
    want.extend((1..=5).map(|n| (fact(n), 1)));
    want.insert(format!("{};leaf", fact(5)), 1);
    assert_eq!(got, want);
    // The functions are what the paths add up to, and a total is no less than what was slept in it.
    let function = |name: &str| {
        document["functions"].as_array().expect("functions").iter().find(|f| f["name"] == name)
    };
    let leaf = function("leaf").expect("leaf");
    assert_eq!(leaf["calls"], 20 + 40 + 14 + 2 + 1 + 1);
    let last = function("last").expect("last");
    assert_eq!(last["running"], 1);
    assert!(last["total_ns"].as_u64() >= Some(20_000_000), "{last}");
    assert_eq!(function("recurse").expect("recurse")["calls"], 5);
    let nodes = document["tree"].as_array().expect("a tree");
    for (id, node) in nodes.iter().enumerate() {
        let below = nodes.iter().filter(|n| n["parent"].as_u64() == Some(id as u64));
        let below: u64 = below.filter_map(|n| n["total_ns"].as_u64()).sum();
        let (own, total) = (node["self_ns"].as_u64(), node["total_ns"].as_u64());
        assert_eq!(own.map(|own| own + below), total, "{node}");
    }
}

/// What the program says of itself, function by caller; the numbers are its source's.
#[test]
fn rows_by_caller_are_what_the_source_says() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &program(&dir);
    let document = json_of(&skep, &["trace", "paths:*", "--caller", "--json", "--", program]);
    let mut want: BTreeMap<(Option<&str>, &str), u64> = BTreeMap::new();
    for (caller, name, calls) in [
        (None, "main", 1),
        (None, "work", 4),
        (Some("work"), "right", 20),
        (Some("right"), "leaf", 20),
        (Some("right"), "left", 20),
        (Some("main"), "left", 7),
        (Some("left"), "leaf", 54),
        (Some("main"), "recurse", 1),
        (Some("recurse"), "recurse", 4),
        (Some("recurse"), "leaf", 1),
        (Some("main"), "escape", 2),
        (Some("escape"), "jump", 2),
        (Some("jump"), "jump", 6),
        (Some("escape"), "leaf", 2),
        (Some("main"), "last", 1),
        (Some("last"), "leaf", 1),
    ] {
        assert_eq!(want.insert((caller, name), calls), None);
    }
    let rows = document["functions"].as_array().expect("rows");
    let row = |row: &'_ Json| {
        assert!(row.get("caller").is_some(), "{row}");
        (row["caller"].as_str().map(str::to_owned), row["name"].as_str().unwrap().to_owned())
    };
    let got: BTreeMap<_, u64> =
        rows.iter().map(|r| (row(r), r["calls"].as_u64().expect("calls"))).collect();
    let got: BTreeMap<(Option<&str>, &str), u64> =
        got.iter().map(|((c, n), calls)| ((c.as_deref(), n.as_str()), *calls)).collect();
    assert_eq!(got, want);
    let args = ["trace", "paths:*", "--caller", "--limit", "0", "--sort", "calls", "--", program];
    let table = out(&skep, &args);
    let words: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(words.len(), want.len() + 1, "{table}");
    assert_eq!(words[0].last(), Some(&"caller"), "{table}");
    assert_eq!((words[1][0], &words[1][5..]), ("54", &["leaf", "paths", "left"][..]), "{table}");
    let csv = out(&skep, &["trace", "paths:*", "--caller", "--csv", "--", program]);
    assert!(csv.starts_with("function,caller,module,calls,"), "{csv}");
    assert!(csv.contains("\r\nleaf,left,paths,54,") && csv.contains("\r\nmain,,paths,1,"), "{csv}");
    fails(&skep, &["trace", "x", "--caller", "--tree", "--", "true"], 2, "--tree");
}

/// What is said to be taken off is what is kept in the skep directory, in ticks.
#[test]
fn reports_say_what_was_taken_off() {
    let dir = TempDir::new();
    let program = &program(&dir);
    // What a busy machine interrupts again and again is not measured: 0 is kept then.
    let measured = (0..100).map(|_| {
        let skep = Skep::new();
        let by_path = json_of(&skep, &["trace", "paths:*", "--tree", "--json", "--", program]);
        let by_function = json_of(&skep, &["trace", "paths:*", "--json", "--", program]);
        let kept = |file: &str| -> Vec<f64> {
            let text = fs::read_to_string(skep.path("skep").join(file)).expect("kept");
            text.split(' ').map_while(|word| word.parse().ok()).collect()
        };
        let (paths, functions) = (kept("overhead-paths"), kept("overhead"));
        (skep, by_path, by_function, paths, functions)
    });
    let mut known =
        measured.filter(|(.., paths, functions)| [paths, functions].iter().all(|n| n[0] > 0.0));
    let (skep, by_path, by_function, paths, functions) = known.next().expect("measured once");
    let [inside, outside] = paths[..] else { panic!("{paths:?}") };
    let ns = |report: &Json, key: &str| report[key].as_f64().expect("a number");
    assert!(inside > 0.0 && ns(&by_path, "overhead_ns") < 2000.0);
    // Both are the same ticks, so their ratio is that of the file.
    let ratio = ns(&by_path, "caller_overhead_ns") / ns(&by_path, "overhead_ns");
    assert!((ratio - outside / inside).abs() < 1e-6, "{ratio} {paths:?}");
    let ratio = ns(&by_function, "overhead_ns") / ns(&by_path, "overhead_ns");
    assert!((ratio - functions[0] / inside).abs() < 0.01, "{ratio} {paths:?} {functions:?}");
    assert!(by_function.get("caller_overhead_ns").is_none());
    let ended = skep.run(["trace", "paths:*", "-v", "--", program]);
    let said = common::text(&ended.stderr);
    let number = said.split("ns off each timed call").next().and_then(|t| t.rsplit(' ').next());
    let number: f64 = number.and_then(|n| n.parse().ok()).expect(&said);
    assert!((number - ns(&by_function, "overhead_ns")).abs() < 1.0, "{said}");
}

#[test]
fn stacks_are_written_for_other_tools() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &program(&dir);
    let (folded, flame) = (dir.path().join("f.folded"), dir.path().join("f.svg"));
    let [folded_arg, flame_arg] = [&folded, &flame].map(|p| p.to_str().expect("text"));
    let table = out(
        &skep,
        &["trace", "paths:*", "--folded", folded_arg, "--flame", flame_arg, "--", program],
    );
    assert!(table.contains("calls") && table.contains("p99"), "{table}");
    let text = fs::read_to_string(folded).expect("a file");
    let last = text.lines().find_map(|l| l.strip_prefix("main;last ")).expect("main;last");
    assert!(last.parse::<u64>().expect("a number") >= 20_000_000, "{text}");
    assert!(text.lines().any(|l| l.starts_with("work;right;left;leaf ")), "{text}");
    let svg = fs::read_to_string(flame).expect("a file");
    assert!(svg.contains("<title>last: ") && svg.contains(" ns</text>"), "{svg}");
    // A file that cannot be created is said before the command runs.
    let ran = dir.path().join("ran");
    fails(
        &skep,
        &[
            "trace",
            "libc:*",
            "--flame",
            "/nowhere/f.svg",
            "--",
            "touch",
            ran.to_str().expect("text"),
        ],
        2,
        "/nowhere/f.svg",
    );
    assert!(!ran.exists());
}

#[test]
fn trees_and_graphs_are_cut_as_asked() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &program(&dir);
    let run = |args: &[&str]| {
        let all = [&["trace", "paths:*"], args, &["--", program]].concat();
        out(&skep, &all)
    };
    let tree = run(&["--tree", "--limit", "0"]);
    let line = |text: &str, name: &str| text.lines().find(|l| l.ends_with(name)).map(str::to_owned);
    assert!(line(&tree, "  1  main").is_none() && line(&tree, "  main").is_some(), "{tree}");
    assert!(line(&tree, "        leaf").is_some(), "work, right, left, leaf: {tree}");
    let shallow = run(&["--depth", "2"]);
    let deepest =
        shallow.lines().skip(1).filter_map(|l| l.get(30..)).map(|l| l.len() - l.trim_start().len());
    assert_eq!(deepest.max(), Some(4), "two columns between, and one level: {shallow}");
    // Only `last` and what called it slept so long.
    let slow = run(&["--tree", "--min", "15ms"]);
    assert_eq!(slow.lines().count(), 3, "{slow}");
    let graph = run(&["--graph", "--min", "15ms"]);
    assert!(graph.contains("<- (not traced)") && graph.contains("  -> last"), "{graph}");
    assert!(graph.contains("  <- main"), "{graph}");
}

#[test]
fn calls_that_are_too_deep_are_told() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &program(&dir);
    let document = json_of(&skep, &["trace", "paths:*", "--tree", "--json", "--", program, "2000"]);
    let got = paths(&document);
    // main and 1,022 calls have frames.
    let recursing = got.keys().filter(|path| path.ends_with(";recurse"));
    let depths: Vec<usize> = recursing.map(|path| path.matches(';').count()).collect();
    let missing: Vec<usize> = (1..=1022).filter(|depth| !depths.contains(depth)).collect();
    let first = got.keys().find(|path| path.ends_with(";recurse"));
    assert_eq!(depths.len(), 1022, "{missing:?} {first:?} {}", document["missed_by"]);
    assert!(document["lost"].as_u64() >= Some(2000 - 1022), "{}", document["lost"]);
    fails(&skep, &["trace", "x", "--tree", "--graph", "--", "true"], 2, "--graph");
}

/// Two functions that call each other in every order: 2^13 - 1 paths.
const MANY_PATHS: &str = r"
#define N __attribute__((noinline, noclone))
static volatile long sink;
N void a(int bits, int depth);
N void b(int bits, int depth);
static void next(int bits, int depth) {
    if (depth == 0) return;
    if (bits & 1) a(bits >> 1, depth - 1); else b(bits >> 1, depth - 1);
}
N void a(int bits, int depth) { next(bits, depth); sink++; }
N void b(int bits, int depth) { next(bits, depth); sink++; }
int main() { for (int bits = 0; bits < 1 << 12; bits++) a(bits, 12); }
";

#[test]
fn there_may_be_many_more_paths_than_functions() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let source = dir.path().join("many.c");
    fs::write(&source, MANY_PATHS).expect("written");
    let program = Cc::c().args(&["-O1"]).compile(&[&source], &dir.path().join("many"));
    let program = program.to_str().expect("text");
    let document = json_of(&skep, &["trace", "many:a,b", "--tree", "--json", "--", program]);
    assert_eq!(document["lost"], 0);
    let got = paths(&document);
    let want = |path: &str| 1u64 << (12 - path.matches(';').count());
    assert_eq!(got.len(), (1 << 13) - 1);
    assert!(got.iter().all(|(path, calls)| *calls == want(path)), "{got:?}");
}
