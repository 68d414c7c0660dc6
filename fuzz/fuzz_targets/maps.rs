//! Any bytes as the text of `/proc/PID/maps`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(vmas) = skep_proc::maps::parse(data) else { return };
    for vma in &vmas {
        assert!(vma.start < vma.end);
        assert!(vma.name.as_ref().is_none_or(|n| !n.is_empty()) && vma.readings().len() <= 32);
    }
});
