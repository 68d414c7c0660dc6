//! Tells a crate how it is optimized, which what runs inside events counts on, and which sources it is
//! made of: what an older one found out or proved is worth nothing.
//!
//! Several crates have this file, by a link.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=SKEP_OPT_LEVEL={level}");
    let mut hasher = DefaultHasher::new();
    std::env::var_os("CARGO_PKG_VERSION").hash(&mut hasher);
    hash_sources(Path::new("src"), &mut hasher)?;
    println!("cargo::rustc-env=SKEP_SOURCES={:016x}", hasher.finish());
    Ok(())
}

fn hash_sources(directory: &Path, hasher: &mut DefaultHasher) -> std::io::Result<()> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        paths.push(entry?.path());
    }
    // The order in the file system is any.
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_sources(&path, hasher)?;
        } else {
            path.hash(hasher);
            std::fs::read(&path)?.hash(hasher);
        }
    }
    Ok(())
}
