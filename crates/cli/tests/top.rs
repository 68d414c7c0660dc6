//! `skep trace --top` on a terminal of its own: what is drawn, what keys do, and that the terminal is
//! as it was, however the trace ends.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use common::live::{LIMIT, Target};
use common::{Skep, fails, target};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use skep_testkit::run::{Signal, signal};
use skep_testkit::skip::{has_command, skip};
use skep_testkit::trace::skep_bin;

/// Another screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const BACK: &str = "\x1b[?25h\x1b[?1049l";

/// A terminal, and what was printed on it.
struct Terminal {
    keyboard: File,
    slave: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Terminal {
    fn new() -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = File::from(master.expect("there are terminals"));
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let how = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = File::from(rustix::fs::open(name, how, Mode::empty()).expect("it opens"));
        let size = Winsize { ws_row: 20, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("it has a size");
        let (send, screen) = channel();
        let mut output = master.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = output.read(&mut bytes) {
                if send.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { keyboard: master, slave, screen, shown: String::new() }
    }

    /// Starts a command of which this is the controlling terminal.
    fn start(&self, skep: &Skep, args: &[&str], redirect: &str) -> Child {
        let line = format!("exec \"$@\" {redirect}");
        let mut command = setsid(skep);
        command.args(["--ctty", "sh", "-c", &line, "sh"]).arg(skep_bin()).args(args);
        self.spawn(command)
    }

    fn spawn(&self, mut command: Command) -> Child {
        let stream = || self.slave.try_clone().expect("a descriptor");
        command.env("TERM", "xterm").stdin(stream()).stdout(stream()).stderr(stream());
        command.spawn().expect("it starts")
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// Waits until what was printed since the last call is as wanted; returns it.
    fn wait(&mut self, is_there: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        while !is_there(&self.shown) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(bytes) = self.screen.recv_timeout(left) else { panic!("{:?}", self.shown) };
            self.shown += &String::from_utf8_lossy(&bytes);
        }
        std::mem::take(&mut self.shown)
    }

    fn modes(&self) -> LocalModes {
        tcgetattr(&self.slave).expect("a terminal").local_modes
    }
}

/// Starts what is added to it in a session of its own, with the environment of a test's `skep`.
fn setsid(skep: &Skep) -> Command {
    let mut command = Command::new("setsid");
    command.arg("--wait");
    for (name, value) in skep.command([""; 0]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The last whole screen that was drawn.
fn last(shown: &str) -> &str {
    let mut screens = shown.rsplit("\x1b[H");
    screens.next();
    screens.next().unwrap_or_default()
}

fn is_without(what: &str) -> impl Fn(&str) -> bool {
    move |shown| !last(shown).is_empty() && !last(shown).contains(what)
}

/// Sorts and filters, and looks at what is called now.
fn try_keys(terminal: &mut Terminal, target: &mut Target) {
    // An arrow is no order.
    terminal.press("n\x1b[A");
    terminal.wait(|s| last(s).contains("2 rows, by name") || last(s).contains("1 row, by name"));
    target.tell("main 50");
    let shown = terminal.wait(|s| last(s).contains("        50 "));
    let at = |what: &str| last(&shown).find(what);
    assert!(at("  idle ") < at("  work "), "{shown:?}");
    terminal.press("/wox\x7f\r");
    terminal.wait(|s| last(s).contains("/wo\x1b") && is_without("  idle ")(s));
    terminal.press("\x1b");
    terminal.wait(|s| last(s).contains("  idle "));
    // `work` is not called any more.
    terminal.press("r");
    terminal.wait(|s| last(s).contains("per second") && is_without("  work ")(s));
}

#[test]
fn keys_sort_filter_and_end_the_table_of_a_running_process() {
    if !has_command("setsid") {
        return skip("setsid");
    }
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    let pid = target.pid().to_string();
    for end in ["q", "\x03", "TERM"] {
        let mut terminal = Terminal::new();
        let before = terminal.modes();
        let args = ["trace", "target:*", "--top", "-p", &pid];
        let mut child = terminal.start(&skep, &args, "");
        // Two threads call `idle` all the time.
        let shown = terminal.wait(|s| s.contains(ENTER) && last(s).contains("  idle "));
        assert!(shown.contains(", by self"), "{shown:?}");
        assert!(!terminal.modes().intersects(LocalModes::ICANON | LocalModes::ECHO));
        if end == "q" {
            try_keys(&mut terminal, &mut target);
        }
        match end {
            // `setsid` and the shell have executed it.
            "TERM" => signal(child.id(), Signal::TERM),
            key => terminal.press(key),
        }
        let status = child.wait().expect("it ends").code();
        assert_eq!(status, Some(if end == "TERM" { 143 } else { 0 }), "{end:?}");
        assert_eq!(terminal.modes(), before, "{end:?}");
        // The report is printed where it stays.
        let shown = terminal.wait(|s| {
            s.split_once(BACK)
                .is_some_and(|(_, rest)| rest.contains("  idle ") && rest.ends_with('\n'))
        });
        assert_eq!(shown.matches(BACK).count(), 1, "{shown:?}");
    }
    target.end();
}

#[test]
fn a_commands_output_waits_until_the_table_has_gone() {
    if !has_command("setsid") {
        return skip("setsid");
    }
    let (skep, mut terminal) = (Skep::new(), Terminal::new());
    let before = terminal.modes();
    // It ends by itself: the table goes with it.
    let args = ["trace", "libc:puts,printf", "--top", "--", target(), "--help"];
    let mut child = terminal.start(&skep, &args, "");
    let status = child.wait().expect("it ends");
    let shown = terminal.wait(|s| s.contains("function") && s.contains("module"));
    assert!(status.code().is_some(), "{shown:?}");
    assert_eq!(terminal.modes(), before);

    // `q` ends it as Ctrl-C does. Its input is a file, so it has that.
    let line = "read word; echo \"got $word\"; echo error >&2; while :; do :; done";
    let args = ["trace", "*:strlen,malloc", "--allow-unmatched", "--top", "--", "bash", "-c", line];
    let input = skep.path("input");
    std::fs::write(&input, "words\n").expect("written");
    let mut child = terminal.start(&skep, &args, &format!("< {}", input.display()));
    terminal.wait(|s| s.contains(ENTER) && last(s).contains("malloc"));
    terminal.press("q");
    assert_eq!(child.wait().expect("it ends").code(), Some(128 + 2));
    let shown = terminal.wait(|s| {
        s.split_once(BACK)
            .is_some_and(|(_, rest)| rest.contains("error") && rest.contains("malloc"))
    });
    let (drawn, after) = shown.split_once(BACK).expect("above");
    assert!(!drawn.contains("got words") && after.contains("got words\r\nerror\r\n"), "{shown:?}");
    assert_eq!(terminal.modes(), before);
}

#[test]
fn ctrl_z_gives_the_terminal_back_until_it_goes_on() {
    if !has_command("setsid") || !has_command("bash") {
        return skip("setsid, bash");
    }
    let (skep, target, mut terminal) = (Skep::new(), Target::dynamic(), Terminal::new());
    let before = terminal.modes();
    let skep_path = skep_bin();
    // A shell with job control, that says what the terminal is like meanwhile.
    let line = format!(
        "set -m; {} trace 'target:*' --top -p {}; stty -a | grep -o -e '[ -]icanon' -e '[ -]echo ' ; echo \"stopped\"; fg; echo ended $?",
        skep_path.display(),
        target.pid()
    );
    let mut command = setsid(&skep);
    command.args(["--ctty", "bash", "-c", &line]);
    let mut child = terminal.spawn(command);
    terminal.wait(|s| last(s).contains("  idle "));
    terminal.press("\x1a");
    let shown = terminal.wait(|s| s.contains("stopped") && last(s).contains("  idle "));
    let (_, meanwhile) = shown.split_once(BACK).expect("given back");
    let (meanwhile, _) = meanwhile.split_once(ENTER).expect("taken again");
    assert!(meanwhile.contains(" icanon") && meanwhile.contains(" echo "), "{meanwhile:?}");
    terminal.press("q");
    terminal.wait(|s| s.contains("ended 0"));
    assert!(child.wait().expect("it ends").success());
    assert_eq!(terminal.modes(), before);
}

#[test]
fn without_a_terminal_it_is_refused() {
    if !has_command("setsid") {
        return skip("setsid");
    }
    let skep = Skep::new();
    let mut command = setsid(&skep);
    command.arg(skep_bin()).args(["trace", "*", "--top", "--", "true"]);
    let ended = skep_testkit::run::run(&mut command, b"", LIMIT);
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    let said = common::text(&ended.stderr);
    assert!(said.contains("there is no terminal for `--top`") && said.contains("hint: "), "{said}");
    fails(&skep, &["trace", "x", "--top", "--args", "--", "true"], 2, "cannot be used with");
}
