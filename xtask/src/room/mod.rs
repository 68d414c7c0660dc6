//! `cargo xtask clean-room [--keep] [--limit MINUTES] [SUITE...] [-- COMMAND...]`: the README's
//! commands on a machine with nothing on it.
//!
//! A Debian of the suite is made with `debootstrap` (minbase, git, gcc, g++) and kept below
//! `target/clean-room`. Each run clones the commit that is checked out into a fresh home in it and
//! works there as an ordinary user: no network, no `/sys`, nearly no environment;
//! the Rust toolchain of this machine is mounted read-only, the crates were fetched before.
//!
//! All mounts are made in a mount namespace of the run's own, so nothing has to be unmounted: they
//! go when its last process does. Those processes are in a PID namespace whose first one gets
//! SIGKILL when we end, in whatever way.

mod inside;
pub mod package;
mod root;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

pub use inside::run as run_inside;

use crate::transcript::{self, Transcript};
use crate::{cargo, check, output, readme, root as workspace};

/// What a run is made in when nobody says how long it may take: two builds and all tests on a slow
/// machine.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// What the command line asks for.
struct Options {
    suites: Vec<String>,
    command: Option<String>,
    keep: bool,
    limit: Duration,
}

/// Runs the README's commands, or the given one, in a clean room of each suite.
pub fn run(args: &[&str]) -> Result<()> {
    let options = parse(args)?;
    if let Some(what) = root::lacks() {
        bail!("a clean room needs {what}");
    }
    in_rooms(&options)
}

/// The part of `cargo xtask ci`: all suites, or a line that says why not.
pub fn check_all() -> Result<()> {
    match root::lacks() {
        Some(what) => {
            println!("skipped: needs {what}");
            Ok(())
        }
        None => in_rooms(&parse(&[])?),
    }
}

fn parse(args: &[&str]) -> Result<Options> {
    let mut options = Options { suites: Vec::new(), command: None, keep: false, limit: LIMIT };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--keep" => options.keep = true,
            "--limit" => {
                let minutes = args
                    .next()
                    .and_then(|text| text.parse::<u64>().ok())
                    .context("`--limit` takes a number of minutes")?;
                options.limit = Duration::from_secs(60 * minutes);
            }
            "--" => {
                options.command = Some(args.as_slice().join(" "));
                break;
            }
            option if option.starts_with('-') => {
                bail!("unknown option `{option}`; there are --keep and --limit MINUTES")
            }
            suite => options.suites.push(suite.to_owned()),
        }
    }
    if options.suites.is_empty() {
        options.suites = root::SUITES.iter().map(|&suite| suite.to_owned()).collect();
    }
    Ok(options)
}

fn in_rooms(options: &Options) -> Result<()> {
    let mut failed = Vec::new();
    for suite in &options.suites {
        println!("-- a clean room of {suite}");
        if let Err(error) = in_room(suite, options) {
            eprintln!("error: {error:#}");
            failed.push(suite.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("failed in a clean room of: {}", failed.join(" "));
    }
    Ok(())
}

/// What the run in the namespaces has to know, as arguments.
struct Room {
    /// The root of the suite, made once.
    root: PathBuf,
    /// The folder that becomes `/home`; of this run.
    home: PathBuf,
    /// Rust.
    toolchain: PathBuf,
    /// The crates of `Cargo.lock`.
    crates: PathBuf,
}

fn in_room(suite: &str, options: &Options) -> Result<()> {
    let below = workspace().join("target/clean-room");
    std::fs::create_dir_all(&below)
        .with_context(|| format!("cannot make `{}`", below.display()))?;
    let room = Room {
        root: root::make(suite, &below)?,
        home: below.join(format!("{suite}.home")),
        toolchain: output(
            Command::new("rustc").args(["--print", "sysroot"]).current_dir(workspace()),
        )?
        .trim()
        .into(),
        crates: below.join("crates"),
    };
    fetch_crates(&room.crates)?;
    furnish(&room.home)?;
    let commands = match &options.command {
        Some(command) => vec![command.clone()],
        None => vec![readme::try_command()?, readme::test_command()?],
    };
    let outcome = commands.iter().try_for_each(|command| {
        println!("$ {command}");
        let mut enter = enter(&room, command)?;
        let Transcript { status, skips } = transcript::run(&mut enter, options.limit)?;
        println!("skips: {}", skips.len());
        if !status.success() {
            bail!("`{command}` failed in a clean room of {suite}: {status}");
        }
        Ok(())
    });
    if options.keep {
        println!("kept `{}`", room.home.display());
    } else {
        root::remove(&room.home)?;
    }
    outcome
}

/// Everything that `Cargo.lock` names, as sources, so that cargo needs no network afterwards.
fn fetch_crates(dir: &Path) -> Result<()> {
    check(
        cargo()
            .args(["vendor", "--quiet", "--locked", "--versioned-dirs"])
            .arg(dir)
            .stdout(std::process::Stdio::null()),
    )?;
    // Some crates were packed with files that only their owner may read.
    check(Command::new("chmod").args(["-R", "a+rX"]).arg(dir))
}

/// The home of an ordinary user with a clone of what is checked out.
fn furnish(home: &Path) -> Result<()> {
    root::remove(home)?;
    let user = home.join(inside::USER);
    std::fs::create_dir_all(user.join(".cargo"))
        .with_context(|| format!("cannot make `{}`", user.display()))?;
    let config = format!(
        "[source.crates-io]\nreplace-with = \"fetched\"\n[source.fetched]\ndirectory = \"{}\"\n[net]\noffline = true\n",
        inside::CRATES
    );
    std::fs::write(user.join(".cargo/config.toml"), config)
        .context("cannot write cargo's configuration")?;
    if !output(
        Command::new("git")
            .args(["status", "--porcelain", "--untracked-files=no"])
            .current_dir(workspace()),
    )?
    .is_empty()
    {
        eprintln!("warning: the room gets the last commit, not what was changed since");
    }
    // No hard links: the files are given to another user.
    check(
        Command::new("git")
            .args(["clone", "--quiet", "--no-hardlinks"])
            .arg(workspace())
            .arg(user.join(inside::PROJECT)),
    )?;
    root::give(&user)
}

/// The command that runs `command` in the room: this program again, as the first process of new
/// namespaces.
fn enter(room: &Room, command: &str) -> Result<Command> {
    let mut enter = Command::new("setpriv");
    enter.args(["--pdeathsig", "KILL"]).args(root::unshare()).args([
        "--net",
        "--ipc",
        "--pid",
        "--fork",
        "--kill-child=KILL",
    ]);
    enter
        .arg(std::env::current_exe().context("cannot tell which program this is")?)
        .arg("clean-room-inside");
    enter.args([&room.root, &room.home, &room.toolchain, &room.crates]).arg(command);
    Ok(enter)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse;

    #[test]
    fn suites_options_and_a_command_are_told_apart() {
        let options =
            parse(&["--keep", "trixie", "--limit", "3", "--", "cargo", "test", "--keep"]).unwrap();
        assert_eq!((options.suites.as_slice(), options.keep), (&["trixie".to_owned()][..], true));
        assert_eq!(
            (options.limit, options.command.as_deref()),
            (Duration::from_secs(180), Some("cargo test --keep"))
        );
        let plain = parse(&[]).unwrap();
        assert_eq!((plain.suites.len(), plain.command), (super::root::SUITES.len(), None));
        assert!(parse(&["--unknown"]).is_err() && parse(&["--limit", "soon"]).is_err());
    }
}
