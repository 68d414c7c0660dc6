//! Maps that an object wants pinned by their names (`LIBBPF_PIN_BY_NAME`): one that is pinned already is
//! taken, a new one is pinned.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use skep_maps::{Access, Map, MapDef};
use skep_object::{Btf, MapSpec};
use skep_store::dir::Kind;
use skep_store::{Dir, PinNameError};

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

/// Pins of new maps. They go again unless they are [kept](Self::keep): of an object that cannot be loaded
/// nothing stays.
#[derive(Default)]
pub(super) struct NewPins(Vec<PathBuf>);

impl NewPins {
    /// Pins a new map under its name; false when another one was pinned there meanwhile.
    pub(super) fn add(&mut self, dir: &Dir, spec: &MapSpec, map: &Map) -> Result<bool, LoadError> {
        let pin = place(dir, spec)?;
        match std::fs::hard_link(dir.object(Kind::Map, map.id()), &pin) {
            Ok(()) => self.0.push(pin),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => return Ok(false),
            Err(source) => return Err(LoadError::Pin { name: spec.name.clone(), source }),
        }
        Ok(true)
    }

    /// The object is loaded.
    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewPins {
    fn drop(&mut self) {
        for pin in &self.0 {
            drop(std::fs::remove_file(pin));
        }
    }
}

fn place(dir: &Dir, spec: &MapSpec) -> Result<PathBuf, LoadError> {
    let wrong = |e: PinNameError| LoadError::Pin {
        name: spec.name.clone(),
        source: io::Error::new(ErrorKind::InvalidInput, e.why()),
    };
    dir.pin(&spec.name).map_err(wrong)
}
