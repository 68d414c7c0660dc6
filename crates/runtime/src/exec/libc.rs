//! Functions of the C library: found through the dynamic linker, without reading symbols from files,
//! or in its file, without the dynamic linker's lock.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use skep_attach::sites::{Function, Module};

/// The C library of this process.
pub(crate) struct Libc<'a> {
    module: &'a Arc<Module>,
    /// As the dynamic linker knows it. Nothing: it is not asked.
    loaded: Option<skep_sys::dl::Libc>,
}

impl<'a> Libc<'a> {
    /// Finds it among the modules.
    pub(crate) fn find(modules: &'a [Arc<Module>]) -> Option<Self> {
        let Self { module, .. } = Self::in_file(modules)?;
        let loaded = skep_sys::dl::Libc::find()?;
        let loaded = skep_sys::dl::Libc::knows_sizes().then_some(loaded);
        Some(Self { module, loaded })
    }

    /// As [`Libc::find`], with functions by the symbols in its file.
    pub(crate) fn in_file(modules: &'a [Arc<Module>]) -> Option<Self> {
        let named = |m: &&Arc<Module>| {
            let name = m.path().file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"libc.so") || name.starts_with(b"libc-2")
        };
        let module = modules.iter().find(named)?;
        Some(Self { module, loaded: None })
    }

    /// Finds a function of C's convention whose first instructions nothing jumps to, as those of
    /// wrappers of system calls.
    pub(crate) fn function(&self, name: &CStr) -> Option<Function> {
        let Some(loaded) = self.loaded else {
            return self.module.function_named(name.to_str().ok()?).ok()?;
        };
        let (at, size) = loaded.function(name)?;
        // SAFETY: a function that the dynamic linker names, with its size; the rest is what callers
        // ask for.
        unsafe { self.module.excerpt(name.to_str().ok()?, at, size) }
    }
}
