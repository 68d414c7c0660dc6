//! One function of a module, without reading the rest.
//!
//! Hooking a function asks who jumps into its first bytes, and for that all code of its module is
//! decoded, and its symbols read. For the C library that is ten milliseconds in every process. Of
//! some functions the answer is known: nothing jumps into the C library's wrappers of system calls.

use std::sync::{Arc, OnceLock};

use super::{Convention, Entry, Function, Kind, List, Module, NameTable};

impl Module {
    /// Gives a function by what the dynamic linker knows of it. `None` when it does not lie in the
    /// module's code.
    ///
    /// # Safety
    /// A function of C's convention begins at `addr`, has `size` bytes, and no other code jumps
    /// into its first 24.
    #[must_use]
    pub unsafe fn excerpt(&self, name: &str, addr: u64, size: u64) -> Option<Function> {
        let end = addr.checked_add(size)?;
        self.text.iter().find(|t| t.contains(&addr) && end <= t.end && size > 0)?;
        let mut table = NameTable::default();
        let (kind, names) = (Kind::Func, table.add([name.as_bytes()]));
        let part = Self {
            path: self.path.clone(),
            bias: self.bias,
            text: std::iter::once(addr..end).collect(),
            role: self.role,
            file: self.file.clone(),
            list: OnceLock::from(List {
                entries: vec![Entry { addr, size, kind, convention: Convention::C, names }],
                names: table,
                edges: Vec::new(),
            }),
            code: OnceLock::new(),
        };
        Arc::new(part).function_named(name).ok()?
    }
}
