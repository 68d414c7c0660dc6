//! Any bytes as a snapshot, with a checksum that fits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let sum = data.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let file = [data, &sum.to_le_bytes()].concat();
    let Ok(snapshot) = skep_proc::maps::Snapshot::from_bytes(&file) else { return };
    assert!(snapshot.vmas().windows(2).all(|v| v[0].end <= v[1].start));
    // What was read is written as something that reads the same.
    assert_eq!(skep_proc::maps::Snapshot::from_bytes(&snapshot.to_bytes()).as_ref(), Ok(&snapshot));
});
