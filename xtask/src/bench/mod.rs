//! `cargo xtask bench NAME [--json]`: measurements with a rival, interleaved in one run.

use anyhow::{Result, bail};

/// One bench.
pub struct Bench {
    /// The word on the command line.
    pub name: &'static str,
    /// One line for the usage text.
    pub what: &'static str,
    run: fn(json: bool) -> Result<()>,
}

/// All benches.
pub const BENCHES: &[Bench] = &[];

/// Runs the named bench.
pub fn run(args: &[&str]) -> Result<()> {
    let (name, json) = match args {
        [name] => (*name, false),
        [name, "--json"] | ["--json", name] => (*name, true),
        _ => bail!("usage: cargo xtask bench NAME [--json]"),
    };
    match BENCHES.iter().find(|bench| bench.name == name) {
        Some(bench) => (bench.run)(json),
        None => bail!("no bench named `{name}`"),
    }
}
