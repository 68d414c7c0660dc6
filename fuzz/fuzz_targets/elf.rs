//! Any bytes as an object file: what parses is linked, program by program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::{LinkOptions, Object};

fuzz_target!(|data: &[u8]| {
    let Ok(object) = Object::parse_named("fuzz", data) else { return };
    for i in 0..object.programs.len() {
        let options = LinkOptions { def: skep_isa::sec::SECTIONS.first(), ..LinkOptions::default() };
        if let Ok(linked) = object.link_with(i, &options) {
            assert!(linked.subprogs.first().is_some_and(|s| s.start == 0));
            assert!(linked.maps.iter().all(|m| m.index < object.maps.len()));
        }
    }
});
