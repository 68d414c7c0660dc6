//! From the maps of objects to the definitions of map files.

use skep_isa::{MapFlags, MapType};
use skep_maps::slots::FILE_NAME as SLOTS;
use skep_maps::{Map, MapDef};
use skep_object::{Btf, MapSpec};
use skep_store::dir::{Dir, Kind};
use skep_verifier::fields::FieldKind;

use super::error::LoadError;

/// Shortens a name to what a map can be called: 15 characters of `[A-Za-z0-9_.]`.
fn short_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).take(15).collect()
}

/// Says how many entries a map gets, as libbpf does: rings are whole pages and a power of two, an
/// array of perf events that names no size has one for each CPU.
pub(super) fn entries(map_type: MapType, asked: u32) -> u32 {
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
    use super::*;

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
