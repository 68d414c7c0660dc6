//! What is in a map, as text and as JSON: typed when there is BTF, else bytes in hex.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use skep_isa::{KeyShape, MapType};
use skep_maps::{Map, MapError};
use skep_object::Btf;
use skep_object::btf::{Kind, Value, ValueMember};

use crate::key::Key;
use crate::record::is_marker;
use crate::value::{bytes, to_json};

/// What one must know of a map to read its bytes.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its type.
    pub map_type: MapType,
    /// What its keys look like.
    pub keys: KeyShape,
    /// Bytes of one value.
    pub value_size: usize,
    /// There are several values for each key.
    pub per_cpu: bool,
    /// The key's type, 0 none.
    pub key_type_id: u32,
    /// The value's type, 0 none.
    pub value_type_id: u32,
}

impl From<&Map> for Shape {
    fn from(map: &Map) -> Self {
        let def = map.def();
        Self {
            id: map.id(),
            name: def.name.clone(),
            map_type: def.map_type,
            keys: map.key_shape(),
            value_size: def.value_size as usize,
            per_cpu: map.is_per_cpu(),
            key_type_id: def.key_type_id,
            value_type_id: def.value_type_id,
        }
    }
}

impl Shape {
    /// Fails with what is wrong unless a key may have this length.
    pub fn check_key(&self, len: usize) -> Result<(), String> {
        match self.keys {
            keys if keys.allows(len) => Ok(()),
            KeyShape::Fixed(size) => Err(format!("it has {}, but a key has {size}", bytes(len))),
            KeyShape::Bytes { max } if len == 0 => {
                Err(format!("it is empty, but a key has 1 to {max} bytes"))
            }
            KeyShape::Bytes { max } => {
                Err(format!("it has {}, but a key has at most {max}", bytes(len)))
            }
        }
    }
}

/// A map and what its bytes mean.
#[derive(Debug)]
pub struct Entries<'a> {
    shape: Shape,
    /// Where elements come from, if it is a map of ours.
    map: Option<&'a Map>,
    /// `None` prints bytes.
    btf: Option<&'a Btf>,
    raw: bool,
}

/// One entry, decoded. Per-CPU maps have several values.
#[derive(Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// A value, or one for each CPU.
    pub values: Vec<Value>,
    /// Every byte of the value is zero.
    pub zero: bool,
    /// The key's bytes, for sorting: as a number where it has the size of one.
    pub order: (u64, Vec<u8>),
}

impl<'a> Entries<'a> {
    /// Looks at a map under a name, with the types it refers to. `raw` wants bytes even so.
    pub fn new(map: &'a Map, name: &str, btf: Option<&'a Btf>, raw: bool) -> Self {
        let shape = Shape { name: name.to_owned(), ..Shape::from(map) };
        Self { map: Some(map), ..Self::of(shape, btf, raw) }
    }

    /// Looks at a map that somebody else reads.
    pub fn of(shape: Shape, btf: Option<&'a Btf>, raw: bool) -> Self {
        Self { shape, map: None, btf: btf.filter(|_| !raw), raw }
    }

    /// What is known of the map.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The types, if values are to be printed by them.
    pub fn btf(&self) -> Option<&'a Btf> {
        self.btf
    }

    /// Tells whether a key or value of a size is a number where there is no type for it: as it is
    /// when it is typed.
    pub fn is_number(&self, size: usize) -> bool {
        !self.raw && matches!(size, 1 | 2 | 4 | 8)
    }

    /// Tells whether elements can be walked: all maps but those that are streams of records, and
    /// those that do not keep what they take.
    pub fn has_elements(&self) -> bool {
        !matches!(
            self.shape.map_type,
            MapType::Ringbuf
                | MapType::UserRingbuf
                | MapType::PerfEventArray
                | MapType::BloomFilter
        )
    }

    /// Tells whether elements exist without ever having been stored.
    pub fn is_array(&self) -> bool {
        matches!(self.shape.map_type, MapType::Array | MapType::PercpuArray)
    }

    /// Tells whether this is the hidden map behind global variables.
    pub fn is_global_data(&self) -> bool {
        self.btf
            .and_then(|b| b.get(self.shape.value_type_id).ok())
            .is_some_and(|t| matches!(t.kind, Kind::DataSec(_)))
    }

    /// The `map` object of JSON documents.
    pub fn map_json(&self) -> Json {
        json!({"id": self.shape.id, "name": self.shape.name, "type": self.shape.map_type.name()})
    }

    /// Decodes one element.
    pub fn entry(&self, key: &[u8], value: &[u8]) -> Entry {
        let size = self.shape.value_size;
        let values = if self.shape.per_cpu {
            let stride = size.next_multiple_of(8).max(1);
            value.chunks(stride).map(|one| self.value(one.get(..size).unwrap_or(one))).collect()
        } else {
            vec![self.value(value)]
        };
        let order = match key.len() {
            0..=8 if matches!(self.shape.keys, KeyShape::Fixed(_)) => {
                (key.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)), Vec::new())
            }
            _ => (0, key.to_vec()),
        };
        Entry { key: self.key(key), values, zero: value.iter().all(|b| *b == 0), order }
    }

    /// Walks through all elements.
    pub fn iter(&self) -> impl Iterator<Item = Result<Entry, MapError>> {
        self.map
            .into_iter()
            .flatten()
            .map(|element| element.map(|(key, value)| self.entry(&key, &value)))
    }

    /// Tells whether keys are byte strings, and are to be shown as such.
    pub fn has_text_keys(&self) -> bool {
        !self.raw && matches!(self.shape.keys, KeyShape::Bytes { .. })
    }

    /// Decodes a key.
    pub fn key(&self, bytes: &[u8]) -> Key {
        match self.shape.keys {
            KeyShape::Bytes { .. } if self.raw => Key::Typed(Value::Bytes(bytes.to_vec())),
            KeyShape::Bytes { .. } => Key::Bytes(bytes.to_vec()),
            KeyShape::Fixed(0) => Key::None,
            KeyShape::Fixed(_) => Key::Typed(
                self.typed(self.shape.key_type_id, bytes).unwrap_or_else(|| self.untyped(bytes)),
            ),
        }
    }

    /// Decodes one value.
    pub fn value(&self, bytes: &[u8]) -> Value {
        self.typed(self.shape.value_type_id, bytes).unwrap_or_else(|| self.untyped(bytes))
    }

    fn untyped(&self, bytes: &[u8]) -> Value {
        if self.is_number(bytes.len()) {
            Value::Uint(bytes.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b)))
        } else {
            Value::Bytes(bytes.to_vec())
        }
    }

    fn typed(&self, id: u32, bytes: &[u8]) -> Option<Value> {
        if id == 0 { None } else { self.btf?.decode(id, bytes).ok() }
    }

    /// Writes entries under a heading; `more` are those that were left out.
    pub fn write(&self, out: &mut dyn Write, entries: &[Entry], more: usize) -> io::Result<()> {
        if self.is_global_data() {
            let shown =
                |v: &&ValueMember| !(is_marker(&v.name) && matches!(v.value, Value::Pointer(0)));
            let hidden = |v: &Value| matches!(v, Value::Struct(all) if !all.is_empty() && !all.iter().any(|v| shown(&v)));
            if entries.iter().flat_map(|e| &e.values).all(hidden) {
                return Ok(());
            }
            writeln!(out, "{}:", self.shape.name)?;
            for value in entries.iter().flat_map(|e| &e.values) {
                match value {
                    Value::Struct(variables) => variables
                        .iter()
                        .filter(shown)
                        .try_for_each(|v| writeln!(out, "  {} = {}", v.name, v.value))?,
                    other => writeln!(out, "  {other}")?,
                }
            }
            return Ok(());
        }
        let count = match entries.len() + more {
            1 => "1 entry".to_owned(),
            n => format!("{n} entries"),
        };
        writeln!(out, "{} ({}, {count}):", self.shape.name, self.shape.map_type)?;
        for entry in entries {
            writeln!(out, "  {}", entry.text())?;
        }
        if more > 0 {
            writeln!(out, "  … and {more} more")?;
        }
        Ok(())
    }
}

impl Entry {
    /// The entry as `key: value`, or where there is no key, its value.
    pub fn text(&self) -> String {
        let value = match self.values.as_slice() {
            [one] => one.to_string(),
            values => per_cpu(values),
        };
        match &self.key {
            Key::None => value,
            key => format!("{key}: {value}"),
        }
    }

    /// The entry as a JSON object.
    pub fn json(&self) -> Json {
        let value = match self.values.as_slice() {
            [one] => to_json(one),
            values => values.iter().map(to_json).collect(),
        };
        json!({"key": self.key.json(), "value": value})
    }

    /// As [`json`](Self::json), with a list for per-CPU values even where there is one CPU.
    pub fn json_of(&self, entries: &Entries<'_>) -> Json {
        match self.values.as_slice() {
            [one] if entries.shape.per_cpu => {
                json!({"key": self.key.json(), "value": [to_json(one)]})
            }
            _ => self.json(),
        }
    }
}

/// Writes the values that say something, with their CPU; numbers are added up in front.
fn per_cpu(values: &[Value]) -> String {
    let silent = |v: &Value| match v {
        Value::Bytes(bytes) => bytes.iter().all(|b| *b == 0),
        v => is_zero(v),
    };
    let some: Vec<(usize, &Value)> =
        values.iter().enumerate().filter(|(_, v)| !silent(v)).collect();
    let list = some.iter().map(|(cpu, v)| format!("{v} (cpu {cpu})")).collect::<Vec<_>>();
    let numbers: Option<Vec<i128>> = values
        .iter()
        .map(|v| {
            matches!(v, Value::Int(_) | Value::Uint(_) | Value::Int128(_) | Value::Uint128(_))
                .then(|| v.as_i128())
                .flatten()
        })
        .collect();
    match (numbers, some.as_slice()) {
        (Some(numbers), []) => numbers.first().map_or_else(String::new, i128::to_string),
        (Some(_), [_]) => list.join(""),
        (Some(numbers), _) => format!(
            "{} = {}",
            numbers.iter().fold(0_i128, |a, b| a.saturating_add(*b)),
            list.join(" + ")
        ),
        (None, []) => values.first().map_or_else(String::new, Value::to_string),
        (None, _) => list.join(", "),
    }
}

/// Tells whether a value is nothing but zeros.
#[must_use]
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().all(is_zero),
        Value::Struct(members) => members.iter().all(|m| is_zero(&m.value)),
        Value::Text(text) => text.is_empty(),
        Value::Float(x) => *x == 0.0,
        Value::LongDouble(x) => x.is_zero(),
        Value::Bytes(bytes) => bytes.iter().all(|b| *b == 0),
        number => number.as_i128() == Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, value: Value) -> ValueMember {
        ValueMember { name: name.to_owned(), value }
    }

    #[test]
    fn per_cpu_numbers_are_added_up_and_silent_cpus_left_out() {
        let numbers = |list: &[u128]| list.iter().map(|n| Value::Uint(*n)).collect::<Vec<_>>();
        assert_eq!(per_cpu(&numbers(&[0, 5, 0, 7])), "12 = 5 (cpu 1) + 7 (cpu 3)");
        assert_eq!(per_cpu(&numbers(&[0, 5])), "5 (cpu 1)");
        assert_eq!(per_cpu(&numbers(&[0, 0])), "0");
        let s = |n| Value::Struct(vec![member("n", Value::Uint(n))]);
        assert_eq!(per_cpu(&[s(1), s(0), s(2)]), "{ .n = 1 } (cpu 0), { .n = 2 } (cpu 2)");
        assert_eq!(per_cpu(&[s(0)]), "{ .n = 0 }");
    }
}
