//! `cargo xtask man [DIR]` and `cargo xtask dist [DIR]`: the manual's pages, and what people install.
//!
//! `dist` writes a tarball and a Debian package with the command, its pages, completions for three
//! shells, the library for C with its header, the pages with all that they link to ([`documents`]), and the
//! licenses. Both have the commit's time
//! everywhere, and files in order; so the same commit gives the same bytes in any directory ([`same`]),
//! which `--twice` tries. They run with glibc 2.28 and newer, whichever the machine has that builds
//! ([`glibc`]).

mod debian;
mod documents;
mod glibc;
mod same;

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
    pages(&dir, &epoch()?)?;
    println!("{} pages in {}", fs::read_dir(&dir)?.count(), dir.display());
    Ok(())
}

/// Writes the tarball and the package; into `target/dist` unless a directory is named. With `--twice`
/// they are built once more in another directory, and have to be the same.
pub fn dist(args: &[&str]) -> Result<()> {
    let (twice, args): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| **arg == "--twice");
    let out = directory(&args, "dist")?;
    let (release, library) = build(&out)?;
    let version = word(Command::new(&release).arg("--version"))?;
    let version = version.rsplit(' ').next().unwrap_or_default().to_owned();
    let epoch = epoch()?;
    let name = format!("skep-{version}-x86_64-linux-gnu");
    let staged = out.join(&name);
    clear(&staged)?;
    let libc = stage(&staged, "lib", &release, &library, &epoch)?;
    same::set_modes(&staged)?;
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
    stage(&files.join("usr"), "lib/x86_64-linux-gnu", &release, &library, &epoch)?;
    debian::write(&files, &version, &libc, &epoch)?;
    same::set_modes(&files)?;
    let mut build = Command::new("dpkg-deb");
    build
        .env("SOURCE_DATE_EPOCH", &epoch)
        // Each thread makes a block of its own.
        .env("DPKG_DEB_THREADS_MAX", "1")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .arg(&files)
        .arg(&package)
        .stdout(Stdio::null());
    check(&mut build)?;
    println!("{}", package.display());
    for dir in [&files, &staged, &out.join("build")] {
        fs::remove_dir_all(dir)?;
    }
    let sums = same::write_sums(&out, &[tarball, package])?;
    print!("{sums}");
    if twice.is_empty() { Ok(()) } else { same::compare(&out, &sums) }
}

/// Builds the command and `libskep.so.0`, and returns where they are.
fn build(out: &Path) -> Result<(PathBuf, PathBuf)> {
    let link_arg = format!("-Clink-arg={}", glibc::LIBRARIES);
    let mut command = same::builder()?;
    // Its build id would tell where it was built. To take that out later is no way: binutils' `strip`
    // takes RELRO with it from what LLD has linked.
    let no_id = "-Clink-arg=-Wl,--build-id=none";
    command.args(["rustc", "--release", "-p", "skep-cli", "--bin", "skep", "--", &link_arg, no_id]);
    check(&mut command)?;
    check(same::builder()?.args([
        "rustc",
        "--profile",
        "capi",
        "-p",
        "skep-capi",
        "--crate-type",
        "staticlib",
    ]))?;
    let built = out.join("build");
    clear(&built)?;
    let (capi, library) = (root().join("crates/capi"), built.join("libskep.so.0"));
    let mut link = Command::new("gcc");
    link.args(["-shared", "-s", "-Wl,-soname,libskep.so.0", "-Wl,--gc-sections", "-Wl,-z,defs"])
        .args(["-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"])
        .arg("-Wl,--build-id=none")
        .arg(format!("-Wl,--version-script={}", capi.join("skep.map").display()))
        .arg("-Wl,--whole-archive")
        .arg(same::target_dir().join("capi/libskep_c.a"))
        .args(["-Wl,--no-whole-archive", "-lgcc_s", glibc::LIBRARIES, "-lm", "-o"])
        .arg(&library);
    check(&mut link)?;
    Ok((same::target_dir().join("release/skep"), library))
}

/// Fails if the dynamic linker would leave a program's tables of addresses writable.
fn check_relro(program: &Path) -> Result<()> {
    if !output(Command::new("objdump").arg("-p").arg(program))?.contains(" RELRO ") {
        bail!("`{}` has no RELRO: what was linked with it lost it", program.display());
    }
    Ok(())
}

/// The second that packages are of: `SOURCE_DATE_EPOCH`, else that of the last commit.
fn epoch() -> Result<String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => word(git().args(["log", "-1", "--format=%ct"])),
    }
}

/// Puts everything that is installed below a prefix; returns which glibc it needs.
fn stage(
    prefix: &Path,
    libraries: &str,
    release: &Path,
    library: &Path,
    epoch: &str,
) -> Result<String> {
    let put = |from: &Path, to: PathBuf| -> Result<()> {
        let dir = to.parent().context("a path without a directory")?;
        fs::create_dir_all(dir)?;
        fs::copy(from, &to).with_context(|| format!("`{}`", from.display()))?;
        Ok(())
    };
    put(release, prefix.join("bin/skep"))?;
    let command = prefix.join("bin/skep");
    let installed = prefix.join(libraries).join("libskep.so.0");
    put(library, installed.clone())?;
    // What `libskep` loads into other processes; beside the command, with its symbols.
    let agent = prefix.join(libraries).join("skep/libskep_preload.so");
    put(&release.with_file_name("libskep_preload.so.debug"), agent.clone())?;
    check(Command::new("strip").arg(&agent))?;
    let needed = [glibc::lower(&command)?, glibc::lower(&installed)?, glibc::lower(&agent)?];
    for program in [&command, &installed, &agent] {
        check_relro(program)?;
    }
    std::os::unix::fs::symlink("libskep.so.0", installed.with_extension(""))?;
    put(&root().join("crates/capi/include/skep.h"), prefix.join("include/skep.h"))?;
    // Wherever the prefix is moved.
    let up = "/..".repeat(1 + libraries.split('/').count());
    let pc = fs::read_to_string(root().join("crates/capi/libskep.pc.in"))?
        .replace("@prefix@", &format!("${{pcfiledir}}{up}"))
        .replace("${prefix}/lib", &format!("${{prefix}}/{libraries}"))
        .replace("@version@", env!("CARGO_PKG_VERSION"));
    let pkgconfig = prefix.join(libraries).join("pkgconfig");
    fs::create_dir_all(&pkgconfig)?;
    fs::write(pkgconfig.join("libskep.pc"), pc)?;
    documents::write(&prefix.join("share/doc/skep"))?;
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
    pages(&man, epoch)?;
    for page in fs::read_dir(&man)? {
        check(Command::new("gzip").arg("-9n").arg(page?.path()))?;
    }
    // The newer one of the two: versions are `2.` and a number here.
    let minor = |version: &str| version.split('.').nth(1).and_then(|n| n.parse::<u32>().ok());
    Ok(needed.into_iter().max_by_key(|v| minor(v)).unwrap_or_default())
}

fn pages(dir: &Path, epoch: &str) -> Result<()> {
    clear(dir)?;
    let date = debian::date(epoch, "+%F")?;
    let mut man = cargo();
    man.args(["run", "-q", "-p", "skep-cli", "--example", "man", "--"]).arg(dir).arg(date);
    check(&mut man)
}

fn directory(args: &[&str], name: &str) -> Result<PathBuf> {
    let dir = match args {
        [] => root().join("target").join(name),
        [dir] if !dir.starts_with('-') => std::path::absolute(dir)?,
        _ => bail!(
            "usage: cargo xtask {name}{} [DIR]",
            if name == "dist" { " [--twice]" } else { "" }
        ),
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
    use skep_testkit::TempDir;
    use skep_testkit::skip::{has_command, skip};

    use super::*;

    fn name(manifest: &str) -> &str {
        let line = manifest.lines().find_map(|l| l.strip_prefix("name = \""));
        line.and_then(|l| l.strip_suffix('"')).expect("a name")
    }

    #[test]
    fn programs_without_relro_are_told() {
        if !has_command("cc") || !has_command("objdump") {
            return skip("cc, objdump");
        }
        let dir = TempDir::new();
        fs::write(dir.join("main.c"), "int main(void) { return 0; }").unwrap();
        for (flag, is_good) in [("-Wl,-z,relro", true), ("-Wl,-z,norelro", false)] {
            let program = dir.join(flag[1..].replace(',', "-"));
            check(Command::new("cc").arg(flag).arg(dir.join("main.c")).arg("-o").arg(&program))
                .unwrap();
            assert_eq!(check_relro(&program).is_ok(), is_good, "{flag}");
        }
    }

    /// Who gets a crate alone gets its licenses, and can find it.
    #[test]
    fn published_crates_have_licenses_and_say_what_they_are() {
        let mut published = 0;
        for dir in fs::read_dir(root().join("crates")).unwrap() {
            let dir = dir.unwrap().path();
            let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
            if manifest.contains("\npublish = false\n") {
                continue;
            }
            published += 1;
            for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
                let text = fs::read(dir.join(file)).unwrap_or_else(|e| panic!("{dir:?}: {e}"));
                assert_eq!(text, fs::read(root().join(file)).unwrap(), "{dir:?}");
            }
            for key in ["license", "description", "keywords", "categories", "rust-version"] {
                let is_it = |line: &str| {
                    line.starts_with(&format!("{key} ")) || line.starts_with(&format!("{key}."))
                };
                assert!(manifest.lines().any(is_it), "{dir:?}: {key}");
            }
            // Those that people use by themselves have a page, and documentation of all features.
            if dir.join("README.md").exists() {
                for line in ["readme = \"README.md\"", "all-features = true"] {
                    assert!(manifest.lines().any(|l| l == line), "{dir:?}: {line}");
                }
                let pages = format!("documentation = \"https://docs.rs/{}\"", name(&manifest));
                assert!(manifest.lines().any(|l| l == pages), "{dir:?}: {pages}");
            }
        }
        assert!(published > 10, "{published}");
    }
}
