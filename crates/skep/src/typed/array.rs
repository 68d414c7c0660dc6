//! Arrays: every element is there from the beginning.

use std::marker::PhantomData;

use skep_isa::MapType;

use super::{Entries, Plain, Typed, value};
use crate::error::Result;
use crate::map::Map;

/// An array. Those of global variables (`.bss`, `.data`, `.rodata`) have one element, all of them.
#[doc(alias = "BPF_MAP_TYPE_ARRAY")]
#[derive(Clone, Debug)]
pub struct Array<V> {
    map: Map,
    types: PhantomData<fn() -> V>,
}

impl<V: Plain> Typed for Array<V> {
    fn of(map: Map) -> Result<Self> {
        map.check_type(&[MapType::Array], "array")?;
        map.check_size::<V>("value", map.def().value_size as usize)?;
        Ok(Self { map, types: PhantomData })
    }
}

impl<V: Plain> Array<V> {
    /// Returns an element; `None` beyond the end.
    ///
    /// # Errors
    /// When the map may not be read.
    pub fn get(&self, index: u32) -> Result<Option<V>> {
        let mut out = V::new_zeroed();
        let done = self.map.lookup_into(&index.to_ne_bytes(), out.as_mut_bytes(), 0);
        Ok(self.map.found(done)?.map(|()| out))
    }

    /// Stores an element.
    ///
    /// # Errors
    /// When the index is beyond the end, or the map may not be written.
    pub fn set(&self, index: u32, value: &V) -> Result<()> {
        self.map.named(self.map.update(&index.to_ne_bytes(), value.as_bytes(), 0))
    }

    /// Walks through all elements, with their indexes.
    pub fn iter(&self) -> Entries<'_, u32, V> {
        Entries::new(&self.map, size_of::<u32>(), |map, key, bytes| {
            Ok((value(map, key)?, value(map, bytes)?))
        })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.def().max_entries
    }

    /// Tells whether there are none, which cannot be.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the map as bytes.
    #[must_use]
    pub fn as_map(&self) -> &Map {
        &self.map
    }
}
