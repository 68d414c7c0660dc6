//! Where the programs of a chain in the kernel come from: noted beside its description, so that one
//! program can be added to a chain that is attached, or taken out, while the others keep their maps.

use skep_kernel::Map;
use skep_net::chain::Graph;
use skep_object::MapSpec;
use skep_store::chain::{SharedMap, SharedObject, decode_objects, encode_objects};
use skep_vm::chain::Count;

use super::error::KernelChainError as Error;
use super::{KernelMap, Result, Sources};
use crate::chain::ObjectFile;

/// A chain that is attached, for building the one that takes its place.
#[derive(Debug)]
#[non_exhaustive]
pub struct Current {
    /// Its graph.
    pub graph: Graph,
    /// What it counts.
    pub count: Count,
    objects: Vec<SharedObject>,
}

/// The modes of counting by their numbers.
const COUNTS: [Count; 3] = [Count::Off, Count::Runs, Count::Timed];

/// Writes what a chain is made of: how it counts, and its objects with their maps.
pub fn encode(
    sources: &Sources,
    graph: &Graph,
    maps: &[KernelMap],
    count: Count,
) -> Result<Vec<u8>> {
    let known = sources.programs.borrow();
    let mut objects = Vec::new();
    for (number, file) in &sources.files {
        let of = |id: u32| known.get((id as usize).wrapping_sub(1)).map(|(object, _)| *object);
        let ids = graph.nodes().map(|(_, node)| node.program.id);
        let programs: Vec<u32> = ids.filter(|id| of(*id) == Some(*number)).collect();
        if programs.is_empty() {
            continue;
        }
        let mut shared = Vec::new();
        for map in maps.iter().filter(|m| m.object == *number) {
            let info = map.map.info();
            let info =
                info.map_err(|e| Error::Map { map: map.name.clone(), why: e.to_string() })?;
            // The kernel gives numbers once only.
            shared.push(SharedMap { name: map.name.clone(), id: info.id, generation: 0 });
        }
        objects.push(SharedObject {
            hash: file.hash.0,
            file: file.path.clone(),
            shares: file.shares_maps,
            set: file.set.clone(),
            programs,
            maps: shared,
        });
    }
    let number = COUNTS.iter().position(|c| *c == count).unwrap_or_default() as u32;
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(encode_objects(&objects));
    Ok(bytes)
}

impl Current {
    /// Reads what [`encode`] wrote.
    pub(super) fn new(graph: Graph, bytes: &[u8]) -> Option<Self> {
        let (count, objects) = bytes.split_first_chunk()?;
        let count = *COUNTS.get(u32::from_le_bytes(*count) as usize)?;
        Some(Self { graph, count, objects: decode_objects(objects).ok()? })
    }

    /// Returns the files that the programs come from; of one file several, if programs of it do not
    /// share its maps.
    #[must_use]
    pub fn object_files(&self) -> Vec<ObjectFile> {
        self.objects.iter().cloned().map(ObjectFile::from).collect()
    }

    /// Opens the map that a file's programs have; `file` counts [`Current::object_files`]. `None` for
    /// one that no program had until now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(&self, file: usize, spec: &MapSpec) -> Result<Option<Map>> {
        let name = spec.name.as_str();
        let maps = self.objects.get(file).map(|o| &o.maps[..]).unwrap_or_default();
        let Some(known) = maps.iter().find(|m| m.name == name) else { return Ok(None) };
        let opened = Map::open(known.id);
        opened.map(Some).map_err(|e| Error::Map { map: name.to_owned(), why: e.to_string() })
    }
}
