//! Prototypes of functions that have no debug information: those that the user declares, and those of
//! the C library that everybody knows.

use std::path::Path;
use std::sync::Arc;

use skep::object::Prototype;

use crate::failure::{Failure, Result};

/// Declarations of the C library, as in its headers.
const LIBC: &str = include_str!("libc.txt");

/// Declared prototypes.
pub struct Declared {
    own: Vec<Arc<Prototype>>,
    libc: Vec<Arc<Prototype>>,
}

impl Declared {
    /// Reads what the user declares.
    pub fn read(declarations: &[String]) -> Result<Self> {
        let own = declarations.iter().map(|text| {
            Prototype::parse(text).map(Arc::new).map_err(|why| {
                Failure::environment(format!("--prototype: `{text}` is no declaration: {why}"))
                    .hint("write it as in a header: `int open(const char *path, int flags, ...)`")
            })
        });
        let libc = LIBC.lines().filter_map(|line| Prototype::parse(line).ok().map(Arc::new));
        Ok(Self { own: own.collect::<Result<_>>()?, libc: libc.collect() })
    }

    /// What the user says of a function by any of its names.
    pub fn own(&self, names: &[&str]) -> Option<&Arc<Prototype>> {
        self.own.iter().find(|p| names.contains(&p.name.as_str()))
    }

    /// What everybody knows of a function of a module.
    pub fn known(&self, module: &Path, names: &[&str]) -> Option<&Arc<Prototype>> {
        let file = module.file_name()?.to_string_lossy();
        let is_libc =
            ["libc.so", "libc-", "ld-musl", "libpthread"].iter().any(|name| file.starts_with(name));
        self.libc.iter().filter(|_| is_libc).find(|p| names.contains(&p.name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_c_library_can_be_read() {
        for line in LIBC.lines() {
            assert!(Prototype::parse(line).is_ok(), "{line}: {:?}", Prototype::parse(line));
        }
    }
}
