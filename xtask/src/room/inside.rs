//! What the first process of the namespaces does: mounts the room and runs one command in it as an
//! ordinary user.
//!
//! Every mount here vanishes with the mount namespace.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::check;

/// Who works in the room.
pub const USER: &str = "tester";
/// The number of that user and of its group.
pub const UID: u32 = 1000;
/// The clone, below the user's home.
pub const PROJECT: &str = "skep";
/// Where the Rust toolchain is mounted.
pub const TOOLCHAIN: &str = "/opt/rust";
/// Where the sources of crates are mounted.
pub const CRATES: &str = "/opt/crates";

/// Mounts the room and runs the command; `args` are what `enter` gave.
pub fn run(args: &[&str]) -> Result<()> {
    let &[root, home, toolchain, crates, command] = args else {
        bail!("`clean-room-inside` is what `clean-room` calls in new namespaces");
    };
    if std::process::id() != 1 {
        bail!(
            "`clean-room-inside` mounts things: it only runs as the first process of a PID namespace"
        );
    }
    let root = Path::new(root);
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    bind_read_only(root, root)?;
    furnish(root)?;
    mount(&["--bind", home], &at("home"))?;
    bind_read_only(Path::new(toolchain), &at(TOOLCHAIN))?;
    bind_read_only(Path::new(crates), &at(CRATES))?;
    // `/sys` stays an empty folder, and the loopback device stays down.

    let script = format!("cd ~/{PROJECT}\n{command}");
    let user = format!("{UID}:{UID}");
    let mut room = Command::new("chroot");
    room.args([&format!("--userspec={user}"), &format!("--groups={UID}")]).arg(root);
    room.args([
        "/usr/bin/env",
        "-i",
        &format!("HOME=/home/{USER}"),
        &format!("PATH={TOOLCHAIN}/bin:/usr/local/bin:/usr/bin:/bin"),
    ]);
    room.args(["bash", "-euo", "pipefail", "-c", &script]).stdin(Stdio::null()).current_dir("/");
    check(&mut room).map_err(|_| anyhow::anyhow!("the command failed in the room"))
}

/// Mounts what every machine has besides its disk.
pub fn furnish(root: &Path) -> Result<()> {
    mount(&["-t", "proc", "proc"], &root.join("proc"))?;
    for dir in ["tmp", "var/tmp"] {
        mount(&["-t", "tmpfs", "-o", "mode=1777", "tmpfs"], &root.join(dir))?;
    }
    mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs"], &root.join("run"))?;
    mount_devices(&root.join("dev"))
}

/// Mounts something.
pub fn mount(args: &[&str], at: &Path) -> Result<()> {
    check(Command::new("mount").args(args).arg(at))
}

fn bind_read_only(what: &Path, at: &Path) -> Result<()> {
    check(Command::new("mount").arg("--bind").arg(what).arg(at))?;
    mount(&["-o", "remount,bind,ro"], at)
}

/// The devices that every machine has.
fn mount_devices(dev: &Path) -> Result<()> {
    mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs"], dev)?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        let node = dev.join(name);
        std::fs::write(&node, "").with_context(|| format!("cannot make `{}`", node.display()))?;
        mount(&["--bind", &format!("/dev/{name}")], &node)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(to, dev.join(name)).with_context(|| format!("cannot make `/dev/{name}`"))?;
    }
    for name in ["pts", "shm"] {
        std::fs::create_dir(dev.join(name))
            .with_context(|| format!("cannot make `/dev/{name}`"))?;
    }
    mount(
        &["-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts"],
        &dev.join("pts"),
    )?;
    mount(&["-t", "tmpfs", "-o", "mode=1777", "tmpfs"], &dev.join("shm"))
}
