//! The root file systems of clean rooms: made by `debootstrap` once for each suite, then only read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::inside::{self, UID};
use crate::{check, output};

/// What `cargo xtask ci` tries.
pub const SUITES: &[&str] = &["bookworm", "trixie"];

/// All that is on the machine besides Debian's essential packages; the README asks for it.
const PACKAGES: &str = "git,gcc,g++";

/// What this machine lacks for a clean room.
pub fn lacks() -> Option<&'static str> {
    let runs = |program: &str| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    };
    if !runs("debootstrap") {
        return Some("debootstrap");
    }
    if !["unshare", "setpriv", "chroot", "git"].into_iter().all(runs) {
        return Some("unshare, setpriv (util-linux), chroot (coreutils) and git");
    }
    let works = output(in_namespaces("true").stderr(Stdio::null())).is_ok();
    (!works).then_some("root, or user namespaces with subordinate ids (uidmap)")
}

/// The start of a command in a mount namespace of its own; in a user namespace, too, when we are
/// not root.
pub fn unshare() -> Vec<&'static str> {
    let mut words = vec!["unshare", "--mount", "--propagation", "private"];
    if !skep_testkit::skip::is_root() {
        words.extend(["--user", "--map-root-user", "--map-auto"]);
    }
    words
}

/// A command that may mount, and give files away; it dies with us.
fn in_namespaces(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(unshare()).args([
        "--fork",
        "--kill-child=KILL",
        program,
    ]);
    command
}

/// The root of a suite; made when it is not there yet.
pub fn make(suite: &str, below: &Path) -> Result<PathBuf> {
    if !suite.bytes().all(|b| b.is_ascii_lowercase()) {
        bail!("`{suite}` is no name of a suite");
    }
    let root = below.join(suite);
    if root.exists() {
        return Ok(root);
    }
    let partial = below.join(format!("{suite}.partial"));
    remove(&partial)?;
    let mirror = mirror();
    println!("making `{}` from {mirror}", root.display());
    let log = below.join(format!("{suite}.log"));
    let file =
        std::fs::File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
    let include = format!("--include={PACKAGES}");
    let mut debootstrap = in_namespaces("debootstrap");
    debootstrap
        .args(["--variant=minbase", &include, suite])
        .arg(&partial)
        .arg(&mirror)
        .stdin(Stdio::null());
    check(debootstrap.stdout(file.try_clone()?).stderr(file))
        .with_context(|| format!("see `{}`", log.display()))?;
    let script = format!(
        "set -e; mkdir -p \"$0{}\" \"$0{}\"; echo clean-room > \"$0/etc/hostname\"",
        inside::TOOLCHAIN,
        inside::CRATES
    );
    check(in_namespaces("sh").args(["-c", &script]).arg(&partial))?;
    let uid = UID.to_string();
    check(in_namespaces("chroot").arg(&partial).args([
        "useradd",
        "--no-create-home",
        "--shell",
        "/bin/bash",
        "--uid",
        &uid,
        inside::USER,
    ]))?;
    std::fs::rename(&partial, &root)
        .with_context(|| format!("cannot make `{}`", root.display()))?;
    Ok(root)
}

/// The mirror this machine takes Debian from.
fn mirror() -> String {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(
        std::fs::read_dir("/etc/apt/sources.list.d")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts
        .filter_map(|text| mirror_in(&text))
        .next()
        .unwrap_or_else(|| "http://deb.debian.org/debian".to_owned())
}

/// The first address of Debian itself in one of apt's files, of either format.
fn mirror_in(text: &str) -> Option<String> {
    let lines = text.lines().filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut addresses =
        lines.flat_map(str::split_whitespace).filter(|word| word.starts_with("http"));
    addresses.find(|address| address.trim_end_matches('/').ends_with("/debian")).map(str::to_owned)
}

/// Gives a folder to the ordinary user of the room.
pub fn give(path: &Path) -> Result<()> {
    check(in_namespaces("chown").args(["-R", &format!("{UID}:{UID}")]).arg(path))
}

/// Removes a folder, whoever in the room has files in it.
pub fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    check(in_namespaces("rm").args(["-rf", "--one-file-system"]).arg(path))
}

#[cfg(test)]
mod tests {
    use super::mirror_in;

    #[test]
    fn the_mirror_is_read_from_both_formats_of_apt() {
        let deb822 =
            "Types: deb\n# http://old/debian\nURIs: http://a.example/debian\nSuites: bookworm\n";
        assert_eq!(mirror_in(deb822).as_deref(), Some("http://a.example/debian"));
        assert_eq!(
            mirror_in("deb [signed-by=/x] https://b.example/debian/ sid main\n").as_deref(),
            Some("https://b.example/debian/")
        );
        assert_eq!(
            mirror_in("URIs: http://a.example/debian-security\n# deb http://c/debian x\n"),
            None
        );
    }
}
