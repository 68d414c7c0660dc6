//! Programs that come as instructions, with maps that are there already.

use std::sync::Arc;

use skep_maps::{Map, MapDef};
use skep_object::{Handles, Linked, LinkedMap, MapSpec, RawProgram};
use skep_store::Dir;
use skep_store::dir::Kind;

use super::error::LoadError;
use super::loaded::{Loaded, LoadedMap, LoadedProgram};
use crate::convert;
use crate::prototypes::Resolved;
use crate::prove::{missing_helper, options};

/// The maps of a program: a handle is a place in the list.
struct Maps<'m>(&'m [LoadedMap]);

impl Handles for Maps<'_> {
    fn map(&self, handle: i32) -> Option<LinkedMap> {
        let index = usize::try_from(handle).ok()?;
        Some(LinkedMap { index, spec: self.0.get(index)?.spec.clone() })
    }
}

/// Verifies a program and writes it as a file. The maps are of this directory; handles are their
/// places in the list.
///
/// # Errors
/// When a map cannot be used, the program refers to what is not there, is rejected, or cannot run
/// here.
pub(crate) fn load(
    dir: &Dir,
    raw: &RawProgram<'_>,
    maps: &[(Arc<Map>, String)],
) -> Result<Loaded, LoadError> {
    let program = || raw.name.to_owned();
    let mut loaded = Vec::with_capacity(maps.len());
    for (map, name) in maps {
        let refused = |why| LoadError::MapHandle { program: program(), map: name.clone(), why };
        if map.file().path().parent() != Some(dir.kind(Kind::Map).as_path()) {
            return Err(refused("it is a file of another directory"));
        }
        let spec = describe(map.def(), name).map_err(refused)?;
        loaded.push(LoadedMap { name: name.clone(), spec, map: Arc::clone(map) });
    }
    let linked = Linked::from_instructions(raw, &Maps(&loaded))
        .map_err(|source| LoadError::Instructions { program: program(), source })?;
    let proof = skep_verifier::verify(&linked, &options())
        .map_err(|rejection| LoadError::Rejected(Box::new(rejection)))?;
    if let Some(helper) = missing_helper(&proof) {
        return Err(LoadError::Helper { program: program(), helper });
    }
    let used = linked.maps.iter().filter_map(|m| loaded.get(m.index)).map(|m| &*m.map);
    let file = convert::program(&proof, raw.name, "", &used.collect::<Vec<_>>()).store(dir)?;
    let target = raw.target.map(str::to_owned);
    let program = LoadedProgram { file, target, functions: Resolved::default() };
    Ok(Loaded { programs: vec![program], maps: loaded })
}

/// Describes a map to the verifier, which learns nothing of what is in it.
fn describe(def: &MapDef, name: &str) -> Result<MapSpec, &'static str> {
    if def.spin_lock.is_some() {
        return Err("its values have a spin lock, which only the types of an object tell of");
    }
    let inner = def.inner.as_deref().map(|inner| describe(inner, name)).transpose()?;
    Ok(MapSpec {
        keys: def.key_shape(),
        flags: def.flags,
        map_extra: def.map_extra,
        inner: inner.map(Box::new),
        ..MapSpec::new(name, def.map_type, def.key_size, def.value_size, def.max_entries)
    })
}
