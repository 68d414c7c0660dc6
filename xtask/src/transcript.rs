//! Running a command for a person to watch: what it prints goes on at once, skipped tests are
//! noted, and it ends by itself.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::shell_line;

/// What came of it.
pub struct Transcript {
    /// How it ended.
    pub status: ExitStatus,
    /// The lines with `skipped: needs …`, each once: a test prints its own name in it.
    pub skips: BTreeSet<String>,
}

/// Runs a command; after `limit` it is killed with all its descendants, and that is an error. It
/// stays in our process group, so that Ctrl-C ends both.
pub fn run(command: &mut Command, limit: Duration) -> Result<Transcript> {
    let line = shell_line(command);
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run `{line}`"))?;
    // Tests print their skips on stderr, cargo prints its progress there: pass everything on, note
    // on the way.
    let stderr = child.stderr.take().expect("stderr was asked for as a pipe");
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(pass_on(stderr, std::io::stderr())));
    let skips = match told.recv_timeout(limit) {
        Ok(skips) => skips,
        Err(_) => {
            skep_testkit::run::kill_tree(&mut child);
            bail!("`{line}` did not end within {} minutes", limit.as_secs().div_ceil(60));
        }
    };
    Ok(Transcript { status: child.wait()?, skips })
}

fn pass_on(from: impl Read, mut to: impl Write) -> BTreeSet<String> {
    let mut skips = BTreeSet::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        skips.extend(skip_in(&String::from_utf8_lossy(&line)));
        to.write_all(&[&line, &b"\n"[..]].concat()).ok();
    }
    skips
}

/// The part of a line that says which test was skipped, and why.
fn skip_in(line: &str) -> Option<String> {
    line.find("skipped: needs ").map(|at| line[at..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_counted_once_each_and_every_line_goes_on() {
        let said =
            b"x skipped: needs root (a)\nskipped: needs root (a)\nother\nskipped: needs root (b)\n";
        let mut to = Vec::new();
        let skips = pass_on(&said[..], &mut to);
        assert_eq!((skips.len(), to.as_slice()), (2, &said[..]));
    }

    #[test]
    fn the_status_comes_through() {
        let transcript =
            run(Command::new("sh").args(["-c", "exit 3"]), Duration::from_secs(300)).unwrap();
        assert_eq!((transcript.status.code(), transcript.skips.len()), (Some(3), 0));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let error =
            run(Command::new("sh").args(["-c", "sleep 1000 & wait"]), Duration::from_millis(50))
                .err()
                .expect("it hangs");
        assert!(error.to_string().contains("did not end"), "{error}");
    }
}
