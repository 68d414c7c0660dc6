//! Any bytes as an object, fitted to good types and to its own; and a good object, fitted to any bytes as types.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::{Btf, CoreTarget, LinkOptions, Object};
use std::sync::{Arc, LazyLock};

static GOOD: LazyLock<Object> =
    LazyLock::new(|| Object::parse(include_bytes!("../../crates/object/tests/data/core.bpf.o")).expect("the fixture is good"));
static TARGET: LazyLock<CoreTarget> =
    LazyLock::new(|| CoreTarget::parse(include_bytes!("../../crates/object/tests/data/core_target.bpf.o")).expect("the fixture is good"));

fn link(object: &Object, target: &CoreTarget) {
    for i in 0..object.programs.len() {
        let options = LinkOptions { def: skep_isa::sec::SECTIONS.first(), target: Some(target), ..LinkOptions::default() };
        let _ = object.link_with(i, &options);
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(btf) = Btf::parse(data) {
        link(&GOOD, &CoreTarget::new(Arc::new(btf)));
    }
    if let Ok(target) = CoreTarget::parse(data) {
        link(&GOOD, &target);
    }
    if let Ok(object) = Object::parse(data) {
        link(&object, &TARGET);
        if let Some(btf) = &object.btf {
            link(&object, &CoreTarget::new(btf.clone()));
        }
    }
});
