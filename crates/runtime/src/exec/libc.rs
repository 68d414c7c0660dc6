//! Functions of the C library: found through the dynamic linker, without reading symbols from files,
//! or in its file, without the dynamic linker's lock.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use skep_attach::sites::{Function, Module};

/// The C library of this process.
pub(crate) struct Libc {
    /// Its file, or the functions of it that were asked for.
    module: Arc<Module>,
}

impl Libc {
    /// Finds it among the modules, for those of its functions that are wanted. They have C's convention,
    /// and nothing jumps to their first instructions, as to those of wrappers of system calls.
    pub(crate) fn find(modules: &[Arc<Module>], wanted: &[&[&CStr]]) -> Option<Self> {
        let whole = Self::in_file(modules)?;
        let loaded = skep_sys::dl::Libc::find()?;
        if !skep_sys::dl::Libc::knows_sizes() {
            return Some(whole);
        }
        let mut functions = Vec::new();
        for names in wanted {
            for name in *names {
                if let (Some((at, size)), Ok(name)) = (loaded.function(name), name.to_str()) {
                    functions.push((name, at..at.saturating_add(size)));
                }
            }
        }
        // SAFETY: functions that the dynamic linker names, with their sizes; the rest is what callers
        // ask for.
        Some(Self { module: unsafe { whole.module.excerpt(&functions) } })
    }

    /// As [`Libc::find`], with functions by the symbols in its file.
    pub(crate) fn in_file(modules: &[Arc<Module>]) -> Option<Self> {
        let named = |m: &&Arc<Module>| {
            let name = m.path().file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"libc.so") || name.starts_with(b"libc-2")
        };
        Some(Self { module: Arc::clone(modules.iter().find(named)?) })
    }

    /// Finds a function that was wanted.
    pub(crate) fn function(&self, name: &CStr) -> Option<Function> {
        self.module.function_named(name.to_str().ok()?).ok()?
    }
}
