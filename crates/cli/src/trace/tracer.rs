//! The two kinds of traces: calls that are summed up, and calls one by one.

use std::path::Path;

use skep::Dir;
use skep::dir::Kind;
use skep::link::{Link, LinkState};
use skep::prototypes::Catalog;

use super::calls::{self, Calls};
use super::objects::Trace;
use super::report::{self, Ended};
use crate::args::TraceArgs;
use crate::failure::Result;
use crate::printer::Printer;
use crate::sites::Sites;

/// Where results go.
pub enum Outputs {
    Sums(report::Outputs),
    Calls(calls::Outputs),
}

impl Outputs {
    /// Creates the files that were asked for.
    pub fn open(args: &TraceArgs) -> Result<Self> {
        if args.wants_calls() {
            calls::Outputs::open(args).map(Self::Calls)
        } else {
            report::Outputs::open(args).map(Self::Sums)
        }
    }
}

/// A trace.
pub enum Tracer {
    Sums(Trace, report::Outputs),
    Calls(Calls),
}

/// What a trace is loaded with.
pub struct Loading<'a> {
    pub dir: &'a Dir,
    pub args: &'a TraceArgs,
    pub patterns: &'a [String],
    pub exclude: Vec<String>,
    /// The agent.
    pub library: &'a Path,
    pub printer: Printer,
}

impl Tracer {
    /// Loads the program, creates the link, and says what to pin while the trace runs. `catalog` is
    /// asked for where types are wanted.
    pub fn load(
        loading: Loading<'_>,
        outputs: Outputs,
        catalog: impl FnOnce() -> Catalog,
    ) -> Result<(Self, Vec<(Kind, u32)>)> {
        let Loading { dir, args, patterns, exclude, library, printer } = loading;
        match outputs {
            Outputs::Sums(outputs) => {
                let (trace, objects) = Trace::load(dir, args, patterns, exclude, library)?;
                Ok((Self::Sums(trace, outputs), objects))
            }
            Outputs::Calls(outputs) => {
                let catalog = catalog();
                let (calls, objects) =
                    Calls::load(dir, args, patterns, exclude, &catalog, printer, outputs)?;
                Ok((Self::Calls(calls), objects))
            }
        }
    }

    /// Its link.
    pub fn link(&self) -> &Link {
        match self {
            Self::Sums(trace, _) => &trace.link,
            Self::Calls(calls) => &calls.link,
        }
    }

    /// Prints what came of it.
    pub fn print(
        self,
        state: &LinkState,
        sites: &Sites,
        ended: Ended<'_>,
        args: &TraceArgs,
        printer: Printer,
    ) -> Result {
        match self {
            Self::Sums(trace, outputs) => trace.print(state, sites, ended, args, outputs, printer),
            Self::Calls(calls) => calls.print(state, sites, &ended, args, printer),
        }
    }
}
