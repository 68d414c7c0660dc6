//! Functions of the C library: found through the dynamic linker, without reading symbols from files,
//! or in its file, without the dynamic linker's lock.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use skep_attach::sites::{Function, Module};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dladdr1(
        addr: *const c_void,
        info: *mut [usize; 4],
        extra: *mut *const Symbol,
        flags: c_int,
    ) -> c_int;
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The C library of this process.
pub(crate) struct Libc<'a> {
    module: &'a Arc<Module>,
    /// The dynamic linker's; null: it is not asked.
    handle: *mut c_void,
}

impl<'a> Libc<'a> {
    /// Finds it among the modules.
    pub(crate) fn find(modules: &'a [Arc<Module>]) -> Option<Self> {
        const NOLOAD_LAZY: c_int = 4 | 1;
        let Self { module, .. } = Self::in_file(modules)?;
        // SAFETY: only finds what is there.
        let handle = unsafe { dlopen(c"libc.so.6".as_ptr(), NOLOAD_LAZY) };
        (!handle.is_null()).then_some(Self { module, handle })
    }

    /// As [`Libc::find`], with functions by the symbols in its file.
    pub(crate) fn in_file(modules: &'a [Arc<Module>]) -> Option<Self> {
        let named = |m: &&Arc<Module>| {
            let name = m.path().file_name().unwrap_or_default().as_bytes();
            name.starts_with(b"libc.so") || name.starts_with(b"libc-2")
        };
        let module = modules.iter().find(named)?;
        Some(Self { module, handle: std::ptr::null_mut() })
    }

    /// Finds a function of C's convention whose first instructions nothing jumps to, as those of
    /// wrappers of system calls.
    pub(crate) fn function(&self, name: &CStr) -> Option<Function> {
        const SYMENT: c_int = 1;
        if self.handle.is_null() {
            return self.module.function_named(name.to_str().ok()?).ok()?;
        }
        let (mut info, mut symbol) = (MaybeUninit::uninit(), std::ptr::null::<Symbol>());
        // SAFETY: the handle is open; the results are written where they fit, and a symbol lives as
        // long as its library.
        let (at, size) = unsafe {
            let at = dlsym(self.handle, name.as_ptr());
            if at.is_null()
                || dladdr1(at, info.as_mut_ptr(), &raw mut symbol, SYMENT) == 0
                || symbol.is_null()
            {
                return None;
            }
            (at as u64, (*symbol).size)
        };
        // SAFETY: a function that the dynamic linker names, with its size; the rest is what callers
        // ask for.
        unsafe { self.module.excerpt(name.to_str().ok()?, at, size) }
    }
}
