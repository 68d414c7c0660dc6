//! Writes the manual's pages of `skep`, one a subcommand, from the definition of the command line:
//! `cargo run -p skep-cli --example man -- DIR DATE`. `cargo xtask man` and `cargo xtask dist` call it.
//!
//! It is an example, so that the command does not carry what writes pages.

#![allow(clippy::print_stderr, reason = "a tool of development")]

#[path = "../src/args/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the command reads what it parses; here it is only described"
)]
mod args;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let [dir, date] = words.as_slice() else {
        eprintln!("usage: man DIR DATE");
        return ExitCode::from(2);
    };
    match write_pages(&PathBuf::from(dir), date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_pages(dir: &Path, date: &str) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| format!("cannot make `{}`: {e}", dir.display()))?;
    let mut command = args::Cli::command().disable_help_subcommand(true);
    command.build();
    write_page(dir, "skep", date, &command)
}

/// Writes the page of a command, and of each below it.
fn write_page(dir: &Path, name: &str, date: &str, command: &Command) -> Result<(), String> {
    let file = dir.join(format!("{name}.1"));
    fs::write(&file, page(name, date, command).map_err(|e| e.to_string())?)
        .map_err(|e| format!("cannot write `{}`: {e}", file.display()))?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page(dir, &format!("{name}-{}", below.get_name()), date, below)?;
    }
    Ok(())
}

/// The date is not optional: without one, the version would stand in its place.
fn page(name: &str, date: &str, command: &Command) -> io::Result<Vec<u8>> {
    // `man` takes the first word of NAME for the page's own name.
    let own: &'static str = Box::leak(name.to_owned().into_boxed_str());
    let command = command.clone().name(own);
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .date(date)
        .source(format!("skep {}", env!("CARGO_PKG_VERSION")))
        .manual("skep");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(after) = command.get_after_help() {
        page.extend_from_slice(after_help(&after.to_string()).as_bytes());
    }
    Ok(page)
}

/// What stands after the options in the help: its lines are aligned by hand, so they stay as they
/// are.
fn after_help(text: &str) -> String {
    let mut page = String::from(".SH NOTES\n.nf\n");
    for line in text.lines() {
        // A dot or quote at the start of a line would be a request to roff; a hyphen without its
        // backslash would be typeset as a dash.
        page.push_str("\\&");
        page.push_str(&line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq"));
        page.push('\n');
    }
    page.push_str(".fi\n");
    page
}
