//! Arguments of `skep export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub const HELP: &str = "\
Examples:
  skep trace --json -o report.json 'libc:*' -- ./program
  skep export prometheus report.json -o /var/lib/node_exporter/program.prom
  skep trace --json 'libc:*' -p 1234 --for 10s | skep export otlp > metrics.json
  skep export parquet report.json --label host=web1 -o report.parquet";

/// What other systems read.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The text format of Prometheus, for textfile collectors and push gateways
    Prometheus,
    /// OpenTelemetry metrics as JSON, a request of OTLP/HTTP
    Otlp,
    /// A table in Apache Parquet, a row for each function
    Parquet,
}

/// What becomes what.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// The output format
    pub format: Format,
    /// A report of `skep trace --json`; `-` is stdin
    #[arg(default_value = "-", value_name = "REPORT")]
    pub report: PathBuf,
    /// Add a label to all metrics, an attribute of the resource, or a column, as in job=web; can be
    /// repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Write to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
