//! A skep directory on a file system that runs full, or whose files are cut off: the program must
//! not notice, and the report must say so.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use skep_testkit::cc::{Build, Cc};
use skep_testkit::skip::{self, is_root};
use skep_testkit::trace::skep_bin;
use skep_testkit::{TempDir, many, run, target};

#[test]
fn a_full_file_system_costs_statistics_and_nothing_else() {
    if !is_root() || !skip::has_command("unshare") {
        skep_testkit::skip("root and unshare, to mount a small file system");
        return;
    }
    let dir = TempDir::new();
    let program = many::build(10_000, Build::O2, dir.path());
    let place = dir.join("small");
    std::fs::create_dir(&place).expect("the folder is new");
    // The file system goes with the mount namespace. Two MiB have room for what skep measures on a busy
    // machine before the command starts, and none for ten thousand functions' statistics.
    let script = r#"mount -t tmpfs -o size=2m,mode=0700 none "$1" && SKEP_DIR="$1/skep" exec "$2" trace 'many:*' --limit 1 -- "$3""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&place).arg(skep_bin()).arg(&program);
    let ended = run::run(&mut command, b"", Duration::from_secs(300));
    if ended.shell_status() == 1 && ended.transcript().contains("unshare failed") {
        skep_testkit::skip("a mount namespace");
        return;
    }
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(out.starts_with(&many::expected(10_000).to_string()), "{}", ended.transcript());
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(
        told.contains("is full") && told.contains("pages of statistics are lost"),
        "{}",
        ended.transcript()
    );
}

/// Threads begin with all signals held back, which made the first page that a new thread found no
/// room for its process's end. The program fills the file system itself, so that it is not a thread
/// in such a moment that finds it full.
#[test]
fn threads_start_on_a_full_file_system() {
    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <ctype.h>
        #include <fcntl.h>
        #include <locale.h>
        #include <pthread.h>
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/stat.h>
        #include <time.h>
        #include <unistd.h>
        #include <wchar.h>
        static void *thread(void *p) { for (int i = 0; i < 100; i++) free(malloc(i)); return p; }
        int main(void) {
            static char page[512], text[64];
            pthread_t t[8];
            struct stat s;
            time_t now = 0;
            wchar_t wide[8];
            snprintf(text, sizeof text, "%s/filler", getenv("SKEP_DIR"));
            int fd = open(text, O_CREAT | O_WRONLY, 0600);
            while (write(fd, page, sizeof page) > 0) {}
            close(fd), stat(text, &s), setlocale(LC_ALL, "C"), mbstowcs(wide, "a", 8), wcslen(wide), ctime(&now), gmtime(&now);
            strtol("1", 0, 0), strtod("1", 0), toupper('a'), isatty(7), abs(rand()), sysconf(_SC_PAGESIZE), getppid(), nice(0);
            munmap(mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096), strerror(5), basename("a/b"), strsignal(9);
            for (int round = 0; round < 50; round++) {
                for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, thread, 0);
                for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
            }
            puts("all threads are done");
        }
    "#;
    if !is_root() || !skip::has_command("unshare") {
        skep_testkit::skip("root and unshare, to mount a small file system");
        return;
    }
    let dir = TempDir::new();
    let (source, place) = (dir.join("threads.c"), dir.join("small"));
    std::fs::write(&source, SOURCE).expect("a folder of ours");
    let program = Cc::c().args(&["-O2", "-pthread"]).compile(&[&source], &dir.join("threads"));
    std::fs::create_dir(&place).expect("the folder is new");
    for size in ["900k", "2m", "4m"] {
        let script = r#"mount -t tmpfs -o size=$4,mode=0700 none "$1" && SKEP_DIR="$1/skep" exec "$2" trace '*' -o /dev/null -- "$3""#;
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", script, "sh"])
            .arg(&place)
            .arg(skep_bin())
            .arg(&program)
            .arg(size);
        let ended = run::run(&mut command, b"", Duration::from_secs(300));
        if ended.shell_status() == 1 && ended.transcript().contains("unshare failed") {
            skep_testkit::skip("a mount namespace");
            return;
        }
        assert_eq!(
            (ended.shell_status(), &*ended.stdout),
            (0, &b"all threads are done\n"[..]),
            "{size}: {}",
            ended.transcript()
        );
    }
}

/// Every file of the directory is cut off to nothing, by the traced program itself, while its
/// threads and children call traced functions: values, headers, slots, links are all gone at once.
#[test]
fn files_that_are_cut_off_cost_statistics_and_nothing_else() {
    let dir = TempDir::in_memory();
    let program = Cc::c()
        .build(Build::O2)
        .compile(&[&target::sources().join("cutoff.c")], &dir.join("cutoff"));
    let alone =
        run::run(Command::new(&program).env_remove("SKEP_DIR"), b"", Duration::from_secs(300));
    assert_eq!(alone.shell_status(), 0, "{}", alone.transcript());
    for pattern in ["cutoff:*", "*"] {
        for extra in [&[][..], &["--exact"]] {
            let mut command = Command::new(skep_bin());
            command
                .args(["trace", pattern])
                .args(extra)
                .arg("--")
                .arg(&program)
                .env("SKEP_DIR", dir.join("skep"));
            let ended = run::run(&mut command, b"", Duration::from_secs(300));
            assert!(ended.stdout.starts_with(&alone.stdout), "{pattern}: {}", ended.transcript());
            assert!(ended.shell_status() < 128, "skep died: {}", ended.transcript());
            std::fs::remove_dir_all(dir.join("skep")).expect("skep made it");
        }
    }
}

/// Shells handle signals with all others blocked, and block all where they start a child: a fault
/// in a hook has to get through, and the program must be told what it would be without us. It is so
/// too when such a signal is sent, taken, or ends the program.
#[test]
fn programs_that_block_signals_of_faults() {
    let dir = TempDir::in_memory();
    let program = Cc::c()
        .args(&["-O1", "-pthread"])
        .compile(&[&target::sources().join("masks.c")], &dir.join("masks"));
    for mode in ["", "handler", "blocked", "suspended", "thread"] {
        let alone = run::run(
            Command::new(&program).arg(mode).env_remove("SKEP_DIR"),
            b"",
            Duration::from_secs(300),
        );
        let mut command = Command::new(skep_bin());
        command
            .args(["trace", "*", "-o", "/dev/null", "--"])
            .arg(&program)
            .arg(mode)
            .env("SKEP_DIR", dir.join("skep"));
        let ended = run::run(&mut command, b"", Duration::from_secs(300));
        assert_eq!(
            String::from_utf8_lossy(&ended.stdout),
            String::from_utf8_lossy(&alone.stdout),
            "{mode}: {}",
            ended.transcript()
        );
        if mode.is_empty() {
            assert_eq!(ended.shell_status(), alone.shell_status(), "{}", ended.transcript());
        } else {
            assert!(ended.shell_status() < 128, "{mode}: skep died: {}", ended.transcript());
        }
        std::fs::remove_dir_all(dir.join("skep")).expect("skep made it");
    }
}

/// The C library blocks all signals itself where it starts threads and children, and calls
/// functions of its own meanwhile: often one of these is the first to find that memory is gone.
#[test]
fn threads_are_started_while_files_are_cut_off() {
    let dir = TempDir::in_memory();
    let program = Cc::c()
        .args(&["-O1", "-pthread"])
        .compile(&[&target::sources().join("masks.c")], &dir.join("masks"));
    for round in 0..8 {
        let skep = dir.join(format!("skep{round}"));
        let mut command = Command::new(skep_bin());
        command
            .args(["trace", "*", "-o", "/dev/null", "--"])
            .arg(&program)
            .arg("creating")
            .env("SKEP_DIR", &skep);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("skep starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a pipe");
        assert_eq!(line, "ready\n");
        cut_off(&skep);
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("a pipe");
        assert_eq!(
            (&*rest, child.wait().expect("a child").code().is_some()),
            ("done\n", true),
            "round {round}"
        );
    }
}

/// Cuts off all files in a folder.
fn cut_off(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            cut_off(&path);
        } else {
            // What is gone meanwhile is as good.
            drop(std::fs::File::create(&path));
        }
    }
}
