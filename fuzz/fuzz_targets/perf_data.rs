//! Any bytes as a `perf.data`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(recording) = skep_proc::maps::PerfData::from_bytes(data.to_vec()) else { return };
    for process in recording.processes().flatten() {
        assert!(process.snapshot.vmas().windows(2).all(|v| v[0].end <= v[1].start));
    }
});
