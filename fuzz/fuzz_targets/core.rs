//! Any bytes as a core file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(core) = skep_proc::maps::core_from_bytes(data.to_vec()) else { return };
    assert!(core.vmas().windows(2).all(|v| v[0].end <= v[1].start));
    assert!(skep_proc::maps::Snapshot::from_bytes(&core.to_bytes()).is_ok());
});
