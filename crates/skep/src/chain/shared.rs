//! The object files of a chain's programs, and the maps that programs of one file share, though they
//! were loaded one by one.

use std::path::PathBuf;
use std::sync::Arc;

use skep_maps::{Access, Map};
use skep_net::chain::Graph;
use skep_store::chain::{SharedMap, SharedObject};
use skep_store::dir::{Dir, Kind};

use super::{Chain, Result, convert};
use crate::load::Loaded;
use crate::session::Session;

/// Tells object files apart by their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectHash(pub(super) u64);

impl ObjectHash {
    /// Hashes an object file (FNV-1a). It need not resist anybody: a map is looked at again before
    /// it is shared.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// An object file that was loaded for a chain, with what a transaction notes of it.
#[derive(Clone, Debug)]
pub struct LoadedFile<'a> {
    /// The file.
    pub file: PathBuf,
    /// Its bytes.
    pub hash: ObjectHash,
    /// Programs of the file that are added later get the same maps.
    pub shares_maps: bool,
    /// Which global variables were set before loading; programs that share the maps share them too.
    pub set: Assignments,
    /// What was loaded of it.
    pub loaded: &'a Loaded,
}

/// An object file that programs of a chain come from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ObjectFile {
    /// Where it was.
    pub path: PathBuf,
    /// Its bytes.
    pub hash: ObjectHash,
    /// Programs of the file that are added later get the same maps.
    pub shares_maps: bool,
    /// Which global variables were set before loading.
    pub set: Assignments,
    /// Ids of the programs.
    pub programs: Vec<u32>,
    /// Ids of the maps.
    pub maps: Vec<u32>,
    shared: Vec<SharedMap>,
}

impl ObjectFile {
    /// Opens the maps, by their names in the object, as far as they are still there.
    #[must_use]
    pub fn open_maps(&self, session: &Session) -> NamedMaps {
        skep_runtime::memory::guard();
        self.shared.iter().filter_map(|map| open(session.dir(), map)).collect()
    }
}

fn open(dir: &Dir, shared: &SharedMap) -> Option<(String, Arc<Map>)> {
    let map = Map::open(&dir.object(Kind::Map, shared.id), Access::ReadWrite).ok()?;
    let is_same = map.generation() == shared.generation;
    is_same.then(|| (shared.name.clone(), Arc::new(map)))
}

impl From<SharedObject> for ObjectFile {
    fn from(object: SharedObject) -> Self {
        Self {
            path: object.file,
            hash: ObjectHash(object.hash),
            shares_maps: object.shares,
            set: object.set,
            programs: object.programs,
            maps: object.maps.iter().map(|m| m.id).collect(),
            shared: object.maps,
        }
    }
}

/// Global variables, or parts of them, with their values, as
/// [`Object::set_global`](skep_object::Object::set_global) takes both.
pub type Assignments = Vec<(String, String)>;

/// Maps by their names in an object.
pub type NamedMaps = Vec<(String, Arc<Map>)>;

/// What programs of an object file have in common in a chain.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct InCommon {
    /// The revision at which that is so, for the transaction that adds a program.
    pub revision: u64,
    /// The maps, for [`Loader::reuse_map`](crate::load::Loader::reuse_map).
    pub maps: NamedMaps,
    /// The global variables that were set; `None` when no program of the chain is of this file.
    pub set: Option<Assignments>,
}

impl Chain {
    /// Lists the files that the programs come from; of one file several times, if programs of it do
    /// not share its maps.
    ///
    /// # Errors
    /// When the chain cannot be read.
    pub fn object_files(&self) -> Result<Vec<ObjectFile>> {
        Ok(self.file.read()?.objects.into_iter().map(ObjectFile::from).collect())
    }

    /// Tells what a program of an object file has in common with those that are in this chain: its
    /// maps, which are opened, and what its global variables were set to.
    ///
    /// # Errors
    /// When the chain cannot be read.
    pub fn in_common(&self, object: ObjectHash) -> Result<InCommon> {
        let spec = self.file.read()?;
        let found = spec.objects.iter().find(|o| o.hash == object.0 && o.shares);
        skep_runtime::memory::guard();
        // A map that is gone is made anew.
        let open = |shared: &SharedMap| open(&self.place.dir, shared);
        let maps = found.map(|o| o.maps.iter().filter_map(open).collect()).unwrap_or_default();
        let set = found.map(|o| o.set.clone());
        Ok(InCommon { revision: convert::to_graph(spec)?.revision(), maps, set })
    }
}

/// Adds what was loaded to the objects of a chain. An object goes with its last program.
pub(super) fn objects(
    mut objects: Vec<SharedObject>,
    loaded: &[LoadedFile<'_>],
    graph: &Graph,
) -> Vec<SharedObject> {
    for LoadedFile { file, hash, shares_maps, set, loaded } in loaded {
        let programs = loaded.programs().iter().map(|p| p.id());
        let maps = loaded.maps().iter().map(|m| SharedMap {
            name: m.name.clone(),
            id: m.map.id(),
            generation: m.map.generation(),
        });
        match objects.iter_mut().find(|o| o.hash == hash.0 && o.shares) {
            Some(known) if *shares_maps => {
                known.programs.extend(programs);
                for map in maps {
                    known.maps.retain(|m| m.name != map.name);
                    known.maps.push(map);
                }
            }
            _ => objects.push(SharedObject {
                hash: hash.0,
                file: std::path::absolute(file).unwrap_or_else(|_| file.clone()),
                shares: *shares_maps,
                set: set.clone(),
                programs: programs.collect(),
                maps: maps.collect(),
            }),
        }
    }
    let in_graph = |id: &u32| graph.nodes().any(|(_, n)| n.program.id == *id);
    objects.iter_mut().for_each(|o| o.programs.retain(in_graph));
    objects.retain(|o| !o.programs.is_empty());
    objects
}
