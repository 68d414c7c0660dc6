//! The agent travels inside the command: wherever that is moved, and wherever the agent can be put.

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{LEAVES, calls, json, target, text};
use skep_testkit::run::{Ended, run};
use skep_testkit::skip::{has_command, is_root};
use skep_testkit::trace::{agent_symbols, skep_bin};
use skep_testkit::{TempDir, program, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// A copy of the command alone in a directory, a skep directory and a cache that are not there yet.
struct Moved {
    dir: TempDir,
}

impl Moved {
    fn new() -> Self {
        let dir = TempDir::in_memory();
        fs::create_dir(dir.join("bin")).unwrap();
        program::copy(skep_bin(), &dir.join("bin/skep"));
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Sets what a command gets from this test.
    fn prepare(&self, command: &mut Command) {
        command
            .env("SKEP_DIR", self.path("skep"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env_remove("SKEP_PRELOAD")
            .env_remove("LD_PRELOAD");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/skep"));
        self.prepare(command.args(args));
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        run(&mut self.command(args), b"", LIMIT)
    }

    /// Traces the target and returns the `LD_PRELOAD` that it was started with.
    fn traces(&self) -> PathBuf {
        let ended = self.run(&["trace", "leaf", "--json", "--", target(), "3"]);
        assert_traced(&ended);
        let ended =
            self.run(&["-q", "trace", "*", "-o", "/dev/null", "--", "printenv", "LD_PRELOAD"]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        text(&ended.stdout).trim().into()
    }

    /// The agent's only file below a directory.
    fn agent_in(&self, place: &str) -> PathBuf {
        let versions = entries(&self.path(place).join("agents"));
        let [version] = versions.as_slice() else { panic!("{versions:?}") };
        let files = entries(version);
        assert_eq!(files, [version.join("libskep_preload.so")]);
        files[0].clone()
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap_or_else(|e| panic!("`{}`: {e}", dir.display()));
    all.map(|entry| entry.unwrap().path()).collect()
}

fn assert_traced(ended: &Ended) {
    assert_eq!(ended.shell_status(), 3, "{}", ended.transcript());
    let out = text(&ended.stdout);
    let report = out.find('{').map(|at| json(&out.as_bytes()[at..]));
    let leaves = report.and_then(|report| calls(&report, "leaf"));
    assert_eq!(leaves, Some(LEAVES), "{}", ended.transcript());
}

#[test]
fn a_command_alone_in_a_directory_traces() {
    let moved = Moved::new();
    let agent = moved.traces();
    assert_eq!(agent, moved.agent_in("skep"));
    let meta = fs::metadata(&agent).unwrap();
    assert_eq!(meta.mode() & 0o7777, 0o500);
    for dir in agent.ancestors().skip(1).take(3) {
        assert_eq!(fs::metadata(dir).unwrap().mode() & 0o7777, 0o700, "{}", dir.display());
    }
    assert!(meta.len() <= 3 << 19, "the agent has {} bytes", meta.len());
    assert!(fs::metadata(moved.path("bin/skep")).unwrap().len() <= 6_000_000);
    // It is put there once.
    let before = meta.ino();
    moved.traces();
    assert_eq!(fs::metadata(&agent).unwrap().ino(), before);
    assert!(!moved.path("cache").exists());
    let told = moved.run(&["doctor", "--json"]);
    let told = json(&told.stdout);
    let checks = told.as_array().unwrap();
    let found = checks.iter().find(|check| check["check"] == "agent").unwrap();
    let want = format!("this program carries it and has put it into `{}`", agent.display());
    assert_eq!((&found["status"], &found["detail"]), (&"ok".into(), &want.into()));
}

#[test]
fn a_file_that_is_not_the_agent_is_not_used() {
    let moved = Moved::new();
    let agent = moved.traces();
    let whole = fs::read(&agent).unwrap();
    let damage: [(&str, &dyn Fn()); 3] = [
        ("other bytes", &|| {
            let mut other = whole.clone();
            *other.last_mut().unwrap() ^= 1;
            fs::set_permissions(&agent, Permissions::from_mode(0o700)).unwrap();
            fs::write(&agent, other).unwrap();
        }),
        ("cut off", &|| File::options().write(true).open(&agent).unwrap().set_len(5000).unwrap()),
        ("others may write", &|| {
            fs::set_permissions(&agent, Permissions::from_mode(0o777)).unwrap();
        }),
    ];
    for (what, damage) in damage {
        fs::set_permissions(&agent, Permissions::from_mode(0o700)).unwrap();
        damage();
        assert_eq!(moved.traces(), agent, "{what}");
        assert_eq!(fs::metadata(&agent).unwrap().mode() & 0o7777, 0o500, "{what}");
        assert!(fs::read(&agent).unwrap() == whole, "{what}");
    }
}

#[test]
fn a_directory_that_others_can_enter_is_not_used() {
    let moved = Moved::new();
    let agent = moved.traces();
    let agents = agent.ancestors().nth(2).unwrap();
    fs::set_permissions(agents, Permissions::from_mode(0o755)).unwrap();
    let elsewhere = moved.traces();
    assert_eq!(elsewhere, moved.agent_in("cache/skep"));
    // What is no directory at all.
    fs::remove_dir_all(agents).unwrap();
    fs::write(agents, "").unwrap();
    assert_eq!(moved.traces(), elsewhere);
}

/// Runs `script` in a mount namespace of its own, with the directory to mount as `$1` and the
/// command behind it.
fn in_namespace(moved: &Moved, script: &str) -> Option<Ended> {
    // What is mounted may hide where it was built.
    let program = moved.path("program");
    program::copy(target().as_ref(), &program);
    if !is_root() || !has_command("unshare") {
        skip("root and unshare, to mount a file system");
        return None;
    }
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(moved.path("mounted"))
        .arg(moved.path("bin/skep"))
        .args(["trace", "leaf", "--json", "--"])
        .arg(&program)
        .arg("3");
    fs::create_dir(moved.path("mounted")).unwrap();
    moved.prepare(&mut command);
    command.env("SKEP_DIR", moved.path("mounted/skep"));
    let ended = run(&mut command, b"", LIMIT);
    if ended.shell_status() == 1 && ended.transcript().contains("unshare failed") {
        skip("a mount namespace");
        return None;
    }
    Some(ended)
}

#[test]
fn a_directory_without_room_or_without_the_right_to_execute_is_passed_over() {
    for options in ["size=1m", "size=4m", "size=64m,noexec"] {
        let moved = Moved::new();
        let script =
            format!("mount -t tmpfs -o mode=0700,{options} none \"$1\" && shift && exec \"$@\"");
        let Some(ended) = in_namespace(&moved, &script) else { return };
        assert_traced(&ended);
        moved.agent_in("cache/skep");
    }
}

#[test]
fn without_any_place_it_says_what_was_tried() {
    let moved = Moved::new();
    // Everything that may be written to is without the right to execute.
    let script = "for at in \"$1\" /tmp /var/tmp; do mount -t tmpfs -o noexec none \"$at\"; done
        chmod 0700 \"$1\"
        cp /dev/null \"$XDG_CACHE_HOME\"
        shift && exec \"$@\"";
    if moved.path("").starts_with("/tmp") {
        return skip("a file system in memory beside /tmp");
    }
    let Some(ended) = in_namespace(&moved, script) else { return };
    assert_eq!(ended.shell_status(), 2, "{}", ended.transcript());
    let told = text(&ended.stderr);
    assert!(told.contains("there is no place for the agent's library"), "{told}");
    assert_eq!(told.matches("mounted `noexec`").count(), 3, "{told}");
    assert!(told.contains("SKEP_PRELOAD names a copy of it"), "{told}");
}

#[test]
fn several_commands_put_it_there_at_once() {
    let moved = Moved::new();
    let args = ["trace", "leaf", "--json", "--", target(), "3"];
    std::thread::scope(|scope| {
        let all = [(); 4].map(|()| scope.spawn(|| moved.run(&args)));
        all.into_iter().for_each(|one| assert_traced(&one.join().unwrap()));
    });
    moved.agent_in("skep");
}

#[test]
fn another_library_is_used_when_it_is_named() {
    let moved = Moved::new();
    let mut command = moved.command(&["trace", "leaf", "--json", "--", target(), "3"]);
    assert_traced(&run(command.env("SKEP_PRELOAD", agent_symbols()), b"", LIMIT));
    assert!(!moved.path("skep/agents").exists());
}

/// The agent's file is cut off while a program is traced: that goes on as before. What it executes
/// then is not traced, is named, and does not hear of it.
#[test]
fn the_agent_does_not_need_its_file() {
    let moved = Moved::new();
    let script = format!(
        "for agent in \"$SKEP_DIR\"/agents/*/*; do chmod u+w \"$agent\"; : > \"$agent\"; done; {} 3; exit 5",
        target()
    );
    let out = moved.path("report.json");
    let mut command = moved.command(&["trace", "*", "--json", "-o"]);
    command.arg(&out).args(["--", "sh", "-c", &script]);
    let ended = run(&mut command, b"", LIMIT);
    assert_eq!(ended.shell_status(), 5, "{}", ended.transcript());
    let told = text(&ended.stderr);
    let target = Path::new(target()).canonicalize().unwrap();
    let why = "was executed when the agent's library had been cut off";
    assert!(told.contains(&format!("not traced: `{}` {why}", target.display())), "{told}");
    assert!(!told.contains("ld.so"), "{told}");
    let report = json(&fs::read(&out).unwrap());
    assert!(
        calls(&report, "waitpid")
            .or(calls(&report, "__wait4"))
            .or(calls(&report, "wait4"))
            .is_some()
    );
}

/// The agent is loaded into programs with whatever glibc they have: it needs no symbol that came after
/// 2.28, and no library besides.
#[test]
fn the_agent_does_with_an_old_glibc() {
    if !has_command("objdump") {
        return skip("objdump");
    }
    let mut objdump = Command::new("objdump");
    let ended = run(objdump.args(["-T", "-p"]).arg(agent_symbols()), b"", LIMIT);
    let listed = text(&ended.stdout);
    let versions = listed.split(|c: char| !c.is_ascii_alphanumeric() && !"._".contains(c));
    let minor = |version: &str| version.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok();
    let newest: u32 = versions.filter_map(minor).max().expect("it needs some");
    assert!((14..=28).contains(&newest), "{newest}: {listed}");
    let needed = listed.lines().filter_map(|l| l.trim().strip_prefix("NEEDED"));
    let mut needed: Vec<&str> = needed.map(str::trim).collect();
    needed.sort_unstable();
    assert_eq!(needed, ["ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1"]);
}
