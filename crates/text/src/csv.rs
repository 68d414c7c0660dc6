//! Elements as comma-separated values (RFC 4180): a column for each number or text in key and
//! value.

use std::io::Write;

use skep_object::btf::Value;

use crate::entries::Entries;
use crate::key::Key;
use crate::layout::{decimal, hex as hex_to};
use crate::value::{hex, to_json};

/// Writes the elements of one map.
#[derive(Debug)]
pub struct Csv<'a> {
    entries: &'a Entries<'a>,
}

impl<'a> Csv<'a> {
    /// Looks at a map.
    pub fn new(entries: &'a Entries<'a>) -> Self {
        Self { entries }
    }

    /// Appends the names of the columns.
    pub fn head(&self, out: &mut Vec<u8>) {
        let names = Columns::of(self.entries).names();
        line(out, names.iter().map(String::as_str));
    }

    /// Appends an element: a line, or one for each CPU.
    pub fn write(&self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        let per_cpu = self.entries.shape().per_cpu;
        if self.entries.btf().is_none() && !per_cpu && !self.entries.has_text_keys() {
            let part = |out: &mut Vec<u8>, bytes: &[u8]| {
                if self.entries.is_number(bytes.len()) {
                    decimal(out, bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
                } else {
                    hex_to(out, bytes);
                }
            };
            part(out, key);
            if !key.is_empty() {
                out.push(b',');
            }
            part(out, value);
            out.extend_from_slice(b"\r\n");
            return;
        }
        let entry = self.entries.entry(key, value);
        for (cpu, value) in entry.values.iter().enumerate() {
            let mut fields = Vec::new();
            match &entry.key {
                Key::None => {}
                Key::Bytes(bytes) => fields.push(Key::field(bytes)),
                Key::Typed(key) => columns(&mut Vec::new(), key, &mut |_, v| fields.push(field(v))),
            }
            if per_cpu {
                fields.push(cpu.to_string());
            }
            columns(&mut Vec::new(), value, &mut |_, v| fields.push(field(v)));
            line(out, fields.iter().map(String::as_str));
        }
    }
}

/// The columns of a map: for each, the members that lead to it.
#[derive(PartialEq, Eq, Debug)]
pub struct Columns {
    /// Those of the key.
    pub key: Vec<Vec<String>>,
    /// There is one for the CPU between.
    cpu: bool,
    /// Those of the value.
    pub value: Vec<Vec<String>>,
}

impl Columns {
    /// Finds the columns of a map.
    pub fn of(entries: &Entries<'_>) -> Self {
        let shape = entries.shape();
        let of_value = |name: &str, value: &Value| {
            let mut paths = Vec::new();
            columns(&mut vec![name.to_owned()], value, &mut |path, _| paths.push(path.to_vec()));
            paths
        };
        let key = match entries.key(&vec![0; shape.keys.max_len()]) {
            Key::None => Vec::new(),
            Key::Bytes(_) => vec![vec!["key".to_owned()]],
            Key::Typed(key) => of_value("key", &key),
        };
        let value = of_value("value", &entries.value(&vec![0; shape.value_size]));
        Self { key, cpu: shape.per_cpu, value }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.key.len() + usize::from(self.cpu) + self.value.len()
    }

    /// Their names, as the first line has them.
    pub fn names(&self) -> Vec<String> {
        let cpu = self.cpu.then(|| "cpu".to_owned());
        let joined = |paths: &[Vec<String>]| -> Vec<String> {
            paths.iter().map(|path| path.join(".")).collect()
        };
        [joined(&self.key), cpu.into_iter().collect(), joined(&self.value)].concat()
    }
}

/// Calls `each` with the path and the value of every column: members of structures have their own,
/// arrays do not.
fn columns(path: &mut Vec<String>, value: &Value, each: &mut dyn FnMut(&[String], &Value)) {
    match value {
        Value::Struct(members) if !members.is_empty() => {
            for m in members {
                if m.name.is_empty() {
                    columns(path, &m.value, each);
                } else {
                    path.push(m.name.clone());
                    columns(path, &m.value, each);
                    path.pop();
                }
            }
        }
        other => each(path, other),
    }
}

fn field(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => hex(bytes),
        Value::Array(_) | Value::Struct(_) => to_json(value).to_string(),
        Value::Char(c) => c.to_string(),
        Value::Unicode(c) => c.to_string(),
        other => other.to_string(),
    }
}

fn line<'f>(out: &mut Vec<u8>, fields: impl Iterator<Item = &'f str>) {
    for (i, field) in fields.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        if field.contains(['"', ',', '\n', '\r']) {
            drop(write!(out, "\"{}\"", field.replace('"', "\"\"")));
        } else {
            out.extend_from_slice(field.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::Shape;
    use skep_isa::{KeyShape, MapType};

    #[test]
    fn maps_without_types_have_two_columns_and_quotes_stand_where_they_must() {
        let shape = |map_type| Shape {
            id: 1,
            name: "m".into(),
            map_type,
            keys: KeyShape::Fixed(4),
            value_size: 2,
            per_cpu: false,
            key_type_id: 0,
            value_type_id: 0,
        };
        for (map_type, want) in [
            (MapType::Array, "key,value\r\n258,65290\r\n"),
            (MapType::Hash, "key,value\r\n258,65290\r\n"),
        ] {
            let entries = Entries::of(shape(map_type), None, false);
            let (csv, mut out) = (Csv::new(&entries), Vec::new());
            csv.head(&mut out);
            csv.write(&mut out, &[2, 1, 0, 0], &[10, 255]);
            assert_eq!(String::from_utf8_lossy(&out), want);
        }
        let mut out = Vec::new();
        line(&mut out, ["plain", "a,b", "say \"a\"", "x\ny"].into_iter());
        assert_eq!(String::from_utf8_lossy(&out), "plain,\"a,b\",\"say \"\"a\"\"\",\"x\ny\"\r\n");
    }
}
