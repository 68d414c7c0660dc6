//! Map handles: a map and its whole name, to be taken as a typed one.

use std::ops::Deref;
use std::sync::Arc;

use skep_isa::MapType;
use skep_maps::{Map as RawMap, MapError};

use crate::error::{Error, Result};
use crate::ring::Ring;
use crate::typed::Typed;

/// An open map, as bytes. What can be done with any map is at [`skep::maps::Map`](RawMap), to which
/// this derefs; [`Map::typed`] gives it types.
#[derive(Clone, Debug)]
pub struct Map {
    raw: Arc<RawMap>,
    name: String,
}

impl Map {
    pub(crate) fn new(raw: Arc<RawMap>, name: String) -> Self {
        Self { raw, name }
    }

    pub(crate) fn raw(&self) -> Arc<RawMap> {
        Arc::clone(&self.raw)
    }

    /// Returns the whole name; the file keeps 15 characters of it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type.
    #[must_use]
    pub fn map_type(&self) -> MapType {
        self.raw.def().map_type
    }

    /// Takes the map for one of a type, [`HashMap`](crate::HashMap) and its like.
    ///
    /// # Errors
    /// When it is of another type, or its keys or values have another size.
    pub fn typed<M: Typed>(&self) -> Result<M> {
        M::of(self.clone())
    }

    /// Begins to read a ring buffer, or an array of perf events. There is one reader at a time.
    ///
    /// # Errors
    /// When the map is of another type, or a living process reads it already.
    pub fn ring(&self) -> Result<Ring> {
        Ring::of(self.clone())
    }

    /// Fails unless the map is of one of these types.
    pub(crate) fn check_type(&self, types: &[MapType], wanted: &'static str) -> Result<()> {
        let is = self.map_type();
        if types.contains(&is) {
            return Ok(());
        }
        Err(Error::MapType { map: self.name.clone(), is, wanted })
    }

    /// Fails unless a key or value has the size of a Rust type.
    pub(crate) fn check_size<T>(&self, what: &'static str, is: usize) -> Result<()> {
        let (wanted, rust) = (size_of::<T>(), std::any::type_name::<T>());
        if is == wanted {
            return Ok(());
        }
        Err(Error::Size { map: self.name.clone(), what, rust, wanted, is })
    }

    /// Names the map in a failure.
    pub(crate) fn named<T>(&self, done: Result<T, MapError>) -> Result<T> {
        done.map_err(|source| Error::Map { map: self.name.clone(), source })
    }

    /// Names the map in a failure; no such element is no failure.
    pub(crate) fn found<T>(&self, done: Result<T, MapError>) -> Result<Option<T>> {
        match done {
            Err(MapError::NoElement) => Ok(None),
            done => self.named(done).map(Some),
        }
    }
}

impl Deref for Map {
    type Target = RawMap;

    fn deref(&self) -> &RawMap {
        &self.raw
    }
}
