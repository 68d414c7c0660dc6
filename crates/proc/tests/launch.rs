//! What a command is, compared with what really happens when it runs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use skep_proc::launch::{LaunchError, Linkage, Obstacle, Secure, find, inspect};
use skep_testkit::skip;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("skep-launch-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn cc(&self, name: &str, flags: &[&str]) -> PathBuf {
        let c = self.file(
            "a.c",
            b"#include <stdio.h>\nint main(int c, char **v) { while (--c) puts(*++v); return 0; }",
            0o600,
        );
        let out = self.0.join(name);
        assert!(
            Command::new("cc").args(flags).arg("-o").arg(&out).arg(c).status().unwrap().success()
        );
        out
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn linkage_tells_whether_preload_works() {
    let dir = Dir::new("link");
    for flags in [&["-pie", "-fPIE"][..], &["-no-pie"]] {
        let launch = inspect(dir.cc("dynamic", flags)).unwrap();
        assert_eq!(
            launch.linkage,
            Linkage::Dynamic {
                linker: "/lib64/ld-linux-x86-64.so.2".into(),
                first: None,
                is_alone: false
            }
        );
        assert_eq!(launch.preload_obstacle(), None);
    }
    for flags in [&["-static"][..], &["-static-pie"]] {
        let launch = inspect(dir.cc("static", flags)).unwrap();
        assert_eq!(launch.preload_obstacle(), Some(Obstacle::Static), "{flags:?}");
    }
    let runtime = dir.cc("libasan.so.8", &["-shared", "-fPIC", "-Wl,-soname,libasan.so.8"]);
    let first =
        inspect(dir.cc("asan", &["-Wl,--no-as-needed", runtime.to_str().unwrap()])).unwrap();
    assert_eq!(first.preload_obstacle(), Some(Obstacle::First { library: "libasan.so.8".into() }));
    let other = dir.cc("musl", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]);
    assert_eq!(
        inspect(other).unwrap().preload_obstacle(),
        Some(Obstacle::OtherLibc { linker: "/lib/ld-musl-x86_64.so.1".into() })
    );
    let source = dir.file("alone.c", b"void _start(void) { for (;;); }", 0o600);
    let alone = dir.0.join("alone");
    let linker = "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2";
    let mut cc = Command::new("cc");
    cc.args(["-nostdlib", "-pie", "-fPIE", linker, "-o"]).arg(&alone).arg(source);
    assert!(cc.status().unwrap().success());
    assert_eq!(inspect(alone).unwrap().preload_obstacle(), Some(Obstacle::NoLibrary));
    let mut arm = fs::read(dir.0.join("dynamic")).unwrap();
    arm[18] = 183;
    let arm = inspect(dir.file("arm", &arm, 0o755)).unwrap();
    assert_eq!(arm.preload_obstacle(), Some(Obstacle::Foreign { machine: 183, bits: 64 }));
    assert_eq!(
        inspect(dir.file("short", b"\x7fELF\x02\x01", 0o755)).unwrap().preload_obstacle(),
        Some(Obstacle::Foreign { machine: 0, bits: 64 })
    );
    arm_is_said(&arm.preload_obstacle().unwrap());
}

fn arm_is_said(o: &Obstacle) {
    assert_eq!(o.to_string(), "it is a 64-bit program for another machine (ELF machine 183)");
}

#[test]
fn interpreters_are_those_the_kernel_runs() {
    let dir = Dir::new("script");
    let echo = dir.cc("echo", &[]);
    let echo_name = echo.to_str().unwrap();
    for (line, argument) in [
        ("#!{}\n", None),
        ("#! \t {}\n", None),
        ("#!{} one two  \n", Some("one two")),
        ("#!{}\tone\ttwo\t", Some("one\ttwo\t")),
        ("#!{}   \n", None),
        ("#!{}", None),
    ] {
        let script = dir.file("script", line.replace("{}", echo_name).as_bytes(), 0o755);
        let launch = inspect(&script).unwrap();
        assert_eq!((launch.program.as_path(), launch.scripts.len()), (echo.as_path(), 1));
        assert_eq!(launch.scripts[0].argument.as_deref(), argument.map(OsStr::new));
        let expected = argument.iter().fold(String::new(), |s, a| s + a + "\n")
            + script.to_str().unwrap()
            + "\n";
        let out = run(&script);
        assert_eq!(out, expected, "{line:?}");
    }
    // A script of a script, one without a first line, and too many.
    let inner = dir.file("inner", format!("#!{echo_name}\n").as_bytes(), 0o755);
    let outer = dir.file("outer", format!("#!{}\n", inner.display()).as_bytes(), 0o755);
    let launch = inspect(&outer).unwrap();
    assert_eq!((launch.program, launch.scripts.len()), (echo.clone(), 2));
    assert_eq!(run(&outer), format!("{}\n{}\n", inner.display(), outer.display()));
    let bare = dir.file("bare", b"echo hello\n", 0o755);
    assert_eq!(inspect(&bare).unwrap().scripts[0].interpreter, Path::new("/bin/sh"));
    let own = dir.file("own", format!("#!{}\n", dir.0.join("own").display()).as_bytes(), 0o755);
    assert_eq!(inspect(&own).unwrap_err(), LaunchError::TooDeep { path: own.clone() });
    assert!(Command::new(&own).output().is_err());
    let lost = dir.file("lost", b"#!/no/such/thing\n", 0o755);
    assert_eq!(
        inspect(&lost).unwrap_err(),
        LaunchError::NoInterpreter { script: lost, interpreter: "/no/such/thing".into() }
    );
    let binary = dir.file("binary", b"\0\0\0\0", 0o755);
    assert_eq!(inspect(&binary).unwrap_err(), LaunchError::NotExecutable { path: binary });
}

/// Runs a file; another thread of this test may just have forked with it open for writing, which is
/// `ETXTBSY`.
fn run(path: &Path) -> String {
    loop {
        match Command::new(path).output() {
            Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now()
            }
            out => return String::from_utf8(out.unwrap().stdout).unwrap(),
        }
    }
}

#[test]
fn set_id_programs_are_not_reached() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new("setid");
    let program = dir.cc("program", &[]);
    let own = fs::metadata(&program).unwrap();
    let set = |uid, gid, mode| {
        std::os::unix::fs::chown(&program, Some(uid), Some(gid))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(mode))
    };
    // Our own id gains nothing.
    set(own.uid(), own.gid(), 0o6755).unwrap();
    assert_eq!(inspect(&program).unwrap().preload_obstacle(), None);
    if set(65534, 65534, 0o4755).is_err() {
        return skip("root");
    }
    assert_eq!(
        inspect(&program).unwrap().preload_obstacle(),
        Some(Obstacle::Secure(Secure::SetUid))
    );
    set(own.uid(), 65534, 0o2755).unwrap();
    assert_eq!(
        inspect(&program).unwrap().preload_obstacle(),
        Some(Obstacle::Secure(Secure::SetGid))
    );
    set(own.uid(), 65534, 0o2745).unwrap(); // no execute bit for the group
    assert_eq!(inspect(&program).unwrap().preload_obstacle(), None);
}

#[test]
fn commands_are_searched_as_execvp_does() {
    let dir = Dir::new("find");
    let sub = |name: &str| {
        let path = dir.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (a, b) = (sub("a"), sub("b"));
    sub("a/tool");
    dir.file("a/plain", b"x", 0o644);
    let tool = dir.file("b/tool", b"#!/bin/sh\n", 0o755);
    let path = std::env::join_paths([&a, &b]).unwrap();
    assert_eq!(find("tool".as_ref(), Some(&path)).unwrap(), tool);
    assert_eq!(
        find("plain".as_ref(), Some(&path)).unwrap_err(),
        LaunchError::NotExecutable { path: a.join("plain") }
    );
    assert_eq!(
        find("none".as_ref(), Some(&path)).unwrap_err(),
        LaunchError::NotFound { name: "none".into() }
    );
    assert_eq!(find("".as_ref(), None).unwrap_err(), LaunchError::NotFound { name: "".into() });
    assert_eq!(find(tool.as_os_str(), None).unwrap(), tool);
    assert!(find("sh".as_ref(), None).is_ok());
    assert_eq!(
        find("/no/such".as_ref(), None).unwrap_err().to_string(),
        "`/no/such` was not found"
    );
}
