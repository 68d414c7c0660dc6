//! Whole programs behave the same with every function hooked: the same output, the same exit
//! status.
//!
//! The agent (`examples/agent.rs`) is preloaded into them. `main` hooks the program's own
//! functions, the other round every function of every module, the C library included.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{Dir, compile};

fn agent() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let path =
        exe.parent().and_then(Path::parent).expect("target directory").join("examples/libagent.so");
    assert!(path.exists(), "`cargo test` builds {}", path.display());
    path
}

fn run(program: &Path, what: Option<&str>) -> Output {
    let mut command = Command::new("timeout");
    command.arg("300");
    if let Some(what) = what {
        command
            .arg("env")
            .arg(format!("LD_PRELOAD={}", agent().display()))
            .arg(format!("SKEP_AGENT={what}"));
    }
    command.arg(program).output().expect("timeout")
}

fn same_with_hooks(name: &str, source: &str, kind: &str, flags: &[&str]) {
    let dir = Dir::new(&format!("program-{name}-{}", flags.concat().replace(['-', '=', ','], "_")));
    let program = dir.0.join(name);
    let mut all = vec!["-pthread", "-ldl", "-rdynamic"];
    all.extend(flags);
    compile(source, kind, &all, &program);
    let plain = run(&program, None);
    let inside = run(&program, Some("entry,inside,main"));
    assert_eq!(
        (String::from_utf8_lossy(&inside.stdout), inside.status.code()),
        (String::from_utf8_lossy(&plain.stdout), plain.status.code()),
        "{name} {flags:?} with hooks inside: {:?} {}",
        inside.status,
        String::from_utf8_lossy(&inside.stderr)
    );
    // One build gets every kind of hook by itself, the others what has found most.
    let all = ["entry", "exit", "session", "modify", "entry,exit,session,modify"];
    for hooks in if flags.starts_with(BUILDS[0]) { &all[..] } else { &all[3..] } {
        for which in ["main", "lib=libc.so,lib=libstdc,lib=libgcc,lib=libm"] {
            let hooked = run(&program, Some(&format!("{hooks},{which}")));
            assert_eq!(
                (String::from_utf8_lossy(&hooked.stdout), hooked.status.code()),
                (String::from_utf8_lossy(&plain.stdout), plain.status.code()),
                "{name} {flags:?} with {hooks} on {which}: {:?} {}",
                hooked.status,
                String::from_utf8_lossy(&hooked.stderr)
            );
        }
    }
}

/// Optimized, not optimized, with `endbr64`, with compiled-in sites.
const BUILDS: [&[&str]; 4] = [
    &["-O2"],
    &["-O0", "-fcf-protection"],
    &["-O2", "-fpatchable-function-entry=5"],
    &["-O3", "-fno-pie", "-no-pie"],
];

#[test]
fn calls_of_every_kind() {
    for build in BUILDS {
        same_with_hooks(
            "calls",
            include_str!("programs/calls.c"),
            "c",
            &[build, &["-lm"]].concat(),
        );
    }
    if std::arch::is_x86_feature_detected!("avx") {
        same_with_hooks("calls", include_str!("programs/calls.c"), "c", &["-O2", "-mavx", "-lm"]);
    }
}

#[test]
fn jumps_signals_coroutines_processes() {
    for build in BUILDS {
        same_with_hooks("jumps", include_str!("programs/jumps.c"), "c", build);
    }
}

#[test]
fn exceptions_backtraces_thread_ends() {
    for build in BUILDS {
        same_with_hooks("unwind", include_str!("programs/unwind.cc"), "cc", build);
    }
}

#[test]
fn threads_and_a_profiling_signal() {
    for build in BUILDS {
        same_with_hooks("threads", include_str!("programs/threads.c"), "c", build);
    }
}
