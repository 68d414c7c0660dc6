//! Maps of objects under test.

use serde_json::Value as Json;
use skep::load::LoadedMap;
use skep::maps::MapError;

use crate::bpf::Bpf;
use crate::contents;
use crate::elements::{self, Bytes, ElementError};
use crate::{Result, compare};

/// A map of an object under test. Keys and values are JSON, by the types of the object: numbers,
/// texts, lists, and objects for structures, as `skep map dump --json` prints them.
#[derive(Clone, Copy, Debug)]
pub struct MapUnderTest<'b> {
    bpf: &'b Bpf,
    map: &'b LoadedMap,
}

impl<'b> MapUnderTest<'b> {
    pub(crate) fn new(bpf: &'b Bpf, map: &'b LoadedMap) -> Self {
        Self { bpf, map }
    }

    fn failed(&self, source: MapError) -> ElementError {
        ElementError::Map { map: self.map.name.clone(), source }
    }

    fn bytes(&self) -> Bytes<'b> {
        Bytes::of(&self.map.map, &self.map.name, self.bpf.btf())
    }

    /// Puts an element into the map.
    ///
    /// # Errors
    /// When key or value are not of the map's types, or there is no room.
    pub fn put(&self, key: impl Into<Json>, value: impl Into<Json>) -> Result {
        let (map, name) = (&self.map.map, &self.map.name);
        Ok(elements::put(map, name, self.bpf.btf(), &key.into(), &value.into())?)
    }

    /// Puts an element into a queue or stack.
    ///
    /// # Errors
    /// As for [`MapUnderTest::put`].
    pub fn push(&self, value: impl Into<Json>) -> Result {
        self.put(Json::Null, value)
    }

    /// Removes an element, and tells whether it was there.
    ///
    /// # Errors
    /// When the key is not of the map's type, or the map's elements cannot be removed.
    pub fn remove(&self, key: impl Into<Json>) -> Result<bool> {
        match self.map.map.delete(&self.bytes().key(&key.into())?) {
            Ok(()) => Ok(true),
            Err(MapError::NoElement) => Ok(false),
            Err(e) => Err(self.failed(e).into()),
        }
    }

    /// Reads the value of a key; of per-CPU maps, a list of the values.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn get(&self, key: impl Into<Json>) -> Result<Option<Json>> {
        let (key, contents) = (key.into(), self.contents()?);
        let found = contents.as_array().into_iter().flatten().find(|e| {
            e.get("key").is_some_and(|k| compare::fits(&key, k) && compare::fits(k, &key))
        });
        Ok(found.and_then(|e| e.get("value").or_else(|| e.get("values")).cloned()))
    }

    /// Reads all of it: a list of `{"key": …, "value": …}`; of rings, `{"record": …}` in hex; of
    /// global variables (`.bss`, `.data`), an object. What is read of a ring is taken out.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn contents(&self) -> Result<Json> {
        Ok(contents::read(self.map, self.bpf.btf(), false, &mut self.bpf.samples())?.json())
    }

    /// Asserts what is in it. Of elements with a key, those that are named must be there, and others
    /// may be; `{"key": …, "absent": true}` must not be there. Of structures, only the named members
    /// are compared. Records and elements of queues are compared as a whole; `[]` is an empty map. The
    /// value of a per-CPU map is the list of all values, or the first, where runs count, if all others
    /// are zero.
    ///
    /// # Panics
    /// When it differs: says how. Also when the map cannot be read.
    #[track_caller]
    pub fn assert(&self, expected: impl Into<Json>) -> &Self {
        match contents::read(self.map, self.bpf.btf(), false, &mut self.bpf.samples()) {
            Ok(there) => {
                let problems = there.differences(&expected.into());
                assert!(problems.is_empty(), "{}", problems.join("\n"));
            }
            Err(e) => panic!("{e}"),
        }
        self
    }
}
