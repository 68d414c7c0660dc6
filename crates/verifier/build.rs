//! Tells the crate which sources it is made of, with those of the crates that it judges by: what another
//! verifier has proved is not taken for this one's word.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Of published crates, versions tell.
const SOURCES: [&str; 3] = ["src", "../isa/src", "../object/src"];

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut hasher = DefaultHasher::new();
    std::env::var_os("CARGO_PKG_VERSION").hash(&mut hasher);
    for directory in SOURCES.map(Path::new).into_iter().filter(|path| path.is_dir()) {
        println!("cargo::rerun-if-changed={}", directory.display());
        hash_sources(directory, &mut hasher)?;
    }
    println!("cargo::rustc-env=SKEP_VERIFIER_SOURCES={:016x}", hasher.finish());
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
