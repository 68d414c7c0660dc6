//! `cargo xtask objects`: the committed `.bpf.o` files, rebuilt from the `.bpf.c` beside them.
//!
//! Tests never need clang: the objects are in the repository. This command keeps them honest. The
//! build is reproducible for one version of clang: paths in debug information are relative to the
//! repository. A source whose first lines hold `// clang: FLAGS` is built with those flags added (a
//! newer instruction set, no debug information); one with `// also: clang-14 clang-16` is built by
//! those too, as `NAME.clang-14.bpf.o` and `NAME.clang-16.bpf.o`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{check, files_below, output, relative, root};

const CLANG: &str = "clang-19";
const FLAGS: &[&str] = &[
    "-target",
    "bpf",
    "-g",
    "-O2",
    "-mcpu=v3",
    "-Wall",
    "-Wno-unused",
    "-fdebug-compilation-dir=.",
];

/// `objects` writes, `objects --check` only compares; words limit both to sources whose path
/// contains one of them.
pub fn run(args: &[&str]) -> Result<()> {
    match args {
        ["--check", words @ ..] => rebuild(true, words),
        words if words.iter().any(|word| word.starts_with('-')) => {
            bail!("usage: cargo xtask objects [--check] [WORD...]")
        }
        words => rebuild(false, words),
    }
}

/// The `objects` part of `ci`.
pub fn check_committed() -> Result<()> {
    rebuild(true, &[])
}

fn rebuild(only_compare: bool, words: &[&str]) -> Result<()> {
    let mut sources = sources()?;
    sources.retain(|source| {
        words.is_empty() || words.iter().any(|word| relative(source).contains(word))
    });
    let mut wanted = Vec::new();
    for source in &sources {
        let text = std::fs::read_to_string(source)
            .with_context(|| format!("cannot read `{}`", relative(source)))?;
        let flags = marked(&text, "// clang:");
        wanted.push((CLANG.to_owned(), source, flags.clone()));
        wanted.extend(
            marked(&text, "// also:").into_iter().map(|clang| (clang, source, flags.clone())),
        );
    }
    let compilers: BTreeSet<String> = wanted.iter().map(|(clang, ..)| clang.clone()).collect();
    for clang in &compilers {
        if output(Command::new(clang).arg("--version")).is_err() {
            println!(
                "skipped: needs {clang} ({} objects not compared)",
                wanted.iter().filter(|w| w.0 == *clang).count()
            );
            wanted.retain(|w| w.0 != *clang);
        }
    }
    let mut different = Vec::new();
    for (clang, source, flags) in &wanted {
        let object = object_of(source, clang);
        let fresh = build(clang, source, flags)?;
        if std::fs::read(&object).ok().as_deref() == Some(&fresh) {
            continue;
        }
        if only_compare {
            different.push(relative(&object));
        } else {
            std::fs::write(&object, &fresh)
                .with_context(|| format!("cannot write `{}`", relative(&object)))?;
            println!("wrote {}", relative(&object));
        }
    }
    if !different.is_empty() {
        bail!(
            "not what clang makes of the source:\n  {}\n\nhint: `cargo xtask objects` rebuilds them",
            different.join("\n  ")
        );
    }
    println!("{} objects agree with their sources", wanted.len());
    Ok(())
}

/// `*.bpf.c` below `crates/*/bpf`, `crates/*/tests/data`, `benches/*/bpf` and `gallery`.
fn sources() -> Result<Vec<PathBuf>> {
    let is_source = |path: &Path| path.to_string_lossy().ends_with(".bpf.c");
    let mut found = files_below(&root().join("gallery"), &is_source)?;
    for (above, places) in [("crates", &["bpf", "tests/data"][..]), ("benches", &["bpf"])] {
        for entry in std::fs::read_dir(root().join(above))
            .with_context(|| format!("cannot read `{above}`"))?
        {
            let dir = entry?.path();
            for below in places {
                found.extend(files_below(&dir.join(below), &is_source)?);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The words after a mark in one of a source's first five lines.
fn marked(text: &str, mark: &str) -> Vec<String> {
    let line = text.lines().take(5).find_map(|line| line.trim().strip_prefix(mark)).unwrap_or("");
    line.split_whitespace().map(str::to_owned).collect()
}

/// Where a compiler's object of a source is kept.
fn object_of(source: &Path, clang: &str) -> PathBuf {
    match clang {
        CLANG => source.with_extension("o"),
        other => source.with_extension("").with_extension(format!("{other}.bpf.o")),
    }
}

fn build(clang: &str, source: &Path, flags: &[String]) -> Result<Vec<u8>> {
    let object = std::env::temp_dir().join(format!("skep-object-{}.o", std::process::id()));
    let mut command = Command::new(clang);
    command.current_dir(root()).args(FLAGS);
    // `asm/types.h` lies in the architecture's folder, which the bpf target does not search.
    if let Ok(arch) = output(Command::new("cc").arg("-print-multiarch"))
        && !arch.trim().is_empty()
    {
        command.arg(format!("-idirafter/usr/include/{}", arch.trim()));
    }
    command.args(flags).arg("-c").arg(relative(source)).arg("-o").arg(&object);
    let built = check(&mut command);
    let bytes = std::fs::read(&object);
    std::fs::remove_file(&object).ok();
    built?;
    bytes.with_context(|| format!("{clang} wrote no object for `{}`", relative(source)))
}
