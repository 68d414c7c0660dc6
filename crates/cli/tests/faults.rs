//! `--return`, and programs that skip functions: beside what the traced programs say of their calls.

mod common;

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Skep, data, fails, json, out, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::{Signal, signal};
use skep_testkit::skip::has_command;

fn build(cc: Cc, dir: &TempDir, name: &str, source: &str) -> String {
    let file = dir.path().join(format!("{name}.c"));
    fs::write(&file, source).expect("written");
    let path = cc.args(&["-O1", "-falign-functions=16"]).compile(&[&file], &dir.path().join(name));
    path.to_str().expect("text").to_owned()
}

const OPENS: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    int bad = 0, first = 0, wrong = 0;
    for (int i = 1; i <= 1000; i++) {
        errno = 5;
        int fd = open("/dev/null", O_RDONLY);
        if (fd >= 0) { wrong += errno != 5 || close(fd); continue; }
        wrong += fd != -2 || errno != ENOENT;
        first = first ? first : i;
        bad++;
    }
    int null = 0;
    for (int i = 0; i < 100; i++) {
        char *volatile p = malloc(100000 + i);
        if (p) p[i] = 1; else null++;
        free(p);
    }
    printf("%d %d %d %d\n", bad, first, wrong, null);
    return 0;
}
"#;

#[test]
fn every_nth_call_fails_as_it_was_asked_for() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = &build(Cc::c(), &dir, "opens", OPENS);
    let said = |args: &[&str]| {
        let all: Vec<&str> = ["trace"]
            .iter()
            .chain(args)
            .copied()
            .chain(["-o", "/dev/null", "--", program])
            .collect();
        let ended = skep.run(all);
        assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
        (text(&ended.stdout), text(&ended.stderr))
    };
    let (words, notes) =
        said(&["opens:main", "--return", "libc:open=-2", "--errno", "ENOENT", "--every", "100"]);
    assert_eq!(words, "10 100 0 0\n");
    assert!(notes.contains("--return: 10 of 1000 calls of `libc:open` returned -2"), "{notes}");
    let (words, _) = said(&[
        "opens:main",
        "--return",
        "libc:open=-2",
        "--errno",
        "2",
        "--return",
        "libc:malloc=NULL",
        "--every",
        "3",
    ]);
    // printf has not allocated yet.
    assert_eq!(words, "333 3 0 33\n");
    // The tracer sees what was returned, and counts calls that were skipped, too.
    let file = dir.path().join("calls.json");
    let name = file.to_str().expect("text");
    let args = [
        "trace",
        "libc:malloc",
        "--if",
        "ret == NULL && arg0 > 99999",
        "--return",
        "libc:malloc=0",
        "--every",
        "10",
    ];
    let all: Vec<&str> = args.into_iter().chain(["--json", "-o", name, "--", program]).collect();
    out(&skep, &all);
    assert_eq!(
        json(&fs::read(&file).expect("written"))["calls"].as_array().map(Vec::len),
        Some(10)
    );
    let all = [
        "trace",
        "libc:open",
        "--exact",
        "--return",
        "libc:open=-2",
        "--errno",
        "ENOENT",
        "--json",
        "-o",
        name,
        "--",
        program,
    ];
    assert_eq!(out(&skep, &all), "1000 1 0 0\n");
    let document = json(&fs::read(&file).expect("written"));
    assert_eq!(document["functions"][0]["calls"], 1000);
}

#[test]
fn threads_share_the_count() {
    const SOURCE: &str = r#"
        #include <pthread.h>
        #include <stdio.h>
        static int ran, got;
        __attribute__((noinline)) long f(long n) { __sync_fetch_and_add(&ran, 1); return n + 1; }
        static void *work(void *p) {
            for (long i = 0; i < 5000; i++) {
                long r = f(i);
                if (r == -1234567890123) __sync_fetch_and_add(&got, 1);
                else if (r != i + 1) return (void *)1;
            }
            return 0;
        }
        int main(void) {
            pthread_t t[8];
            long wrong = 0;
            void *r;
            for (int i = 0; i < 8; i++) pthread_create(t + i, 0, work, 0);
            for (int i = 0; i < 8; i++) { pthread_join(t[i], &r); wrong += (long)r; }
            printf("%d %d %ld\n", ran, got, wrong);
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(Cc::c(), &dir, "shared", SOURCE);
    let args = [
        "trace",
        "shared:f",
        "--return",
        "shared:f=-1234567890123",
        "--every",
        "7",
        "-o",
        "/dev/null",
        "--",
        &program,
    ];
    assert_eq!(out(&skep, &args), format!("{} {} 0\n", 40000 - 40000 / 7, 40000 / 7));
}

/// A process that runs already: its calls return something else while it is attached to, and nothing
/// afterwards.
fn attached(cc: Cc, more: &[&str]) {
    const SOURCE: &str = r#"
        #include <errno.h>
        #include <stdio.h>
        #include <unistd.h>
        __attribute__((noinline)) long f(long n) { asm volatile("" : "+r"(n) :: "memory"); return n + 1; }
        int main(void) {
            for (long n = 1;; n++) {
                errno = 0;
                long r = f(n);
                if (r != n + 1) printf("other %ld %d\n", r, errno == ECONNREFUSED);
                else puts("own");
                fflush(stdout);
                usleep(2000);
            }
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(cc, &dir, "serves", SOURCE);
    let words = dir.path().join("words");
    let file = fs::File::create(&words).expect("created");
    let mut child = Command::new(&program).stdout(file).spawn().expect("it runs");
    let pid = child.id().to_string();
    let args =
        ["trace", "serves:f", "--return", "serves:f=0", "--errno", "ECONNREFUSED", "-p", &pid];
    let mut running = skep.start(args.iter().chain(more));
    let read = || fs::read_to_string(&words).expect("written");
    let end = Instant::now() + Duration::from_secs(300);
    // Until some calls have returned something else, or it cannot attach.
    while read().matches("other").count() < 4 && Instant::now() < end {
        if running.try_wait().expect("it is ours").is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    if running.try_wait().expect("it is ours").is_none() {
        signal(running.id(), Signal::INT);
    }
    let mut notes = String::new();
    running.stderr.take().expect("a pipe").read_to_string(&mut notes).expect("text");
    let status = running.wait().expect("it ends");
    let before = read().len();
    while read().len() < before + 40 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it still runs");
    child.wait().expect("ended");
    let words = read();
    if notes.contains("ptrace") || notes.contains("not permitted") {
        return skep_testkit::skip("attaching to other processes is not allowed here");
    }
    assert_eq!(status.code(), Some(0), "{notes}");
    let others = words.lines().filter(|l| *l != "own").count();
    assert!(others > 3 && words.lines().all(|l| l == "own" || l == "other 0 1"), "{words}");
    assert!(words.ends_with("own\n"), "{words}");
}

#[test]
fn processes_that_run_already() {
    attached(Cc::c(), &[]);
}

#[test]
fn processes_of_musl_that_run_already() {
    if !has_command("musl-gcc") {
        return skep_testkit::skip("musl-gcc");
    }
    attached(Cc::named("musl-gcc").args(&["-static"]), &[]);
}

/// Nor is the report lost where it is ended as soon as hooks are seen.
#[test]
fn processes_that_are_followed() {
    attached(Cc::c(), &["--follow"]);
}

#[test]
fn programs_skip_functions_at_their_entry_only() {
    const SOURCE: &str = r#"
        #include <stdio.h>
        static int ran;
        __attribute__((noinline)) long leaf(long n) { ran++; asm volatile("" : "+r"(n)); return n + 100; }
        int main(void) {
            long sum = 0;
            for (long i = 0; i < 40; i++) sum += leaf(i);
            printf("%d %ld\n", ran, sum);
            return 0;
        }
    "#;
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(Cc::c(), &dir, "skipped", SOURCE);
    let file = dir.path().join("maps.txt");
    let name = file.to_str().expect("text");
    let said = out(&skep, &["run", &data("override.bpf.o"), "-o", name, "--", &program]);
    // 2, 6, 10 … 38 run; 20 odd ones return 7000, and 10 return 0.
    let own: i64 = (0..40).filter(|i| i % 4 == 2).map(|i| i + 100).sum();
    assert_eq!(said, format!("10 {}\n", own + 20 * 7000));
    let maps = fs::read_to_string(&file).expect("written");
    for line in ["at_return = -95", "in_session = -95", "skipped = 30"] {
        assert!(maps.contains(line), "{line}: {maps}");
    }
}

#[test]
fn mistakes_are_told_before_the_command_runs() {
    let (dir, skep) = (TempDir::new(), Skep::new());
    let program = build(Cc::c(), &dir, "opens", OPENS);
    let tries: [(&[&str], &str); 6] = [
        (&["--return", "libc:open"], "write it as PATTERN=VALUE"),
        (&["--return", "libc:open=none"], "`none` is no number"),
        (&["--return", "libc:opem=-1"], "opem"),
        (&["--return", "libc:open=-1", "--errno", "EWHAT"], "it is not known"),
        (&["--return", "libc:open=-1", "--every", "0"], "0 is not in"),
        (&["--errno", "EIO"], "--return"),
    ];
    for (args, words) in tries {
        let mut all = vec!["trace", "opens:main"];
        all.extend(args);
        all.extend(["--", &program]);
        fails(&skep, &all, 2, words);
    }
    let mut quiet = skep.command([
        "trace",
        "opens:main",
        "--return",
        "opens:nobody*=1",
        "--allow-unmatched",
        "--",
        &program,
    ]);
    let ended = quiet.stdin(Stdio::null()).output().expect("it runs");
    assert!(text(&ended.stderr).contains("no function was found"), "{}", text(&ended.stderr));
}
