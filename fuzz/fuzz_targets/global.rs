//! Any text as the path and the value of a global variable.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::Object;
use std::sync::LazyLock;

static GOOD: LazyLock<Object> =
    LazyLock::new(|| Object::parse(include_bytes!("../../crates/object/tests/data/values.bpf.o")).expect("the fixture is good"));

fuzz_target!(|text: &str| {
    let mut object = GOOD.clone();
    if let Some((path, value)) = text.split_once('=') {
        if object.set_global(path, value).is_ok() {
            let now = object.global(path).expect("it was just set").to_string();
            object.set_global(path, &now).expect("what is printed is read back");
        }
    }
    let _ = object.set_global("first", text);
});
