//! Arguments of `skep symbolize` and `skep addr2line`.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::output::JsonArgs;

pub(super) const HELP: &str = "\
Addresses are in hex; without any, they are read from stdin, one a line.

Examples:
  skep symbolize -p 1234 0x7f54a2c8b1d4
  skep symbolize --file ./app --inlines 0x1234 0x5678
  skep symbolize --core core.1234 --stacks
  cut -d' ' -f1 addresses | skep symbolize --names --file ./app";

/// Arguments of `skep symbolize`.
#[derive(Args, Debug)]
pub struct SymbolizeArgs {
    /// Addresses of a running process
    #[arg(short, long, value_name = "PID", group = "source")]
    pub pid: Option<u32>,
    /// Link-time addresses of a program or library, as in its symbol table
    #[arg(long, value_name = "BINARY", group = "source")]
    pub file: Option<PathBuf>,
    /// Addresses of a process that a snapshot was taken of
    #[arg(long, value_name = "FILE", group = "source")]
    pub snapshot: Option<PathBuf>,
    /// Addresses of a process that left a core file
    #[arg(long, value_name = "FILE", group = "source")]
    pub core: Option<PathBuf>,
    /// The call stacks of all threads in the core file
    #[arg(long, conflicts_with = "addresses")]
    pub stacks: bool,
    /// Names only: no debug information is read
    #[arg(long)]
    pub names: bool,
    /// Also the functions that were inlined, each with its line
    #[arg(short, long, conflicts_with = "names")]
    pub inlines: bool,
    /// Print names as linkers see them
    #[arg(long)]
    pub mangled: bool,
    /// Fetch debug files that are not installed from the servers in DEBUGINFOD_URLS
    #[arg(long)]
    pub debuginfod: bool,
    /// Addresses in hex
    #[arg(value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// Arguments of `skep addr2line`: those of binutils.
#[derive(Args, Debug)]
pub struct Addr2lineArgs {
    /// Program or library
    #[arg(short, long, value_name = "FILE", default_value = "a.out")]
    pub exe: PathBuf,
    /// Print the names of functions
    #[arg(short, long)]
    pub functions: bool,
    /// Demangle names; the style makes no difference
    #[arg(short = 'C', long, value_name = "STYLE", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    pub demangle: Option<String>,
    /// Print also the functions that a function was inlined into
    #[arg(short, long)]
    pub inlines: bool,
    /// One line for each frame
    #[arg(short, long)]
    pub pretty_print: bool,
    /// Print each address before what is known of it
    #[arg(short, long)]
    pub addresses: bool,
    /// Print file names without directories
    #[arg(short = 's', long)]
    pub basenames: bool,
    /// Addresses count from the start of this section
    #[arg(short = 'j', long, value_name = "SECTION")]
    pub section: Option<String>,
    /// For compatibility: the demangler's recursion is always bounded
    #[arg(short = 'R', long, visible_short_alias = 'r', visible_alias = "no-recurse-limit", action = ArgAction::Count)]
    pub recurse_limit: u8,
    /// Addresses in hex
    #[arg(value_name = "ADDRESS")]
    pub addrs: Vec<String>,
}
