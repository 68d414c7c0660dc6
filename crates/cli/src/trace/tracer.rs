//! The kinds of traces: calls that are summed up, calls one by one, and first calls.

use std::path::Path;

use skep::Dir;
use skep::dir::Kind;
use skep::link::{Link, LinkState};
use skep::prototypes::Catalog;

use super::budget::Budget;
use super::calls::{self, Calls};
use super::coverage::{self, Coverage};
use super::objects::Trace;
use super::report::{self, Ended};
use super::top::Top;
use crate::args::TraceArgs;
use crate::failure::Result;
use crate::printer::{Output, Printer, check_apart};
use crate::sites::Sites;
use crate::terminal::Terminal;

/// Where results go.
pub enum Outputs {
    Sums(report::Outputs, Option<Output>),
    Calls(calls::Outputs),
    Coverage(coverage::Outputs),
}

impl Outputs {
    /// Creates the files that were asked for.
    pub fn open(args: &TraceArgs) -> Result<Self> {
        let own = [("--record", args.record.as_deref()), ("--coverage", args.coverage.as_deref())];
        let report = args.shown.report.output.as_deref();
        check_apart(report, &[&args.shown.files()[..], &own].concat(), &[])?;
        if let Some(path) = &args.coverage {
            coverage::Outputs::open(args, path).map(Self::Coverage)
        } else if args.wants_calls() {
            calls::Outputs::open(args).map(Self::Calls)
        } else {
            let recording = args.record.as_deref().map(|path| Output::open(Some(path)));
            Ok(Self::Sums(report::Outputs::open(&args.shown)?, recording.transpose()?))
        }
    }
}

/// A trace.
pub enum Tracer {
    /// With where they are printed and recorded.
    Sums(Trace, report::Outputs, Option<Output>),
    Calls(Calls),
    Coverage(Coverage),
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
            Outputs::Sums(outputs, recording) => {
                let (trace, objects) = Trace::load(dir, args, patterns, exclude, library)?;
                Ok((Self::Sums(trace, outputs, recording), objects))
            }
            Outputs::Calls(outputs) => {
                let catalog = catalog();
                let (calls, objects) =
                    Calls::load(dir, args, patterns, exclude, &catalog, printer, outputs)?;
                Ok((Self::Calls(calls), objects))
            }
            Outputs::Coverage(outputs) => {
                let (coverage, objects) = Coverage::load(dir, args, patterns, exclude, outputs)?;
                Ok((Self::Coverage(coverage), objects))
            }
        }
    }

    /// Its link.
    pub fn link(&self) -> &Link {
        match self {
            Self::Sums(trace, ..) => &trace.link,
            Self::Calls(calls) => &calls.link,
            Self::Coverage(coverage) => &coverage.link,
        }
    }

    /// Looks after what tracing costs, where that is wanted.
    pub fn budget(&self, args: &TraceArgs) -> Result<Option<Budget>> {
        match (self, args.budget) {
            (Self::Sums(trace, ..), Some(part)) => Budget::start(trace, part).map(Some),
            _ => Ok(None),
        }
    }

    /// Prepares to show what is counted while it is.
    pub fn top<'a>(
        &'a self,
        terminal: Option<Terminal>,
        args: &'a TraceArgs,
        pids: &[u32],
    ) -> Option<Top<'a>> {
        match self {
            Self::Sums(trace, ..) => Some(Top::new(terminal?, trace, &args.shown, pids.to_vec())),
            _ => None,
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
            Self::Sums(trace, outputs, recording) => {
                let mut sums = trace.sums(state, sites, ended)?;
                // What cannot be written must not take the report along.
                let recorded = recording.map_or(Ok(()), |file| sums.record(file, printer));
                sums.print(&args.shown, false, outputs, printer)?;
                recorded
            }
            Self::Calls(calls) => calls.print(state, sites, &ended, args, printer),
            Self::Coverage(coverage) => coverage.print(state, sites, &ended, args, printer),
        }
    }
}
