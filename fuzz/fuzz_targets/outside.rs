//! Maps of perf, jitdumps and lists of kernel symbols, as other processes write them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::symbolize::OutsideNames;

fuzz_target!(|data: &[u8]| {
    let Some((head, text)) = data.split_first_chunk::<8>() else { return };
    let addr = u64::from_le_bytes(*head);
    let map = OutsideNames::perf_map(text.to_vec());
    let dump = OutsideNames::default().with_jitdump(text);
    for names in [map, dump, OutsideNames::kallsyms(text.to_vec())] {
        assert_eq!(names.at(addr).map(|s| s.start), names.covering(addr).map(|(_, r)| r.start));
        if let Some((_, range)) = names.covering(addr) {
            assert!(range.contains(&addr));
        }
    }
});
