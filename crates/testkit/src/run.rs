//! Running a program to its end, with input, a time limit and everything it said; and ending
//! processes by system calls, since a machine may have no `kill` and no `pkill`.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process, kill_process_group};

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
        format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            lossy(&self.stdout),
            lossy(&self.stderr)
        )
    }
}

fn lossy(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(4000) {
        Some((cut, _)) => format!("{}… ({} bytes)", &text[..cut], bytes.len()),
        None => text.into_owned(),
    }
}

/// Runs a command in a process group of its own; after `limit` the whole group is killed and the
/// test fails.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Ended {
    let line = format!("{command:?}");
    let (ended, late) = run_limited(command, input, limit)
        .unwrap_or_else(|error| panic!("cannot run {line}: {error}"));
    assert!(!late, "{line} did not end within {limit:?}: {}", ended.transcript());
    ended
}

/// The same for those who go on: tells whether the command had to be killed.
pub fn run_limited(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
) -> std::io::Result<(Ended, bool)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let group = Pid::from_child(&child);
    let mut stdin = child.stdin.take().expect("stdin was asked for as a pipe");
    let (mut out, mut err) =
        (child.stdout.take().expect("a pipe, too"), child.stderr.take().expect("a pipe, too"));
    let (done, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        let late = watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        if late {
            kill_process_group(group, Signal::KILL).ok();
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
    let status = child.wait()?;
    drop(done);
    Ok((Ended { status, stdout, stderr }, watchdog.join().expect("the watchdog does not panic")))
}

/// A program that a test talks to while it runs. It leads a process group, which is killed when
/// this is dropped, or when the time is up: then whoever reads from it sees the end, and its test
/// fails.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Dropping it tells the watchdog that all is over.
    _done: mpsc::Sender<()>,
}

/// Starts a command in a process group of its own, with pipes and the default disposition of every
/// signal.
pub fn start(command: &Command, limit: Duration) -> Running {
    let mut command = with_default_signals(command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let group = Pid::from_child(&child);
    let (done, watch) = mpsc::channel::<()>();
    let line = format!("{command:?}");
    std::thread::spawn(move || {
        if watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            // Past the capture of the test runner, as the test itself may never come to print
            // anything.
            writeln!(std::io::stderr(), "{line} did not end within {limit:?}: killed").ok();
            kill_process_group(group, Signal::KILL).ok();
        }
    });
    Running { child, _done: done }
}

impl std::ops::Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl std::ops::DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill_group(&mut self.child);
    }
}

/// Kills a child with the process group that it leads, and waits for it.
pub fn kill_group(child: &mut Child) {
    kill_process_group(Pid::from_child(child), Signal::KILL).ok();
    child.wait().ok();
}

/// Kills a child with all its descendants, whatever their process groups, and waits for it. One
/// whose parent has ended already is not found.
pub fn kill_tree(child: &mut Child) {
    for process in descendants(child.id()) {
        kill(process, Signal::KILL);
    }
    child.kill().ok();
    child.wait().ok();
}

/// Sends a signal to a process that still runs; a test that cannot do so fails.
pub fn signal(process: u32, signal: Signal) {
    assert!(kill(process, signal), "cannot send {signal:?} to process {process}");
}

/// Sends a signal to the process group that a child leads; a test that cannot do so fails.
pub fn signal_group(child: &Child, signal: Signal) {
    kill_process_group(Pid::from_child(child), signal)
        .unwrap_or_else(|error| panic!("cannot send {signal:?} to group {}: {error}", child.id()));
}

fn kill(process: u32, signal: Signal) -> bool {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    process.is_some_and(|process| kill_process(process, signal).is_ok())
}

/// The children of a process, from `/proc`.
pub fn children(of: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&process| parent(process) == Some(of)).collect()
}

/// The fourth field of `/proc/PID/stat`; the second one, the name, is in parentheses and may hold
/// anything.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(1)?.parse().ok()
}

fn descendants(of: u32) -> BTreeSet<u32> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![of]);
    while let Some(process) = todo.pop() {
        todo.extend(children(process).into_iter().filter(|&child| found.insert(child)));
    }
    found
}

/// A command that starts `program` with the default disposition of every signal: a suite that a
/// shell runs in the background has SIGINT and SIGQUIT ignored, one under `nohup` SIGHUP, and all
/// that is started inherits it.
pub fn with_default_signals(command: &Command) -> Command {
    let mut wrapped = Command::new("env");
    wrapped.arg("--default-signal").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

/// Stops the threads of a scope that work until a flag is set, also when the test fails: the scope
/// waits for them before anybody hears of the failure.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
///
/// let stop = AtomicBool::new(false);
/// std::thread::scope(|scope| {
///     let _stop = skep_testkit::run::SetOnDrop(&stop);
///     scope.spawn(|| while !stop.load(Relaxed) { std::thread::yield_now() });
/// });
/// ```
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_outputs_and_status_come_through() {
        let ended = run(
            Command::new("sh").args(["-c", "cat; echo bad >&2; exit 3"]),
            b"in",
            Duration::from_secs(300),
        );
        assert_eq!(
            (ended.stdout.as_slice(), ended.stderr.as_slice(), ended.shell_status()),
            (&b"in"[..], &b"bad\n"[..], 3)
        );
    }

    #[test]
    fn a_signal_has_a_shell_status() {
        let ended =
            run(Command::new("sh").args(["-c", "kill -SEGV $$"]), b"", Duration::from_secs(300));
        assert_eq!(ended.shell_status(), 139);
    }

    #[test]
    #[should_panic = "did not end within"]
    fn what_hangs_is_killed_with_its_children() {
        run(Command::new("sh").args(["-c", "sleep 1000 & wait"]), b"", Duration::from_millis(50));
    }

    #[test]
    fn a_tree_of_several_groups_is_killed() {
        // `set -m` gives each job a process group of its own, as tests give to what they start.
        let mut command = Command::new("bash");
        command.args(["-c", "set -m; sleep 1000 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("there is a shell");
        let mut line = String::new();
        std::io::BufRead::read_line(
            &mut std::io::BufReader::new(child.stdout.take().expect("a pipe")),
            &mut line,
        )
        .expect("it says a number");
        let sleeper: u32 = line.trim().parse().expect("a number");
        assert_eq!(children(child.id()), [sleeper]);
        kill_tree(&mut child);
        // The signal has been sent, and ends it when it runs next. Whoever adopted it may not have
        // waited for it yet: then it is a zombie.
        let begin = std::time::Instant::now();
        loop {
            let state =
                std::fs::read_to_string(format!("/proc/{sleeper}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") || state.contains(") X ") {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(300), "{state}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_never_left_ends_when_its_time_is_up() {
        let mut running = start(
            Command::new("sh").args(["-c", "echo ready; sleep 1000 & wait"]),
            Duration::from_millis(50),
        );
        let mut all = String::new();
        running.stdout.take().expect("a pipe").read_to_string(&mut all).expect("reads to the end");
        assert_eq!(running.wait().expect("waits").signal(), Some(9), "{all}");
    }

    #[test]
    fn ignored_signals_are_not_inherited() {
        let ignores =
            with_default_signals(Command::new("sh").args(["-c", "kill -INT $$; echo survived"]));
        // `nohup` is not enough: this shell ignores SIGINT itself.
        let mut outer = Command::new("sh");
        outer
            .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
            .arg(ignores.get_program())
            .args(ignores.get_args());
        let ended = run(&mut outer, b"", Duration::from_secs(300));
        assert_eq!((ended.shell_status(), ended.stdout.as_slice()), (130, &b""[..]));
    }
}
