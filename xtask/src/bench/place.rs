//! Where the parts of the bench `trace` keep their files, and the commands that they measure there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use skep_testkit::TempDir;
use skep_testkit::report::Report;
use skep_testkit::skip::has_command;
use skep_testkit::trace::skep_bin;

/// Where a bench keeps its programs and skep its objects, until it ends.
pub struct Place {
    /// For programs and records.
    pub dir: TempDir,
    /// `$SKEP_DIR` lies in here.
    pub objects: TempDir,
}

impl Place {
    /// `skep VERB ARGS… -o FILE -- PROGRAM…` with the report out of the program's way.
    pub fn skep(&self, verb_and_args: &[&str], program: &[&Path], rest: &[&str]) -> Command {
        let mut command = Command::new(skep_bin());
        command
            .args(verb_and_args)
            .arg("--json")
            .arg("-o")
            .arg(self.report_path())
            .arg("--")
            .args(program)
            .args(rest);
        command.env("SKEP_DIR", self.objects.join("skep"));
        command
    }

    fn report_path(&self) -> PathBuf {
        self.objects.join("report.json")
    }

    /// The last report of `skep trace`.
    pub fn report(&self) -> Result<Report> {
        let text = std::fs::read_to_string(self.report_path())?;
        Report::parse(&text).map_err(anyhow::Error::msg)
    }

    /// `uftrace record` into a folder of its own.
    pub fn uftrace(&self, args: &[&str], program: &Path, rest: &[&str]) -> Command {
        let mut command = Command::new("uftrace");
        command
            .args(["record", "--no-event", "--no-libcall", "-d"])
            .arg(self.objects.join("uftrace"))
            .args(args)
            .arg(program)
            .args(rest);
        command
    }
}

/// Whether uftrace is a possible rival.
pub fn has_uftrace() -> bool {
    has_command("uftrace")
}
