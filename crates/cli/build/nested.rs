//! A cargo inside the one that runs this script: builds the agent as if nobody else built anything.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, link, variable};

/// Variables that say how crates are fetched and how much may run at once; all others of cargo's
/// and rustc's are about the outer build.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
];
const DROPPED: &[&str] = &["CARGO_", "RUSTC_WORKSPACE_WRAPPER", "RUSTDOC", "RUSTFLAGS", "DEP_"];

/// Builds the agent below `out` and returns the library with all its symbols. The path of the linker
/// goes to `lld`, if it is LLVM's.
pub fn build(out: &Path, lld: &Path) -> Result<PathBuf> {
    let (cargo, target) = (variable("CARGO")?, variable("TARGET")?);
    let root = workspace()?;
    let folder = out.join("agent");
    let mut command = Command::new(&cargo);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_outer(name)) {
        command.env_remove(name);
    }
    // With flags of their own, users could ask for a processor whose vector registers the compiler
    // then uses on the event path. This list, which may be empty, hides those of configuration files
    // as well.
    command.env("CARGO_ENCODED_RUSTFLAGS", path_flags());
    // This program stands before the linker (`link`), which is the one that cargo was told.
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let name = target.to_uppercase().replace(['-', '.'], "_");
    command
        .env(link::VARIABLE, linker)
        .env(link::LLD, lld)
        .env(format!("CARGO_TARGET_{name}_LINKER"), std::env::current_exe()?);
    command
        .args(["build", "--locked", "--lib", "--profile", "agent", "--package", "skep-preload"])
        .arg("--target")
        .arg(&target)
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(&root);
    let done = command.output().map_err(|e| format!("cannot run `{cargo}`: {e}"))?;
    if !done.status.success() {
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        return Err(format!("the agent was not built: {command:?}: {}\n{text}", done.status).into());
    }
    let library = folder.join(target).join("agent/libskep_preload.so");
    for file in sources(&library, &root)? {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    Ok(library)
}

/// Those flags of the outer build that say how paths are written, for packages that do not depend on
/// where they are built.
fn path_flags() -> String {
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let kept = flags.split('\x1f').filter(|flag| flag.starts_with("--remap-path-prefix="));
    kept.collect::<Vec<_>>().join("\x1f")
}

fn is_outer(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let starts = |list: &[&str]| list.iter().any(|start| name.starts_with(start.as_bytes()));
    starts(DROPPED) && !starts(KEPT)
}

/// The workspace: the agent's crates lie beside this one.
fn workspace() -> Result<PathBuf> {
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = here.ancestors().nth(2).unwrap_or(&here);
    if root.join("crates/preload/Cargo.toml").is_file() {
        return Ok(root.to_owned());
    }
    Err(format!("the agent's sources are not in `{}/crates`", root.display()).into())
}

/// All files that the agent was made of: those that cargo lists, and what says how.
fn sources(library: &Path, root: &Path) -> Result<Vec<PathBuf>> {
    let list = library.with_extension("d");
    let text = std::fs::read_to_string(&list).map_err(|e| format!("`{}`: {e}", list.display()))?;
    let mut files: Vec<PathBuf> =
        ["Cargo.toml", "Cargo.lock"].iter().map(|file| root.join(file)).collect();
    let (_, listed) = text.split_once(": ").unwrap_or_default();
    for file in listed.lines().next().unwrap_or_default().replace("\\ ", "\0").split(' ') {
        let file = PathBuf::from(file.replace('\0', " "));
        // `crates/NAME/src/…`
        if let Ok(below) = file.strip_prefix(root.join("crates")) {
            let package = below.iter().next().map(|name| root.join("crates").join(name));
            files.extend(package.map(|package| package.join("Cargo.toml")));
        }
        files.push(file);
    }
    files.sort();
    files.dedup();
    Ok(files)
}
