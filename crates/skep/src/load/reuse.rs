//! Maps that are there already, in place of those that an object would create.

use skep_maps::{Map, MapDef};
use skep_object::{Btf, MapSpec};
use skep_verifier::fields::FieldKind;

use super::error::LoadError;

/// Checks that a map can be the one that an object wants: programs were proved safe with what the
/// object says of it, for frozen data also with the contents.
pub(super) fn check(
    spec: &MapSpec,
    btf: Option<&Btf>,
    want: &MapDef,
    map: &Map,
) -> Result<(), LoadError> {
    why_not(spec, btf, want, map)
        .map_or(Ok(()), |why| Err(LoadError::Reuse { name: spec.name.clone(), id: map.id(), why }))
}

/// The same, as words.
pub(super) fn why_not(
    spec: &MapSpec,
    btf: Option<&Btf>,
    want: &MapDef,
    map: &Map,
) -> Option<&'static str> {
    let is = map.def();
    if want.map_type != is.map_type {
        return Some("it is of another type");
    }
    if (want.key_size, want.value_size, want.max_entries)
        != (is.key_size, is.value_size, is.max_entries)
    {
        return Some("its keys, values or number of entries are of another size");
    }
    if !is_like(want, is) {
        return Some("its flags, spin lock or inner maps are not the same");
    }
    if !map.file().writable() {
        return Some("it is open for reading only");
    }
    if spec.frozen != map.is_frozen() {
        return Some("only one of the two is frozen");
    }
    if spec.frozen {
        let mut data = spec.data.clone().unwrap_or_default();
        data.resize(spec.value_size as usize, 0);
        if map.lookup(&0_u32.to_ne_bytes()).ok() != Some(data) {
            return Some("it has other constants");
        }
    }
    let types = btf.filter(|_| spec.value_type_id != 0);
    let fields = types.map(|btf| skep_verifier::fields::find(btf, spec.value_type_id));
    let is_plain = |kind: &FieldKind| matches!(kind, FieldKind::SpinLock);
    if fields.is_some_and(|fields| fields.iter().any(|f| !is_plain(&f.kind))) {
        return Some("its values have fields that only programs of one object can share");
    }
    None
}

/// Compares definitions but for names and types, which have no meaning for programs.
fn is_like(want: &MapDef, is: &MapDef) -> bool {
    let same = |a: &MapDef| {
        (a.map_type, a.key_size, a.value_size, a.max_entries, a.flags, a.map_extra, a.spin_lock)
    };
    let inner = match (&want.inner, &is.inner) {
        (Some(want), Some(is)) => is_like(want, is),
        (want, is) => want.is_none() && is.is_none(),
    };
    inner && same(want) == same(is)
}
