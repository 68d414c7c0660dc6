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

const SHELL: &str = "arithmetic, subshells, pipes, a trap";
const AWK: &str = "3,000,000 lines: sums, arrays, functions, patterns, children";

/// What fills `{build}` with the input of text tools and archivers.
const LINES: &[&[&str]] = &[&["sh", "{work}/live/lines.sh", "1500000"]];
const MORE_LINES: &[&[&str]] = &[&["sh", "{work}/live/lines.sh", "3000000"]];
const TREE: &[&[&str]] = &[&["sh", "{work}/live/tree.sh"]];

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
    longer(
        "bash",
        "arrays, patterns, coprocess, process substitution, recursion",
        &["{0}", "{work}/live/bash.sh"],
        6,
    ),
    longer("bash-posix", SHELL, &["{0}", "--posix", "{work}/live/shell.sh"], 6),
    longer("dash", SHELL, &["{0}", "{work}/live/shell.sh"], 6),
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
        prepare: &[&["{1}", "-d", "{build}", "{work}/live/Live.java"]],
        ..longer(
            "java",
            "threads that throw, allocate and collect",
            &["{0}", "-cp", "{build}", "Live"],
            4,
        )
    },
    Longer {
        prepare: &[
            &["cp", "{work}/live/go.go", "{work}/go-cgo.go", "{build}"],
            &[
                "env",
                "CGO_ENABLED=1",
                "GOFLAGS=-mod=mod",
                "{0}",
                "build",
                "-ldflags=-linkmode=external",
                "-o",
                "{build}/live",
                "go.go",
                "go-cgo.go",
            ],
        ],
        ..longer(
            "go-cgo",
            "goroutines, panics, garbage, C calls, children, signals",
            &["{build}/live"],
            5,
        )
    },
    Longer {
        prepare: &[
            &["cp", "{work}/live/go.go", "{work}/go-pure.go", "{build}"],
            &["env", "CGO_ENABLED=0", "{0}", "build", "-o", "{build}/live", "go.go", "go-pure.go"],
        ],
        ..longer("go-static", "the same without C, statically linked", &["{build}/live"], 5)
    },
    longer(
        "lua",
        "coroutines, errors, patterns, collector",
        &["{0}", "{work}/live/lua.lua", "10000000"],
        9,
    ),
    longer(
        "luajit",
        "the same, compiled as it runs",
        &["{0}", "{work}/live/lua.lua", "2500000"],
        9,
    ),
    Longer {
        prepare: &[
            &["cp", "{work}/live/ocaml.ml", "{build}/live.ml"],
            &[
                "{0}",
                "-I",
                "+unix",
                "-I",
                "+threads",
                "unix.cmxa",
                "threads.cmxa",
                "-o",
                "{build}/live",
                "{build}/live.ml",
            ],
        ],
        ..longer(
            "ocaml",
            "native code: exceptions, both collectors, threads, a timer, children",
            &["{build}/live", "1200000"],
            6,
        )
    },
    Longer {
        prepare: &[
            &["cp", "{work}/live/ocaml.ml", "{build}/live.ml"],
            &[
                "{0}",
                "-I",
                "+unix",
                "-I",
                "+threads",
                "unix.cma",
                "threads.cma",
                "-o",
                "{build}/live",
                "{build}/live.ml",
            ],
        ],
        ..longer("ocaml-bytecode", "the same as bytecode", &["{1}", "{build}/live", "250000"], 6)
    },
    longer(
        "erlang",
        "processes that crash, links, ETS, patterns, children",
        &["{1}", "{work}/live/erlang.escript"],
        7,
    ),
    longer(
        "R",
        "conditions, closures, matrices, patterns",
        &["{1}", "--vanilla", "{work}/live/r.R"],
        3,
    ),
    longer("tcl", "errors, patterns, recursion, children", &["{0}", "{work}/live/tcl.tcl"], 7),
    longer(
        "guile",
        "continuations, exceptions, big numbers, threads",
        &["{0}", "{work}/live/guile.scm"],
        5,
    ),
    longer(
        "sbcl",
        "conditions, restarts, the compiler, collector, threads, children",
        &["{0}", "--script", "{work}/live/sbcl.lisp"],
        6,
    ),
    longer(
        "gforth",
        "recursion, exceptions, memory, children",
        &["{0}", "{work}/live/gforth.fs"],
        0,
    ),
    Longer {
        prepare: &[&[
            "{0}",
            "-v0",
            "-O",
            "-threaded",
            "-outputdir",
            "{build}",
            "-o",
            "{build}/live",
            "{work}/live/haskell.hs",
        ]],
        ..longer(
            "ghc",
            "what it compiles: laziness, exceptions, threads, collector, children",
            &["{build}/live", "+RTS", "-N2"],
            5,
        )
    },
    Longer {
        prepare: &[&["{1}", "-out:{build}/live.exe", "{work}/live/csharp.cs"]],
        ..longer(
            "mono",
            "tasks, exceptions, null references, collector, children",
            &["{0}", "{build}/live.exe"],
            9,
        )
    },
    longer(
        "sqlite3",
        "an index of 300,000 rows, recursive queries, windows, vacuum",
        &["{0}", "x.db", ".read {work}/live/query.sql"],
        0,
    ),
    Longer {
        prepare: &[&["sh", "{work}/live/repository.sh", "{0}"]],
        ..longer(
            "git",
            "5,000 commits: a clone, packing with threads, fsck, the log, a merge, blame",
            &["sh", "{work}/live/git.sh", "{0}", "{build}/one"],
            1,
        )
    },
    longer(
        "gcc",
        "compiles 300 functions of C at -O2 and links them; the result runs",
        &["sh", "-c", "'{0}' -O2 -g '{work}/live/work.c' -o x && ./x"],
        5,
    ),
    longer(
        "clang",
        "compiles 800 functions of C at -O2 to assembly",
        &["{0}", "-O2", "-DMANY", "-S", "-o", "-", "{work}/live/work.c"],
        0,
    ),
    longer(
        "rustc",
        "compiles generic functions with optimization; the result runs",
        &["sh", "-c", "'{0}' -O --edition 2021 '{work}/live/work.rs' -o x && ./x"],
        7,
    ),
    Longer {
        prepare: &[&[
            "{0}",
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc=d=100:s=320x240",
            "-c:v",
            "libx264",
            "x.mp4",
        ]],
        ..longer(
            "ffmpeg",
            "decodes H.264, scales and encodes again, with threads",
            &[
                "{0}",
                "-v",
                "error",
                "-nostdin",
                "-i",
                "{build}/x.mp4",
                "-vf",
                "scale=640x480",
                "-c:v",
                "libx264",
                "-threads",
                "2",
                "-f",
                "framemd5",
                "-",
            ],
            0,
        )
    },
    Longer {
        prepare: LINES,
        ..longer(
            "openssl",
            "hashes, ciphers and signatures of 1,500,000 lines, keys from passwords, primes",
            &["sh", "{work}/live/openssl.sh", "{0}", "{build}/lines"],
            0,
        )
    },
    Longer {
        prepare: TREE,
        ..longer(
            "tar",
            "packs a tree of 20,000 files, compares, lists and unpacks it, some into children",
            &["sh", "{work}/live/tar.sh", "{build}"],
            2,
        )
    },
    Longer {
        prepare: LINES,
        ..longer(
            "gzip",
            "packs and unpacks 1,500,000 lines",
            &["sh", "{work}/live/archive.sh", "{build}/lines", "{0}", "-9"],
            0,
        )
    },
    Longer {
        prepare: &[&["sh", "{work}/live/lines.sh", "600000"]],
        ..longer(
            "xz",
            "packs and unpacks 600,000 lines, with threads",
            &["sh", "{work}/live/archive.sh", "{build}/lines", "{0}", "-3", "-T2"],
            0,
        )
    },
    Longer {
        prepare: MORE_LINES,
        ..longer(
            "zstd",
            "packs and unpacks 3,000,000 lines, with threads",
            &["sh", "{work}/live/archive.sh", "{build}/lines", "{0}", "-12", "-T2"],
            0,
        )
    },
    longer(
        "make",
        "functions over 10,000 words, 2,500 targets, four jobs at a time, a failure",
        &["{0}", "-j4", "-k", "-f", "{work}/live/tools.mk"],
        2,
    ),
    Longer {
        prepare: MORE_LINES,
        ..longer("mawk", AWK, &["{0}", "-f", "{work}/live/text.awk", "{build}/lines"], 4)
    },
    Longer {
        prepare: MORE_LINES,
        ..longer("gawk", AWK, &["{0}", "-f", "{work}/live/text.awk", "{build}/lines"], 4)
    },
    Longer {
        prepare: LINES,
        ..longer(
            "sed",
            "1,500,000 lines: addresses, groups, hold space, children",
            &["{0}", "-n", "-E", "-f", "{work}/live/text.sed", "{build}/lines"],
            7,
        )
    },
    Longer {
        prepare: LINES,
        ..longer(
            "sort",
            "1,500,000 lines: keys, numbers, threads, files that children compress",
            &["sh", "{work}/live/text.sh", "sort", "{build}/lines"],
            1,
        )
    },
    Longer {
        prepare: LINES,
        ..longer(
            "grep",
            "1,500,000 lines: back references, fixed words, Perl's patterns",
            &["sh", "{work}/live/text.sh", "grep", "{build}/lines"],
            1,
        )
    },
    Longer {
        prepare: TREE,
        ..longer(
            "find",
            "20,000 files: patterns, tests, formats, children",
            &["sh", "{work}/live/text.sh", "find", "{build}/tree"],
            1,
        )
    },
    longer("bc", "1,800 digits, recursion, an error", &["{0}", "-lq", "{work}/live/bc.bc"], 0),
    longer(
        "jq",
        "groups, patterns, reductions, errors",
        &["{0}", "-cn", "-f", "{work}/live/jq.jq"],
        5,
    ),
    Longer {
        prepare: &[&["{1}", "-g", "-O0", "-no-pie", "-o", "{build}/work", "{work}/work.c", "-lm"]],
        ..longer(
            "gdb",
            "breakpoints with conditions and commands, a backtrace, steps",
            &["{0}", "-nx", "-q", "-batch", "-x", "{work}/live/gdb.gdb", "{build}/work"],
            0,
        )
    },
    longer(
        "vim",
        "sorts, substitutes and deletes 20,000 lines, expressions, exceptions, children",
        &[
            "sh",
            "-c",
            "'{0}' -u NONE -i NONE -n -es -S '{work}/live/vim.vim' < /dev/null; s=$?; cksum out; exit $s",
        ],
        3,
    ),
    longer(
        "emacs",
        "buffers, patterns, conditions, collector, children",
        &["{0}", "-Q", "--batch", "-l", "{work}/live/emacs.el"],
        4,
    ),
    Longer {
        prepare: LINES,
        ..longer(
            "curl",
            "a file of 40 MB again and again, by globbing; an error",
            &[
                "{0}",
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{{size_download}}\\n",
                "file://{build}/lines#[1-500]",
                "-o",
                "/dev/null",
                "file://{build}/missing",
            ],
            37,
        )
    },
];

/// The row of the table with work that lasts.
pub fn longer_work(program: &Program) -> Program {
    let Some(longer) = LONGER.iter().find(|longer| longer.name == program.name) else {
        return *program;
    };
    let Longer { what, prepare, command, status, .. } = *longer;
    Program { what, prepare, command, status, ..*program }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::programs::PROGRAMS;
    use super::LONGER;

    #[test]
    fn longer_work_is_of_programs_of_the_table_once_each() {
        let names: BTreeSet<&str> = LONGER.iter().map(|longer| longer.name).collect();
        assert_eq!(names.len(), LONGER.len());
        for name in names {
            assert!(PROGRAMS.iter().any(|program| program.name == name), "{name}");
        }
    }
}
