//! Some functions of a module, without reading the rest.
//!
//! Hooking a function asks who jumps into its first bytes, and for that all code of its module is
//! decoded, and its symbols read. For the C library that is ten milliseconds in every process. Of
//! some functions the answer is known: nothing jumps into the C library's wrappers of system calls.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::{Convention, Entry, Kind, List, Module, NameTable};

impl Module {
    /// Gives a module that has these functions only, by what the dynamic linker knows of them. Those that
    /// do not lie in the module's code are left out, and so are those that overlap with others.
    ///
    /// # Safety
    /// A function of C's convention begins at each of the addresses, has so many bytes, and no other code
    /// jumps into its first 24.
    #[must_use]
    pub unsafe fn excerpt(&self, functions: &[(&str, Range<u64>)]) -> Arc<Self> {
        let is_code = |at: &Range<u64>| {
            !at.is_empty() && self.text.iter().any(|t| t.contains(&at.start) && at.end <= t.end)
        };
        let mut all: Vec<_> = functions.iter().filter(|(_, at)| is_code(at)).collect();
        all.sort_by_key(|(_, at)| at.start);
        let mut names = NameTable::default();
        let mut entries: Vec<Entry> = Vec::new();
        let mut text: Vec<Range<u64>> = Vec::new();
        for same in all.chunk_by(|(_, one), (_, other)| one == other) {
            let Some((_, at)) = same.first() else { continue };
            if text.last().is_some_and(|before| at.start < before.end) {
                continue;
            }
            let (addr, size) = (at.start, at.end - at.start);
            let known = names.add(same.iter().map(|(name, _)| name.as_bytes()));
            let (kind, convention) = (Kind::Func, Convention::C);
            entries.push(Entry { addr, size, kind, convention, names: known });
            text.push(at.clone());
        }
        Arc::new(Self {
            path: self.path.clone(),
            bias: self.bias,
            text,
            role: self.role,
            file: self.file.clone(),
            list: OnceLock::from(List { entries, names, edges: Vec::new() }),
            code: OnceLock::new(),
        })
    }
}
