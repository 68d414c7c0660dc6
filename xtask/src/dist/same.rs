//! The same bytes from the same commit, in whatever directory it is built.
//!
//! What depends on the place are paths, in texts of panics and in debug information: the compiler
//! writes others in their place. File modes depend on the caller's umask, and are set.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{clear, git, word};
use crate::{cargo, check, output, root};

/// Where packages are built: with other flags than those of everyday builds, which would be built
/// anew after it.
pub fn target_dir() -> PathBuf {
    root().join("target/packages")
}

/// A cargo that writes the same paths everywhere. Other flags of the user's are left out, as they
/// would make other programs.
pub fn builder() -> Result<Command> {
    let version = output(Command::new(rustc()).arg("-vV"))?;
    let commit = version.lines().find_map(|l| l.strip_prefix("commit-hash: ")).unwrap_or("unknown");
    let sysroot = word(Command::new(rustc()).args(["--print", "sysroot"]))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let mut flags = OsString::new();
    for (from, to) in [
        (Some(root().to_owned()), "/skep".to_owned()),
        (home, "/cargo".to_owned()),
        // With the component rust-src, this is what the compiler names the library's files by.
        (Some(Path::new(&sysroot).join("lib/rustlib/src/rust")), format!("/rustc/{commit}")),
    ] {
        let Some(from) = from else { continue };
        if !flags.is_empty() {
            flags.push("\x1f");
        }
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push(format!("={to}"));
    }
    let mut command = cargo();
    command.env("CARGO_ENCODED_RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target_dir());
    Ok(command)
}

fn rustc() -> OsString {
    std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// Gives directories and programs the mode 755, libraries and other files 644.
pub fn set_modes(path: &Path) -> Result<()> {
    let kind = fs::symlink_metadata(path)?;
    if kind.is_symlink() {
        return Ok(());
    }
    let is_library = path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
    let is_program = kind.is_dir() || !is_library && kind.permissions().mode() & 0o100 != 0;
    fs::set_permissions(path, Permissions::from_mode(if is_program { 0o755 } else { 0o644 }))?;
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            set_modes(&entry?.path())?;
        }
    }
    Ok(())
}

/// Writes the checksums of files of a directory beside them, as `sha256sum -c` reads them, and
/// returns them.
pub fn write_sums(dir: &Path, files: &[PathBuf]) -> Result<String> {
    let names = files.iter().filter_map(|file| file.file_name());
    let sums = output(Command::new("sha256sum").current_dir(dir).arg("--").args(names))?;
    fs::write(dir.join("SHA256SUMS"), &sums)?;
    Ok(sums)
}

/// Builds the commit once more, from a clone in another directory, and compares.
pub fn compare(out: &Path, sums: &str) -> Result<()> {
    if !word(git().args(["status", "--porcelain"]))?.is_empty() {
        bail!("the tree differs from its commit: a clone would build something else");
    }
    let clone = out.join("another").join("place");
    clear(&clone)?;
    check(git().args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
    let again = out.join("again");
    clear(&again)?;
    let mut other = cargo();
    other
        .current_dir(&clone)
        .env_remove("CARGO_TARGET_DIR")
        .args(["run", "--quiet", "--package", "xtask", "--", "dist"])
        .arg(&again);
    check(&mut other)?;
    let other = fs::read_to_string(again.join("SHA256SUMS")).context("of the other build")?;
    if other != sums {
        bail!(
            "the same commit made other bytes in `{}`:\n{other}instead of\n{sums}",
            clone.display()
        );
    }
    println!("{}: the same bytes", clone.display());
    for dir in [out.join("another"), again] {
        fs::remove_dir_all(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use skep_testkit::TempDir;

    use super::*;

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        let dir = TempDir::new();
        let (below, program) = (dir.join("a"), dir.join("a/program"));
        fs::create_dir(&below).unwrap();
        fs::write(&program, "x").unwrap();
        fs::write(dir.join("text"), "x").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(dir.join("text"), Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&below, Permissions::from_mode(0o775)).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
        set_modes(dir.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&below), mode(&program), mode(&dir.join("text"))), (0o755, 0o755, 0o644));
    }

    #[test]
    fn flags_name_no_place_twice() {
        let builder = builder().unwrap();
        let flags = builder.get_envs().find(|(name, _)| *name == "CARGO_ENCODED_RUSTFLAGS");
        let flags = flags.and_then(|(_, value)| value).unwrap().to_string_lossy().into_owned();
        assert!(flags.starts_with(&format!("--remap-path-prefix={}=/skep", root().display())));
        assert!(flags.split('\x1f').all(|f| f.starts_with("--remap-path-prefix=/")), "{flags}");
    }
}
