//! Hashes and tries: elements that come and go, by key.

use std::marker::PhantomData;

use skep_isa::MapType;
use skep_isa::map::update;

use super::{Entries, Plain, Typed, value};
use crate::error::Result;
use crate::map::Map;

macro_rules! keyed {
    ($(#[$doc:meta])* $name:ident, $wanted:literal, [$($map_type:ident),*]) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<K, V> {
            map: Map,
            types: PhantomData<fn(K) -> V>,
        }

        impl<K: Plain, V: Plain> Typed for $name<K, V> {
            fn of(map: Map) -> Result<Self> {
                map.check_type(&[$(MapType::$map_type),*], $wanted)?;
                map.check_size::<K>("key", map.def().key_size as usize)?;
                map.check_size::<V>("value", map.def().value_size as usize)?;
                Ok(Self { map, types: PhantomData })
            }
        }

        impl<'m, K: Plain, V: Plain> IntoIterator for &'m $name<K, V> {
            type Item = Result<(K, V)>;
            type IntoIter = Entries<'m, K, V>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<K: Plain, V: Plain> $name<K, V> {
            /// Returns the value of a key; `None` when there is none.
            ///
            /// # Errors
            /// When the map's memory is damaged, or it may not be read.
            pub fn get(&self, key: &K) -> Result<Option<V>> {
                let mut out = V::new_zeroed();
                let done = self.map.lookup_into(key.as_bytes(), zerocopy_bytes(&mut out), 0);
                Ok(self.map.found(done)?.map(|()| out))
            }

            /// Stores a value, whether the key is there or not.
            ///
            /// # Errors
            /// When the map is full, or may not be written.
            pub fn insert(&self, key: &K, value: &V) -> Result<()> {
                self.update(key, value, update::ANY)
            }

            /// Stores a value with the flags of `bpf_map_update_elem`: `BPF_NOEXIST`, `BPF_EXIST`.
            ///
            /// # Errors
            /// When the map is full or may not be written, or a flag forbids it.
            pub fn update(&self, key: &K, value: &V, flags: u64) -> Result<()> {
                self.map.named(self.map.update(key.as_bytes(), value.as_bytes(), flags))
            }

            /// Removes an element; tells whether there was one.
            ///
            /// # Errors
            /// When the map may not be written.
            pub fn remove(&self, key: &K) -> Result<bool> {
                Ok(self.map.found(self.map.delete(key.as_bytes()))?.is_some())
            }

            /// Walks through all elements.
            pub fn iter(&self) -> Entries<'_, K, V> {
                Entries::new(&self.map, size_of::<K>(), |map, key, bytes| {
                    Ok((value(map, key)?, value(map, bytes)?))
                })
            }

            /// Returns the map as bytes.
            #[must_use]
            pub fn as_map(&self) -> &Map {
                &self.map
            }
        }
    };
}

fn zerocopy_bytes<V: Plain>(value: &mut V) -> &mut [u8] {
    zerocopy::IntoBytes::as_mut_bytes(value)
}

keyed! {
    /// A hash, or one that forgets what was used least recently.
    #[doc(alias = "BPF_MAP_TYPE_HASH")]
    #[doc(alias = "BPF_MAP_TYPE_LRU_HASH")]
    HashMap, "hash", [Hash, LruHash]
}

keyed! {
    /// A trie of prefixes: a lookup finds the longest that matches. Keys begin with the number of
    /// bits, as `struct bpf_lpm_trie_key`.
    #[doc(alias = "BPF_MAP_TYPE_LPM_TRIE")]
    LpmTrie, "trie of prefixes", [LpmTrie]
}
