//! What is in the maps of a chain's programs after a run.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json, json};
use skep::Session;
use skep::chain::picture::program_name;
use skep::chain::{Chain, Graph, ObjectFile};
use skep::maps::Map;
use skep::object::Btf;
use skep_test::contents::{Contents, Samples, read_map, samples_of};

use crate::failure::Result;

/// The maps of a chain, by the files that its programs come from.
pub struct ChainMaps(Vec<(ObjectFile, Vec<Typed>)>);

/// A map with its whole name and its types.
struct Typed {
    name: String,
    map: Arc<Map>,
    types: Option<Btf>,
}

/// The maps of one file, read.
pub struct OfFile<'a> {
    path: String,
    /// The programs and their nodes.
    programs: Vec<String>,
    maps: Vec<Contents<'a>>,
}

impl ChainMaps {
    /// Opens all maps but constants.
    pub fn open(session: &Session, chain: &Chain) -> Result<Self> {
        let mut files = Vec::new();
        for file in chain.object_files()? {
            let maps = file.open_maps(session).into_iter().filter(|(_, map)| !map.is_frozen());
            let typed = maps.map(|(name, map)| {
                let id = map.def().btf_id;
                let types = if id == 0 { None } else { skep::btf::open(session.dir(), id) };
                Typed { name, map, types }
            });
            let typed = typed.collect();
            files.push((file, typed));
        }
        Ok(Self(files))
    }

    /// Begins to read perf event arrays: programs have no event to write to without.
    pub fn samples(&self) -> Result<Samples> {
        let all = self.0.iter().flat_map(|(_, maps)| maps);
        Ok(samples_of(all.map(|m| (m.name.as_str(), &*m.map)))?)
    }

    /// Reads the maps; records of rings are taken out. `raw` wants bytes.
    pub fn read(&self, graph: &Graph, raw: bool, samples: &mut Samples) -> Result<Vec<OfFile<'_>>> {
        let mut all = Vec::new();
        for (file, maps) in &self.0 {
            let nodes = graph.nodes().filter(|(_, n)| file.programs.contains(&n.program.id));
            let programs = nodes.map(|(id, _)| format!("{} ({id})", program_name(graph, id)));
            let programs = programs.collect();
            let read = maps
                .iter()
                .map(|m| read_map((&m.name, &m.map), m.types.as_ref(), raw, samples))
                .collect::<std::result::Result<_, _>>()?;
            all.push(OfFile { path: file.path.display().to_string(), programs, maps: read });
        }
        Ok(all)
    }
}

impl OfFile<'_> {
    /// Returns it as a part of the JSON report.
    pub fn json(&self) -> Json {
        let named = self.maps.iter().map(|c| (c.entries.shape().name.clone(), c.json()));
        let maps: JsonMap<_, _> = named.collect();
        json!({"object": self.path, "programs": self.programs, "maps": maps})
    }

    /// Writes it for people.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "maps of {}  {}", self.path, self.programs.join(", "))?;
        self.maps.iter().try_for_each(|c| c.write(out))
    }
}
