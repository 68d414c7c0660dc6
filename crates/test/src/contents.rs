//! What is in the maps of a loaded object after its programs ran, records of rings among it.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use skep::isa::MapType;
use skep::load::{Loaded, LoadedMap};
use skep::maps::{Map, MapError, PerfReader};
use skep::object::Btf;
use skep::object::btf::Value;
use skep_text::entries::{Entries, Entry, is_zero};
use skep_text::value::{hex, to_json};

use crate::compare;
use crate::elements::ElementError;

/// The number of its ring, where there are several, and its bytes.
type Record = (Option<u32>, Vec<u8>);

/// One map with what is in it.
#[derive(Debug)]
pub struct Contents<'a> {
    /// How its elements look.
    pub entries: Entries<'a>,
    elements: Vec<Entry>,
    /// Those of rings.
    records: Vec<Record>,
}

impl Contents<'_> {
    /// Returns what `skep prog run --maps --json` prints of it.
    #[must_use]
    pub fn json(&self) -> Json {
        if self.entries.shape().map_type == MapType::BloomFilter {
            return Json::Null;
        }
        if self.entries.is_global_data() {
            return self
                .elements
                .iter()
                .flat_map(|e| &e.values)
                .map(to_json)
                .next()
                .unwrap_or_default();
        }
        let record = |(ring, bytes): &Record| match ring {
            Some(ring) => json!({"ring": ring, "record": hex(bytes)}),
            None => json!({"record": hex(bytes)}),
        };
        self.elements
            .iter()
            .map(|e| e.json_of(&self.entries))
            .chain(self.records.iter().map(record))
            .collect()
    }

    /// Describes how it differs from what is expected, as [`compare::map`] does. The value of a
    /// per-CPU map may be the list of all values, or the first, where runs count, if all others are
    /// zero: so it need not be known how many processors there are.
    #[must_use]
    pub fn differences(&self, expected: &Json) -> Vec<String> {
        let mut there = self.json();
        if let (true, Json::Array(elements)) = (self.entries.shape().per_cpu, &mut there) {
            for (shown, entry) in elements.iter_mut().zip(&self.elements) {
                let Some((first, others)) = entry.values.split_first() else { continue };
                let alone = json!({"key": shown["key"], "value": to_json(first)});
                if others.iter().all(is_zero)
                    && expected
                        .as_array()
                        .is_some_and(|all| all.iter().any(|e| compare::fits(e, &alone)))
                {
                    *shown = alone;
                }
            }
        }
        compare::map(&self.entries.shape().name, expected, &there)
    }

    /// Writes it for people.
    ///
    /// # Errors
    /// As `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let shape = self.entries.shape();
        if self.entries.is_global_data() {
            writeln!(out, "map {}  variables", shape.name)?;
            for value in self.elements.iter().flat_map(|e| &e.values) {
                match value {
                    Value::Struct(variables) => variables
                        .iter()
                        .try_for_each(|v| writeln!(out, "    {} = {}", v.name, v.value))?,
                    other => writeln!(out, "    {other}")?,
                }
            }
            return Ok(());
        }
        if shape.map_type == MapType::BloomFilter {
            return writeln!(
                out,
                "map {}  {}  does not keep what is put in",
                shape.name, shape.map_type
            );
        }
        let (n, what) = if self.entries.has_elements() {
            (self.elements.len(), "element")
        } else {
            (self.records.len(), "record")
        };
        let s = if n == 1 { "" } else { "s" };
        writeln!(out, "map {}  {}  {n} {what}{s}", shape.name, shape.map_type)?;
        self.elements.iter().try_for_each(|e| writeln!(out, "    {}", e.text()))?;
        for (ring, bytes) in &self.records {
            let ring = ring.map_or(String::new(), |ring| format!("ring {ring}: "));
            writeln!(out, "    {ring}0x{}", hex(bytes))?;
        }
        Ok(())
    }
}

/// Readers of perf event arrays, by their maps' numbers.
pub type Samples = Vec<(u32, PerfReader)>;

/// Begins to read perf event arrays: programs have no event to write to without, as in the kernel.
///
/// # Errors
/// When somebody else reads one.
pub fn samples(loaded: &Loaded) -> Result<Samples, ElementError> {
    samples_of(loaded.maps().iter().map(|m| (m.name.as_str(), &*m.map)))
}

/// Begins to read the perf event arrays among maps, which are given with their names.
///
/// # Errors
/// When somebody else reads one.
pub fn samples_of<'a>(
    maps: impl Iterator<Item = (&'a str, &'a Map)>,
) -> Result<Samples, ElementError> {
    let arrays = maps.filter(|(_, map)| map.def().map_type == MapType::PerfEventArray);
    let open = |(name, map): (&str, &Map)| {
        map.perf_reader().map(|reader| (map.id(), reader)).map_err(|e| unreadable(name, e))
    };
    arrays.map(open).collect()
}

fn unreadable(name: &str, source: MapError) -> ElementError {
    ElementError::Map { map: name.to_owned(), source }
}

/// Reads all maps but constants, by the types of the object; `raw` wants bytes.
///
/// # Errors
/// When a map cannot be read.
pub fn contents<'a>(
    loaded: &'a Loaded,
    btf: Option<&'a Btf>,
    raw: bool,
    samples: &mut Samples,
) -> Result<Vec<Contents<'a>>, ElementError> {
    let maps = loaded.maps().iter().filter(|m| !(m.spec.is_global_data() && m.spec.frozen));
    maps.map(|map| read(map, btf, raw, samples)).collect()
}

/// Reads one map; the records of rings are taken out.
///
/// # Errors
/// When it cannot be read.
pub fn read<'a>(
    map: &'a LoadedMap,
    btf: Option<&'a Btf>,
    raw: bool,
    samples: &mut Samples,
) -> Result<Contents<'a>, ElementError> {
    read_map((&map.name, &map.map), btf, raw, samples)
}

/// Does the same for a map that is given with its name.
///
/// # Errors
/// As [`read`].
pub fn read_map<'a>(
    (name, map): (&str, &'a Map),
    btf: Option<&'a Btf>,
    raw: bool,
    samples: &mut Samples,
) -> Result<Contents<'a>, ElementError> {
    let entries = Entries::new(map, name, btf, raw);
    let failed = |e: MapError| unreadable(name, e);
    let mut elements = Vec::new();
    for element in entries.iter() {
        match element {
            // Streams, and types that only programs read.
            Err(MapError::Unsupported { .. }) => break,
            other => elements.push(other.map_err(failed)?),
        }
    }
    Ok(Contents { entries, elements, records: records(map, samples).map_err(failed)? })
}

/// Takes the records out of a ring; other types have none.
fn records(map: &Map, samples: &mut Samples) -> Result<Vec<Record>, MapError> {
    let mut all = Vec::new();
    match map.def().map_type {
        MapType::Ringbuf => {
            let mut ring = map.consumer()?;
            while let Some(record) = ring.next_record()? {
                all.push((None, record.to_vec()));
            }
        }
        MapType::PerfEventArray => {
            for (_, rings) in samples.iter_mut().filter(|(id, _)| *id == map.id()) {
                while let Some((ring, record)) = rings.next_record()? {
                    all.push((Some(ring), record.to_vec()));
                }
            }
        }
        _ => {}
    }
    Ok(all)
}
