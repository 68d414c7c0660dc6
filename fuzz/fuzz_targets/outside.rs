//! Maps of perf and lists of kernel symbols, as other processes write them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::symbolize::OutsideNames;

fuzz_target!(|data: &[u8]| {
    let Some((head, text)) = data.split_first_chunk::<8>() else { return };
    let addr = u64::from_le_bytes(*head);
    for names in [OutsideNames::perf_map(text.to_vec()), OutsideNames::kallsyms(text.to_vec())] {
        if let Some((_, range)) = names.covering(addr) {
            assert!(range.contains(&addr));
        }
    }
});
