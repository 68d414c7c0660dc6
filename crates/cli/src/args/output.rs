//! Options on how results look and where they go.

use std::path::PathBuf;

use clap::Args;

/// How results look.
#[derive(Args, Debug, Clone, Copy)]
pub struct JsonArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Where reports go and how they look.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Write the report to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// List every function that was not attached, with the reason
    #[arg(short, long)]
    pub verbose: bool,
}
