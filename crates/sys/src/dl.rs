//! The dynamic linker's functions, in processes where they may not be there: before glibc 2.34 they
//! are in `libdl.so.2`, which the agent does not need, as that would be one more library in each
//! traced process. The C library has the same under other names then.
//!
//! All are weak symbols: null where no library has them, as in a process that the agent was put into
//! without its loader.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
const NOLOAD_LAZY: c_int = 4 | 1;
/// `__RTLD_DLOPEN`: as `dlopen` calls it.
const INNER: c_int = 1 << 31;
const LIBC: &CStr = c"libc.so.6";

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

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dladdr1 =
    unsafe extern "C" fn(*const c_void, *mut [usize; 4], *mut *const Symbol, c_int) -> c_int;

/// The address of a function as its type, if it is there.
macro_rules! weak {
    ($name:literal, $kind:ty) => {{
        let at: *const c_void;
        // SAFETY: reads the word that the dynamic linker filled in for the symbol.
        unsafe {
            asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) at,
                options(nostack, preserves_flags)
            );
        }
        // SAFETY: C declares it so.
        (!at.is_null()).then(|| unsafe { std::mem::transmute::<*const c_void, $kind>(at) })
    }};
}

/// Finds a function of this name in the libraries behind this one; where only the C library can be
/// asked, in that.
#[must_use]
pub fn next(name: &CStr) -> *mut c_void {
    match weak!("dlsym", Dlsym) {
        // SAFETY: the name is terminated; the lookup starts behind this library.
        Some(dlsym) => unsafe { dlsym(RTLD_NEXT, name.as_ptr()) },
        None => Libc::find().map_or(ptr::null_mut(), |libc| libc.address(name)),
    }
}

/// The C library, as the dynamic linker knows it.
#[derive(Clone, Copy, Debug)]
pub struct Libc(NonNull<c_void>);

impl Libc {
    /// Finds it.
    #[must_use]
    pub fn find() -> Option<Self> {
        let (open, flags) = match weak!("dlopen", Dlopen) {
            Some(open) => (open, NOLOAD_LAZY),
            None => (weak!("__libc_dlopen_mode", Dlopen)?, NOLOAD_LAZY | INNER),
        };
        // SAFETY: only finds what is there.
        let handle = unsafe { open(LIBC.as_ptr(), flags) };
        NonNull::new(handle).map(Self)
    }

    fn address(self, name: &CStr) -> *mut c_void {
        let dlsym = weak!("dlsym", Dlsym).or_else(|| weak!("__libc_dlsym", Dlsym));
        // SAFETY: the handle is open, the name terminated.
        dlsym.map_or(ptr::null_mut(), |dlsym| unsafe { dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    /// Finds a function and its size; nothing where the dynamic linker does not tell sizes.
    #[must_use]
    pub fn function(self, name: &CStr) -> Option<(u64, u64)> {
        const SYMENT: c_int = 1;
        let (dladdr1, at) = (weak!("dladdr1", Dladdr1)?, self.address(name));
        let (mut info, mut symbol) = (MaybeUninit::uninit(), ptr::null::<Symbol>());
        if at.is_null() {
            return None;
        }
        // SAFETY: the results are written where they fit, and a symbol lives as long as its library.
        unsafe {
            let known = dladdr1(at, info.as_mut_ptr(), &raw mut symbol, SYMENT) != 0;
            (known && !symbol.is_null()).then(|| (at as u64, (*symbol).size))
        }
    }

    /// Tells whether [`Libc::function`] can answer.
    #[must_use]
    pub fn knows_sizes() -> bool {
        weak!("dladdr1", Dladdr1).is_some()
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::{Libc, next};

    #[test]
    fn functions_of_the_c_library_are_found() {
        let libc = Libc::find().expect("it is there");
        let (at, size) = libc.function(c"getpid").expect("every version has it");
        assert!(size > 0);
        assert_eq!((next(c"getpid") as u64, next(c"no_such_function") as u64), (at, 0));
        assert_eq!(libc.function(c"no_such_function"), None);
    }
}
