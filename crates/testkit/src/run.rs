//! Running a program to its end, with input, a time limit and everything it said.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How a program ended and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Everything on stdout.
    pub stdout: Vec<u8>,
    /// Everything on stderr.
    pub stderr: Vec<u8>,
}

impl Ended {
    /// The status as a shell says it: 128 + the number of the signal, when there was one.
    pub fn shell_status(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Both outputs for a failure message.
    pub fn transcript(&self) -> String {
        format!("{}\n--- stdout\n{}\n--- stderr\n{}", self.status, lossy(&self.stdout), lossy(&self.stderr))
    }
}

fn lossy(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(4000) {
        Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], bytes.len()),
        None => text.into_owned(),
    }
}

/// Runs a command in a process group of its own; after `limit` the whole group is killed and the test fails.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Ended {
    let line = format!("{command:?}");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {line}: {error}"));
    let group = format!("-{}", child.id());
    let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
    let (mut out, mut err) = (child.stdout.take().expect("a pipe, too"), child.stderr.take().expect("a pipe, too"));
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            Command::new("kill").args(["-KILL", "--", &group]).status().ok();
        }
        late
    });
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program that does not read its input is not an error.
        stdin.write_all(&input).ok();
    });
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        err.read_to_end(&mut bytes).ok();
        bytes
    });
    let mut stdout = Vec::new();
    out.read_to_end(&mut stdout).ok();
    let stderr = errors.join().expect("reading does not panic");
    writer.join().expect("writing does not panic");
    let status = child.wait().unwrap_or_else(|error| panic!("cannot wait for {line}: {error}"));
    drop(done);
    let ended = Ended { status, stdout, stderr };
    if watchdog.join().expect("the watchdog does not panic") {
        panic!("{line} did not end within {limit:?}: {}", ended.transcript());
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_outputs_and_status_come_through() {
        let ended = run(Command::new("sh").args(["-c", "cat; echo bad >&2; exit 3"]), b"in", Duration::from_secs(60));
        assert_eq!((ended.stdout.as_slice(), ended.stderr.as_slice(), ended.shell_status()), (&b"in"[..], &b"bad\n"[..], 3));
    }

    #[test]
    fn a_signal_has_a_shell_status() {
        let ended = run(Command::new("sh").args(["-c", "kill -SEGV $$"]), b"", Duration::from_secs(60));
        assert_eq!(ended.shell_status(), 139);
    }

    #[test]
    #[should_panic = "did not end within"]
    fn what_hangs_is_killed_with_its_children() {
        run(Command::new("sh").args(["-c", "sleep 1000 & wait"]), b"", Duration::from_millis(50));
    }
}
