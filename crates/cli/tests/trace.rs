//! `skep trace` as people use it: what comes through of the command, and what the report says.

mod common;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use common::{LEAVES, Skep, calls, json, target, text};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::program;
use skep_testkit::run::{Signal, signal, signal_group};
use skep_testkit::skip::{has_command, is_root};
use skep_testkit::trace::skep_bin;

#[test]
fn streams_and_status_of_the_command_pass_through() {
    let skep = Skep::new();
    let out = skep.path("report");
    let out = out.to_str().unwrap();
    let ended = skep.run_with(
        ["-q", "trace", "read", "-o", out, "--", "sh", "-c", "cat; echo complaint >&2; exit 7"],
        b"through\n",
    );
    assert_eq!(text(&ended.stdout), "through\n");
    assert_eq!(text(&ended.stderr), "complaint\n");
    assert_eq!(ended.shell_status(), 7);
    assert!(
        std::fs::read_to_string(out).unwrap().contains("function"),
        "the report is in the file"
    );
}

/// The definition of all options alone did not fit into a stack of 300 kB.
#[test]
fn a_small_stack_is_large_enough() {
    let skep = Skep::new();
    for args in [&["trace", "leaf", "--", target(), "0"][..], &["completions", "bash"]] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -s 160 && exec \"$@\"", "sh"]).arg(skep_bin()).args(args);
        let ended = skep_testkit::run::run(
            command.env("SKEP_DIR", skep.path("skep")),
            b"",
            std::time::Duration::from_secs(300),
        );
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    }
}

/// Skep said that the program never loaded the agent.
#[test]
fn what_stack_the_agent_needs_is_said_where_it_stays_out() {
    let skep = Skep::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 150 && exec \"$@\"", "sh"]).arg(skep_bin());
    command.args(["trace", "leaf", "--", target(), "7"]).env("SKEP_DIR", skep.path("skep"));
    let ended = skep_testkit::run::run(&mut command, b"", std::time::Duration::from_secs(300));
    assert_eq!(ended.shell_status(), 7, "{}", ended.transcript());
    let said = text(&ended.stderr);
    assert!(said.contains("its stack may grow to 150 KiB, and the agent needs 160"), "{said}");
    assert!(said.contains("hint: raise the limit, as by `ulimit -s 8192`"), "{said}");
}

#[test]
fn a_death_by_signal_is_the_status_a_shell_would_give() {
    let skep = Skep::new();
    for (how, status) in [("abort", 134), ("crash", 139)] {
        let ended = skep.run(["trace", "leaf", "--json", "--", target(), how]);
        assert_eq!(ended.shell_status(), status, "{}", ended.transcript());
        let report = json(&ended.stdout);
        assert_eq!(
            (report["status"].as_i64(), calls(&report, "leaf")),
            (Some(status.into()), Some(LEAVES))
        );
    }
}

#[test]
fn the_report_counts_every_call() {
    let skep = Skep::new();
    let ended = skep.run(["trace", "leaf", "twice", "never", "--json", "--", target(), "5"]);
    assert_eq!(ended.shell_status(), 5, "{}", ended.transcript());
    let report = json(&ended.stdout);
    assert_eq!(report["command"], serde_json::json!([target(), "5"]));
    assert_eq!(report["status"], 5);
    assert_eq!(
        (report["sites"]["matched"].as_u64(), report["sites"]["attached"].as_u64()),
        (Some(3), Some(3))
    );
    assert_eq!(report["sites"]["skipped"], serde_json::json!([]));
    assert_eq!(report["missed"], 0);
    assert_eq!(report["lost"], 0);
    assert_eq!(
        (calls(&report, "leaf"), calls(&report, "twice"), calls(&report, "never")),
        (Some(LEAVES), Some(LEAVES / 2), None)
    );
    for f in report["functions"].as_array().unwrap() {
        let n = |key: &str| f[key].as_u64().unwrap_or_else(|| panic!("{key} of {f}"));
        assert!(
            n("self_ns") <= n("total_ns")
                && n("p50_ns") <= n("p99_ns")
                && n("p99_ns") <= n("total_ns"),
            "{f}"
        );
        assert!(n("total_ns") < report["wall_ns"].as_u64().unwrap(), "{f}");
        assert_eq!(f["module"], "target");
    }
    let total = |name: &str| {
        report["functions"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap()["total_ns"].as_u64().unwrap()
    };
    assert!(total("twice") > total("leaf"), "the time of a callee is in its caller's total");
}

#[test]
fn the_table_is_sorted_limited_and_after_the_commands_output() {
    let skep = Skep::new();
    let ended = skep.run([
        "trace",
        "*",
        "--exclude",
        "libc*:*",
        "--exclude",
        "ld-*:*",
        "--sort",
        "calls",
        "--limit",
        "1",
        "--",
        "sh",
        "-c",
        &format!("{}; echo done", target()),
    ]);
    let out = text(&ended.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let [first, head, row] = lines.as_slice() else { panic!("{}", ended.transcript()) };
    assert_eq!(*first, "done");
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["calls", "total", "self", "p50", "p99", "function", "module"]
    );
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((row[0], row[5], row[6]), ("2000", "leaf", "target"), "{}", ended.transcript());
    assert!(
        text(&ended.stderr).contains("more functions were called; `--limit 0` shows all"),
        "{}",
        ended.transcript()
    );
}

#[test]
fn a_pattern_that_nothing_matches_lets_the_command_run_and_tells_its_status() {
    let skep = Skep::new();
    for patterns in [&["no_such_*"][..], &["no_such_function", "--allow-unmatched"]] {
        let trace = |command: &[&str]| {
            skep.run(["trace"].iter().chain(patterns).chain(&["--"]).chain(command))
        };
        let ended = trace(&["sh", "-c", "echo ran; exit 3"]);
        assert_eq!(
            (text(&ended.stdout).as_str(), ended.shell_status()),
            ("ran\n", 3),
            "{}",
            ended.transcript()
        );
        let err = text(&ended.stderr);
        assert!(
            err.contains("error: no function matches `no_such_") && err.contains("\n\nhint: "),
            "{err}"
        );
        assert_eq!(
            trace(&["true"]).shell_status(),
            1,
            "what was asked for failed, and the command has nothing to say"
        );
    }
    let ended = skep.run(["trace", "no_such_*", "--json", "--", "true"]);
    assert_eq!(
        (ended.shell_status(), json(&ended.stdout)["sites"]["matched"].as_u64()),
        (1, Some(0))
    );
}

#[test]
fn a_typo_is_answered_before_the_command_starts() {
    let skep = Skep::new();
    let pid = "/proc/self/exe:leef";
    for (pattern, want) in [
        ("leef", "pattern `leef` matches nothing: neither `"),
        (
            "target:twise",
            "pattern `target:twise` matches nothing: `target` has no such function\n\nhint: similar names are `twice`; ",
        ),
        (pid, "similar names are `leaf`; "),
        ("leaf,twice,target:nevr", "similar names are `never`; "),
        ("libc:maloc,free", "similar names are `malloc`"),
        ("libd:malloc", "is not linked with `libd`\n\nhint: similar names are `libc`"),
        ("leaf,", ""),
    ] {
        let ended = skep.run(["trace", pattern, "--", target(), "wait"]);
        let err = text(&ended.stderr);
        let (status, out) = if want.is_empty() { (0, "ready\n") } else { (2, "") };
        assert_eq!(ended.shell_status(), status, "{pattern}: {}", ended.transcript());
        assert!(
            err.contains(want) && text(&ended.stdout).starts_with(out),
            "{pattern}: {}",
            ended.transcript()
        );
        assert!(
            want.is_empty()
                || err.contains("use `--allow-unmatched` if") && ended.stdout.is_empty(),
            "{err}"
        );
    }
    // A script runs its interpreter.
    let script = skep.path("script");
    program::script(&script, "#!/bin/sh\nexit 4\n");
    let script = script.to_str().unwrap();
    assert_eq!(skep.run(["-q", "trace", "libc:write,getpid", "--", script]).shell_status(), 4);
    assert_eq!(skep.run(["-q", "trace", "libc:wriite", "--", script]).shell_status(), 2);
}

/// A name that the source has may be one that the file has not.
#[test]
fn a_name_of_a_stripped_program_is_answered_with_what_its_functions_are_called() {
    let (skep, dir) = (Skep::new(), TempDir::new());
    let source = dir.join("slow.c");
    let text_of = "__attribute__((noinline)) static int hidden(int n) { return n * 3; }\n\
                   __attribute__((noinline)) int work(int n) { return hidden(n) + 1; }\n\
                   int main(int n, char **argv) { return work(n) * 0; }\n";
    std::fs::write(&source, text_of).unwrap();
    let slow = Cc::c().args(&["-O1", "-s"]).compile(&[&source], &dir.join("slow"));
    let slow = slow.to_str().unwrap();
    let hint =
        "functions without one are called `sub_` and their address: 'slow:sub_*' matches them; ";
    for (pattern, want) in [
        ("slow:hidden", "pattern `slow:hidden` matches nothing: `slow` has no symbols\n\nhint: "),
        ("slow:hid*", "no function matches `slow:hid*`: `slow` has no symbols\n\nhint: "),
        ("wurk", "has such a symbol, and `slow` has no symbols\n\nhint: "),
        (
            "maloc",
            "`slow` has no symbols\n\nhint: similar names are `malloc`; functions without one ",
        ),
    ] {
        let ended = skep.run(["trace", pattern, "--", slow]);
        let err = text(&ended.stderr);
        assert!(err.contains(want) && err.contains(hint), "{pattern}: {}", ended.transcript());
    }
    let ended = skep.run(["trace", "slow:sub_*", "--json", "--", slow]);
    let report = json(&ended.stdout);
    assert!(report["sites"]["matched"].as_u64() >= Some(3), "{}", ended.transcript());
    // What the library exports has a name.
    assert!(!text(&skep.run(["trace", "libc:maloc", "--", slow]).stderr).contains(hint));
}

#[test]
fn lists_and_paths_of_modules_mean_their_functions() {
    let skep = Skep::new();
    // The loader's own list of libraries has links in it.
    let libc = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"]
        .into_iter()
        .find(|p| std::path::Path::new(p).exists());
    for pattern in ["libc:malloc,fputs,puts".to_owned(), format!("{}:puts", libc.unwrap_or("libc"))]
    {
        let ended = skep.run(["trace", &pattern, "--json", "--", target(), "wait"]);
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        let report = text(&ended.stdout);
        let report = json(report.trim_start_matches("ready\n").as_bytes());
        let puts =
            report["functions"].as_array().unwrap().iter().filter(|f| f["module"] == "libc.so.6");
        assert!(
            puts.filter(|f| f["name"].as_str().unwrap().contains("puts")).any(|f| f["calls"] == 1),
            "{report}"
        );
    }
}

#[test]
fn the_status_of_the_command_is_not_lost_when_the_report_is() {
    let skep = Skep::new();
    for (status, want) in [("7", 7), ("0", 2)] {
        let ended = skep.run(["trace", "leaf", "-o", "/dev/full", "--", target(), status]);
        assert_eq!(ended.shell_status(), want, "{}", ended.transcript());
        assert!(
            text(&ended.stderr).contains("error: cannot write to `/dev/full`"),
            "{}",
            ended.transcript()
        );
    }
}

#[test]
fn calls_that_do_not_return_have_the_time_until_the_end() {
    let skep = Skep::new();
    for how in ["abort", "crash", "killed"] {
        let ended = skep.run([
            "trace",
            "main,leaf,raise",
            "--json",
            "--allow-unmatched",
            "--",
            target(),
            how,
        ]);
        let report = json(&ended.stdout);
        let main =
            report["functions"].as_array().unwrap().iter().find(|f| f["name"] == "main").unwrap();
        let leaf =
            report["functions"].as_array().unwrap().iter().find(|f| f["name"] == "leaf").unwrap();
        assert_eq!(
            (main["calls"].as_u64(), main["running"].as_u64(), leaf["running"].as_u64()),
            (Some(1), Some(1), Some(0)),
            "{report}"
        );
        let n = |f: &serde_json::Value, key: &str| f[key].as_u64().unwrap();
        assert!(
            n(main, "total_ns") >= n(leaf, "total_ns") && n(main, "self_ns") <= n(main, "total_ns"),
            "{report}"
        );
        assert!(
            n(main, "total_ns") > 0 && n(main, "total_ns") < report["wall_ns"].as_u64().unwrap(),
            "{report}"
        );
    }
    let ended = skep.run(["trace", "main,leaf", "--", target(), "abort"]);
    assert!(
        text(&ended.stdout).lines().any(|l| l.contains("s+ ") && l.contains(" main ")),
        "{}",
        ended.transcript()
    );
}

#[test]
fn what_a_killed_skep_left_behind_is_reported_once_asked_for() {
    let skep = Skep::new();
    let ended = skep.run(["trace", "--report"]);
    assert_eq!(ended.shell_status(), 2, "there is no directory yet: {}", ended.transcript());
    let mut child = skep.start(["-q", "trace", "leaf,main", "--", target(), "wait"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let still = skep.run(["trace", "--report", "777"]);
    assert_eq!(still.shell_status(), 1);
    let err = text(&still.stderr);
    let id = err
        .split("hint: the traces are ")
        .nth(1)
        .and_then(|rest| rest.strip_suffix(" (still runs)\n"));
    let id = id.unwrap_or_else(|| panic!("{}", still.transcript()));
    child.kill().unwrap();
    child.wait().unwrap();
    let report = |args: &[&str]| {
        let ended = skep.run(["trace", "--report"].iter().chain(args));
        assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
        ended
    };
    let now = json(&report(&["--json"]).stdout);
    assert_eq!((calls(&now, "leaf"), now["status"].is_null()), (Some(LEAVES), true), "{now}");
    assert_eq!(now["command"], serde_json::json!([target(), "wait"]));
    drop(stdin);
    while out.read_line(&mut line).unwrap() > 0 {}
    // Reported, and again; the next loader lets it go.
    assert!(text(&report(&[id]).stdout).contains(" main"));
    assert_eq!(skep.run(["-q", "trace", "leaf", "--", target(), "0"]).shell_status(), 0);
    let gone = skep.run(["trace", "--report", id]);
    assert_eq!(gone.shell_status(), 1, "{}", gone.transcript());
}

/// It lies in another user's directory, of which root's skep trusts nothing: so it works as that user.
#[test]
fn root_is_told_what_another_user_left_behind() {
    if !is_root() || !has_command("setpriv") {
        return skep_testkit::skip("root and setpriv");
    }
    let skep = Skep::new();
    let [bin, program] = ["skep-of-another", "target"].map(|name| skep.path(name));
    program::copy(skep_bin(), &bin);
    program::copy(std::path::Path::new(target()), &program);
    std::fs::set_permissions(skep.path(""), Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(skep.path("skep")).unwrap();
    std::fs::set_permissions(skep.path("skep"), Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(skep.path("skep"), Some(65534), Some(65534)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(bin);
    command.args(["-q", "trace", "leaf,main", "--"]).arg(&program).arg("wait");
    command.env("SKEP_DIR", skep.path("skep")).env_remove("SKEP_PRELOAD").env_remove("LD_PRELOAD");
    let mut child = skep_testkit::run::start(&command, std::time::Duration::from_secs(300));
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    while out.read_line(&mut line).unwrap() > 0 {}
    let to = skep.path("report.json").to_string_lossy().into_owned();
    let ended = skep.run(["trace", "--report", "--json", "-o", &to]);
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    assert!(text(&ended.stderr).contains("skep works as user 65534"), "{}", ended.transcript());
    let report = json(&std::fs::read(&to).unwrap());
    assert_eq!(calls(&report, "leaf"), Some(LEAVES), "{report}");
    // What it writes is root's.
    assert_eq!(std::fs::metadata(&to).unwrap().uid(), 0);
    // Other commands say how.
    let refused = skep.run(["map", "list"]);
    assert_eq!(refused.shell_status(), 2, "{}", refused.transcript());
    assert!(
        text(&refused.stderr).contains("sudo -u '#65534' SKEP_DIR="),
        "{}",
        refused.transcript()
    );
}

#[test]
fn what_nobody_asked_about_outlives_other_traces() {
    let skep = Skep::new();
    let mut child = skep.start(["-q", "trace", "leaf", "--", target(), "wait"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    while out.read_line(&mut line).unwrap() > 0 {}
    for _ in 0..3 {
        assert_eq!(skep.run(["-q", "trace", "leaf", "--", target(), "0"]).shell_status(), 0);
    }
    let ended = skep.run(["trace", "--report", "--json"]);
    assert_eq!(
        (ended.shell_status(), calls(&json(&ended.stdout), "leaf")),
        (0, Some(LEAVES)),
        "{}",
        ended.transcript()
    );
}

#[test]
fn what_cannot_be_started_is_said_before() {
    let skep = Skep::new();
    let script = skep.path("script");
    program::script(&script, "#!/no/such/interpreter\n");
    let script = script.to_str().unwrap();
    for (command, want) in [
        (
            "no-such-command",
            "error: cannot start `no-such-command`\n  caused by: `no-such-command` was not found\n",
        ),
        (
            "/no/such/command",
            "error: cannot start `/no/such/command`\n  caused by: `/no/such/command` was not found\n",
        ),
        (
            "/etc/passwd",
            "error: cannot start `/etc/passwd`\n  caused by: `/etc/passwd` is not executable\n",
        ),
        ("/", "error: cannot start `/`\n  caused by: `/` is not executable\n"),
        (script, "needs the interpreter `/no/such/interpreter`, which was not found\n"),
    ] {
        let ended = skep.run(["trace", "x", "--", command]);
        assert_eq!(ended.shell_status(), 2, "{command}: {}", ended.transcript());
        assert!(text(&ended.stderr).contains(want), "{command}: {}", ended.transcript());
        assert!(ended.stdout.is_empty());
    }
}

#[test]
fn wrong_usage_has_status_two() {
    let skep = Skep::new();
    for args in [
        &["trace"][..],
        &["trace", "x"],
        &["trace", "--", "true"],
        &["trace", ":x", "--", "true"],
        &["trace", "x", "--sort", "size", "--", "true"],
        &["trace", "x", "--limit", "many", "--", "true"],
        &["trace", "x", "-o", "/no/such/dir/file", "--", "true"],
        &["no-such-subcommand"],
        &[],
    ] {
        let ended = skep.run(args);
        assert_eq!(ended.shell_status(), 2, "{args:?}: {}", ended.transcript());
        assert!(ended.stdout.is_empty() && !ended.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_refused() {
    let skep = Skep::new();
    let open = skep.path("open");
    std::fs::create_dir(&open).unwrap();
    Command::new("chmod").arg("755").arg(&open).status().unwrap();
    let file = skep.path("file");
    std::fs::write(&file, "").unwrap();
    for (dir, want) in [
        ("/proc/skep", "cannot create"),
        (open.to_str().unwrap(), "is open to others"),
        (file.to_str().unwrap(), "Not a directory"),
    ] {
        let mut command = skep.command(["trace", "*", "--", "echo", "ran"]);
        let ended = skep_testkit::run::run(
            command.env("SKEP_DIR", dir),
            b"",
            std::time::Duration::from_secs(300),
        );
        assert_eq!(ended.shell_status(), 2, "{dir}: {}", ended.transcript());
        assert!(
            text(&ended.stderr).to_lowercase().contains(&want.to_lowercase()),
            "{dir}: {}",
            ended.transcript()
        );
        assert!(ended.stdout.is_empty(), "the command does not run");
    }
}

#[test]
fn an_agent_that_cannot_be_preloaded_is_refused() {
    let skep = Skep::new();
    let spaced = skep.path("with space.so");
    std::fs::write(&spaced, "").unwrap();
    for (path, want) in [
        ("/no/such.so", "which is not a file"),
        ("/etc/passwd", "`/etc/passwd` is not the agent's library"),
        (spaced.to_str().unwrap(), "splits paths at spaces and colons"),
    ] {
        let mut command = skep.command(["trace", "*", "--", "true"]);
        let ended = skep_testkit::run::run(
            command.env("SKEP_PRELOAD", path),
            b"",
            std::time::Duration::from_secs(300),
        );
        assert_eq!(ended.shell_status(), 2);
        assert!(text(&ended.stderr).contains(want), "{}", ended.transcript());
    }
}

#[test]
fn the_command_finds_what_skep_was_given() {
    let skep = Skep::new();
    // Signals ignored by the caller stay ignored, the others are not; nothing is blocked; an
    // earlier preload comes first.
    let show = "grep -E 'Sig(Blk|Ign)' /proc/self/status; echo $LD_PRELOAD";
    for setup in ["", "trap '' HUP PIPE; ", "trap '' INT TERM CHLD; "] {
        let plain = Command::new("sh")
            .args(["-c", &format!("{setup}sh -c \"$0\""), show])
            .env("LD_PRELOAD", "libc.so.6")
            .output()
            .unwrap();
        let mut traced = Command::new("sh");
        let inner = skep.command(["-q", "trace", "*", "-o", "/dev/null", "--"]);
        traced
            .args(["-c", &format!("{setup}exec \"$@\""), "sh"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .args(["sh", "-c", show]);
        for (key, value) in inner.get_envs().filter_map(|(k, v)| Some((k, v?))) {
            traced.env(key, value);
        }
        let traced = traced.env("LD_PRELOAD", "libc.so.6").output().unwrap();
        let (plain, out) = (text(&plain.stdout), text(&traced.stdout));
        let (plain, out): (Vec<&str>, Vec<&str>) = (plain.lines().collect(), out.lines().collect());
        assert_eq!(plain[..2], out[..2], "{setup}");
        assert!(
            out[2].starts_with("libc.so.6:/") && out[2].ends_with("/libskep_preload.so"),
            "{}",
            out[2]
        );
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let skep = Skep::new();
    let mut child = skep.start(["-q", "trace", "*", "--limit", "0", "--", target(), "wait", "4"]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    drop(out);
    stdin.write_all(b"go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(err, "");
}

/// Functions that return twice, never, or to another stack used to be skipped. They are counted,
/// and the report does not claim that they took no time.
#[test]
fn functions_without_a_usable_return_are_counted_without_times() {
    const SOURCE: &str = r#"
        #include <setjmp.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static jmp_buf back;
        __attribute__((noinline)) static void jump(void) { longjmp(back, 1); }
        int main(void)
        {
            volatile int rounds = 0;
            while (rounds < 300)
                if (!_setjmp(back)) {
                    rounds++;
                    jump();
                }
            for (int i = 0; i < 3; i++) {
                if (!vfork())
                    _exit(0);
                wait(0);
            }
            return 3;
        }"#;
    let skep = Skep::new();
    let (source, program) = (skep.path("source.c"), skep.path("returns"));
    std::fs::write(&source, SOURCE).unwrap();
    let program = Cc::c().compile(&[&source], &program);
    let program = program.to_str().unwrap();
    let patterns = ["_setjmp", "longjmp", "vfork", "wait4"];
    let ended = skep
        .run(["trace", "--verbose"].into_iter().chain(patterns).chain(["--json", "--", program]));
    assert_eq!(ended.shell_status(), 3, "{}", ended.transcript());
    let report = json(&ended.stdout);
    for (name, count, reason) in [
        ("_setjmp", 300, "returns twice"),
        ("longjmp", 300, "never returns"),
        ("vfork", 3, "returns twice, in the same memory"),
    ] {
        let row = report["functions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["name"] == name)
            .unwrap_or_else(|| panic!("{name}: {report}"));
        // The C library itself may call `_setjmp` before `main`.
        let calls = row["calls"].as_u64().unwrap();
        assert!(calls == count || (name == "_setjmp" && calls == count + 1), "{row}");
        assert_eq!(row["entry_only"], reason);
        assert!(
            ["total_ns", "self_ns", "p50_ns", "p99_ns"].iter().all(|key| row[key].is_null()),
            "{row}"
        );
        let site = report["sites"]["entry_only"]
            .as_array()
            .unwrap()
            .iter()
            .find(|s| s["function"] == name);
        assert_eq!(site.unwrap_or_else(|| panic!("{report}"))["reason"], reason);
    }
    let waited =
        report["functions"].as_array().unwrap().iter().find(|f| f["name"] == "wait4").unwrap();
    assert!(
        waited["total_ns"].as_u64().unwrap() > 0 && waited.get("entry_only").is_none(),
        "{waited}"
    );
    let err = text(&ended.stderr);
    assert!(
        err.contains("of them are counted, not timed") && err.contains("longjmp: never returns"),
        "{err}"
    );
    let table = text(&skep.run(["trace", "vfork", "--", program]).stdout);
    assert_eq!(
        table.lines().last().unwrap().split_whitespace().take(6).collect::<Vec<_>>(),
        ["3", "-", "-", "-", "-", "vfork"],
        "{table}"
    );
}

/// Starts the target traced, waits until it is in the middle, and sends a signal; returns the
/// status and both outputs.
fn interrupted(
    skep: &Skep,
    command: &[&str],
    with: Signal,
    whole_group: bool,
) -> (Option<i32>, String, String) {
    let args = ["trace", "leaf", "read", "--allow-unmatched", "--json", "--"]
        .into_iter()
        .chain(command.iter().copied());
    let mut child = skep.start(args);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let _stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    if whole_group {
        signal_group(&child, with)
    } else {
        signal(child.id(), with)
    }
    let mut rest = String::new();
    // A command that goes on has stdout open: one line is the report.
    out.read_line(&mut rest).unwrap();
    let code = child.wait().unwrap().code();
    let mut err = Vec::new();
    if command.iter().all(|c| !c.contains("trap")) {
        child.stderr.take().unwrap().read_to_end(&mut err).unwrap();
    }
    (code, rest, text(&err))
}

#[test]
fn ctrl_c_ends_the_command_and_prints_what_there_is() {
    let skep = Skep::new();
    let (code, out, err) = interrupted(&skep, &[target(), "wait"], Signal::INT, true);
    assert_eq!(code, Some(130), "{err}");
    let report = json(out.as_bytes());
    assert_eq!(
        (calls(&report, "leaf"), report["status"].as_i64()),
        (Some(LEAVES), Some(130)),
        "{out}"
    );
}

#[test]
fn a_signal_sent_to_skep_alone_reaches_the_command() {
    let skep = Skep::new();
    for (signal, number) in [(Signal::TERM, 15), (Signal::HUP, 1), (Signal::INT, 2)] {
        let (code, out, err) = interrupted(&skep, &[target(), "wait"], signal, false);
        assert_eq!(code, Some(128 + number), "{err}");
        assert_eq!(
            json(out.as_bytes())["status"].as_i64(),
            Some(i64::from(128 + number)),
            "{signal:?}"
        );
    }
}

#[test]
fn a_server_that_ends_well_when_it_is_asked_to_has_its_status() {
    let skep = Skep::new();
    let script = format!("trap 'exit 4' TERM; {} wait; exit 5", target());
    let (code, out, err) = interrupted(&skep, &["sh", "-c", &script], Signal::TERM, true);
    assert_eq!((code, json(out.as_bytes())["status"].as_i64()), (Some(4), Some(4)), "{err}");
}

#[test]
fn a_command_that_ignores_ctrl_c_is_left_alone() {
    let skep = Skep::new();
    let script = format!("trap '' INT; {} wait", target());
    let (code, out, _) = interrupted(&skep, &["sh", "-c", &script], Signal::INT, true);
    assert_eq!(code, Some(130));
    let report = json(out.as_bytes());
    assert_eq!((calls(&report, "leaf"), report["status"].is_null()), (Some(LEAVES), true), "{out}");
}

/// The call that noticed the end of the trace was left out and gave 1; programs that start others
/// died of breakpoints.
#[test]
fn what_a_command_leaves_behind_goes_on_unharmed() {
    const SOURCE: &str = r#"
        #include <pthread.h>
        #include <semaphore.h>
        #include <spawn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static volatile int over;
        static const char *ended;
        static long calls(void)
        {
            sem_t s;
            char copy[] = "abc";
            long bad = 0;
            sem_init(&s, 0, 1);
            for (int i = 0; i < 1000; i++) {
                void *p = malloc(40);
                bad += sem_post(&s) != 0 || sem_wait(&s) != 0 || sem_destroy(&s) != 0 || (unsigned long)p < 4096 || strcoll(copy, "abc") != 0;
                free(p);
            }
            return bad;
        }
        static void *thread(void *sum)
        {
            for (int rounds = 0; rounds < 20;) {
                *(long *)sum += calls();
                rounds += access(ended, F_OK) == 0;
            }
            over = 1;
            return 0;
        }
        int main(int argc, char **argv)
        {
            ended = argv[1];
            if (fork() > 0)
                _exit(0);
            for (int i = 0; i < 3; i++)
                close(i);
            long bad = 0;
            pthread_t t;
            pthread_create(&t, 0, thread, &bad);
            char *args[] = {"true", 0}, *env[] = {0};
            while (!over) {
                pid_t pid;
                int status;
                if (posix_spawn(&pid, "/bin/true", 0, 0, args, env) || waitpid(pid, &status, 0) != pid || status)
                    bad++;
            }
            pthread_join(t, 0);
            FILE *f = fopen(argv[3], "w");
            fprintf(f, "%ld", bad);
            fclose(f);
            return rename(argv[3], argv[2]);
        }"#;
    let skep = Skep::new();
    let (source, program) = (skep.path("source.c"), skep.path("stays"));
    std::fs::write(&source, SOURCE).unwrap();
    let program = Cc::c().args(&["-O1", "-pthread"]).compile(&[&source], &program);
    for round in 0..4 {
        let paths = ["ended", "log", "draft"].map(|name| skep.path(&format!("{name}{round}")));
        let [ended, log, draft] = paths.each_ref().map(|p| p.to_str().unwrap());
        let pattern = if round % 2 == 0 { "libc.so.6:*" } else { "libc.so.6:sem_*" };
        let done = skep.run([
            "-q",
            "trace",
            pattern,
            "--json",
            "-o",
            "/dev/null",
            "--",
            program.to_str().unwrap(),
            ended,
            log,
            draft,
        ]);
        assert_eq!(done.shell_status(), 0, "{}", done.transcript());
        std::fs::write(ended, "").unwrap();
        let begin = std::time::Instant::now();
        while !paths[1].exists() {
            assert!(
                begin.elapsed() < std::time::Duration::from_secs(300),
                "round {round}: the process that was left behind is gone or hangs"
            );
            std::thread::yield_now();
        }
        assert_eq!(
            std::fs::read_to_string(log).unwrap(),
            "0",
            "round {round}: calls with a wrong result, or children that died"
        );
    }
}

/// Processes in another PID namespace stay out of maps; the calls that nobody counted have a
/// reason.
#[test]
fn calls_in_another_pid_namespace_are_missed_for_that_reason() {
    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <sched.h>
        #include <sys/wait.h>
        #include <unistd.h>
        __attribute__((noinline)) int work(int n) { __asm__ volatile("nop; nop; nop"); return n + 1; }
        int main(void)
        {
            int n = 0, status = 0;
            for (int i = 0; i < 300; i++)
                n = work(n);
            if (unshare(CLONE_NEWUSER | CLONE_NEWPID))
                return 99;
            if (fork() == 0) {
                for (int i = 0; i < 1000; i++)
                    n = work(n);
                _exit(n == 1300 ? 5 : 6);
            }
            wait(&status);
            return WEXITSTATUS(status);
        }
    "#;
    let skep = Skep::new();
    let (source, program) = (skep.path("source.c"), skep.path("other_namespace"));
    std::fs::write(&source, SOURCE).unwrap();
    let program = Cc::c().args(&["-O2"]).compile(&[&source], &program);
    let ended = skep.run(["trace", "work", "--json", "--", program.to_str().unwrap()]);
    if ended.shell_status() == 99 {
        return skep_testkit::skip("user and pid namespaces");
    }
    assert_eq!(ended.shell_status(), 5, "{}", ended.transcript());
    let report = json(&ended.stdout);
    assert_eq!(report["functions"][0]["calls"].as_u64(), Some(300), "{report}");
    assert_eq!(
        (report["missed"].as_u64(), report["missed_by"]["namespace"].as_u64()),
        (Some(1000), Some(1000)),
        "{}",
        ended.transcript()
    );
    assert!(text(&ended.stderr).contains(
        "1000 calls not counted: made by processes that were forked into another PID namespace"
    ));
}

/// A thread whose stack is not known has each event on a stack of the engine's, between two system
/// calls: that is for coroutines, not for usual threads. The distance between two frames tells: the
/// trampoline's large frame lies between them only if the stack is known.
#[test]
fn the_stacks_of_usual_threads_are_known() {
    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/mman.h>
        __attribute__((noinline)) long inner(char *of_caller) { char own; __asm__ volatile("" : : "r"(&own) : "memory"); return of_caller - &own; }
        static void *measure(void *out) { char own; *(long *)out = inner(&own); return 0; }
        /* As Java's do: a guard of their own, when they run. */
        static void *guards(void *out)
        {
            pthread_attr_t a;
            void *low;
            size_t size;
            pthread_getattr_np(pthread_self(), &a), pthread_attr_getstack(&a, &low, &size);
            measure(out);
            mprotect(low, 4096, PROT_NONE);
            for (int i = 0; i < 200; i++)
                measure(out);
            return 0;
        }
        int main(void)
        {
            long first, thread, guarded;
            pthread_attr_t a;
            pthread_t t;
            measure(&first);
            pthread_create(&t, 0, measure, &thread), pthread_join(t, 0);
            pthread_attr_init(&a), pthread_attr_setguardsize(&a, 0);
            pthread_create(&t, &a, guards, &guarded), pthread_join(t, 0);
            printf("%d %d %d\n", first > 350, thread > 350, guarded > 350);
            return 0;
        }
    "#;
    let skep = Skep::new();
    let (source, program) = (skep.path("source.c"), skep.path("usual"));
    std::fs::write(&source, SOURCE).unwrap();
    let program = Cc::c().args(&["-O1", "-pthread"]).compile(&[&source], &program);
    let ended =
        skep.run(["-q", "trace", "inner", "-o", "/dev/null", "--", program.to_str().unwrap()]);
    assert_eq!(text(&ended.stdout), "1 1 1\n", "{}", ended.transcript());
}

/// The memory of what counted calls stayed until somebody loaded something else.
#[test]
fn nothing_is_left_of_a_trace_that_has_ended() {
    let skep = Skep::new();
    let left = || {
        ["links", "progs", "maps", "btf"].map(|kind| {
            let all = std::fs::read_dir(skep.path(&format!("skep/{kind}"))).unwrap();
            all.count()
        })
    };
    let missing = skep.run(["trace", "leaf", "--", "/no/such/program"]);
    assert_eq!(missing.shell_status(), 2);
    assert_eq!(skep.run(["trace", "leaf", "--", target()]).shell_status(), 0);
    assert_eq!(left(), [0; 4]);
    let mut running = skep.start(["trace", "leaf", "--", target(), "wait"]);
    let mut line = String::new();
    let mut out = BufReader::new(running.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(left().iter().all(|n| *n > 0), "{:?}", left());
    drop(running.stdin.take());
    running.wait().unwrap();
    assert_eq!(left(), [0; 4]);
}

/// A program that is known by another name than its file's, as `redis-server` may be a link.
#[test]
fn a_link_to_a_program_names_it_in_patterns() {
    let skep = Skep::new();
    let program = std::fs::canonicalize(target()).expect("it was built");
    let link = skep.path("called-so");
    std::os::unix::fs::symlink(&program, &link).expect("a new name");
    let file = program.file_name().and_then(|name| name.to_str()).expect("a name");
    for pattern in ["called-so:leaf", &format!("{file}:leaf")] {
        let ended = skep.run(["trace", pattern, "--json", "--", &link.to_string_lossy(), "5"]);
        assert_eq!(ended.shell_status(), 5, "{}", ended.transcript());
        assert_eq!(calls(&json(&ended.stdout), "leaf"), Some(LEAVES));
    }
    let other = skep.run(["trace", "called-otherwise:leaf", "--", &link.to_string_lossy()]);
    assert_eq!(other.shell_status(), 2, "{}", other.transcript());
}
