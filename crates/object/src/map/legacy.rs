//! Maps in the `maps` section: `struct bpf_map_def` variables, as before BTF (libbpf before 1.0,
//! iproute2).

use super::{MapSpec, Maps, error, known_type};
use crate::btf::Kind;
use crate::elf::Elf;
use crate::{Btf, ObjectError};
use skep_isa::MapFlags;

/// Type, key size, value size, entries, flags.
const FIELDS: usize = 5;

pub(super) fn collect(
    maps: &mut Maps,
    elf: &Elf<'_>,
    index: usize,
    btf: Option<&Btf>,
) -> Result<(), ObjectError> {
    let Some(section) = elf.sections.get(index) else { return Ok(()) };
    let mut symbols: Vec<_> = elf.symbols_in(index).filter(|s| !s.name.is_empty()).collect();
    symbols.sort_by_cached_key(|s| s.value);
    symbols.dedup_by_key(|s| s.value);
    if symbols.is_empty() || section.data.is_empty() {
        return Ok(());
    }
    // Authors added fields of their own behind the known ones; all definitions of an object have
    // one size.
    let size = section.data.len() / symbols.len();
    if size < FIELDS * 4 || size * symbols.len() != section.data.len() {
        return Err(
            section.error(0, format!("{} bytes for {} maps", section.data.len(), symbols.len()))
        );
    }
    for symbol in symbols {
        let def = usize::try_from(symbol.value)
            .ok()
            .and_then(|at| section.data.get(at..at.checked_add(size)?));
        let Some(def) = def else {
            return Err(section
                .error(symbol.value, format!("map `{}` ends behind the section", symbol.name)));
        };
        let (words, rest) = def.split_at_checked(FIELDS * 4).unwrap_or((def, &[]));
        if rest.iter().any(|b| *b != 0) {
            return Err(error(symbol.name, "its definition has unknown fields"));
        }
        let word = |i: usize| words.as_chunks::<4>().0.get(i).map_or(0, |b| u32::from_le_bytes(*b));
        let mut spec =
            MapSpec::new(symbol.name, known_type(symbol.name, word(0))?, word(1), word(2), word(3));
        spec.flags = MapFlags(word(4));
        spec.section = section.name.to_owned();
        annotate(&mut spec, btf);
        maps.at.insert((index, symbol.value), maps.specs.len());
        maps.specs.push(spec);
    }
    Ok(())
}

/// Finds the types of key and value, when the author wrote `BPF_ANNOTATE_KV_PAIR`.
fn annotate(spec: &mut MapSpec, btf: Option<&Btf>) {
    let Some(btf) = btf else { return };
    let pair = btf.find(&format!("____btf_map_{}", spec.name), |k| matches!(k, Kind::Struct(_)));
    let Some(Kind::Struct(c)) = pair.and_then(|id| btf.get(id).ok()).map(|t| &t.kind) else {
        return;
    };
    if let [key, value] = &*c.members
        && btf.size_of(key.type_id) == Ok(u64::from(spec.key_size()))
        && btf.size_of(value.type_id) == Ok(u64::from(spec.value_size))
    {
        spec.key_type_id = key.type_id;
        spec.value_type_id = value.type_id;
    }
}
