//! Any text as a symbol: what comes out is no longer than it may be, and a name that is not mangled
//! comes back as it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::demangle::{demangle, short};

fuzz_target!(|name: &str| {
    for readable in [demangle(name), short(name)] {
        assert!(readable.len() <= name.len().max(64 << 10));
        assert!(name.starts_with("_Z") || name.starts_with("_R") || readable == name);
    }
});
