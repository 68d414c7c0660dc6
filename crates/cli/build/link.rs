//! What links the agent: this program once more, which takes the texts of panics out of the object
//! file (`panics`), runs the linker, and has the library do with an older glibc (`versions`).

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::{Result, panics, versions};

/// The variable that asks for this, and names the linker.
pub const VARIABLE: &str = "SKEP_AGENT_LINKER";
/// The library that it is done to. Build scripts are linked here as well.
const LIBRARY: &str = "libskep_preload.so";

/// Links as the arguments of this program say; returns the linker's exit status.
pub fn link(linker: OsString) -> Result<i32> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is = |arg: &OsString, end: &str| arg.to_string_lossy().ends_with(end);
    if args.iter().any(|arg| is(arg, LIBRARY)) {
        for object in args.iter().filter(|arg| is(arg, ".rcgu.o")).map(Path::new) {
            let bytes = std::fs::read(object)?;
            if let Some(bytes) = panics::without_texts(bytes) {
                std::fs::write(object, bytes)?;
            }
        }
    }
    let mut command = Command::new(&linker);
    command.args(&args);
    // Functions and constants that are the same become one. Nothing in the agent compares addresses
    // of functions of Rust. Other linkers lack it, and make a larger agent.
    if args.iter().any(|arg| is(arg, LIBRARY)) && args.iter().any(|arg| arg == "-fuse-ld=lld") {
        command.arg("-Wl,--icf=all");
    }
    let status = command.status().map_err(|e| format!("cannot run `{}`: {e}", linker.display()))?;
    if status.success()
        && let Some(library) = args.iter().find(|arg| is(arg, LIBRARY))
    {
        let mut bytes = std::fs::read(library)?;
        versions::lower(&mut bytes)?;
        std::fs::write(library, bytes)?;
    }
    Ok(status.code().unwrap_or(1))
}
