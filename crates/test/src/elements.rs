//! Putting elements into maps, as JSON writes them.

use serde_json::Value as Json;
use skep::maps::{Map, MapError};
use skep::object::Btf;
use skep_text::entries::Shape;
use skep_text::read::Encoder;

/// Why an element cannot be put into a map, or a map not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElementError {
    /// It does not have the type of the map's keys or values.
    #[error("{why}")]
    Form {
        /// What is wrong, with the map's name.
        why: String,
    },
    /// The map does not take it.
    #[error("cannot put {key} into map `{map}`: {source}")]
    Update {
        /// The map.
        map: String,
        /// The element's key.
        key: String,
        /// Why.
        source: MapError,
    },
    /// The map cannot be read, or an element not be removed.
    #[error("map `{map}`: {source}")]
    Map {
        /// The map.
        map: String,
        /// Why.
        source: MapError,
    },
}

/// Knows the bytes of a map's keys and values.
pub(crate) struct Bytes<'a> {
    shape: Shape,
    btf: Option<&'a Btf>,
    values: usize,
}

impl<'a> Bytes<'a> {
    pub(crate) fn of(map: &Map, name: &str, btf: Option<&'a Btf>) -> Self {
        let shape = Shape { name: name.to_owned(), ..Shape::from(map) };
        let values = map.user_value_size() / shape.value_size.next_multiple_of(8).max(1);
        Self { shape, btf, values }
    }

    fn encoder(&self) -> Encoder<'_> {
        Encoder::new(&self.shape, self.btf, false, self.values)
    }

    /// Returns a key's bytes.
    pub(crate) fn key(&self, key: &Json) -> Result<Vec<u8>, ElementError> {
        self.encoder().key_of(key).map_err(|why| ElementError::Form { why })
    }

    /// Returns a value's bytes, of per-CPU maps all values.
    pub(crate) fn value(&self, value: &Json) -> Result<Vec<u8>, ElementError> {
        let encoder = self.encoder();
        let bytes = encoder.value_of(value).and_then(|v| encoder.one_value(v));
        bytes.map_err(|why| ElementError::Form { why })
    }
}

/// Puts an element into a map. Key and value look as `skep map dump --json` prints them; the key of
/// an element of a queue is `null`.
///
/// # Errors
/// When they are not of the map's types, or the map does not take them.
pub fn put(
    map: &Map,
    name: &str,
    btf: Option<&Btf>,
    key: &Json,
    value: &Json,
) -> Result<(), ElementError> {
    let bytes = Bytes::of(map, name, btf);
    map.update(&bytes.key(key)?, &bytes.value(value)?, 0).map_err(|source| ElementError::Update {
        map: name.to_owned(),
        key: key.to_string(),
        source,
    })
}
