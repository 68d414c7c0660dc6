//! `cargo xtask objects`: the committed `.bpf.o` files, rebuilt from the `.bpf.c` beside them.
//!
//! Tests never need clang: the objects are in the repository. This command keeps them honest. The build is
//! reproducible for one version of clang: paths in debug information are relative to the repository. A source whose
//! first lines hold `// clang: FLAGS` is built with those flags added (a newer instruction set, no debug information).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{check, files_below, output, relative, root};

const CLANG: &str = "clang-19";
const FLAGS: &[&str] = &["-target", "bpf", "-g", "-O2", "-mcpu=v3", "-Wall", "-Wno-unused", "-fdebug-compilation-dir=."];

/// `objects` writes, `objects --check` only compares; words limit both to sources whose path contains one of them.
pub fn run(args: &[&str]) -> Result<()> {
    match args {
        ["--check", words @ ..] => rebuild(true, words),
        words if words.iter().any(|word| word.starts_with('-')) => bail!("usage: cargo xtask objects [--check] [WORD...]"),
        words => rebuild(false, words),
    }
}

/// The `objects` part of `ci`.
pub fn check_committed() -> Result<()> {
    rebuild(true, &[])
}

fn rebuild(only_compare: bool, words: &[&str]) -> Result<()> {
    let mut sources = sources()?;
    sources.retain(|source| words.is_empty() || words.iter().any(|word| relative(source).contains(word)));
    if output(Command::new(CLANG).arg("--version")).is_err() {
        println!("skipped: needs {CLANG} ({} objects not compared)", sources.len());
        return Ok(());
    }
    let mut different = Vec::new();
    for source in &sources {
        let object = source.with_extension("o");
        let fresh = build(source)?;
        if std::fs::read(&object).ok().as_deref() == Some(&fresh) {
            continue;
        }
        if only_compare {
            different.push(relative(&object));
        } else {
            std::fs::write(&object, &fresh).with_context(|| format!("cannot write `{}`", relative(&object)))?;
            println!("wrote {}", relative(&object));
        }
    }
    if !different.is_empty() {
        bail!("not what {CLANG} makes of the source:\n  {}\n\nhint: `cargo xtask objects` rebuilds them", different.join("\n  "));
    }
    println!("{} objects agree with their sources", sources.len());
    Ok(())
}

/// `*.bpf.c` below `crates/*/bpf`, `crates/*/tests/data` and `benches/*/bpf`.
fn sources() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (above, places) in [("crates", &["bpf", "tests/data"][..]), ("benches", &["bpf"])] {
        for entry in std::fs::read_dir(root().join(above)).with_context(|| format!("cannot read `{above}`"))? {
            let dir = entry?.path();
            for below in places {
                found.extend(files_below(&dir.join(below), &|path| path.to_string_lossy().ends_with(".bpf.c"))?);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn build(source: &Path) -> Result<Vec<u8>> {
    let text = std::fs::read_to_string(source).with_context(|| format!("cannot read `{}`", relative(source)))?;
    let extra = text.lines().take(5).find_map(|line| line.trim().strip_prefix("// clang:")).unwrap_or("");
    let object = std::env::temp_dir().join(format!("skep-object-{}.o", std::process::id()));
    let mut clang = Command::new(CLANG);
    clang.current_dir(root()).args(FLAGS);
    // `asm/types.h` lies in the architecture's folder, which the bpf target does not search.
    if let Ok(arch) = output(Command::new("cc").arg("-print-multiarch"))
        && !arch.trim().is_empty()
    {
        clang.arg(format!("-idirafter/usr/include/{}", arch.trim()));
    }
    clang.args(extra.split_whitespace()).arg("-c").arg(relative(source)).arg("-o").arg(&object);
    let built = check(&mut clang);
    let bytes = std::fs::read(&object);
    std::fs::remove_file(&object).ok();
    built?;
    bytes.with_context(|| format!("{CLANG} wrote no object for `{}`", relative(source)))
}
