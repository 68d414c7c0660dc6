//! `cargo xtask try-package [SUITE...]`: the Debian package of `cargo xtask dist` on a Debian with
//! nothing else of ours: installed, used by an ordinary user, removed.
//!
//! What the package changes goes into memory above the root of the suite, and with the mount namespace
//! that it is mounted in.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::inside::{self, UID, USER};
use super::root;
use crate::{check, root as workspace};

/// What is used of this repository beside the package.
const FILES: &[&str] = &[
    "crates/capi/examples/attach.c",
    "crates/capi/examples/maps.c",
    "crates/capi/examples/process.c",
    "crates/skep/tests/data/library.bpf.o",
    "crates/cli/bpf/args.bpf.o",
];

/// What a user does. Each line has to succeed.
const USE: &str = r#"
skep --version
skep doctor
skep trace --limit 3 'libc.so.6:*' -o report -- ls -l /usr/bin >listed
grep -q ' libc.so.6$' report
skep run args.bpf.o -- sort /etc/passwd >sorted
sleep 60 & skep trace 'libc.so.6:*' -p $! --for 1s -o live; kill $!
for page in skep skep-trace; do gzip -dc /usr/share/man/man1/$page.1.gz | grep -qi "^\.TH $page 1 20"; done
. /usr/share/bash-completion/completions/skep && complete -p skep
test -s /usr/share/zsh/vendor-completions/_skep -a -s /usr/share/fish/vendor_completions.d/skep.fish
cd /usr && for file in bin/skep lib/x86_64-linux-gnu/libskep.so.0 lib/x86_64-linux-gnu/skep/libskep_preload.so
do test "$(objdump -T $file | grep -o 'GLIBC_2\.[0-9]*' | cut -d. -f2 | sort -n | tail -n 1)" -le 28; done
cd ~
gcc -Wall -Werror maps.c -lskep -o maps && ./maps
gcc -Wall -Werror attach.c -lskep -o attach && ./attach library.bpf.o
gcc -Wall -Werror process.c -lskep -o process
./process library.bpf.o /usr/lib/x86_64-linux-gnu/skep/libskep_preload.so
"#;

/// Tries the package in each suite.
pub fn run(suites: &[&str]) -> Result<()> {
    if let Some(what) = root::lacks() {
        bail!("trying a package needs {what}");
    }
    let package = package()?;
    let below = workspace().join("target/clean-room");
    std::fs::create_dir_all(&below)?;
    let suites = if suites.is_empty() { root::SUITES } else { suites };
    for suite in suites {
        println!("-- {} in {suite}", package.display());
        let root = root::make(suite, &below)?;
        let above = below.join(format!("{suite}.above"));
        std::fs::create_dir_all(&above)?;
        let mut enter = Command::new("setpriv");
        enter.args(["--pdeathsig", "KILL"]).args(root::unshare()).args([
            "--net",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child=KILL",
        ]);
        enter.arg(std::env::current_exe().context("cannot tell which program this is")?);
        enter.arg("try-package-inside").args([&root, &above, &package]);
        check(&mut enter).map_err(|_| anyhow::anyhow!("the package failed in {suite}"))?;
        std::fs::remove_dir(&above)?;
    }
    Ok(())
}

/// The package that `dist` made.
fn package() -> Result<PathBuf> {
    let dist = workspace().join("target/dist");
    let files = std::fs::read_dir(&dist).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut packages: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "deb")).collect();
    packages.sort();
    packages.pop().with_context(|| {
        format!("there is no package in `{}`: make it with `cargo xtask dist`", dist.display())
    })
}

/// The first process of the namespaces: mounts, installs, tries and removes.
pub fn run_inside(args: &[&str]) -> Result<()> {
    let &[root, above, package] = args else {
        bail!("`try-package-inside` is what `try-package` calls in new namespaces");
    };
    ensure!(std::process::id() == 1, "`try-package-inside` mounts things");
    let above = Path::new(above);
    inside::mount(&["-t", "tmpfs", "-o", "mode=755", "tmpfs"], above)?;
    for dir in ["upper", "work", "root"] {
        std::fs::create_dir(above.join(dir))?;
    }
    let options = format!("lowerdir={root},upperdir={0}/upper,workdir={0}/work", above.display());
    let root = above.join("root");
    inside::mount(&["-t", "overlay", "-o", &options, "overlay"], &root)?;
    inside::furnish(&root)?;
    let home = root.join("home").join(USER);
    std::fs::create_dir_all(&home)?;
    for file in FILES {
        let to = home.join(Path::new(file).file_name().unwrap_or_default());
        std::fs::copy(workspace().join(file), to).with_context(|| format!("`{file}`"))?;
    }
    std::fs::copy(package, root.join("tmp/skep.deb"))?;
    let ids = format!("{UID}:{UID}");
    check(Command::new("chown").args(["-R", &ids]).arg(&home))?;
    in_root(&root, "0:0", "dpkg -i /tmp/skep.deb")?;
    in_root(&root, &ids, USE)?;
    // Nothing of it stays but directories that others have files in.
    let leave = "dpkg -L skep | while read -r path; do [ -d \"$path\" ] || echo \"$path\"; done >/tmp/files\n\
                 test \"$(wc -l </tmp/files)\" -gt 20\n\
                 dpkg -r skep\n\
                 while read -r path; do test ! -e \"$path\"; done </tmp/files";
    in_root(&root, "0:0", leave)
}

/// Runs a script in the root as a user.
fn in_root(root: &Path, ids: &str, script: &str) -> Result<()> {
    let mut chroot = Command::new("chroot");
    chroot.args([&format!("--userspec={ids}"), "--groups="]).arg(root).args([
        "/usr/bin/env",
        "-i",
        &format!("HOME=/home/{USER}"),
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]);
    let script = format!("cd ~\n{script}");
    chroot.args(["bash", "-euxo", "pipefail", "-c", &script]).stdin(Stdio::null()).current_dir("/");
    check(&mut chroot).map_err(|_| anyhow::anyhow!("a command failed"))
}
