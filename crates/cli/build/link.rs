//! What links the agent: this program once more, which leaves the text of panics' backtraces out of
//! the object file, and then runs the linker.
//!
//! A traced program is no place for backtraces of the agent. But the standard library comes
//! compiled, and what prints a panic can print one: with readers of ELF, DWARF and deflate for it,
//! an eighth of the agent. All of that hangs on one function, `DisplayBacktrace::fmt`. It is made to
//! return `Ok(())`, and its references are taken away, so that the linker leaves out what nobody
//! refers to any more. Where the standard library has no such function, the agent is larger.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::Result;
use crate::elf::{Elf, put};

/// The variable that asks for this, and names the linker.
pub const VARIABLE: &str = "SKEP_AGENT_LINKER";
/// The library that it is done to. Build scripts are linked here as well.
const LIBRARY: &str = "libskep_preload.so";

/// `xor eax, eax; ret`
const RETURN_OK: [u8; 3] = [0x31, 0xc0, 0xc3];
/// Bytes of an `Elf64_Rela`, and where in it its type and symbol are.
const RELOCATION: usize = 24;
const INFO: usize = 8;

/// Links as the arguments of this program say; returns the linker's exit status.
pub fn link(linker: OsString) -> Result<i32> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is = |arg: &OsString, end: &str| arg.to_string_lossy().ends_with(end);
    if args.iter().any(|arg| is(arg, LIBRARY)) {
        for object in args.iter().filter(|arg| is(arg, ".rcgu.o")).map(Path::new) {
            let mut bytes = std::fs::read(object)?;
            if drop_backtraces(&mut bytes)? {
                std::fs::write(object, bytes)?;
            }
        }
    }
    let status = Command::new(&linker)
        .args(args)
        .status()
        .map_err(|e| format!("cannot run `{}`: {e}", linker.display()))?;
    Ok(status.code().unwrap_or(1))
}

/// Changes an object file; `false` when nothing in it prints backtraces.
fn drop_backtraces(file: &mut [u8]) -> Result<bool> {
    let elf = Elf::read(file)?;
    let mut changes = Vec::new();
    for section in &elf.sections {
        let name = elf.name(file, section)?;
        // Named after the function, which is alone in it.
        let of_it = contains(name, b"16DisplayBacktrace") && contains(name, b"3fmt");
        let (at, size) = (usize::try_from(section.offset)?, usize::try_from(section.size)?);
        if of_it && name.starts_with(b".text.") && size >= RETURN_OK.len() {
            changes.push((at, RETURN_OK.to_vec()));
        } else if of_it && name.starts_with(b".rela.text.") {
            // `R_X86_64_NONE`, to no symbol.
            let relocations = (at..at + size).step_by(RELOCATION);
            changes.extend(relocations.map(|at| (at + INFO, vec![0; 8])));
        }
    }
    changes.iter().for_each(|(at, bytes)| put(file, *at, bytes));
    Ok(!changes.is_empty())
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}
