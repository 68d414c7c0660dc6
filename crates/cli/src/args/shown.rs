//! Options on what a report of a trace shows, when it ends and later.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::output::ReportArgs;
use super::process::duration;

/// What calls are summed up for, and not listed one by one.
const SUMS: [&str; 9] =
    ["csv", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof"];

/// What a report shows, and how.
#[derive(Args, Debug)]
pub struct ShownArgs {
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = SortBy::SelfTime, value_name = "COLUMN")]
    pub sort: SortBy,
    /// Print this many functions, paths or calls; 0 prints all [default: 30 functions, 100 paths of a
    /// tree; with --json or --csv all; all calls]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print the functions as CSV, times in ns
    #[arg(long, conflicts_with_all = ["json", "tree", "graph", "depth"])]
    pub csv: bool,
    /// Print a row for each function and traced function that called it
    #[arg(long, conflicts_with_all = ["tree", "graph", "depth"])]
    pub caller: bool,
    /// Print a row for each function and thread
    #[arg(long, conflicts_with_all = ["caller", "tree", "graph", "depth"])]
    pub tid: bool,
    /// Print a row for each function and process
    #[arg(long, conflicts_with_all = ["caller", "tid", "tree", "graph", "depth"])]
    pub tgid: bool,
    /// Print calls and times by call path, as a tree
    #[arg(long)]
    pub tree: bool,
    /// Print each function with its callers and what it calls
    #[arg(long, conflicts_with = "tree")]
    pub graph: bool,
    /// Write self times by call path as a flame graph, an SVG for browsers
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Write self times by call path as folded stacks, for other tools
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,
    /// Write self times by call path for pprof
    #[arg(long, value_name = "FILE")]
    pub pprof: Option<PathBuf>,
    /// Look only at calls nested up to this depth in traced functions; prints a tree
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1023))]
    pub depth: Option<u32>,
    /// Write calls for timelines: ui.perfetto.dev, chrome://tracing
    #[arg(long, value_name = "FILE", conflicts_with_all = SUMS)]
    pub chrome: Option<PathBuf>,
    /// The same in Perfetto's own format, which is smaller, and which trace_processor reads, too
    #[arg(long, value_name = "FILE", conflicts_with_all = SUMS, conflicts_with = "chrome")]
    pub perfetto: Option<PathBuf>,
    /// Leave out functions, or single calls, that took less than this (10us, 5ms)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub min: Option<Duration>,
    /// How the report looks
    #[command(flatten)]
    pub report: ReportArgs,
}

impl ShownArgs {
    /// Where a timeline of calls goes.
    pub fn timeline(&self) -> Option<&Path> {
        self.chrome.as_deref().or(self.perfetto.as_deref())
    }

    /// The files that are written besides the report, with the options that name them.
    pub fn files(&self) -> [(&str, Option<&Path>); 5] {
        [
            ("--flame", self.flame.as_deref()),
            ("--folded", self.folded.as_deref()),
            ("--pprof", self.pprof.as_deref()),
            ("--chrome", self.chrome.as_deref()),
            ("--perfetto", self.perfetto.as_deref()),
        ]
    }

    /// Tells whether call paths are looked at.
    pub fn wants_paths(&self) -> bool {
        self.tree
            || self.graph
            || self.caller
            || self.wants_threads()
            || self.depth.is_some()
            || [&self.flame, &self.folded, &self.pprof].into_iter().any(Option::is_some)
    }

    /// Tells whether threads are told apart.
    pub fn wants_threads(&self) -> bool {
        self.tid || self.tgid
    }

    /// The time below which nothing is shown, in ns.
    pub fn min_ns(&self) -> u64 {
        self.min.map_or(0, |m| u64::try_from(m.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A column to sort by: numbers descending, names ascending.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the variants are the names of columns")]
pub enum SortBy {
    Calls,
    Total,
    #[value(name = "self")]
    SelfTime,
    P50,
    P99,
    Name,
}
