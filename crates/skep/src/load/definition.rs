//! From the maps of objects to the definitions of map files.

use skep_isa::errno::EINVAL;
use skep_isa::map::{DynptrUser, KeyForm};
use skep_isa::{MapFlags, MapType};
use skep_maps::slots::FILE_NAME as SLOTS;
use skep_maps::{Map, MapDef, MapError};
use skep_object::btf::{Kind as Type, TypeId};
use skep_object::{Btf, MapSpec};
use skep_store::dir::{Dir, Kind};
use skep_verifier::fields::FieldKind;

use super::error::LoadError;

/// Shortens a name to what a map can be called: 15 characters of `[A-Za-z0-9_.]`.
pub(crate) fn short_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).take(15).collect()
}

/// Says how many entries a map gets, as libbpf does: rings are whole pages and a power of two, an
/// array of perf events that names no size has one for each CPU.
pub(crate) fn entries(map_type: MapType, asked: u32) -> u32 {
    match map_type {
        MapType::Ringbuf | MapType::UserRingbuf if asked > 0 => {
            asked.max(4096).checked_next_power_of_two().unwrap_or(asked)
        }
        MapType::PerfEventArray if asked == 0 => skep_maps::slots::possible_cpus(),
        _ => asked,
    }
}

/// Says what kind of map an object wants; `btf` are the object's types, `btf_id` where they are
/// kept.
#[must_use]
pub fn definition(spec: &MapSpec, btf: Option<&Btf>, btf_id: u32) -> MapDef {
    let fields = btf
        .filter(|_| spec.value_type_id != 0)
        .map(|btf| skep_verifier::fields::find(btf, spec.value_type_id))
        .unwrap_or_default();
    MapDef {
        map_type: spec.map_type,
        key_size: spec.key_size(),
        // The type of a ring's records may stand where others have that of their values.
        value_size: if spec.map_type == MapType::Ringbuf && spec.value_type_id != 0 {
            0
        } else {
            spec.value_size
        },
        max_entries: entries(spec.map_type, spec.max_entries),
        flags: spec.flags,
        map_extra: spec.map_extra,
        name: short_name(&spec.name),
        btf_id,
        key_type_id: spec.key_type_id,
        value_type_id: spec.value_type_id,
        spin_lock: fields.iter().find(|f| f.kind == FieldKind::SpinLock).map(|f| f.off),
        inner: spec.inner.as_ref().map(|inner| Box::new(definition(inner, btf, 0))),
    }
}

/// Deepest nesting of structures that is looked into.
const DEPTH: u32 = 8;

/// What a key's type has to do with `struct bpf_dynptr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dynptr {
    Not,
    Is,
    /// There is one in it.
    Holds,
}

fn dynptr_in(btf: &Btf, type_id: TypeId, depth: u32) -> Dynptr {
    let Ok((id, ty)) = btf.resolve(type_id) else { return Dynptr::Not };
    let holds = |inner| depth > 0 && dynptr_in(btf, inner, depth - 1) != Dynptr::Not;
    let size = u64::from(DynptrUser::SIZE);
    match &ty.kind {
        Type::Struct(_) if btf.name(id) == "bpf_dynptr" && btf.size_of(id) == Ok(size) => {
            Dynptr::Is
        }
        Type::Struct(s) | Type::Union(s) if s.members.iter().any(|m| holds(m.type_id)) => {
            Dynptr::Holds
        }
        Type::Array(a) if holds(a.elem) => Dynptr::Holds,
        _ => Dynptr::Not,
    }
}

/// Checks the type of a map's keys, where it says what they are: byte strings are keys of the type
/// `struct bpf_dynptr`, and no others are. Loading an object does that itself; this is for whoever
/// makes maps by its definitions.
///
/// # Errors
/// [`MapError::Definition`], when the type does not fit.
pub fn check_key_type(spec: &MapSpec, btf: Option<&Btf>) -> Result<(), MapError> {
    if let Some(inner) = &spec.inner {
        check_key_type(inner, btf)?;
    }
    if spec.map_type.row().keys != KeyForm::Dynptr {
        return Ok(());
    }
    let found = btf
        .filter(|_| spec.key_type_id != 0)
        .map_or(Dynptr::Not, |btf| dynptr_in(btf, spec.key_type_id, DEPTH));
    let what = match (spec.map_extra, found) {
        (0, Dynptr::Not) | (1.., Dynptr::Is) => return Ok(()),
        (0, Dynptr::Is) => "keys are byte strings, and `map_extra` must say how long they may be",
        (1.., Dynptr::Not) => {
            "`map_extra` is the length of byte strings, whose type is `struct bpf_dynptr`"
        }
        (_, Dynptr::Holds) => "`struct bpf_dynptr` must be the whole key, not a part of it",
    };
    Err(MapError::Definition { map_type: spec.map_type, what, errno: EINVAL })
}

/// Creates a map that no object asked for.
pub(crate) fn own_map(
    dir: &Dir,
    name: &str,
    map_type: MapType,
    entries: u32,
    value_size: u32,
) -> Result<Map, LoadError> {
    let def = MapDef {
        map_type,
        key_size: if map_type == MapType::Ringbuf { 0 } else { 4 },
        value_size,
        max_entries: entries,
        flags: MapFlags::default(),
        map_extra: 0,
        name: name.to_owned(),
        btf_id: 0,
        key_type_id: 0,
        value_type_id: 0,
        spin_lock: None,
        inner: None,
    };
    let id = dir.next_id(Kind::Map)?;
    let err = |source| LoadError::Map { name: name.to_owned(), source };
    skep_runtime::memory::guard();
    Map::create(&dir.kind(Kind::Map), id, &def).map_err(err)
}

/// Makes the slot table, with its memory.
pub(super) fn slot_table(dir: &Dir) -> Result<(), LoadError> {
    let err = |source| LoadError::Map { name: SLOTS.to_owned(), source };
    skep_maps::SlotTable::open_or_create(dir.path()).map_err(err)?;
    let path = dir.path().join(SLOTS);
    let os =
        |call, errno| err(skep_maps::ObjectError::Os { call, path: path.clone(), errno }.into());
    let file = std::fs::File::options()
        .write(true)
        .open(&path)
        .map_err(|e| os("open", e.raw_os_error().unwrap_or(0)))?;
    let len = file.metadata().map_or(0, |m| m.len());
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)
        .map_err(|e| os("fallocate", e.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use skep_isa::KeyShape;
    use skep_object::Object;

    use super::*;

    #[test]
    fn only_whole_dynptrs_are_keys_of_any_length() {
        let path = format!("{}/tests/data/qp_trie/keys.bpf.o", env!("CARGO_MANIFEST_DIR"));
        let object = Object::parse(&std::fs::read(path).expect("the fixture is committed"))
            .expect("definitions that Linux would refuse are no reason to refuse the object");
        let not = "`map_extra` is the length of byte strings, whose type is `struct bpf_dynptr`";
        let part = "`struct bpf_dynptr` must be the whole key, not a part of it";
        let none = "keys are byte strings, and `map_extra` must say how long they may be";
        for (name, keys, want) in [
            ("paths", KeyShape::Bytes { max: 255 }, None),
            ("named_otherwise", KeyShape::Bytes { max: 255 }, None),
            ("numbers", KeyShape::Fixed(8), None),
            ("sixteen", KeyShape::Fixed(16), None),
            ("in_a_hash", KeyShape::Fixed(16), None),
            ("around_in_a_hash", KeyShape::Fixed(24), None),
            ("other_name", KeyShape::Bytes { max: 4 }, Some(not)),
            ("untyped", KeyShape::Bytes { max: 4 }, Some(not)),
            ("other_size", KeyShape::Fixed(8), Some(not)),
            ("around", KeyShape::Bytes { max: 4 }, Some(part)),
            ("around_with_more", KeyShape::Fixed(24), Some(part)),
            ("no_length", KeyShape::Fixed(16), Some(none)),
        ] {
            let spec = object.maps.iter().find(|m| m.name == name).expect(name);
            let said = check_key_type(spec, object.btf.as_deref()).map_err(|e| match e {
                MapError::Definition { map_type: MapType::QpTrie, what, errno: EINVAL } => what,
                other => panic!("{name}: {other}"),
            });
            assert_eq!((spec.keys, said.err()), (keys, want), "{name}");
            assert_eq!(definition(spec, object.btf.as_deref(), 0).key_shape(), keys, "{name}");
        }
        assert_eq!(object.maps.len(), 12);
    }

    #[test]
    fn sizes_that_the_kernel_would_refuse_are_rounded_as_libbpf_does() {
        for (asked, got) in [
            (1, 4096),
            (4096, 4096),
            (4097, 8192),
            (100_000, 131_072),
            (0, 0),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(entries(MapType::Ringbuf, asked), got, "{asked}");
        }
        assert_eq!(entries(MapType::PerfEventArray, 0), skep_maps::slots::possible_cpus());
        assert_eq!((entries(MapType::PerfEventArray, 1), entries(MapType::Hash, 0)), (1, 0));
    }
}
