//! A library with one function, so that attaching to it takes no time: a test program itself has
//! ten thousands.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use skep_testkit::cc::Cc;

const SOURCE: &str = "__attribute__((noinline)) long small(long n) { return n * 3 + 1; }\n";

/// The library's function.
pub type Small = extern "C" fn(i64) -> i64;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Compiles the library.
pub fn build(path: PathBuf) -> PathBuf {
    let source = path.with_extension("c");
    std::fs::write(&source, SOURCE).expect("there is room");
    Cc::c().args(&["-shared", "-fPIC", "-O1"]).compile(&[&source], &path)
}

/// Opens the library, or a copy of it, for good; returns its function.
pub fn open(path: &Path) -> Small {
    const NOW: c_int = 2;
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: the library has this function, and is never closed.
    unsafe {
        let handle = dlopen(name.as_ptr(), NOW);
        assert!(!handle.is_null(), "cannot open {}", path.display());
        let function = dlsym(handle, c"small".as_ptr());
        assert!(!function.is_null());
        std::mem::transmute::<*mut c_void, Small>(function)
    }
}
