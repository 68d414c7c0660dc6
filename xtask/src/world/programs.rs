//! The programs and what they do, one row each.
//!
//! In `needs`, `a|b` is whichever is installed first. In commands, `{0}`, `{1}` … are the paths of
//! what was needed, `{work}` is `xtask/world`, `{build}` the folder that `prepare` has filled,
//! `{port}` a free port. Commands run in an empty folder. A row whose workload prints other things
//! from run to run is no use: the work has to be chosen so that it does not.

use super::server::Client;

/// One program and its work.
#[derive(Clone, Copy)]
pub struct Program {
    /// What it is called in the table and on the command line.
    pub name: &'static str,
    /// Commands that have to be installed; the first one tells the version.
    pub needs: &'static [&'static str],
    /// The arguments that make it tell its version.
    pub version: &'static [&'static str],
    /// What it does, for the page.
    pub what: &'static str,
    /// Commands before the first run, not traced: most compile.
    pub prepare: &'static [&'static [&'static str]],
    /// What is run.
    pub command: &'static [&'static str],
    /// The status that the work ends with: most end with one that nothing else would give.
    pub status: i32,
    /// The file of `xtask/world` that is copied into its folder with the placeholders replaced.
    pub config: Option<&'static str>,
    /// For servers: who talks to it until it is ended by SIGTERM.
    pub client: Option<Client>,
}

const ROW: Program = Program {
    name: "",
    needs: &[],
    version: &["--version"],
    what: "",
    prepare: &[],
    command: &[],
    status: 0,
    config: None,
    client: None,
};

const LANGUAGE: &str =
    "threads, children, exceptions, signals, garbage, regular expressions, files, sockets";

/// A row with what every row has, and the status at the end of the work.
const fn work(
    name: &'static str,
    needs: &'static [&'static str],
    what: &'static str,
    command: &'static [&'static str],
    status: i32,
) -> Program {
    Program { name, needs, what, command, status, ..ROW }
}

/// The table. A new row needs nothing else but its work.
pub const PROGRAMS: &[Program] = &[
    work("python3", &["python3"], LANGUAGE, &["{0}", "{work}/python.py"], 3),
    work(
        "perl",
        &["perl"],
        "children, signals, die through frames, closures, nested patterns, sockets",
        &["{0}", "{work}/perl.pl"],
        4,
    ),
    work(
        "bash",
        &["bash"],
        "arrays, patterns, coprocess, process substitution, recursion",
        &["{0}", "{work}/bash.sh"],
        0,
    ),
    work(
        "bash-posix",
        &["bash"],
        "subshells, jobs, traps, pipes, here documents",
        &["{0}", "{work}/shell.sh"],
        6,
    ),
    Program {
        version: &["-c", "echo dash"],
        ..work(
            "dash",
            &["dash"],
            "subshells, jobs, traps, pipes, here documents",
            &["{0}", "{work}/shell.sh"],
            6,
        )
    },
    work("ruby", &["ruby"], LANGUAGE, &["{0}", "{work}/ruby.rb"], 5),
    work(
        "php",
        &["php"],
        "exceptions, generators, closures, collector, children, sockets",
        &["{0}", "{work}/php.php"],
        8,
    ),
    work(
        "node",
        &["node"],
        "workers, promises, children, exceptions, garbage, sockets, streams",
        &["{0}", "{work}/node.js"],
        9,
    ),
    Program {
        prepare: &[&["{1}", "-d", "{build}", "{work}/Main.java"]],
        version: &["-version"],
        ..work("java", &["java", "javac"], LANGUAGE, &["{0}", "-cp", "{build}", "Main"], 9)
    },
    Program {
        version: &["version"],
        prepare: &[&[
            "env",
            "CGO_ENABLED=1",
            "GOFLAGS=-mod=mod",
            "{0}",
            "build",
            "-ldflags=-linkmode=external",
            "-o",
            "{build}/main",
            "{work}/main.go",
            "{work}/go-cgo.go",
        ]],
        ..work(
            "go-cgo",
            &["go", "gcc"],
            "goroutines, panics, garbage, C calls, children, signals, sockets",
            &["{build}/main"],
            9,
        )
    },
    Program {
        version: &["version"],
        prepare: &[&[
            "env",
            "CGO_ENABLED=0",
            "{0}",
            "build",
            "-o",
            "{build}/main",
            "{work}/main.go",
            "{work}/go-pure.go",
        ]],
        ..work(
            "go-static",
            &["go"],
            "the same without C, statically linked: followed from its start",
            &["{build}/main"],
            9,
        )
    },
    Program {
        version: &["-v"],
        ..work(
            "lua",
            &["lua5.4|lua5.3|lua"],
            "coroutines, errors, closures, collector, patterns, a child",
            &["{0}", "{work}/lua.lua"],
            7,
        )
    },
    Program {
        version: &["-v"],
        ..work(
            "luajit",
            &["luajit"],
            "the same, compiled as it runs",
            &["{0}", "{work}/lua.lua"],
            7,
        )
    },
    Program {
        version: &["-version"],
        prepare: &[
            &["cp", "{work}/ocaml.ml", "{build}/main.ml"],
            &["{0}", "-o", "{build}/main", "{build}/main.ml"],
        ],
        ..work(
            "ocaml",
            &["ocamlopt"],
            "native code: exceptions, both collectors, signals, a child",
            &["{build}/main"],
            6,
        )
    },
    Program {
        version: &["-version"],
        prepare: &[
            &["cp", "{work}/ocaml.ml", "{build}/main.ml"],
            &["{0}", "-o", "{build}/main", "{build}/main.ml"],
        ],
        ..work(
            "ocaml-bytecode",
            &["ocamlc", "ocamlrun"],
            "the same as bytecode",
            &["{1}", "{build}/main"],
            6,
        )
    },
    Program {
        version: &["-version"],
        ..work(
            "erlang",
            &["erl", "escript"],
            "processes, links, ETS, sockets, a port",
            &["{1}", "{work}/erlang.escript"],
            7,
        )
    },
    work(
        "R",
        &["R", "Rscript"],
        "a linear model, conditions, closures, matrices, a child",
        &["{1}", "--vanilla", "{work}/r.R"],
        5,
    ),
    Program {
        version: &["{work}/version.tcl"],
        ..work(
            "tcl",
            &["tclsh|tclsh8.6"],
            "errors, coroutines, the event loop with sockets, recursion, children",
            &["{0}", "{work}/tcl.tcl"],
            4,
        )
    },
    work(
        "guile",
        &["guile|guile-3.0"],
        "continuations, exceptions, threads, big numbers, a child",
        &["{0}", "--no-auto-compile", "{work}/guile.scm"],
        5,
    ),
    work(
        "sbcl",
        &["sbcl"],
        "conditions, restarts, the compiler, collector, threads, a child",
        &["{0}", "--script", "{work}/sbcl.lisp"],
        6,
    ),
    work(
        "gforth",
        &["gforth"],
        "recursion, exceptions, memory, a child",
        &["{0}", "{work}/gforth.fs"],
        0,
    ),
    Program {
        prepare: &[&[
            "{0}",
            "-v0",
            "-O",
            "-threaded",
            "-outputdir",
            "{build}",
            "-o",
            "{build}/main",
            "{work}/haskell.hs",
        ]],
        ..work(
            "ghc",
            &["ghc"],
            "what it compiles: laziness, exceptions, threads, collector",
            &["{build}/main", "+RTS", "-N2"],
            5,
        )
    },
    Program {
        prepare: &[&["{1}", "-out:{build}/main.exe", "{work}/csharp.cs"]],
        ..work(
            "mono",
            &["mono", "mcs"],
            "tasks, exceptions, null references, collector, a child",
            &["{0}", "{build}/main.exe"],
            9,
        )
    },
    work(
        "sqlite3",
        &["sqlite3"],
        "triggers, recursive queries, windows, rollback, errors, vacuum",
        &["sh", "-c", "exec '{0}' x.db < '{work}/query.sql'"],
        1,
    ),
    Program {
        command: &[
            "{0}",
            "--port",
            "{port}",
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--loglevel",
            "warning",
            "--logfile",
            "log",
            "--io-threads",
            "2",
        ],
        client: Some(Client::Redis),
        ..work(
            "redis",
            &["redis-server"],
            "four clients: strings, lists, hashes, sorted sets, scripts, a saving child",
            &[],
            0,
        )
    },
    Program {
        version: &["-v"],
        config: Some("nginx.conf"),
        command: &["{0}", "-p", "{here}", "-c", "{here}/nginx.conf", "-e", "stderr"],
        client: Some(Client::Http),
        ..work(
            "nginx",
            &["nginx"],
            "four clients: patterns, compression, redirects, a proxy, two workers",
            &[],
            0,
        )
    },
    work(
        "git",
        &["git"],
        "commits, a merge with a conflict, a rebase, packing, fsck, a clone",
        &["sh", "{work}/git.sh"],
        1,
    ),
    work(
        "gcc",
        &["gcc"],
        "compiles C at -O2 and links it; the result runs",
        &["sh", "-c", "'{0}' -O2 -g '{work}/work.c' -o x -lm && ./x"],
        5,
    ),
    work(
        "g++",
        &["g++"],
        "templates, exceptions, threads; the result runs",
        &["sh", "-c", "'{0}' -O1 '{work}/work.cc' -o x -pthread && ./x"],
        6,
    ),
    work(
        "clang",
        &["clang|clang-19|clang-16|clang-14"],
        "compiles C at -O2 and links it; the result runs",
        &["sh", "-c", "'{0}' -O2 '{work}/work.c' -o x -lm && ./x"],
        5,
    ),
    work(
        "rustc",
        &["rustc"],
        "compiles with optimization; the result runs",
        &["sh", "-c", "'{0}' -O --edition 2021 '{work}/work.rs' -o x && ./x"],
        7,
    ),
    Program {
        version: &["-version"],
        ..work(
            "ffmpeg",
            &["ffmpeg"],
            "encodes a test picture with H.264, then decodes it",
            &[
                "sh",
                "-c",
                "'{0}' -v error -f lavfi -i testsrc=d=1:s=160x120 -c:v libx264 -threads 2 -y x.mp4 && '{0}' -v error -i x.mp4 -f framemd5 -",
            ],
            0,
        )
    },
    Program {
        version: &["version"],
        ..work(
            "openssl",
            &["openssl"],
            "hashes, ciphers, RSA and EC keys, signatures, certificates",
            &["sh", "{work}/openssl.sh", "{0}"],
            0,
        )
    },
    work("tar", &["tar"], "packs and unpacks a tree", &["sh", "{work}/archive.sh", "tar"], 2),
    work("gzip", &["gzip"], "packs and unpacks", &["sh", "{work}/archive.sh", "{0}"], 0),
    work("xz", &["xz"], "packs and unpacks", &["sh", "{work}/archive.sh", "{0}"], 0),
    work(
        "zstd",
        &["zstd"],
        "packs and unpacks, with threads",
        &["sh", "{work}/archive.sh", "{0}"],
        0,
    ),
    work(
        "make",
        &["make"],
        "pattern rules, functions, four jobs at a time, a failure",
        &["sh", "-c", "'{0}' -s -j4 -f '{work}/tools.mk' && '{0}' -f '{work}/tools.mk' fails"],
        2,
    ),
    Program {
        version: &["-W", "version"],
        ..work(
            "mawk",
            &["mawk"],
            "sums, arrays, functions, pipes",
            &["sh", "{work}/text.sh", "{0}"],
            4,
        )
    },
    work("gawk", &["gawk"], "sums, arrays, functions, pipes", &["sh", "{work}/text.sh", "{0}"], 4),
    work(
        "sed",
        &["sed"],
        "addresses, groups, hold space, a syntax error",
        &["sh", "{work}/text.sh", "sed"],
        1,
    ),
    work(
        "sort",
        &["sort"],
        "keys, numbers, threads, temporary files",
        &["sh", "{work}/text.sh", "sort"],
        1,
    ),
    work(
        "grep",
        &["grep"],
        "back references, fixed words, Perl's patterns",
        &["sh", "{work}/text.sh", "grep"],
        1,
    ),
    work("find", &["find"], "tests, formats, children", &["sh", "{work}/text.sh", "find"], 1),
    work("bc", &["bc"], "fifty digits, recursion, an error", &["{0}", "-lq", "{work}/bc.bc"], 0),
    work(
        "jq",
        &["jq"],
        "paths, reductions, patterns, an error",
        &[
            "sh",
            "-c",
            "'{0}' -n '[range(5000)|{{a:.,b:(.*7919%503|tostring)}}]' > x; '{0}' -c 'group_by(.b)|map(length)|[min,max,add]' x; '{0}' '[.[].b|select(test(\"7+$\"))]|length' x; '{0}' .a.b.c x",
        ],
        5,
    ),
    Program {
        prepare: &[&["{1}", "-g", "-O0", "-no-pie", "-o", "{build}/work", "{work}/work.c", "-lm"]],
        ..work(
            "gdb",
            &["gdb", "gcc"],
            "a breakpoint with a condition, a backtrace, finish",
            &["{0}", "-nx", "-q", "-batch", "-x", "{work}/gdb.gdb", "{build}/work"],
            0,
        )
    },
    work(
        "vim",
        &["vim"],
        "sorts, substitutes, deletes, expressions, a child",
        &[
            "sh",
            "-c",
            "'{0}' -u NONE -i NONE -n -es -S '{work}/vim.vim' < /dev/null; s=$?; cksum out; exit $s",
        ],
        0,
    ),
    work(
        "emacs",
        &["emacs"],
        "buffers, patterns, conditions, collector, a child",
        &["{0}", "-Q", "--batch", "-l", "{work}/emacs.el"],
        4,
    ),
    work(
        "curl",
        &["curl", "python3"],
        "files, globbing, an error",
        &[
            "sh",
            "-c",
            "seq 1 5000 > x; '{0}' -sS file://$PWD/x | cksum; '{0}' -sS file://$PWD/missing",
        ],
        37,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::PROGRAMS;
    use crate::world::longer::longer_work;

    #[test]
    fn names_are_unique_and_every_workload_is_there() {
        let names: BTreeSet<&str> = PROGRAMS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PROGRAMS.len());
        let work = crate::root().join("xtask/world");
        for program in PROGRAMS.iter().flat_map(|program| [*program, longer_work(program)]) {
            assert!(
                !program.command.is_empty()
                    && !program.needs.is_empty()
                    && !program.what.is_empty(),
                "{}",
                program.name
            );
            let words = program
                .prepare
                .iter()
                .copied()
                .flatten()
                .chain(program.command)
                .chain(program.version);
            for word in words.flat_map(|word| word.split('\'')) {
                if let Some(file) = word.strip_prefix("{work}/") {
                    assert!(work.join(file).is_file(), "{}: `{file}` is missing", program.name);
                }
            }
            assert!(
                program.config.is_none_or(|file| work.join(file).is_file()),
                "{}",
                program.name
            );
        }
    }
}
