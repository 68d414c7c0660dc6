//! Processes whose files are not where their names lead from here: in other mount and PID
//! namespaces, in another root.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::time::Duration;

use common::Fixture;
use skep_proc::elf::Elf;
use skep_proc::maps::{Filter, MapSource, Normalizer, Place, Process, Vma, Want};
use skep_testkit::run::{Running, start};
use skep_testkit::{TempDir, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// Starts a shell script that ends with the fixture's program, and finds that process.
fn started(script: &str, program: &std::path::Path) -> Option<(Running, u32)> {
    if !skip::is_root() || !skip::has_command("unshare") {
        skip("root and `unshare`");
        return None;
    }
    let mut sh = Command::new("unshare");
    sh.args(["--mount", "--pid", "--fork", "sh", "-ec", script, "sh"]).arg(program);
    let mut running = start(&sh, LIMIT);
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line != "ready\n" {
        skip("the right to make namespaces and to mount");
        return None;
    }
    // `unshare` has forked; the fixture has taken the place of the shell.
    let pid = *skep_testkit::run::children(running.id()).first().expect("it has a child");
    Some((running, pid))
}

/// Mappings and places of the program are right by ioctl and by text.
fn check(pid: u32, name: &str, program: &std::path::Path) {
    let id = Elf::open(program).unwrap().build_id().unwrap();
    let process = Process::open(pid).unwrap();
    let text = skep_proc::maps::Live::of(pid).unwrap().text_only();
    let sources: [&dyn MapSource; 2] = [&process, &text];
    for source in sources {
        let all = source.all(&Filter::TEXT, Want::ALL).unwrap();
        let own = |v: &&Vma| v.name.as_deref() == Some(name.as_bytes());
        let v = all.iter().find(own).unwrap_or_else(|| panic!("{name} in {all:?}"));
        assert_eq!(v.build_id.as_ref(), Some(&id.0));
        let mut n = Normalizer::new(source);
        let places = n.normalize(&[v.start + 8]).unwrap();
        assert_eq!(places, [Place::File { file: 0, offset: v.offset + 8 }]);
        assert_eq!(n.files()[0].build_id.as_ref(), Some(&id));
    }
}

#[test]
fn a_file_on_a_private_mount_is_found_through_the_process() {
    let f = Fixture::new("mount");
    let program = f.dir.join("program");
    let script = "mount -t tmpfs none /mnt && cp \"$1\" /mnt/private-program && mkdir /mnt/files && \
                  exec /mnt/private-program /mnt/files";
    let Some((_running, pid)) = started(script, &program) else { return };
    assert!(!std::path::Path::new("/mnt/private-program").exists());
    check(pid, "/mnt/private-program", &program);
}

#[test]
fn a_file_in_another_root_has_the_name_that_it_has_from_here() {
    let f = Fixture::new("chroot");
    let dir = TempDir::new();
    let root = std::fs::canonicalize(dir.path()).unwrap();
    let program = root.join("static");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mappings.c");
    let mut cc = Command::new("cc");
    cc.args(["-static", "-Wl,--build-id=sha1", "-o"]).arg(&program).arg(source);
    if !cc.status().unwrap().success() {
        return skip("a static C library");
    }
    std::fs::create_dir(root.join("files")).unwrap();
    let script = "exec chroot \"${1%/static}\" /static /files";
    let Some((_running, pid)) = started(script, &program) else { return };
    // The kernel names files as the one who asks sees them.
    check(pid, program.to_str().unwrap(), &program);
    drop(f);
}
