//! The `skep` command: loads programs, starts commands with them, and prints what they found.
//!
//! `trace` and `run` walk the same way: [`session`] opens the directory and loads, [`launch`]
//! starts the command and waits, [`sites`] tells what was attached, and a report follows. All text
//! goes through [`printer`]; every error becomes a [`failure::Failure`] with its exit status.

mod args;
mod calibrate;
mod doctor;
mod entries;
mod estimate;
mod events;
mod failure;
mod inherited;
mod kernel;
mod launch;
mod left;
mod map;
mod objects;
mod printer;
mod prog;
mod rejection;
mod report;
mod run;
mod running;
mod session;
mod signals;
mod sites;
mod stats;
mod trace;
mod units;
mod unmatched;
mod vma;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use printer::Printer;

fn main() -> ExitCode {
    if calibrate::is_child() {
        return ExitCode::SUCCESS;
    }
    let mut cli = Cli::parse();
    if let Command::Map(args) = &mut cli.command {
        args.settle();
    }
    let printer = Printer::new(cli.quiet);
    let done = match &cli.command {
        Command::Trace(args) => trace::run(args, printer),
        Command::Run(args) => run::run(args, printer),
        Command::Prog(command) => prog::run(command, printer),
        Command::Map(args) => map::run(&args.command, printer),
        Command::Vma(command) => vma::run(command, printer),
        Command::Doctor(args) => doctor::run(args.json, printer),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.status)
        }
    }
}
