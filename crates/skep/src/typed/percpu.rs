//! Per-CPU maps: each element has a value for every slot that threads run programs in.

use std::marker::PhantomData;

use skep_isa::MapType;
use skep_isa::map::update;

use super::{Entries, Plain, Typed, value};
use crate::error::Result;
use crate::map::Map;

/// Values stand at multiples of so many bytes.
const ALIGN: usize = 8;

/// Parts the values of an element.
fn values<V: Plain>(map: &Map, bytes: &[u8]) -> Result<Vec<V>> {
    let stride = size_of::<V>().next_multiple_of(ALIGN);
    bytes
        .chunks_exact(stride.max(1))
        .map(|chunk| value(map, chunk.get(..size_of::<V>()).unwrap_or_default()))
        .collect()
}

/// Puts the values of an element together: the same one for every slot.
fn repeated<V: Plain>(map: &Map, value: &V) -> Vec<u8> {
    let stride = size_of::<V>().next_multiple_of(ALIGN);
    let mut bytes = vec![0; map.user_value_size()];
    for chunk in bytes.chunks_exact_mut(stride.max(1)) {
        chunk.iter_mut().zip(value.as_bytes()).for_each(|(to, from)| *to = *from);
    }
    bytes
}

/// A hash with a value of each element for every slot.
#[doc(alias = "BPF_MAP_TYPE_PERCPU_HASH")]
#[doc(alias = "BPF_MAP_TYPE_LRU_PERCPU_HASH")]
#[derive(Clone, Debug)]
pub struct PerCpuHashMap<K, V> {
    map: Map,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Plain, V: Plain> Typed for PerCpuHashMap<K, V> {
    fn of(map: Map) -> Result<Self> {
        map.check_type(&[MapType::PercpuHash, MapType::LruPercpuHash], "per-CPU hash")?;
        map.check_size::<K>("key", map.def().key_size as usize)?;
        map.check_size::<V>("value", map.def().value_size as usize)?;
        Ok(Self { map, types: PhantomData })
    }
}

impl<K: Plain, V: Plain> PerCpuHashMap<K, V> {
    /// Returns the values of a key, one for each slot; `None` when there is none.
    ///
    /// # Errors
    /// When the map may not be read.
    pub fn get(&self, key: &K) -> Result<Option<Vec<V>>> {
        let found = self.map.found(self.map.lookup(key.as_bytes()))?;
        found.map(|bytes| values(&self.map, &bytes)).transpose()
    }

    /// Stores the same value for every slot.
    ///
    /// # Errors
    /// When the map is full, or may not be written.
    pub fn insert(&self, key: &K, value: &V) -> Result<()> {
        let bytes = repeated(&self.map, value);
        self.map.named(self.map.update(key.as_bytes(), &bytes, update::ANY))
    }

    /// Removes an element; tells whether there was one.
    ///
    /// # Errors
    /// When the map may not be written.
    pub fn remove(&self, key: &K) -> Result<bool> {
        Ok(self.map.found(self.map.delete(key.as_bytes()))?.is_some())
    }

    /// Walks through all elements.
    pub fn iter(&self) -> Entries<'_, K, Vec<V>> {
        Entries::new(&self.map, size_of::<K>(), |map, key, bytes| {
            Ok((value(map, key)?, values(map, bytes)?))
        })
    }

    /// Returns the map as bytes.
    #[must_use]
    pub fn as_map(&self) -> &Map {
        &self.map
    }
}

/// An array with a value of each element for every slot.
#[doc(alias = "BPF_MAP_TYPE_PERCPU_ARRAY")]
#[derive(Clone, Debug)]
pub struct PerCpuArray<V> {
    map: Map,
    types: PhantomData<fn() -> V>,
}

impl<V: Plain> Typed for PerCpuArray<V> {
    fn of(map: Map) -> Result<Self> {
        map.check_type(&[MapType::PercpuArray], "per-CPU array")?;
        map.check_size::<V>("value", map.def().value_size as usize)?;
        Ok(Self { map, types: PhantomData })
    }
}

impl<V: Plain> PerCpuArray<V> {
    /// Returns the values of an element, one for each slot; `None` beyond the end.
    ///
    /// # Errors
    /// When the map may not be read.
    pub fn get(&self, index: u32) -> Result<Option<Vec<V>>> {
        let found = self.map.found(self.map.lookup(&index.to_ne_bytes()))?;
        found.map(|bytes| values(&self.map, &bytes)).transpose()
    }

    /// Stores the same value for every slot.
    ///
    /// # Errors
    /// When the index is beyond the end, or the map may not be written.
    pub fn set(&self, index: u32, value: &V) -> Result<()> {
        let bytes = repeated(&self.map, value);
        self.map.named(self.map.update(&index.to_ne_bytes(), &bytes, update::ANY))
    }

    /// Walks through all elements, with their indexes.
    pub fn iter(&self) -> Entries<'_, u32, Vec<V>> {
        Entries::new(&self.map, size_of::<u32>(), |map, key, bytes| {
            Ok((value(map, key)?, values(map, bytes)?))
        })
    }

    /// Returns the map as bytes.
    #[must_use]
    pub fn as_map(&self) -> &Map {
        &self.map
    }
}
