//! The `skep` command: loads programs, starts commands with them, and prints what they found.
//!
//! `trace` and `run` do the same in turn: [`directory`] opens the skep directory, programs are
//! loaded, [`agent`] finds the agent's library, [`launch`] starts the command and waits, [`sites`]
//! tells what was attached, and a report follows. All text goes through [`printer`]; every error
//! becomes a [`failure::Failure`] with its exit status.

skep_sys::define_for_old_glibc!();

mod agent;
mod args;
mod calibrate;
mod chain;
mod directory;
mod doctor;
mod estimate;
mod events;
mod export;
mod failure;
mod files;
mod flag;
mod held;
mod inherited;
mod kernel;
mod launch;
mod live;
mod map;
mod missed;
mod objects;
mod order;
mod orphans;
mod owner;
mod printer;
mod prog;
mod protobuf;
mod rejection;
mod replace;
mod report;
mod run;
mod running;
mod signals;
mod sites;
mod stacks;
mod stats;
mod symbolize;
mod terminal;
mod trace;
mod unit;
mod units;
mod unmatched;
mod vma;
mod vma_target;
mod watch;

use std::process::ExitCode;

use args::{Cli, Command};
use printer::{Output, Printer};

fn main() -> ExitCode {
    if calibrate::is_child() {
        return ExitCode::SUCCESS;
    }
    // Links that are made in the end know how fast the counter goes then.
    skep::note_clock();
    signals::survive_large_files();
    let cli = Cli::read();
    let printer = Printer::new(cli.as_ref().is_ok_and(|cli| cli.quiet));
    let done = match cli.as_ref().map(|cli| &cli.command) {
        Err(text) => printer.data(Output::Stdout, |out| write!(out, "{text}")).map(|()| 0),
        Ok(command) => run(command, printer),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.status)
        }
    }
}

fn run(command: &Command, printer: Printer) -> failure::Result<u8> {
    match command {
        Command::Trace(args) => trace::run(args, printer),
        Command::Report(args) => trace::recorded::run(args, printer),
        Command::Run(args) => run::run(args, printer),
        Command::Prog(command) => prog::run(command, printer),
        Command::Map(args) => map::run(&args.command, printer),
        Command::Chain(command) => chain::run(command, printer),
        Command::Vma(command) => vma::run(command, printer),
        Command::Symbolize(args) => symbolize::run(args, printer),
        Command::Addr2line(args) => symbolize::addr2line::run(args, printer),
        Command::Test(args) => unit::run(args, printer),
        Command::Doctor(args) => doctor::run(args.json, printer),
        Command::Export(args) => export::run(args, printer),
        Command::Completions { shell } => {
            printer.data(Output::Stdout, |out| out.write_all(&shell.script())).map(|()| 0)
        }
    }
}
