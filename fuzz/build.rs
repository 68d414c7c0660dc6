//! Compresses the programs of `skep trace`, as the build of the command does: the command's modules are
//! part of the target `files`. No agent is built; nothing is traced here.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use lzma_rust2::{LzmaOptions, LzmaWriter};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rustc-check-cfg=cfg(carries_agent)");
    println!("cargo::rerun-if-changed=../crates/cli/bpf");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for name in ["calls", "coverage", "fault", "trace", "tree"] {
        let path = Path::new("../crates/cli/bpf").join(name).with_extension("bpf.o");
        let bytes = std::fs::read(&path).map_err(|e| format!("`{}`: {e}", path.display()))?;
        let file = std::fs::File::create(out.join(name).with_extension("bpf.lzma"))?;
        let size = Some(bytes.len() as u64);
        let mut to = LzmaWriter::new_use_header(file, &LzmaOptions::with_preset(6), size)?;
        to.write_all(&bytes)?;
        to.finish()?;
    }
    Ok(())
}
