//! Arguments of `skep vma`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::output::JsonArgs;

/// What to ask about mappings.
#[derive(Subcommand, Debug)]
pub enum VmaCommand {
    /// Show what is mapped at addresses, and which functions are there
    #[command(after_help = QUERY)]
    Query {
        /// Whose mappings
        #[command(flatten)]
        target: TargetArgs,
        /// Addresses in hex; without any they are read from stdin
        #[arg(value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<u64>,
        /// If nothing is mapped at an address, show the next mapping after it
        #[arg(long)]
        next: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// List mappings
    List {
        /// Whose mappings
        #[command(flatten)]
        target: TargetArgs,
        /// List only executable mappings of files
        #[arg(long)]
        text: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Save mappings to a file, to ask about them after the process has ended
    #[command(after_help = SNAPSHOT)]
    Snapshot {
        /// Whose mappings
        #[command(flatten)]
        target: TargetArgs,
        /// The file
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Turn addresses into files, offsets and build ids
    #[command(after_help = NORMALIZE)]
    Normalize {
        /// Whose mappings
        #[command(flatten)]
        target: TargetArgs,
        /// Addresses in hex; without any they are read from stdin
        #[arg(value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<u64>,
        /// Take addresses of mappings that are not executable too
        #[arg(long)]
        data: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
}

/// Whose mappings are meant.
#[derive(Args, Debug)]
pub struct TargetArgs {
    /// Process id, core file, `perf.data` or snapshot
    #[arg(value_name = "PID|FILE")]
    pub target: String,
    /// Which process of a `perf.data`
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

const QUERY: &str = "\
Offsets are in bytes. Exit status 1: something is not mapped.

Example: skep vma query $$ 7ffff7fc1000";

const SNAPSHOT: &str = "\
Example: skep vma snapshot $$ -o maps; skep vma list ./maps";

const NORMALIZE: &str = "\
A line has the address, the offset in the file (bytes, in hex), the build id and
the file; or the address, two dashes and the reason. Exit status 1: an address is
in no file.

Example: skep vma normalize ./perf.data --pid 4711 < addresses";

/// Reads an address in hex.
pub fn address(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
        .map_err(|_| "expected a hexadecimal address".to_owned())
}
