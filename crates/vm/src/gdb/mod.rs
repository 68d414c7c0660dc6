//! Tells a debugger about compiled programs: gdb's JIT interface.
//!
//! gdb keeps a breakpoint in `__jit_debug_register_code` and reads the list at
//! `__jit_debug_descriptor` whenever it is reached, and when it comes to a process that runs
//! already. Each entry is an object file in memory: [`image`] makes one, with symbols, source lines
//! and what unwinding needs, and [`register`] puts it into the list until the [`Registered`] is
//! dropped.
//!
//! Both symbols are hidden: a library that is preloaded into somebody else's program must not take
//! the place of those of a compiler that the program has itself. gdb finds them in the symbol table
//! of the file. They are weak, for programs that are linked with another such compiler: both then
//! use one list, as the interface wants.
//!
//! Rules of this leaf: the list is only touched under the lock; an entry and its image stay where
//! they are while they are in the list.

mod dwarf;
mod elf;
mod frame;
mod unit;

use std::arch::global_asm;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, TryLockError};

use skep_isa::Insn;

use crate::perf::Listing;

global_asm!(
    ".pushsection .data.skep_jit_debug,\"aw\",%progbits",
    ".p2align 3",
    ".weak __jit_debug_descriptor",
    ".hidden __jit_debug_descriptor",
    ".type __jit_debug_descriptor, %object",
    ".size __jit_debug_descriptor, 24",
    "__jit_debug_descriptor:",
    ".long 1, 0",
    ".quad 0, 0",
    ".popsection",
    ".pushsection .text.skep_jit_debug,\"ax\",%progbits",
    ".p2align 4",
    ".weak __jit_debug_register_code",
    ".hidden __jit_debug_register_code",
    ".type __jit_debug_register_code, %function",
    "__jit_debug_register_code:",
    ".cfi_startproc",
    "ret",
    ".cfi_endproc",
    ".size __jit_debug_register_code, . - __jit_debug_register_code",
    ".popsection",
);

unsafe extern "C" {
    static mut __jit_debug_descriptor: Descriptor;
    fn __jit_debug_register_code();
}

/// The interface's list head.
#[repr(C)]
struct Descriptor {
    version: u32,
    action: u32,
    relevant: *mut Entry,
    first: *mut Entry,
}

/// The interface's list entry.
#[repr(C)]
struct Entry {
    next: *mut Entry,
    prev: *mut Entry,
    image: *const u8,
    size: u64,
}

const NO_ACTION: u32 = 0;
const REGISTER: u32 = 1;
const UNREGISTER: u32 = 2;

static LOCK: Mutex<()> = Mutex::new(());
/// How often to try for the lock. A forked child may find it taken by a thread that it does not
/// have.
const TRIES: u32 = 1000;

/// A program that debuggers know of, until this is dropped.
pub struct Registered {
    entry: NonNull<Entry>,
}

// SAFETY: the entry is owned, and only touched under the lock.
unsafe impl Send for Registered {}
// SAFETY: the entry is only touched under the lock; nothing is done through a shared reference.
unsafe impl Sync for Registered {}

/// Makes the object file in memory that describes a program compiled from `insns`.
#[must_use]
pub fn image(listing: &Listing<'_>, insns: &[Insn]) -> Vec<u8> {
    let units = unit::of(listing, insns);
    let code = listing.code.machine_code();
    let base = code.as_ptr() as u64;
    let lines = dwarf::lines(listing, &units);
    elf::image(
        base,
        code.len() as u64,
        &units,
        &[
            (".debug_abbrev", dwarf::ABBREVIATIONS.to_vec()),
            (".debug_info", dwarf::info(listing, &units)),
            (".debug_line", lines),
            (".debug_frame", frame::table(base, code, &units)),
        ],
    )
}

/// Puts a program into the debugger's list; `None` when another thread is in the list for too long.
#[must_use]
pub fn register(listing: &Listing<'_>, insns: &[Insn]) -> Option<Registered> {
    let image = Box::leak(image(listing, insns).into_boxed_slice());
    let entry = Entry {
        next: ptr::null_mut(),
        prev: ptr::null_mut(),
        image: image.as_ptr(),
        size: image.len() as u64,
    };
    let entry = NonNull::from(Box::leak(Box::new(entry)));
    let registered = Registered { entry };
    let Some(_lock) = lock() else {
        registered.free();
        return None;
    };
    // SAFETY: under the lock; all entries in the list are alive, and this one is ours.
    unsafe {
        let list = &raw mut __jit_debug_descriptor;
        let first = (*list).first;
        (*entry.as_ptr()).next = first;
        if let Some(first) = NonNull::new(first) {
            (*first.as_ptr()).prev = entry.as_ptr();
        }
        (*list).first = entry.as_ptr();
        tell(REGISTER, entry);
    }
    Some(registered)
}

impl Drop for Registered {
    fn drop(&mut self) {
        // An entry that cannot be taken out stays, with its image.
        let Some(_lock) = lock() else { return };
        let entry = self.entry;
        // SAFETY: under the lock; the entry is in the list, and its neighbors are alive.
        unsafe {
            let list = &raw mut __jit_debug_descriptor;
            let (next, prev) = ((*entry.as_ptr()).next, (*entry.as_ptr()).prev);
            match NonNull::new(prev) {
                Some(prev) => (*prev.as_ptr()).next = next,
                None => (*list).first = next,
            }
            if let Some(next) = NonNull::new(next) {
                (*next.as_ptr()).prev = prev;
            }
            tell(UNREGISTER, entry);
        }
        Self { entry }.free();
    }
}

impl Registered {
    /// Frees the entry, which is in no list, and its image.
    fn free(self) {
        let entry = std::mem::ManuallyDrop::new(self).entry;
        // SAFETY: both were boxes, and nobody else has them.
        unsafe {
            let entry = Box::from_raw(entry.as_ptr());
            drop(Box::from_raw(ptr::slice_from_raw_parts_mut(
                entry.image.cast_mut(),
                entry.size as usize,
            )));
        }
    }
}

impl std::fmt::Debug for Registered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registered").finish_non_exhaustive()
    }
}

/// Lets a debugger look at the list.
///
/// # Safety
/// The lock is held, and the entry alive.
unsafe fn tell(action: u32, entry: NonNull<Entry>) {
    // SAFETY: the caller's promise; the function does nothing.
    unsafe {
        let list = &raw mut __jit_debug_descriptor;
        (*list).relevant = entry.as_ptr();
        (*list).action = action;
        __jit_debug_register_code();
        (*list).action = NO_ACTION;
        (*list).relevant = ptr::null_mut();
    }
}

fn lock() -> Option<MutexGuard<'static, ()>> {
    for _ in 0..TRIES {
        match LOCK.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => rustix::thread::sched_yield(),
        }
    }
    None
}
