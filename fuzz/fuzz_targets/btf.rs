//! Any bytes as type information: every type is described, read from zeros, and written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skep_object::Btf;

fuzz_target!(|data: &[u8]| {
    let Ok(btf) = Btf::parse(data) else { return };
    let zeros = [0; 512];
    for (id, t) in btf.types().take(200) {
        let _ = (btf.describe(id), btf.string(t.name_off), btf.resolve(id));
        let Ok(value) = btf.decode(id, &zeros) else { continue };
        if btf.size_of(id).is_ok_and(|s| s <= 512) {
            let _ = btf.encode(id, &value);
        }
        let _ = btf.read_text(id, &value.to_string());
    }
});
