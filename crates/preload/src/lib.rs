//! The library that `skep` puts into a program with `LD_PRELOAD`. Its constructor attaches the links named in the
//! environment, before any code of the program runs.
//!
//! It exports nothing the program could call by accident, never ends the program, and never prints.

/// Runs when the dynamic loader has mapped and relocated everything.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // A panic is our bug, never the program's business: it runs on, untraced.
    drop(std::panic::catch_unwind(|| {
        std::panic::set_hook(Box::new(|_| {}));
        skep::agent::start();
        drop(std::panic::take_hook());
    }));
}
