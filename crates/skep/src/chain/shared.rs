//! Maps that programs of one object share in a chain, though they were loaded one by one.

use std::sync::Arc;

use skep_maps::{Access, Map};
use skep_net::chain::Graph;
use skep_store::chain::{SharedMap, SharedObject};
use skep_store::dir::Kind;

use super::{Chain, Result, convert};
use crate::load::Loaded;

/// Tells object files apart by their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectHash(u64);

impl ObjectHash {
    /// Hashes an object file (FNV-1a). It need not resist anybody: a map is looked at again before
    /// it is shared.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// Maps by their names in an object.
pub type NamedMaps = Vec<(String, Arc<Map>)>;

impl Chain {
    /// Opens the maps that programs of an object have in this chain, by their names in it: for
    /// [`Loader::reuse_map`](crate::load::Loader::reuse_map). With the revision at which that is
    /// so, for the transaction that adds the program.
    ///
    /// # Errors
    /// When the chain cannot be read.
    pub fn shared_maps(&self, object: ObjectHash) -> Result<(u64, NamedMaps)> {
        let spec = self.file.read()?;
        let found = spec.objects.iter().find(|o| o.hash == object.0);
        skep_runtime::memory::guard();
        // A map that is gone is made anew.
        let open = |shared: &SharedMap| {
            let path = self.place.dir.object(Kind::Map, shared.id);
            let map = Map::open(&path, Access::ReadWrite).ok()?;
            let is_same = map.generation() == shared.generation;
            is_same.then(|| (shared.name.clone(), Arc::new(map)))
        };
        let maps = found.map(|o| o.maps.iter().filter_map(open).collect()).unwrap_or_default();
        Ok((convert::to_graph(spec)?.revision(), maps))
    }
}

/// Adds what was loaded to the objects of a chain. An object goes with its last program.
pub(super) fn objects(
    mut objects: Vec<SharedObject>,
    loaded: &[(ObjectHash, &Loaded)],
    graph: &Graph,
) -> Vec<SharedObject> {
    for (hash, loaded) in loaded {
        let programs = loaded.programs().iter().map(|p| p.id());
        let maps = loaded.maps().iter().map(|m| SharedMap {
            name: m.name.clone(),
            id: m.map.id(),
            generation: m.map.generation(),
        });
        match objects.iter_mut().find(|o| o.hash == hash.0) {
            Some(known) => {
                known.programs.extend(programs);
                for map in maps {
                    known.maps.retain(|m| m.name != map.name);
                    known.maps.push(map);
                }
            }
            None => objects.push(SharedObject {
                hash: hash.0,
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
