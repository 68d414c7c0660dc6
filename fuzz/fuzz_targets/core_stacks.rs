//! Any bytes as a core file whose stacks are walked: no panic, no endless stack.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::unwind::CoreStacks;

fuzz_target!(|data: &[u8]| {
    let Ok(mut core) = CoreStacks::from_bytes(data.to_vec()) else { return };
    for thread in core.threads().to_vec().into_iter().take(8) {
        assert!(core.walk(thread.registers, 64).len() <= 64);
    }
});
