//! Programs of runtimes with conventions of their own live under `'*'`, and do what they do alone.
//!
//! All of these died of it, every time: their code is not called as C functions are, and their
//! collectors look return addresses up. What is not installed is skipped and named.

mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::live::{Target, Tracer};
use common::{Skep, calls, json, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::run::run;
use skep_testkit::skip::{has_command, skip};

/// Builds with a compiler; false when there is none, which is said. What a compiler that is there
/// cannot build is a failure.
fn build(skep: &Skep, source: (&str, &str), command: &[&str]) -> bool {
    let [compiler, args @ ..] = command else { return false };
    std::fs::write(skep.path(source.0), source.1).unwrap();
    let mut command = Command::new(compiler);
    command.args(args).current_dir(skep.path("."));
    command.env("HOME", skep.path(".")).env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    match command.output() {
        Err(_) => {
            skip(compiler);
            false
        }
        Ok(done) => {
            assert!(done.status.success(), "{compiler}: {}", text(&done.stderr));
            true
        }
    }
}

/// Runs a command alone and three times traced; returns the last report. `status`: of the command
/// alone.
fn same_as_alone(skep: &Skep, command: &[&str], status: i32) -> Json {
    let [program, args @ ..] = command else { panic!("a command has a name") };
    let alone = run(
        Command::new(program).args(args).current_dir(skep.path(".")),
        b"",
        Duration::from_secs(300),
    );
    assert_eq!(alone.shell_status(), status, "{}", alone.transcript());
    let report = skep.path("report.json");
    for _ in 0..3 {
        let mut traced = skep.command(["trace", "-q", "*", "--json", "-o"]);
        traced.arg(&report).arg("--").args(command).current_dir(skep.path("."));
        let traced = run(&mut traced, b"", Duration::from_secs(300));
        assert_eq!(traced.shell_status(), status, "{}", traced.transcript());
        assert_eq!(text(&traced.stdout), text(&alone.stdout));
        assert_eq!(text(&traced.stderr), text(&alone.stderr));
    }
    json(&std::fs::read(report).unwrap())
}

fn path(skep: &Skep, name: &str) -> String {
    skep.path(name).to_str().unwrap().to_owned()
}

/// How often a function was called with times, and without.
fn timed(report: &Json, name: &str) -> Option<bool> {
    let row = report["functions"].as_array().unwrap().iter().find(|f| f["name"] == name)?;
    Some(!row["total_ns"].is_null())
}

/// The reason why a function has no hooks, or entry hooks only.
fn reason<'a>(report: &'a Json, list: &str, name: &str) -> &'a str {
    let site = report["sites"][list].as_array().unwrap().iter().find(|s| s["function"] == name);
    site.unwrap_or_else(|| panic!("`{name}` is not in {list}"))["reason"].as_str().unwrap()
}

/// Goroutines begin with 2 KiB; `deep` makes each of them move several times.
const GO: &str = r#"package main

// static int add(int a, int b) { return a + b; }
import "C"
import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

//go:noinline
func leaf(n int) int { return n*3 + 1 }

//go:noinline
func deep(n int) int {
	var pad [32]int
	pad[n%32] = n
	if n == 0 {
		return leaf(pad[0])
	}
	return deep(n-1) + pad[n%32] - n + 1
}

//go:noinline
func caught(n int) (r int) {
	defer func() { r = recover().(int) }()
	panic(n)
}

type node struct{ l, r *node }

//go:noinline
func tree(d int) *node {
	if d == 0 {
		return nil
	}
	return &node{tree(d - 1), tree(d - 1)}
}

func main() {
	var wg sync.WaitGroup
	sums := make([]int, 32)
	for g := range sums {
		wg.Add(1)
		go func(g int) {
			defer wg.Done()
			for i := 0; i < 100; i++ {
				sums[g] += leaf(i) + caught(i)
			}
			sums[g] += deep(500) + int(C.add(1, 2))
			tree(8)
			if g%8 == 0 {
				runtime.GC()
			}
		}(g)
	}
	wg.Wait()
	all := 0
	for _, s := range sums {
		all += s
	}
	fmt.Println(all)
	os.Exit(4)
}
"#;

#[test]
fn go_with_c() {
    let skep = Skep::new();
    std::fs::write(skep.path("go.mod"), "module program\n\ngo 1.18\n").unwrap();
    let program = path(&skep, "program");
    for flags in [
        &["-ldflags=-linkmode=external"][..],
        &["-buildmode=pie", "-ldflags=-linkmode=external"],
        &["-ldflags=-s -w -linkmode=external"],
    ] {
        let command: Vec<&str> = ["go", "build", "-o", &program]
            .into_iter()
            .chain(flags.iter().copied())
            .chain(["."])
            .collect();
        if !build(&skep, ("main.go", GO), &command) {
            return;
        }
        let report = same_as_alone(&skep, &[&program], 4);
        let count = |name: &str| calls(&report, name);
        // What the program's own calls hold while a signal's handler interrupts them is missed, and
        // said to be.
        let missed = report["missed"].as_u64().unwrap();
        for (name, expected) in [
            ("main.deep", 32 * 501),
            ("main.caught", 3200),
            ("main.tree", 32 * 511),
            ("main.leaf", 32 * 101),
        ] {
            let counted = count(name).unwrap_or(0);
            assert!(
                counted <= expected && counted + missed >= expected,
                "{name}: {counted} of {expected}, {missed} missed"
            );
            assert_eq!(timed(&report, name), Some(false), "{name}");
        }
        assert!(reason(&report, "entry_only", "main.deep").starts_with("Go moves its stacks"));
        let skipped = report["sites"]["skipped"].as_array().unwrap();
        let unchecked = skipped
            .iter()
            .filter(|s| s["reason"].as_str().unwrap().contains("without a check of the stack"));
        assert!(
            unchecked.filter(|s| s["function"].as_str().unwrap().starts_with("runtime.")).count()
                > 10
        );
        if flags.iter().all(|flag| !flag.contains("-s ")) {
            assert_eq!(
                timed(&report, "x_cgo_init"),
                Some(true),
                "C functions of the same file have times"
            );
        }
    }
}

/// Does its work when it is told to, so that all of it can be counted.
const GO_THAT_WAITS: &str = r#"package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
)

var sum [16]int

//go:noinline
func deep(n int) int {
	var pad [32]int
	pad[n%32] = n
	if n == 0 {
		return pad[0]
	}
	return deep(n-1) + pad[n%32] - n + 1
}

//go:noinline
func caught(n int) (r int) {
	defer func() { r = recover().(int) }()
	panic(n)
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		var wg sync.WaitGroup
		for g := range sum {
			wg.Add(1)
			go func(g int) {
				defer wg.Done()
				for i := 0; i < 100; i++ {
					sum[g] += caught(i)
				}
				sum[g] += deep(500)
				runtime.GC()
			}(g)
		}
		wg.Wait()
		fmt.Println("done")
	}
	os.Exit(7)
}
"#;

/// A static program whose runtime handles all signals: nothing but a tracer can stop its threads.
#[test]
fn go_that_runs() {
    visit_go("");
}

/// As most are that people install: the functions are those that Go's runtime knows.
#[test]
fn go_that_runs_without_symbols() {
    visit_go("-ldflags=-s -w");
}

fn visit_go(flags: &str) {
    let skep = Skep::new();
    let dir = TempDir::new();
    std::fs::write(skep.path("go.mod"), "module program\n\ngo 1.18\n").unwrap();
    let program = dir.join("program");
    let command = ["go", "build", flags, "-o", program.to_str().unwrap(), "."];
    let command: Vec<&str> = command.into_iter().filter(|word| !word.is_empty()).collect();
    if !build(&skep, ("main.go", GO_THAT_WAITS), &command) {
        return;
    }
    let mut target = Target::start(dir, program.clone(), &Command::new(&program));
    let code = target.state().code;
    for _ in 0..5 {
        target.tell("work");
        let tracer = Tracer::attach(&skep, &target, &["*"]);
        target.tell("work");
        let report = tracer.end();
        let missed = report["missed"].as_u64().unwrap();
        for (name, expected) in [("main.deep", 16 * 501), ("main.caught", 1600)] {
            let counted = calls(&report, name).unwrap_or(0);
            assert!(
                counted <= expected && counted + missed >= expected,
                "{name}: {counted} of {expected}, {missed} missed"
            );
            assert_eq!(timed(&report, name), Some(false), "{name}");
        }
    }
    assert!(target.state().code == code, "the code is what it was");
    target.end();
}

/// More goroutines than processors, all of them in a small function without a frame: those that wait for
/// their turn are suspended in it.
const GO_SUSPENDED: &str = r#"package main

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

type state struct{ a, b, c uint64 }

//go:noinline
func step(s *state) {
	s.a++
	s.b++
	s.c++
}

func main() {
	var wait sync.WaitGroup
	var over int32
	wait.Add(64)
	fmt.Println("ready")
	for n := 0; n < 64; n++ {
		go func() {
			var s state
			for atomic.LoadInt32(&over) == 0 {
				for k := 0; k < 1_000_000; k++ {
					step(&s)
				}
			}
			if s.a != s.b || s.a != s.c || s.a%1_000_000 != 0 {
				os.Exit(1)
			}
			wait.Done()
		}()
	}
	os.Stdin.Read(make([]byte, 1))
	atomic.StoreInt32(&over, 1)
	wait.Wait()
	os.Exit(5)
}
"#;

/// The bytes that hooks change are not changed under a goroutine that will go on among them.
#[test]
fn goroutines_that_are_suspended_in_a_function() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    std::fs::write(skep.path("go.mod"), "module program\n\ngo 1.18\n").unwrap();
    let program = dir.join("program");
    let command = ["go", "build", "-o", program.to_str().unwrap(), "."];
    if !build(&skep, ("main.go", GO_SUSPENDED), &command) {
        return;
    }
    let mut target = Command::new(&program);
    let mut target = target.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    target.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let pid = target.id().to_string();
    for _ in 0..20 {
        let visit = ["trace", "main.step", "--for", "5ms", "-p", &pid];
        let visit = skep.run(visit);
        let said = text(&visit.stderr);
        assert!(visit.status.success() || said.contains("a goroutine may be suspended"), "{said}");
    }
    drop(target.stdin.take());
    assert_eq!(target.wait().unwrap().code(), Some(5));
}

#[test]
fn ocaml() {
    const SOURCE: &str = r#"
exception Bottom of int
let rec deep n = if n = 0 then raise (Bottom 7) else 1 + deep (n - 1)
let rec list n = if n = 0 then [] else string_of_int n :: list (n - 1)
let () =
  for _ = 1 to 50 do
    ignore (list 1000);
    try ignore (deep 500) with Bottom _ -> ()
  done;
  let h = Hashtbl.create 10 in
  for i = 1 to 20000 do
    Hashtbl.replace h (i mod 777) (Printf.sprintf "%d-%s" i (String.make 10 'x'))
  done;
  Gc.full_major ();
  print_endline (string_of_int (Hashtbl.length h));
  exit 5
"#;
    let skep = Skep::new();
    let program = path(&skep, "program");
    if !build(&skep, ("unit.ml", SOURCE), &["ocamlopt", "unit.ml", "-o", &program]) {
        return;
    }
    let report = same_as_alone(&skep, &[&program], 5);
    let functions = report["functions"].as_array().unwrap();
    let own = |f: &&Json| f["name"].as_str().unwrap().starts_with("camlUnit");
    for f in functions.iter().filter(own) {
        assert!(f["total_ns"].is_null(), "{f}");
    }
    // Of version 4, functions are counted.
    if functions.iter().any(|f| own(&f)) {
        let deep =
            functions.iter().find(|f| f["name"].as_str().unwrap().starts_with("camlUnit__deep"));
        assert_eq!(deep.unwrap_or_else(|| panic!("{report}"))["calls"], 50 * 501);
    }
    assert_eq!(timed(&report, "caml_main"), Some(true), "the runtime's C functions have times");
    // A stripped program exports what marks its code; one that exports nothing is left alone.
    let command = [
        "ocamlopt",
        "-ccopt",
        "-Wl,--no-export-dynamic",
        "-ccopt",
        "-s",
        "unit.ml",
        "-o",
        &program,
    ];
    if build(&skep, ("unit.ml", SOURCE), &command) {
        same_as_alone(&skep, &[&program], 5);
    }
}

#[test]
fn haskell() {
    const SOURCE: &str = r#"
import Control.Concurrent
import Control.Exception
import System.Exit
main :: IO ()
main = do
  done <- newEmptyMVar
  _ <- forkIO (putMVar done (sum [1 .. 50000 :: Integer]))
  takeMVar done >>= print
  r <- try (evaluate (1 `div` (0 :: Int))) :: IO (Either ArithException Int)
  print r
  exitWith (ExitFailure 6)
"#;
    let skep = Skep::new();
    let program = path(&skep, "program");
    if !build(
        &skep,
        ("program.hs", SOURCE),
        &["ghc", "-v0", "-threaded", "program.hs", "-o", &program],
    ) {
        return;
    }
    let report = same_as_alone(&skep, &[&program], 6);
    assert!(reason(&report, "skipped", "Main_main_info").contains("Haskell"));
    assert_eq!(
        timed(&report, "hs_init_ghc"),
        Some(true),
        "the run-time system's C functions have times"
    );
}

/// A library for FIPS 140 compares its code with a checksum, before `main`, and ends the program if it
/// is another: BoringSSL's marks, and where those are stripped the function that knows them.
#[test]
fn code_that_is_compared_with_a_checksum() {
    const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define HIDDEN __attribute__((visibility("hidden")))
extern const unsigned char BORINGSSL_bcm_text_start[] HIDDEN, BORINGSSL_bcm_text_end[] HIDDEN;
extern const char test_name[] HIDDEN;
__attribute__((noinline)) int before(int n) { return n * 5 + 7; }
asm(".text\nBORINGSSL_bcm_text_start:\ntest_name: .asciz \"FIPS integrity test\"");
__attribute__((noinline)) int checked(int n) { return n * 3 + 1; }
__attribute__((constructor, noinline)) static void integrity_test(int argc, char **argv)
{
	unsigned sum = 1;
	for (const unsigned char *at = BORINGSSL_bcm_text_start; at < BORINGSSL_bcm_text_end; at++)
		sum = sum * 31 + *at;
	if (argc < 2) {
		printf("%u\n", sum);
		exit(0);
	}
	if (strtoul(argv[1], 0, 10) != sum) {
		fprintf(stderr, "%s failed.\n", test_name);
		abort();
	}
}
asm(".text\nBORINGSSL_bcm_text_end:");
__attribute__((noinline)) int after(int n) { return n * 7 + 2; }
int main(void)
{
	int sum = 0;
	for (int i = 0; i < 10; i++)
		sum += before(i) + checked(i) + after(i);
	printf("%d\n", sum);
	return 6;
}
"#;
    let skep = Skep::new();
    let program = path(&skep, "program");
    for strip in ["-g0", "-s"] {
        let command =
            ["gcc", "-O1", "-fno-toplevel-reorder", strip, "checked.c", "-o", &program, "-no-pie"];
        if !build(&skep, ("checked.c", SOURCE), &command) {
            return;
        }
        let sum = run(&mut Command::new(&program), b"", Duration::from_secs(60));
        let sum = text(&sum.stdout).trim().to_owned();
        let report = same_as_alone(&skep, &[&program, &sum], 6);
        let skipped = report["sites"]["skipped"].as_array().unwrap();
        let checked = skipped.iter().filter(|f| f["reason"].as_str().unwrap().contains("checksum"));
        assert_eq!(checked.count(), 2, "{strip}: `checked` and `integrity_test`: {skipped:?}");
        let of_program = |f: &&Json| f["module"] == "program" && f["calls"] == 10;
        let counted = report["functions"].as_array().unwrap().iter().filter(of_program).count();
        assert_eq!(counted, 2, "{strip}: `before` and `after`: {report}");
    }
}

/// So does Go, if told to.
#[test]
fn go_in_its_mode_for_fips_140() {
    const SOURCE: &str = r#"
//go:debug fips140=on
package main

import (
	"crypto/fips140"
	"crypto/sha256"
	"fmt"
	"os"
)

//go:noinline
func sum(n int) byte { return sha256.Sum256([]byte{byte(n)})[0] }

func main() {
	all := 0
	for i := 0; i < 100; i++ {
		all += int(sum(i))
	}
	fmt.Println(fips140.Enabled(), all)
	os.Exit(7)
}
"#;
    let version = Command::new("go").args(["env", "GOVERSION"]).output();
    let version = version.map(|done| text(&done.stdout).trim().to_owned()).unwrap_or_default();
    let minor = version.strip_prefix("go1.").and_then(|rest| rest.split('.').next()?.parse().ok());
    if minor.is_none_or(|minor: u32| minor < 24) {
        return skip("go 1.24");
    }
    let (skep, dir) = (Skep::new(), TempDir::new());
    std::fs::write(skep.path("go.mod"), "module program\n\ngo 1.24\n").unwrap();
    let program = dir.join("program");
    let program = program.to_str().unwrap();
    for flags in [["-buildmode=exe", "-ldflags=-s -w"], ["-buildmode=pie", "-ldflags="]] {
        let command = ["go", "build", flags[0], flags[1], "-o", program, "."];
        assert!(build(&skep, ("main.go", SOURCE), &command));
        let report = same_as_alone(&skep, &[program], 7);
        let hash = "crypto/internal/fips140/sha256.(*Digest).checkSum";
        assert!(reason(&report, "skipped", hash).contains("checksum"), "{flags:?}");
        assert_eq!(calls(&report, "main.sum"), Some(100), "{flags:?}");
    }
}

/// A position-independent Go program names a dynamic linker, and then gives its threads other thread
/// pointers than that has made: below them lies what its runtime needs.
#[test]
fn go_that_is_position_independent() {
    const SOURCE: &str = r#"
package main

import (
	"fmt"
	"os"
	"runtime"
)

//go:noinline
func work(n int) int {
	s := 0
	for i := 0; i < n; i++ {
		s += i * i % 7
	}
	return s
}

func main() {
	done := make(chan int)
	for g := 0; g < 4; g++ {
		go func() {
			all := 0
			for i := 0; i < 25; i++ {
				all += work(200000) + len(make([]byte, 1<<18))
				if i%5 == 0 {
					runtime.GC()
				}
			}
			done <- all
		}()
	}
	all := 0
	for g := 0; g < 4; g++ {
		all += <-done
	}
	fmt.Println(all)
	os.Exit(7)
}
"#;
    let skep = Skep::new();
    let program = path(&skep, "program");
    let command = ["go", "build", "-buildmode=pie", "-o", &program, "main.go"];
    if !build(&skep, ("main.go", SOURCE), &command) {
        return;
    }
    let report = same_as_alone(&skep, &[&program], 7);
    assert_eq!(calls(&report, "main.work"), Some(100), "{report}");
    // Executed by a program that has the agent, it goes without.
    let report = same_as_alone(&skep, &["sh", "-c", &format!("{program}; exit $?")], 7);
    let untraced = report["not_traced"].to_string();
    assert!(untraced.contains("has no C library"), "{untraced}");
}

/// Stacks of pieces: a function that finds too little room is called again on another piece, by
/// code that is on neither.
#[test]
fn split_stacks() {
    const SOURCE: &str = r#"
#include <pthread.h>
#include <stdio.h>
__attribute__((noinline)) int deep(int n)
{
	volatile char room[200];
	room[n % 200] = n;
	return n ? deep(n - 1) + 1 : room[0];
}
static void *thread(void *arg) { printf("%d\n", deep(10000)); return arg; }
int main(void)
{
	pthread_t t;
	for (int i = 0; i < 5; i++) {
		pthread_create(&t, 0, thread, 0);
		pthread_join(t, 0);
	}
	printf("%d\n", deep(20000));
	return 3;
}
"#;
    let skep = Skep::new();
    let program = path(&skep, "program");
    if !build(
        &skep,
        ("split.c", SOURCE),
        &["gcc", "-O1", "-fsplit-stack", "-pthread", "split.c", "-o", &program],
    ) {
        return;
    }
    let report = same_as_alone(&skep, &[&program], 3);
    assert!(reason(&report, "skipped", "__morestack_unblock_signals").contains("switches stacks"));
    let (counted, missed) = (calls(&report, "deep").unwrap(), report["missed"].as_u64().unwrap());
    assert!(counted <= 70_006 && counted + missed >= 70_006, "{counted}, {missed} missed");
}

#[test]
fn mono() {
    const SOURCE: &str = r#"
using System; using System.Collections.Generic; using System.Threading;
class Program {
    static int Deep(int n) { if (n == 0) throw new Exception("bottom"); return Deep(n - 1) + 1; }
    static int Main() {
        for (int i = 0; i < 50; i++) try { Deep(20); } catch (Exception) { }
        var d = new Dictionary<string, int>();
        for (int i = 0; i < 20000; i++) d["k" + (i % 500)] = i;
        var t = new Thread(() => { GC.Collect(); Console.WriteLine(d.Count); });
        t.Start(); t.Join();
        return 7;
    }
}
"#;
    let skep = Skep::new();
    if !has_command("mono") {
        return skip("mono");
    }
    let program = path(&skep, "program.exe");
    if build(&skep, ("program.cs", SOURCE), &["mcs", "program.cs", &format!("-out:{program}")]) {
        same_as_alone(&skep, &["mono", &program], 7);
    }
}

#[test]
fn node() {
    const SOURCE: &str = r#"
const {Worker, isMainThread, parentPort} = require('worker_threads');
if (isMainThread) {
  let s = 0;
  for (let i = 0; i < 1e6; i++) s = (s * 31 + i) >>> 0;
  console.log(s, JSON.stringify([3, 1, 2].sort()), 'abc'.replace(/b/g, 'x'));
  new Worker(__filename).on('message', m => { console.log(m); process.exitCode = 6; });
} else {
  parentPort.postMessage([...Array(1000).keys()].map(Math.sin).filter(x => x > 0).length);
}
"#;
    let skep = Skep::new();
    if !has_command("node") {
        return skip("node");
    }
    std::fs::write(skep.path("program.js"), SOURCE).unwrap();
    let report = same_as_alone(&skep, &["node", Path::new("program.js").to_str().unwrap()], 6);
    // Distributions that put V8 into a library strip it.
    let skipped = report["sites"]["skipped"].as_array().unwrap();
    for site in skipped.iter().filter(|s| s["function"].as_str().unwrap().starts_with("Builtins_"))
    {
        assert!(site["reason"].as_str().unwrap().contains("V8"), "{site}");
    }
    let functions = report["functions"].as_array().unwrap();
    assert!(
        functions.iter().all(|f| !f["name"].as_str().unwrap().starts_with("Builtins_")),
        "{report}"
    );
}
