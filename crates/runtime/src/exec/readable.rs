//! Addresses that a program hands to `execve` may be bad: the call then fails with `EFAULT`, and
//! must still do so when it is hooked.

use skep_sys::syscall::{RT_SIGPROCMASK, call4};

const PAGE: u64 = 4096;

/// Memory that was found readable: two pages, as a list and what it points to lie in two places.
struct Known {
    pages: [u64; 2],
    oldest: usize,
}

impl Known {
    /// Tells whether the byte at `at` can be read.
    fn is_readable(&mut self, at: u64) -> bool {
        let page = at & !(PAGE - 1);
        if self.pages.contains(&page) {
            return true;
        }
        // Not the first word: no address at all is no question.
        if is_bad(page | 8) {
            return false;
        }
        if let Some(slot) = self.pages.get_mut(self.oldest) {
            *slot = page;
        }
        self.oldest ^= 1;
        true
    }
}

/// Tells whether the kernel finds no memory at `at`, which is a multiple of 8.
///
/// It copies a set of signals before it looks what to do with it (`rt_sigprocmask` in
/// kernel/signal.c), and there is nothing to do. Events make this call already: no filter that lets
/// them live is against it. Other answers than `EFAULT` say nothing.
fn is_bad(at: u64) -> bool {
    const EFAULT: u64 = -14_i64 as u64;
    const NO_SUCH_WAY: u64 = 0xffff_ffff;
    const SET_SIZE: u64 = 8;
    // SAFETY: changes nothing; the kernel checks the address.
    unsafe { call4(RT_SIGPROCMASK, NO_SUCH_WAY, at, 0, SET_SIZE) == EFAULT }
}

/// Tells whether `envp` is a list of strings that can be read to its end. In a sandbox, where the
/// kernel cannot be asked, it is taken for one.
pub(super) fn is_environment(envp: u64) -> bool {
    let mut known = Known { pages: [u64::MAX; 2], oldest: 0 };
    let mut at = envp;
    loop {
        // Not aligned, an entry may lie on two pages.
        if !known.is_readable(at) || !known.is_readable(at.wrapping_add(7)) {
            return false;
        }
        // SAFETY: the kernel has read there.
        let mut text = unsafe { (at as *const u64).read_unaligned() };
        if text == 0 {
            return true;
        }
        loop {
            if !known.is_readable(text) {
                return false;
            }
            // SAFETY: as above.
            if unsafe { (text as *const u8).read() } == 0 {
                break;
            }
            text = text.wrapping_add(1);
        }
        at = at.wrapping_add(8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_sys::syscall::{MMAP, MUNMAP, call6};

    /// Lists and strings that end at the end of memory, or beyond it.
    #[test]
    fn an_environment_is_readable_to_its_end_or_it_is_none() {
        // SAFETY: new memory, and the second of its pages is given back.
        let end = unsafe {
            let at = call6(MMAP, 0, 2 * PAGE, 3, 0x22, u64::MAX, 0);
            assert_eq!(call6(MUNMAP, at + PAGE, PAGE, 0, 0, 0, 0), 0);
            at + PAGE
        };
        let put = |at: u64, bytes: &[u8]| {
            // SAFETY: within the first page.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
            at
        };
        let whole = put(end - 4, b"A=1\0");
        let list = |texts: &[u64]| texts.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
        let good = list(&[whole, c"B=2".as_ptr() as u64, 0]);
        assert!(is_environment(good.as_ptr() as u64));
        assert!(is_environment(put(end - 64 - 24 + 1, &good)), "not aligned");
        assert!(is_environment(put(end - 12, &[0; 8])), "an empty one");
        assert!(!is_environment(put(end - 3, b"A=1")), "less than an entry");
        assert!(
            !is_environment(list(&[put(end - 3, b"A=1"), 0]).as_ptr() as u64),
            "a string without an end"
        );
        assert!(
            !is_environment(put(end - 16, &list(&[c"A".as_ptr() as u64; 2]))),
            "a list without an end"
        );
        for bad in [8, 1 << 47, u64::MAX - 3, u64::MAX << 12] {
            assert!(!is_environment(bad), "{bad:x}");
            assert!(!is_environment(list(&[bad, 0]).as_ptr() as u64), "{bad:x} in the list");
        }
    }
}
