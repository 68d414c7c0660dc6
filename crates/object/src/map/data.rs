//! Global variables: each data section becomes an array map with one entry, as in libbpf.

use super::{MapSpec, Maps};
use crate::btf::{Kind, Linkage, TypeId};
use crate::elf::{Elf, Section};
use crate::{Btf, ObjectError};
use object::elf::{SHF_ALLOC, SHT_NOBITS, SHT_PROGBITS};
use skep_isa::{MapFlags, MapType};

/// Longest map name (include/uapi/linux/bpf.h `BPF_OBJ_NAME_LEN`, less the zero byte).
const NAME_LEN: usize = 15;
/// Largest value of an array map (kernel/bpf/arraymap.c `array_map_alloc_check`).
const MAX_SIZE: u64 = i32::MAX as u64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Data {
    Writable,
    Readonly,
    Zero,
}

/// Tells what global data a section holds, if any.
fn data_kind(s: &Section<'_>) -> Option<Data> {
    let family = |name: &str| {
        s.name == name || s.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
    };
    if s.flags & u64::from(SHF_ALLOC) == 0 || s.size == 0 {
        return None;
    }
    match s.kind {
        SHT_PROGBITS if family(".data") => Some(Data::Writable),
        SHT_PROGBITS if family(".rodata") => Some(Data::Readonly),
        SHT_NOBITS if family(".bss") => Some(Data::Zero),
        _ => None,
    }
}

pub(super) fn collect(
    maps: &mut Maps,
    elf: &Elf<'_>,
    btf: Option<&Btf>,
    object: &str,
) -> Result<(), ObjectError> {
    for (index, section) in elf.sections.iter().enumerate() {
        let Some(kind) = data_kind(section) else { continue };
        let size = u32::try_from(section.size).ok().filter(|_| section.size <= MAX_SIZE);
        let Some(size) = size else {
            return Err(section.error(0, format!("{} bytes of global data", section.size)));
        };
        let mut spec = MapSpec::new(&map_name(object, section.name), MapType::Array, 4, size, 1);
        spec.section = section.name.to_owned();
        spec.frozen = kind == Data::Readonly;
        spec.value_type_id =
            btf.and_then(|b| b.find(section.name, |k| matches!(k, Kind::DataSec(_)))).unwrap_or(0);
        let mmapable = if is_shared(btf, spec.value_type_id) { MapFlags::MMAPABLE } else { 0 };
        spec.flags =
            MapFlags(mmapable | if kind == Data::Readonly { MapFlags::RDONLY_PROG } else { 0 });
        spec.data = Some(section.data.to_vec());
        maps.data.insert(index, maps.specs.len());
        maps.specs.push(spec);
    }
    Ok(())
}

/// Tells whether a section has a variable that others may see, so that somebody may want to map it
/// into memory.
fn is_shared(btf: Option<&Btf>, section: TypeId) -> bool {
    let Some(btf) = btf else { return false };
    let Ok(Kind::DataSec(sec)) = btf.get(section).map(|t| &t.kind) else { return false };
    let shared = |id: TypeId| matches!(btf.get(id).map(|t| &t.kind), Ok(Kind::Var(v)) if v.linkage != Linkage::Static);
    sec.vars.iter().any(|v| shared(v.type_id))
}

/// Makes libbpf's name: as much of the object's name as fits before the section's; custom sections
/// stand alone.
pub(super) fn map_name(object: &str, section: &str) -> String {
    let suffix: String = section.chars().take(NAME_LEN).collect();
    let room = if section.get(1..).is_some_and(|s| s.contains('.')) {
        0
    } else {
        NAME_LEN - suffix.len().clamp(7, NAME_LEN)
    };
    let prefix = object.chars().take(room);
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' };
    prefix.chain(suffix.chars()).map(allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_libbpf_gives() {
        assert_eq!(map_name("opensnoop", ".rodata"), "opensnoo.rodata");
        assert_eq!(map_name("opensnoop", ".bss"), "opensnoo.bss");
        assert_eq!(map_name("a-b", ".data"), "a_b.data");
        assert_eq!(map_name("opensnoop", ".data.percpu_counters"), ".data.percpu_co");
        assert_eq!(map_name("opensnoop", ".rodata.str1.1"), ".rodata.str1.1");
        assert_eq!(map_name("", ".rodata"), ".rodata");
    }
}
