//! Maps that an object wants pinned by their names (`LIBBPF_PIN_BY_NAME`): one that is pinned already is
//! taken, a new one is pinned.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use skep_maps::{Access, Map, MapDef};
use skep_object::{Btf, MapSpec};
use skep_store::Dir;
use skep_store::dir::Kind;

use super::error::LoadError;
use super::reuse;

/// Finds the map that is pinned under a map's name; it must be as the object defines it.
pub(super) fn find(
    dir: &Dir,
    spec: &MapSpec,
    btf: Option<&Btf>,
    want: &MapDef,
) -> Result<Option<Arc<Map>>, LoadError> {
    let pin = place(dir, spec)?;
    if !pin.exists() {
        return Ok(None);
    }
    let err = |source| LoadError::Map { name: spec.name.clone(), source };
    skep_runtime::memory::guard();
    // By its own name: others find its file by that.
    let id = Map::open(&pin, Access::ReadOnly).map_err(err)?.id();
    let map = Map::open(&dir.object(Kind::Map, id), Access::ReadWrite).map_err(err)?;
    match reuse::why_not(spec, btf, want, &map) {
        Some(why) => Err(LoadError::Pinned { name: spec.name.clone(), id, why }),
        None => Ok(Some(Arc::new(map))),
    }
}

/// Pins a new map under its name; false when another one was pinned there meanwhile.
pub(super) fn pin(dir: &Dir, spec: &MapSpec, map: &Map) -> Result<bool, LoadError> {
    let pin = place(dir, spec)?;
    match std::fs::hard_link(dir.object(Kind::Map, map.id()), pin) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(LoadError::Pin { name: spec.name.clone(), source }),
    }
}

fn place(dir: &Dir, spec: &MapSpec) -> Result<PathBuf, LoadError> {
    let mut parts = Path::new(&spec.name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) if *name == *spec.name => {
            Ok(dir.path().join("pins").join(name))
        }
        _ => {
            let source = ErrorKind::InvalidFilename.into();
            Err(LoadError::Pin { name: spec.name.clone(), source })
        }
    }
}
