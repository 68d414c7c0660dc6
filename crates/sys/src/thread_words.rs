//! Words of our own for each thread, where there is no thread-local storage for them.
//!
//! Code of ours reads its thread's words by `fs:[offset]`, in the initial-exec model. An agent that
//! was put into a running process, without the process's loader, has no part of what `fs` points
//! to. Nobody uses `gs` on x86-64 Linux but Wine, so there the words of a thread lie in an area of
//! our own below the address that the thread's GS base holds, at the same negative offsets: every
//! instruction that has to change is [listed](crate::listed_thread_word), and [`switch`] turns its
//! prefix from `fs` to `gs`. A process that has loaded us as a library keeps `fs`, and pays nothing.
//!
//! A new thread inherits its creator's GS base (clone(2)), so at its first event it has another
//! thread's area, or nobody's. `skep_attach` tells whose area it is, and gives the thread its own.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether thread words are reached by `gs`.
static BY_GS: AtomicBool = AtomicBool::new(false);

/// Tells whether thread words are reached by `gs`: one load, safe on the event path.
#[inline(always)]
#[must_use]
pub fn by_gs() -> bool {
    BY_GS.load(Relaxed)
}

/// An assembly instruction with an `fs` prefix that reads or writes one of a thread's words: the
/// same text, which also puts its place into the list that [`switch`] goes through.
#[macro_export]
macro_rules! listed_thread_word {
    ($instruction:literal) => {
        concat!(
            "771: ",
            $instruction,
            "\n.pushsection skep_thread_words,\"aR\",@progbits\n.long 771b - .\n.popsection"
        )
    };
}

// The list is never empty, so that its ends always have a place.
std::arch::global_asm!(".pushsection skep_thread_words,\"aR\",@progbits", ".long 0", ".popsection");

unsafe extern "C" {
    #[link_name = "__start_skep_thread_words"]
    static START: [i32; 0];
    #[link_name = "__stop_skep_thread_words"]
    static STOP: [i32; 0];
}

const FS: u8 = 0x64;
const GS: u8 = 0x65;

/// The addresses of the prefixes of all listed instructions.
pub fn listed() -> impl Iterator<Item = u64> {
    let (start, stop) = (&raw const START as u64, &raw const STOP as u64);
    (start..stop).step_by(4).filter_map(|at| {
        // SAFETY: the linker gives the ends of the list, which is made of such words.
        match unsafe { (at as *const i32).read() } {
            0 => None,
            distance => Some(at.wrapping_add_signed(distance.into())),
        }
    })
}

/// Turns all listed instructions from `fs` to `gs`, by `write`, which changes a byte of code; the
/// first that fails ends it, and then some are turned and [`by_gs`] says that none is.
///
/// # Errors
/// What `write` gives.
///
/// # Safety
/// No thread runs one of these instructions meanwhile, or has ever kept anything in a thread word,
/// and from now on the GS base of each that does is the end of an area of its own.
pub unsafe fn switch<E>(mut write: impl FnMut(u64, u8) -> Result<(), E>) -> Result<(), E> {
    for at in listed() {
        // SAFETY: a byte of our own code.
        if unsafe { (at as *const u8).read_volatile() } == FS {
            write(at, GS)?;
        }
    }
    BY_GS.store(true, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is listed is an instruction that begins with the prefix.
    #[test]
    fn the_list_has_the_places_of_prefixes() {
        // The compiler must not find out that it is never executed.
        if std::hint::black_box(false) {
            // SAFETY: reads the thread pointer.
            unsafe {
                std::arch::asm!(listed_thread_word!("mov {}, qword ptr fs:[0]"), out(reg) _, options(nostack, readonly));
            }
        }
        let places: Vec<u64> = listed().collect();
        assert!(!places.is_empty());
        for at in places {
            // SAFETY: a byte of this program's code.
            assert_eq!(unsafe { (at as *const u8).read() }, FS, "{at:x}");
        }
    }
}
