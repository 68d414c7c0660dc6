//! Work that lasts, for programs that are visited while they run.

use super::programs::Program;

/// What rows do instead whose work is over before skep is there: in the terms of
/// [`PROGRAMS`](super::programs::PROGRAMS), seconds of work.
struct Longer {
    name: &'static str,
    what: &'static str,
    prepare: &'static [&'static [&'static str]],
    command: &'static [&'static str],
    status: i32,
}

const fn longer(
    name: &'static str,
    what: &'static str,
    command: &'static [&'static str],
    status: i32,
) -> Longer {
    Longer { name, what, prepare: &[], command, status }
}

const LONGER: &[Longer] = &[
    longer(
        "python3",
        "threads that hash, match and throw; children",
        &["{0}", "{work}/live/python.py"],
        3,
    ),
    longer(
        "perl",
        "substitutions with code, errors, children, an alarm",
        &["{0}", "{work}/live/perl.pl"],
        5,
    ),
    longer("bash", "arithmetic, subshells, pipes, a trap", &["{0}", "{work}/live/shell.sh"], 6),
    longer("dash", "arithmetic, subshells, pipes, a trap", &["{0}", "{work}/live/shell.sh"], 6),
    longer(
        "ruby",
        "threads, exceptions, patterns, garbage, children",
        &["{0}", "{work}/live/ruby.rb"],
        4,
    ),
    longer(
        "php",
        "exceptions, generators, patterns, collector",
        &["{0}", "{work}/live/php.php"],
        8,
    ),
    longer(
        "node",
        "workers that hash and throw; promises, timers, children",
        &["{0}", "{work}/live/node.js"],
        6,
    ),
    Longer {
        name: "java",
        what: "threads that throw, allocate and collect",
        prepare: &[&["{1}", "-d", "{build}", "{work}/live/Live.java"]],
        command: &["{0}", "-cp", "{build}", "Live"],
        status: 4,
    },
    Longer {
        name: "go-cgo",
        what: "goroutines, panics, garbage, C calls",
        prepare: &[&[
            "env",
            "CGO_ENABLED=1",
            "GOFLAGS=-mod=mod",
            "{0}",
            "build",
            "-o",
            "{build}/live",
            "{work}/live/go.go",
        ]],
        command: &["{build}/live"],
        status: 5,
    },
    longer("lua", "coroutines, errors, patterns, collector", &["{0}", "{work}/live/lua.lua"], 9),
    longer("luajit", "the same, compiled as it runs", &["{0}", "{work}/live/lua.lua"], 9),
    longer("tcl", "errors, patterns, recursion, children", &["{0}", "{work}/live/tcl.tcl"], 7),
    longer(
        "guile",
        "continuations, exceptions, big numbers, threads",
        &["{0}", "{work}/live/guile.scm"],
        5,
    ),
    longer(
        "R",
        "conditions, closures, matrices, patterns",
        &["{1}", "--vanilla", "{work}/live/r.R"],
        3,
    ),
    longer(
        "sqlite3",
        "an index of 300,000 rows, recursive queries, windows, vacuum",
        &["{0}", "x.db", ".read {work}/live/query.sql"],
        0,
    ),
];

/// The row of the table with work that lasts.
pub fn longer_work(program: &Program) -> Program {
    let Some(longer) = LONGER.iter().find(|longer| longer.name == program.name) else {
        return *program;
    };
    let Longer { what, prepare, command, status, .. } = *longer;
    Program { what, prepare, command, status, ..*program }
}
