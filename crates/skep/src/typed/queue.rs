//! Queues and stacks: values without keys.

use std::marker::PhantomData;

use skep_isa::MapType;
use skep_isa::map::update;

use super::{Plain, Typed};
use crate::error::Result;
use crate::map::Map;

macro_rules! unkeyed {
    ($(#[$doc:meta])* $name:ident, $wanted:literal, $map_type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<V> {
            map: Map,
            types: PhantomData<fn() -> V>,
        }

        impl<V: Plain> Typed for $name<V> {
            fn of(map: Map) -> Result<Self> {
                map.check_type(&[MapType::$map_type], $wanted)?;
                map.check_size::<V>("value", map.def().value_size as usize)?;
                Ok(Self { map, types: PhantomData })
            }
        }

        impl<V: Plain> $name<V> {
            /// Puts a value in.
            ///
            /// # Errors
            /// When there is no room, or the map may not be written.
            pub fn push(&self, value: &V) -> Result<()> {
                self.map.named(self.map.update(&[], value.as_bytes(), update::ANY))
            }

            /// Takes the next value out; `None` when there is none.
            ///
            /// # Errors
            /// When the map may not be written.
            pub fn pop(&self) -> Result<Option<V>> {
                let mut out = V::new_zeroed();
                let done = self.map.lookup_and_delete(&[], out.as_mut_bytes(), 0);
                Ok(self.map.found(done)?.map(|()| out))
            }

            /// Returns the next value and leaves it; `None` when there is none.
            ///
            /// # Errors
            /// When the map may not be read.
            pub fn peek(&self) -> Result<Option<V>> {
                let mut out = V::new_zeroed();
                let done = self.map.lookup_into(&[], out.as_mut_bytes(), 0);
                Ok(self.map.found(done)?.map(|()| out))
            }

            /// Returns the map as bytes.
            #[must_use]
            pub fn as_map(&self) -> &Map {
                &self.map
            }
        }
    };
}

unkeyed! {
    /// A queue: what was put in first comes out first.
    #[doc(alias = "BPF_MAP_TYPE_QUEUE")]
    Queue, "queue", Queue
}

unkeyed! {
    /// A stack: what was put in last comes out first.
    #[doc(alias = "BPF_MAP_TYPE_STACK")]
    Stack, "stack", Stack
}
