//! Arguments of `skep run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::object::ObjectArgs;
use super::output::ReportArgs;
use super::process::ProcessArgs;

pub(super) const HELP: &str = "\
Programs attach to what their section names:
  fentry.multi/PATTERN[,PATTERN…]  fexit.multi/…  fmod_ret.multi/…  fsession.multi/…
  fentry/FUNCTION  fexit/…  fmod_ret/…  fsession/…
  uprobe.multi/MODULE:PATTERN  uretprobe.multi/…  uprobe.session/…
  uprobe/MODULE:FUNCTION[+OFFSET]  uretprobe/…
  usdt/MODULE:PROVIDER:NAME
`--attach PROGRAM=PATTERN` overrides the section.

`--set NAME=VALUE` reads the value by the variable's type: 5, -0x1f, true, 'c',
BLUE, text, {1, 2}, { .min = 3, .comm = \"cat\" }. NAME can be config.limits[2].max.

Examples:
  skep run count.bpf.o --attach 'count=libc:*' -- sort /etc/services
  skep run slow.bpf.o --set min_ns=1000000 --set comm=sort -- ./app
  skep run count.bpf.o --attach 'count=libc:*' -p 4711 --for 10s";

/// Arguments of `skep run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Object files, compiled by clang
    #[arg(required = true, value_name = "OBJECT")]
    pub objects: Vec<PathBuf>,
    /// Attach a program to functions that match, instead of what its section names; can be
    /// repeated
    #[arg(long, value_name = "PROGRAM=PATTERN", value_parser = attach)]
    pub attach: Vec<(String, String)>,
    /// Do not attach to functions that match this pattern; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Print this many entries and events of each map; 0 prints all [default: 30, with --json all]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print keys, values and records as bytes in hex
    #[arg(long)]
    pub raw: bool,
    /// Write the call stacks that programs recorded as lines `main;f;g COUNT`
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,
    /// Write the call stacks as a flame graph, an SVG for browsers
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Write the call stacks as a profile for pprof
    #[arg(long, value_name = "FILE")]
    pub pprof: Option<PathBuf>,
    /// Which member of a map's values is the weight of its stacks [default: the first number]
    #[arg(long, value_name = "MEMBER")]
    pub weight: Option<String>,
    /// Run the command even if a pattern without wildcards matches no function of the program or
    /// of the libraries it is linked with
    #[arg(long)]
    pub allow_unmatched: bool,
    /// Processes that run already
    #[command(flatten)]
    pub process: ProcessArgs,
    /// How the objects are read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the report looks
    #[command(flatten)]
    pub report: ReportArgs,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "pids", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn attach(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((program, pattern)) if !program.is_empty() && !pattern.is_empty() => {
            Ok((program.to_owned(), pattern.to_owned()))
        }
        _ => Err("expected PROGRAM=PATTERN".to_owned()),
    }
}
