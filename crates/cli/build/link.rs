//! What links the agent and the command: this program once more, which takes the texts of panics out
//! of the object file (`panics`), runs the linker, and has the agent do with an older glibc
//! (`versions`).
//!
//! For the agent it stands before the compiler that links, which the build of the agent is told. The
//! build of the command cannot be told; but where LLVM's linker is used, which this finds out on the
//! way, the compiler is asked for another one by name, and looks for that where this program is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::panics::Places;
use crate::{Result, panics, versions};

/// The variable that asks for this, and names the linker.
pub const VARIABLE: &str = "SKEP_AGENT_LINKER";
/// The variable that names a file for the path of LLVM's linker.
pub const LLD: &str = "SKEP_AGENT_LLD";
/// The library that it is done to. Build scripts are linked here as well.
const LIBRARY: &str = "libskep_preload.so";
/// What compilers call the linker of binutils, where it has a name of its own.
const NAME: &str = "ld.bfd";
/// Functions and constants that are the same become one. Nothing compares addresses of functions of
/// Rust. Other linkers lack it, and make a larger file.
const FOLD: &str = "--icf=all";

/// Links the agent as the arguments of this program say; returns the linker's exit status.
pub fn link(linker: OsString) -> Result<i32> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let library = args.iter().find(|arg| arg.to_string_lossy().ends_with(LIBRARY));
    if library.is_some() {
        without_texts(&args, Places::One)?;
    }
    let mut command = Command::new(&linker);
    command.args(&args);
    if library.is_some() && args.iter().any(|arg| arg == "-fuse-ld=lld") {
        command.arg(format!("-Wl,{FOLD}"));
        if let (Some(lld), Some(file)) = (lld(&args), std::env::var_os(LLD)) {
            std::fs::write(file, lld.as_os_str().as_encoded_bytes())?;
        }
    }
    let status = command.status().map_err(|e| format!("cannot run `{}`: {e}", linker.display()))?;
    if status.success()
        && let Some(library) = library
    {
        let mut bytes = std::fs::read(library)?;
        versions::lower(&mut bytes)?;
        std::fs::write(library, bytes)?;
    }
    Ok(status.code().unwrap_or(1))
}

fn without_texts(args: &[OsString], places: Places) -> Result<()> {
    let is_object = |arg: &&OsString| arg.to_string_lossy().ends_with(".rcgu.o");
    for object in args.iter().filter(is_object).map(Path::new) {
        let bytes = std::fs::read(object)?;
        if let Some(bytes) = panics::without_texts(bytes, places) {
            std::fs::write(object, bytes)?;
        }
    }
    Ok(())
}

/// The linker that `-fuse-ld=lld` means, if rustc brought it.
fn lld(args: &[OsString]) -> Option<PathBuf> {
    let folders = args.iter().filter_map(|arg| arg.to_str()?.strip_prefix("-B"));
    folders.map(|folder| Path::new(folder).join("ld.lld")).find(|lld| lld.is_file())
}

/// Has the command linked by this program, if rustc's own LLD linked the agent, and nobody asks for
/// another linker.
pub fn ask_for_it(out: &Path, lld: &Path) -> Result<()> {
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if !lld.is_file() || ["link", "fuse-ld"].iter().any(|word| flags.contains(word)) {
        return Ok(());
    }
    let folder = out.join("linker");
    std::fs::create_dir_all(&folder)?;
    // A whole new file: the old one may run.
    let (new, place) = (folder.join("new"), folder.join(NAME));
    std::fs::copy(std::env::current_exe()?, &new)?;
    std::fs::rename(&new, &place)?;
    std::fs::copy(lld, folder.join("lld"))?;
    println!("cargo::rustc-link-arg-bins=-B{}", folder.display());
    println!("cargo::rustc-link-arg-bins=-fuse-ld=bfd");
    Ok(())
}

/// Links the command, if this program was run as a linker; its exit status.
pub fn as_linker() -> Option<Result<i32>> {
    let mut args = std::env::args_os();
    let own = PathBuf::from(args.next()?);
    if own.file_name()? != NAME {
        return None;
    }
    let args: Vec<OsString> = args.collect();
    Some((|| {
        let lld = std::fs::read_to_string(own.with_file_name("lld"))?;
        without_texts(&args, Places::Known)?;
        let mut command = Command::new(&lld);
        let status = command.args(&args).arg(FOLD).status();
        let status = status.map_err(|e| format!("cannot run `{lld}`: {e}"))?;
        Ok(status.code().unwrap_or(1))
    })())
}
