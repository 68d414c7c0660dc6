//! The library that `skep` puts into a program with `LD_PRELOAD`. Its constructor attaches the
//! links named in the environment, before any code of the program runs.
//!
//! It exports `sigaction`, `signal` and their relatives (`signals.rs`), and what it needs in a process
//! that runs already (`alone`), where `skep` puts it by other ways. It never ends the program, and
//! never prints. It has a heap of its own (`heap.rs`).

skep_sys::define_for_old_glibc!();

mod alone;
mod heap;
mod resident;
mod signals;

use heap::Heap;

#[global_allocator]
static HEAP: Heap = Heap::new();

/// Runs when the dynamic loader has mapped and relocated everything.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // A panic is our bug, never the program's business: it runs on, untraced.
    drop(std::panic::catch_unwind(|| {
        // First of all that happens at a fork, as whoever comes later may hold other locks and want
        // memory.
        heap::hold_across_forks();
        std::panic::set_hook(Box::new(|_| {}));
        resident::tell_own_code();
        // SAFETY: the library is built with optimization for the baseline of x86-64, runs where the
        // C library has loaded it, and its constructor runs once. It is relocated then, and signals
        // wait while it is copied; threads that earlier constructors may have made write to none of
        // its variables but caches of addresses, which are found again.
        unsafe { skep_runtime::start::start(|| resident::detach_from_file()) };
        drop(std::panic::take_hook());
    }));
}
