//! Builds the agent that the command carries, and compresses the programs of `skep trace`.
//!
//! In a release build a cargo of its own builds `skep-preload` with the profile `agent`, into a
//! folder below `OUT_DIR`, and this program links it (`link`). What comes of it is stripped to the
//! symbols that debuggers need and compressed, and the command includes it (`src/agent/`). The library
//! with all symbols and lines goes beside the command, as `libskep_preload.so.debug`; the command
//! does not need it.
//!
//! A debug build carries no agent: it finds one beside itself. So `cargo check`, `clippy` and tests
//! build nothing twice.

#![allow(clippy::print_stdout, reason = "how build scripts talk to cargo")]

#[path = "../src/agent/calls.rs"]
mod calls;
mod elf;
#[path = "../src/agent/hash.rs"]
mod hash;
mod link;
mod nested;
mod panics;
mod strip;
mod versions;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use lzma_rust2::{LzmaOptions, LzmaWriter};

/// The programs in `bpf/` that the command carries.
const PROGRAMS: [&str; 5] =
    ["calls.bpf.o", "coverage.bpf.o", "fault.bpf.o", "trace.bpf.o", "tree.bpf.o"];

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    if let Some(done) = link::as_linker() {
        std::process::exit(done?);
    }
    if let Some(linker) = std::env::var_os(link::VARIABLE) {
        std::process::exit(link::link(linker)?);
    }
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/agent/hash.rs");
    println!("cargo::rerun-if-changed=src/agent/calls.rs");
    println!("cargo::rustc-check-cfg=cfg(carries_agent)");
    let out = PathBuf::from(variable("OUT_DIR")?);
    for name in PROGRAMS {
        let path = Path::new("bpf").join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let bytes = std::fs::read(&path).map_err(|e| format!("`{}`: {e}", path.display()))?;
        std::fs::write(out.join(name).with_extension("z"), zlib(&without_debug_info(bytes)?)?)?;
    }
    if variable("PROFILE")? == "debug" {
        return Ok(());
    }
    let lld = out.join("lld");
    let whole = nested::build(&out, &lld)?;
    link::ask_for_it(&out, &lld)?;
    let bytes = std::fs::read(&whole).map_err(|e| format!("`{}`: {e}", whole.display()))?;
    let stripped = strip::strip(&bytes, is_for_debuggers)?;
    let file = out.join("agent.lzma");
    std::fs::write(&file, compress(&stripped)?)?;
    leave_out_unwind_tables()?;
    println!("cargo::rustc-cfg=carries_agent");
    println!("cargo::rustc-env=SKEP_AGENT_FILE={}", file.display());
    println!("cargo::rustc-env=SKEP_AGENT_HASH={}", hash_of(&stripped));
    keep_symbols(&out, &whole)
}

/// Has the linker leave unwind tables out of the command, unless somebody wants them for a debugger.
fn leave_out_unwind_tables() -> Result<()> {
    println!("cargo::rerun-if-env-changed=SKEP_UNWIND_TABLES");
    if std::env::var_os("SKEP_UNWIND_TABLES").is_some() {
        return Ok(());
    }
    let script = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("build/without_unwind_tables.ld");
    println!("cargo::rustc-link-arg-bins=-T");
    println!("cargo::rustc-link-arg-bins={}", script.display());
    Ok(())
}

/// Symbols of the agent that its users need: gdb looks for its list of programs, and backtraces
/// through hooked functions name the islands. Those of Rust functions are most, and go.
fn is_for_debuggers(name: &[u8]) -> bool {
    name.starts_with(b"__jit_debug_") || name.starts_with(b"skep_attach_")
}

/// Puts the library with all its symbols beside the command: `OUT_DIR` is
/// `target/PROFILE/build/skep-cli-HASH/out`. Cargo is not told of the file: written while this
/// runs, it would seem changed at each build.
fn keep_symbols(out: &Path, whole: &Path) -> Result<()> {
    let Some(beside) = out.ancestors().nth(3) else { return Ok(()) };
    let file = beside.join("libskep_preload.so.debug");
    std::fs::copy(whole, &file).map_err(|e| format!("`{}`: {e}", file.display()))?;
    Ok(())
}

/// Compressed, the library has a third of its size.
fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut code = bytes.to_vec();
    calls::to_places(&mut code);
    lzma(&code)
}

/// How many bytes they are, and these. Each `skep trace` decompresses a program: LZMA took 13 million
/// instructions for that, and saved a few kB.
fn zlib(bytes: &[u8]) -> Result<Vec<u8>> {
    let size = u32::try_from(bytes.len())?.to_le_bytes();
    let mut out = ZlibEncoder::new(size.to_vec(), Compression::best());
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

fn lzma(bytes: &[u8]) -> Result<Vec<u8>> {
    // What bytes of code are depends more on the one before than on where they are.
    let options = LzmaOptions { lc: 4, lp: 0, pb: 1, ..LzmaOptions::with_preset(9) };
    let mut out = LzmaWriter::new_use_header(Vec::new(), &options, Some(bytes.len() as u64))?;
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// Clears what only debuggers read; the loader has BTF.
fn without_debug_info(mut object: Vec<u8>) -> Result<Vec<u8>> {
    let elf = elf::Elf::read(&object)?;
    for section in &elf.sections {
        let name = elf.name(&object, section)?;
        if name.starts_with(b".debug_") || name.starts_with(b".rel.debug_") {
            let zeros = vec![0; elf::bytes_of(&object, section)?.len()];
            elf::put(&mut object, usize::try_from(section.offset)?, &zeros);
        }
    }
    Ok(object)
}

fn hash_of(bytes: &[u8]) -> String {
    let (words, rest) = bytes.as_chunks();
    let mut hash = hash::Hash::default();
    hash.add(words);
    hash.end(rest)
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|e| format!("{name}: {e}; is this run by cargo?").into())
}
