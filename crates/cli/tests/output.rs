//! `-o FILE`: what is there stays until the report is complete. And what is said where `/proc` is missing.

mod common;

use std::fs;
use std::process::Command;

use common::Skep;
use skep_testkit::skip;
use skep_testkit::skip::is_root;

#[test]
fn a_full_disk_leaves_the_older_file() {
    if !is_root() {
        return skip("root, to mount a small file system");
    }
    let skep = Skep::new();
    let disk = skep.path("disk");
    fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$1\" && cd \"$1\" || exit 99
        echo old > report.json
        head -c 1m /dev/zero > full 2> /dev/null
        \"$2\" vma snapshot $$ -o report.json; echo \"status $?\"
        \"$2\" vma snapshot $$ -o other; cat report.json; ls -A
        rm full; \"$2\" vma snapshot $$ -o report.json && head -c 3 report.json | od -c | head -1";
    let bin = skep.command(["x"]).get_program().to_owned();
    let ended = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .args([disk.as_os_str(), &bin])
        .output();
    let Ok(ended) = ended else { return skip("unshare") };
    if ended.status.code() == Some(99) {
        return skip("the right to mount");
    }
    let (out, err) = (common::text(&ended.stdout), common::text(&ended.stderr));
    assert!(out.starts_with("status 2\nold\nfull\nreport.json\n"), "{out}\n{err}");
    assert_eq!(err.matches("No space left").count(), 2, "{err}");
    assert!(ended.status.success() && !out.contains("o   l   d"), "{out}\n{err}");
}

/// The report and the flame graph were written to one file, and the later one was there at the end.
/// Help and the version were lost without a word.
#[test]
fn a_full_device_is_an_error_for_everything_that_is_printed() {
    let skep = Skep::new();
    for args in [&["--version"][..], &["--help"], &["map", "dump", "--help"], &["doctor"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let ended = skep.command(args).stdout(full).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{args:?}");
        let err = common::text(&ended.stderr);
        assert!(err.contains("error: cannot write to `stdout`: No space left on device"), "{err}");
    }
}

#[test]
fn two_outputs_are_not_one_file() {
    let skep = Skep::new();
    let (file, ran) =
        (skep.path("x").display().to_string(), skep.path("ran").display().to_string());
    let command = ["--", "touch", &ran];
    let outputs = [
        ["--json", "-o", &file, "--flame", &file],
        ["--record", &file, "--pprof", &file, "--exact"],
    ];
    for outputs in outputs {
        let args = [&["trace", "libc.so.6:mem*"][..], &outputs, &command].concat();
        common::fails(&skep, &args, 2, &format!("name the same file, `{file}`"));
    }
    assert!(!skep.path("x").exists() && !skep.path("ran").exists());
}

/// A report took the place of the file that it was made of.
#[test]
fn what_is_read_is_not_written() {
    let skep = Skep::new();
    let [report, link, recording] = ["r.json", "link.json", "rec"].map(|name| skep.path(name));
    let document = r#"{"wall_ns":1,"missed":0,"functions":[]}"#;
    fs::write(&report, document).unwrap();
    fs::write(&recording, "a recording").unwrap();
    fs::hard_link(&report, &link).unwrap();
    let [report, link, recording] = [report, link, recording].map(|p| p.display().to_string());
    let object = skep.path("count.bpf.o").display().to_string();
    fs::copy(common::object("count.bpf.o"), &object).unwrap();
    for args in [
        &["export", "prometheus", &report, "-o", &report][..],
        &["export", "prometheus", &report, "-o", &link],
        &["report", &recording, "--json", "-o", &recording],
        &["report", &recording, "--flame", &recording],
        &["trace", "--diff", &report, &report, "-o", &link],
        &["run", &object, "--attach", "count=libc.so.6:malloc", "-o", &object, "--", "true"],
    ] {
        common::fails(&skep, args, 2, "which is read, and would be lost");
    }
    assert_eq!(fs::read_to_string(&report).unwrap(), document);
    assert_eq!(fs::read_to_string(&recording).unwrap(), "a recording");
    let words = "`--output` and `--perfetto` both go to standard output";
    common::fails(&skep, &["trace", "malloc", "--perfetto", "-", "--", "true"], 2, words);
    let out = common::out(&skep, &["export", "prometheus", &report, "-o", "-"]);
    assert!(out.contains("# EOF") || out.contains("skep_"), "{out}");
}

/// The limit ended the command by a signal, without a word.
#[test]
fn a_limit_for_files_is_an_error() {
    let skep = Skep::new();
    let bin = skep.command(["x"]).get_program().to_owned();
    let shell = |script: &str| {
        let mut command = skep.command(["x"]);
        let variables = command.env("LC_ALL", "C").get_envs();
        Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&bin)
            .current_dir(skep.path("."))
            .envs(variables.filter_map(|(name, value)| Some((name, value?))))
            .output()
            .unwrap()
    };
    let under = |blocks: u32, rest: &str| shell(&format!("ulimit -f {blocks}; exec \"$1\" {rest}"));
    for blocks in [0, 1, 8, 64] {
        let ended = under(blocks, "trace 'libc.so.6:mem*' -- true");
        let err = common::text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{blocks}: {err}");
        assert!(err.contains("File too large") || err.contains("(`ulimit -f`)"), "{err}");
    }
    fs::write(skep.path("old"), "old").unwrap();
    let ended = under(1, "vma snapshot $$ -o old");
    let err = common::text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{err}");
    assert!(err.contains("`old`: File too large"), "{err}");
    assert_eq!(fs::read_to_string(skep.path("old")).unwrap(), "old");
    // Commands that are started have the action that there was before.
    for (before, status) in [("", 128 + 25), ("trap '' XFSZ;", 0)] {
        let ended = shell(&format!(
            "{before} exec \"$1\" trace 'libc.so.6:mem*' -o r -- sh -c 'kill -XFSZ $$; exit 0'"
        ));
        assert_eq!(ended.status.code(), Some(status), "{}", common::text(&ended.stderr));
    }
}

#[test]
fn without_proc_it_says_so() {
    if !is_root() {
        return skip("root, to take /proc away");
    }
    let skep = Skep::new();
    let create = ["map", "create", "m", "--type", "hash", "--key-size", "4", "--value-size", "4"];
    let create = skep.command([&create[..], &["--entries", "5"]].concat());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", "umount -l /proc && exec \"$@\"; exit 99", "sh"]);
    command.arg(create.get_program()).args(create.get_args());
    for (name, value) in create.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    let Ok(ended) = command.output() else { return skip("unshare") };
    if matches!(ended.status.code(), Some(1 | 99)) {
        return skip("the right to mount");
    }
    let said = common::text(&ended.stderr);
    assert!(said.contains("cannot create map") && said.contains("`/proc`: "), "{said}");
}
