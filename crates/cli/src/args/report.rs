//! Arguments of `skep report`.

use std::path::PathBuf;

use clap::Args;

use super::shown::ShownArgs;

pub(super) const HELP: &str = "\
FILE is what `skep trace --record FILE` wrote, on this machine or another one:
all names are in it, the programs need not be there.

Examples:
  skep trace 'app:*' --record app.skep -- ./app
  skep report app.skep
  skep report app.skep --tree --depth 3
  skep report app.skep --flame app.svg
  skep trace 'app:*' --record calls.skep --calls -- ./app
  skep report calls.skep --chrome app.json";

/// Arguments of `skep report`.
#[derive(Args, Debug)]
pub struct RecordingArgs {
    /// What a trace recorded
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print each call, where each was recorded
    #[arg(long, conflicts_with_all = ["csv", "caller", "tid", "tgid", "tree", "graph", "flame", "folded", "pprof"])]
    pub calls: bool,
    /// What is shown of it
    #[command(flatten)]
    pub shown: ShownArgs,
}
