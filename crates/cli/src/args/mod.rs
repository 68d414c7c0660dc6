//! The command line: one definition for parsing and help.

mod chain;
mod completions;
mod export;
mod map;
mod object;
mod output;
mod process;
mod prog;
mod report;
mod run;
mod shown;
mod symbolize;
mod test;
mod trace;
mod vma;

use std::panic::resume_unwind;
use std::thread;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

pub use chain::{
    AttachArgs, BenchArgs, ChainCommand, ChainRunArgs, ExplainArgs, ModeName, OnKernelArgs,
    PlaceArgs, ReuseArgs,
};
pub use completions::Shell;
pub use export::{ExportArgs, Format as ExportFormat};
pub use map::{
    CopyArgs, CreateArgs, DeleteArgs, DumpArgs, KernelSide, LoadArgs, LookupArgs, MapArgs,
    MapCommand, MapsArgs, RangeArgs, TakeHow,
};
pub use object::{ObjectArgs, SetArgs};
pub use output::JsonArgs;
pub use process::ProcessArgs;
pub use prog::{EngineName, PacketArgs, ProgCommand, ProgDumpArgs, ProgRunArgs};
pub use report::RecordingArgs;
pub use run::RunArgs;
pub use shown::{ShownArgs, SortBy};
pub use symbolize::{Addr2lineArgs, SymbolizeArgs};
pub use test::TestArgs;
pub use trace::{Fault, TraceArgs, Trigger};
pub use vma::{TargetArgs, VmaCommand, address};

/// Names another library than the agent that `skep` carries.
pub const ENV_PRELOAD: &str = "SKEP_PRELOAD";

const ENVIRONMENT: &str = "\
Environment:
  SKEP_DIR         directory of maps, programs and links, which are files
                   [default: $XDG_RUNTIME_DIR/skep, else /dev/shm/skep-UID]
  SKEP_PRELOAD     the agent's library
                   [default: the one in this program, put into SKEP_DIR or a cache]
  SKEP_CODE_CACHE  directory that keeps what is known about libraries' code, and
                   the verifier's proofs; `off` keeps nothing
                   [default: below SKEP_DIR if that is set, else skep/code in
                   $XDG_CACHE_HOME or ~/.cache]
  SKEP_PERF        publishes compiled programs in the process that runs them, for
                   profilers and debuggers: map, dump, gdb, or several with commas
  DEBUGINFOD_URLS  servers of `symbolize --debuginfod`
  NO_COLOR         no colors in messages

Exit status: `trace` and `run` exit with the status of the command, if that is
not 0. Otherwise: 0 on success, 1 if what was asked for failed or was not found,
2 for wrong usage or a problem of the environment.";

/// The eBPF subsystem outside the kernel.
#[derive(Parser, Debug)]
#[command(name = "skep", version, after_help = ENVIRONMENT, max_term_width = 100)]
pub struct Cli {
    /// Print only data, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// One subcommand.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Count and time calls of matching functions, in a command or in processes that run already
    #[command(after_help = trace::HELP)]
    Trace(TraceArgs),
    /// Show what `skep trace --record` wrote
    #[command(after_help = report::HELP)]
    Report(RecordingArgs),
    /// Attach the programs of object files to functions of a command, or of processes that run already
    #[command(after_help = run::HELP)]
    Run(RunArgs),
    /// Verify, run, list and print programs
    #[command(subcommand)]
    Prog(ProgCommand),
    /// List, read and change maps, also while a command runs and after it was killed
    Map(MapsArgs),
    /// Put packet programs in sequence, the next one chosen by the verdict of the one before
    #[command(subcommand, after_help = chain::HELP)]
    Chain(ChainCommand),
    /// Show what is mapped in a process, a core file or a recording
    #[command(subcommand)]
    Vma(VmaCommand),
    /// Name addresses: functions, source lines, inlined functions
    #[command(after_help = symbolize::HELP)]
    Symbolize(SymbolizeArgs),
    /// Print what binutils' `addr2line` prints, with its options
    #[command(name = "addr2line")]
    Addr2line(Addr2lineArgs),
    /// Run the unit tests in files
    #[command(after_help = test::HELP)]
    Test(TestArgs),
    /// Turn a report of `skep trace --json` into metrics (Prometheus, OpenTelemetry) or a table (Parquet)
    #[command(after_help = export::HELP)]
    Export(ExportArgs),
    /// Check what works on this machine
    Doctor(JsonArgs),
    /// Print a script that makes a shell complete skep's commands and options
    #[command(after_help = completions::HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Cli {
    /// Reads the command line; ends the process with usage errors.
    ///
    /// # Errors
    /// What is to be printed in place of doing something: help, or the version.
    pub fn read() -> Result<Self, clap::Error> {
        let mut cli = match on_a_large_stack(Self::try_parse) {
            Ok(cli) => cli,
            Err(e) if e.use_stderr() => e.exit(),
            Err(text) => return Err(text),
        };
        if let Command::Map(maps) = &mut cli.command
            && let Err(conflict) = maps.apply_kernel()
        {
            on_a_large_stack(Self::command).error(ErrorKind::ArgumentConflict, conflict).exit();
        }
        Ok(cli)
    }
}

/// Does what has to do with the definition of all options, which takes 400 kB of the stack. Where the main
/// thread may not have so much (`ulimit -s`), another one does it.
fn on_a_large_stack<T: Send>(f: impl Fn() -> T + Sync) -> T {
    const LARGE: usize = 2 << 20;
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_none_or(|limit| limit >= LARGE as u64) {
        return f();
    }
    thread::scope(|scope| match thread::Builder::new().stack_size(LARGE).spawn_scoped(scope, &f) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(_) => f(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn patterns_end_where_the_command_begins() {
        let cli = Cli::try_parse_from([
            "skep",
            "trace",
            "a*",
            "b:c",
            "--exclude",
            "d",
            "--json",
            "--",
            "cmd",
            "--json",
            "--",
            "x",
        ])
        .unwrap();
        let Command::Trace(args) = cli.command else { panic!("not trace") };
        assert_eq!(
            (args.patterns, args.exclude, args.shown.report.json),
            (vec!["a*".into(), "b:c".into()], vec!["d".into()], true)
        );
        assert_eq!(args.command, ["cmd", "--json", "--", "x"]);
        assert_eq!((args.shown.sort, args.shown.limit), (SortBy::SelfTime, None));
    }

    #[test]
    fn a_command_needs_its_dashes() {
        for line in [
            &["skep", "trace", "a"][..],
            &["skep", "trace", "--", "cmd"],
            &["skep", "trace", "a", "--"],
            &["skep", "run", "x.o"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
