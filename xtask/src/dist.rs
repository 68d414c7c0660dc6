//! `cargo xtask man [DIR]` and `cargo xtask dist [DIR]`: the manual's pages, and what people install.
//!
//! `dist` writes a tarball and a Debian package with the command, its pages, completions for three
//! shells and the licenses. Both have the commit's time everywhere, and files in order, so that the
//! same command gives the same bytes. Which glibc the command needs is read from it: it is that of the
//! machine that builds, and the package depends on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{cargo, check, output, root};

/// Debian's name for the processors that the command runs on.
const ARCHITECTURE: &str = "amd64";

/// Writes the pages; `target/man` unless a directory is named.
pub fn man(args: &[&str]) -> Result<()> {
    let dir = directory(args, "man")?;
    pages(&dir)?;
    println!("{} pages in {}", fs::read_dir(&dir)?.count(), dir.display());
    Ok(())
}

/// Writes the tarball and the package; into `target/dist` unless a directory is named.
pub fn dist(args: &[&str]) -> Result<()> {
    let out = directory(args, "dist")?;
    check(cargo().args(["build", "--release", "-p", "skep-cli"]))?;
    let release = root().join("target/release/skep");
    let version = word(Command::new(&release).arg("--version"))?;
    let version = version.rsplit(' ').next().unwrap_or_default().to_owned();
    let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => epoch,
        Err(_) => word(git().args(["log", "-1", "--format=%ct"]))?,
    };
    let libc = newest_symbol(&release)?;

    let name = format!("skep-{version}-x86_64-linux-gnu");
    let staged = out.join(&name);
    clear(&staged)?;
    stage(&staged, &release)?;
    let tarball = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.current_dir(&out)
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
        .arg(format!("--mtime=@{epoch}"))
        .args(["--use-compress-program=gzip -9n", "-cf"])
        .arg(&tarball)
        .arg(&name);
    check(&mut tar)?;
    println!("{}: needs a C library of at least glibc {libc}", tarball.display());

    let package = out.join(format!("skep_{version}_{ARCHITECTURE}.deb"));
    let files = out.join("deb");
    clear(&files)?;
    stage(&files.join("usr"), &release)?;
    let control = files.join("DEBIAN");
    fs::create_dir_all(&control)?;
    fs::write(control.join("control"), control_file(&version, &libc))?;
    let mut build = Command::new("dpkg-deb");
    build
        .env("SOURCE_DATE_EPOCH", &epoch)
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&files)
        .arg(&package)
        .stdout(Stdio::null());
    check(&mut build)?;
    println!("{}", package.display());
    fs::remove_dir_all(&files)?;
    fs::remove_dir_all(&staged)?;
    Ok(())
}

/// Puts everything that is installed below a prefix.
fn stage(prefix: &Path, release: &Path) -> Result<()> {
    let put = |from: &Path, to: PathBuf| -> Result<()> {
        let dir = to.parent().context("a path without a directory")?;
        fs::create_dir_all(dir)?;
        fs::copy(from, &to).with_context(|| format!("`{}`", from.display()))?;
        Ok(())
    };
    put(release, prefix.join("bin/skep"))?;
    check(Command::new("strip").arg(prefix.join("bin/skep")))?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        put(&root().join(file), prefix.join("share/doc/skep").join(file))?;
    }
    for (shell, file) in [
        ("bash", "share/bash-completion/completions/skep"),
        ("zsh", "share/zsh/vendor-completions/_skep"),
        ("fish", "share/fish/vendor_completions.d/skep.fish"),
    ] {
        let text = output(Command::new(release).args(["completions", shell]))?;
        let to = prefix.join(file);
        fs::create_dir_all(to.parent().context("a path without a directory")?)?;
        fs::write(to, text)?;
    }
    let man = prefix.join("share/man/man1");
    pages(&man)?;
    for page in fs::read_dir(&man)? {
        check(Command::new("gzip").arg("-9n").arg(page?.path()))?;
    }
    Ok(())
}

fn control_file(version: &str, libc: &str) -> String {
    format!(
        "Package: skep\nVersion: {version}\nArchitecture: {ARCHITECTURE}\nMaintainer: the skep developers <skep@localhost>\n\
         Depends: libc6 (>= {libc})\nSection: devel\nPriority: optional\n\
         Description: the eBPF subsystem outside the kernel\n \
         Loads ordinary eBPF objects, proves them safe, compiles them and runs them inside\n \
         ordinary processes: traces every function of a program at a few nanoseconds a call,\n \
         runs packet programs in chains, keeps and reads large maps, without root.\n"
    )
}

/// The newest version of glibc whose symbols a program needs.
fn newest_symbol(program: &Path) -> Result<String> {
    let text = output(Command::new("objdump").arg("-T").arg(program))?;
    newest_version(&text).context("the command needs no symbol of glibc")
}

/// The newest version in a list of dynamic symbols.
fn newest_version(symbols: &str) -> Option<String> {
    let version = |word: &str| -> Option<Vec<u32>> {
        let word = word.trim_matches(['(', ')']).strip_prefix("GLIBC_")?;
        word.split('.').map(|part| part.parse().ok()).collect()
    };
    let newest = symbols.split_whitespace().filter_map(version).max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
}

fn pages(dir: &Path) -> Result<()> {
    clear(dir)?;
    check(cargo().args(["run", "-q", "-p", "skep-cli", "--example", "man", "--"]).arg(dir))
}

fn directory(args: &[&str], name: &str) -> Result<PathBuf> {
    let dir = match args {
        [] => root().join("target").join(name),
        [dir] if !dir.starts_with('-') => std::path::absolute(dir)?,
        _ => bail!("usage: cargo xtask {name} [DIR]"),
    };
    fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    Ok(dir)
}

/// Makes a directory that is empty.
fn clear(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(root());
    git
}

fn word(command: &mut Command) -> Result<String> {
    Ok(output(command)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let symbols = "0 DF *UND* 0 (GLIBC_2.9) a\n0 DF *UND* 0 (GLIBC_2.34) b\n0 DF *UND* 0 (GLIBC_2.2.5) c\n\
                       0 DF *UND* 0 (GLIBC_PRIVATE) d\n0 DF .text 0 (GCC_3.0) e\n";
        assert_eq!(newest_version(symbols).as_deref(), Some("2.34"));
        assert_eq!(newest_version("0 DF .text 0 Base main"), None);
        assert!(control_file("0.1.0", "2.34").ends_with('\n'));
    }
}
