//! Any bytes as a program or library: everything that the agent asks of one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_proc::elf::Elf;

fuzz_target!(|data: &[u8]| {
    let Ok(elf) = Elf::from_bytes(data.to_vec()) else { return };
    if let Ok(functions) = elf.functions() {
        let mut last = None;
        for function in functions.iter() {
            assert!(last < Some(function.vaddr), "sorted, one entry an address");
            last = Some(function.vaddr);
            assert!(functions.at(function.vaddr).is_some());
        }
        let _ = functions.covering(u64::MAX);
    }
    for fde in elf.fdes().unwrap_or_default() {
        assert!(fde.start < fde.end);
    }
    let _ = (elf.patchable_entries(), elf.mcount_locations(), elf.xray_sleds(), elf.build_id());
    let _ = elf.probes();
    let _ = elf.entered_at(&[0, 1, 0x1000, u64::MAX]);
    for section in elf.sections() {
        let _ = elf.section_data(section);
    }
});
