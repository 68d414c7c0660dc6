//! Some functions of a module, without reading the rest.
//!
//! Hooking a function asks who jumps into its first bytes, and for that all code of its module is
//! decoded, and its symbols read. For the C library that is ten milliseconds in every process. Of
//! some functions the answer is known: nothing jumps into the C library's wrappers of system calls.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::{ConventionNumber, ConventionTable, Entry, Kind, List, Module, NameTable};

impl Module {
    /// Gives a module that has these functions only, by what the dynamic linker knows of them. Those that
    /// do not lie in the module's code are left out, and so are those that begin where others do, or inside
    /// of them.
    ///
    /// # Safety
    /// A function of C's convention begins at each of the addresses, has so many bytes, and no other code
    /// jumps into its first 24.
    #[must_use]
    pub unsafe fn excerpt(&self, functions: &[(&str, Range<u64>)]) -> Arc<Self> {
        let is_code = |at: &Range<u64>| {
            !at.is_empty() && self.text.iter().any(|t| t.contains(&at.start) && at.end <= t.end)
        };
        let mut table = NameTable::default();
        let mut entries: Vec<Entry> = Vec::new();
        let mut text: Vec<Range<u64>> = Vec::new();
        // There are a few: a sort would be more code than that takes time.
        let mut from = 0;
        loop {
            let mut next: Option<&(&str, Range<u64>)> = None;
            for function in functions {
                let at = &function.1;
                let is_before = next.is_none_or(|(_, other)| at.start < other.start);
                if at.start >= from && is_before && is_code(at) {
                    next = Some(function);
                }
            }
            let Some((name, at)) = next else { break };
            from = at.end;
            let (kind, names) = (Kind::Func, table.add([name.as_bytes()]));
            let (addr, size, convention) = (at.start, at.end - at.start, ConventionNumber::C);
            entries.push(Entry { addr, size, kind, convention, names });
            text.push(at.clone());
        }
        Arc::new(Self {
            path: self.path.clone(),
            bias: self.bias,
            text,
            role: self.role,
            file: self.file.clone(),
            list: OnceLock::from(List {
                entries,
                names: table,
                conventions: ConventionTable::default(),
                edges: Vec::new(),
            }),
            code: OnceLock::new(),
            goroutines: OnceLock::new(),
        })
    }
}
