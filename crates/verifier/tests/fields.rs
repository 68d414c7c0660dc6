//! Special fields of types, as `types.bpf.c` has them.

#[allow(dead_code, reason = "cases are another test's")]
mod case;

use skep_object::btf::Kind;
use skep_verifier::fields::{find, is_numbers};

fn id(name: &str) -> u32 {
    case::types().btf.find(name, |k| matches!(k, Kind::Struct(_))).expect("a type of `types.bpf.c`")
}

/// Type of the first member, an array.
fn array_of(id: u32) -> u32 {
    let Ok(Kind::Struct(s)) = case::types().btf.get(id).map(|t| &t.kind) else {
        panic!("a structure")
    };
    s.members[0].type_id
}

/// Kind and place of each field.
fn fields(name: &str) -> Vec<(&'static str, u32, u32)> {
    find(&case::types().btf, id(name)).iter().map(|f| (f.kind.name(), f.off, f.size)).collect()
}

#[test]
fn fields_are_found_at_any_depth() {
    assert_eq!(fields("plain"), []);
    assert_eq!(fields("late_lock"), [("bpf_spin_lock", 8, 4)]);
    assert_eq!(fields("keeper"), [("kptr", 8, 8), ("kptr", 16, 8)]);
    assert_eq!(
        fields("lists"),
        [("bpf_spin_lock", 0, 4), ("bpf_list_head", 8, 16), ("bpf_rb_root", 24, 16)]
    );
    assert_eq!(
        fields("item"),
        [("bpf_list_node", 8, 24), ("bpf_rb_node", 32, 32), ("bpf_refcount", 64, 4)]
    );
    assert_eq!(fields("outer"), [("bpf_timer", 16, 16), ("bpf_timer", 40, 16), ("kptr", 56, 8)]);
}

/// Eight levels are looked through; what lies deeper is bytes.
#[test]
fn fields_lie_at_most_so_deep() {
    assert_eq!(fields("nested"), [("bpf_timer", 0, 16), ("bpf_timer", 16, 16)]);
}

#[test]
fn a_type_with_too_many_fields_has_none() {
    let all: Vec<_> = (0..11).map(|n| ("kptr", n * 8, 8)).collect();
    assert_eq!(fields("eleven"), all);
    assert_eq!(fields("twelve"), []);
}

#[test]
fn numbers_are_told_from_the_rest() {
    let btf = &case::types().btf;
    let numbers = |name, depth| is_numbers(btf, id(name), depth);
    assert!(numbers("plain", 1) && numbers("arrays", 4) && numbers("empty", 1));
    assert!(!numbers("pointing", 4) && !numbers("pointers", 4) && !numbers("own", 4));
    // An array of structures in a structure: three levels.
    assert!(
        numbers("arrays", 3)
            && !numbers("arrays", 2)
            && !numbers("arrays", 1)
            && !numbers("plain", 0)
    );
    assert!(
        !is_numbers(btf, array_of(id("arrays")), 0) && is_numbers(btf, array_of(id("arrays")), 1)
    );
}
