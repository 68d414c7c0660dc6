//! What every call has in common: its answer, and the text of the last failure of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::errno;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    /// The error number, positive.
    pub errno: i32,
    /// One line.
    pub text: String,
    /// What the verifier has to say, for a program that was rejected.
    pub log: String,
}

impl Failure {
    /// Makes a failure without a log.
    pub fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into(), log: String::new() }
    }
}

/// What the body of a function answers.
pub type Answer<T = c_int> = Result<T, Failure>;

#[derive(Default)]
struct Last {
    text: CString,
    log: CString,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Runs the body of a function. Its failure, or panic, becomes the thread's last one.
pub fn call(body: impl FnOnce() -> Answer) -> c_int {
    // What a panic leaves half done is behind locks that are then poisoned, which `handle` and
    // `ring` look past: each holds values that are whole between two statements.
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(Failure::new(errno::EIO, format!("a defect of libskep, please report it: {text}")))
    });
    done.unwrap_or_else(|failure| {
        let number = -failure.errno;
        // Names that the caller gave may have anything in them; the text is one line all the same.
        let text = failure.text.replace('\n', "\\n");
        let last = Last { text: c_text(text), log: c_text(failure.log) };
        // A thread that ends may call from a destructor, when its last text is gone.
        LAST.try_with(|l| l.replace(last)).ok();
        number
    })
}

/// Makes a text one of C, which ends at the first NUL.
fn c_text(text: String) -> CString {
    let mut bytes = text.into_bytes();
    bytes.retain(|b| *b != 0);
    CString::new(bytes).unwrap_or_default()
}

/// The text of the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn skep_last_error() -> *const c_char {
    LAST.try_with(|l| l.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// What the verifier said at the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn skep_last_log() -> *const c_char {
    LAST.try_with(|l| l.borrow().log.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The version of the interface: major, minor, patch, a byte each.
#[unsafe(no_mangle)]
pub extern "C" fn skep_version() -> u32 {
    let part = |text: &str| text.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 8
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_text_in_one_line() {
        assert_eq!(call(|| panic!("on\npurpose\0 {}", 7)), -errno::EIO);
        // SAFETY: the text is this thread's and ends with NUL.
        let text = unsafe { CStr::from_ptr(skep_last_error()) };
        let text = text.to_str().unwrap();
        assert_eq!(text, "a defect of libskep, please report it: on\\npurpose 7");
        assert_eq!(call(|| Ok(3)), 3);
    }
}
