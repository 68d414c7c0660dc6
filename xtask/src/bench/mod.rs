//! `cargo xtask bench NAME [--json] [--record]`: measurements with a rival, interleaved in one run.

mod attach;
mod chain;
mod dump;
mod jit;
pub mod machine;
mod maps;
mod micro;
mod place;
mod procmap;
mod qptrie;
mod row;
mod sample;
mod sqlite;
mod symbolize;
mod trace;
mod verify;

use anyhow::{Result, bail};
use row::Row;

/// One bench.
pub struct Bench {
    /// The word on the command line.
    pub name: &'static str,
    /// One line for the usage text.
    pub what: &'static str,
    run: fn() -> Result<Vec<Row>>,
}

/// All benches.
pub const BENCHES: &[Bench] = &[
    Bench {
        name: "chain",
        what: "programs in sequence, on packets, on interfaces; rivals the kernel (root), C",
        run: chain::run,
    },
    Bench {
        name: "dump",
        what: "reading whole maps; rivals the kernel's commands and bpftool (root)",
        run: dump::run,
    },
    Bench {
        name: "jit",
        what: "compiled programs, lookups, calls, compiling; rivals gcc -O2, the kernel, rbpf",
        run: jit::run,
    },
    Bench {
        name: "maps",
        what: "every operation of the map types; the rival is the kernel (root)",
        run: maps::run,
    },
    Bench {
        name: "procmap",
        what: "addresses of a process to files; rivals blazesym, procfs, reading the text",
        run: procmap::run,
    },
    Bench {
        name: "qptrie",
        what: "tries of byte strings; rivals hashbrown, BTreeMap, an ART, the kernel's hash (root)",
        run: qptrie::run,
    },
    Bench {
        name: "symbolize",
        what: "names and lines of 100,000 addresses; rivals blazesym, addr2line, llvm-symbolizer",
        run: symbolize::run,
    },
    Bench {
        name: "trace",
        what: "what tracing adds to a call, to attaching, to SQLite; rivals uftrace and uprobes",
        run: trace::run,
    },
    Bench {
        name: "verify",
        what: "verifying objects and large programs; the rival is Linux, loading them (root)",
        run: verify::run,
    },
];

/// Runs the named bench.
pub fn run(args: &[&str]) -> Result<()> {
    let (mut json, mut record, mut names) = (false, false, Vec::new());
    for arg in args {
        match *arg {
            "--json" => json = true,
            "--record" => record = true,
            name => names.push(name),
        }
    }
    let &[name] = names.as_slice() else {
        bail!("usage: cargo xtask bench NAME [--json] [--record]");
    };
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
        bail!(
            "no bench named `{name}`; there are: {}",
            BENCHES.iter().map(|b| b.name).collect::<Vec<_>>().join(" ")
        );
    };
    if record {
        // Before the bench, which takes minutes.
        machine::refuse_dirty_tree()?;
    }
    let rows = (bench.run)()?;
    if json {
        println!("{}", row::json(&rows));
    } else {
        print!("{}", row::table(&rows));
    }
    if record {
        let path = row::record(name, &rows)?;
        eprintln!("recorded in {}", crate::relative(&path));
    }
    Ok(())
}
