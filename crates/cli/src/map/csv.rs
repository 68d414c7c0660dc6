//! Elements as comma-separated values (RFC 4180): a column for each number or text in key and
//! value.

use std::io::Write;

use skep::object::btf::Value;

use super::layout::{decimal, hex as hex_to};
use crate::entries::Entries;
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
        let shape = self.entries.shape();
        let mut names = Vec::new();
        if shape.key_size > 0 {
            columns("key", &self.entries.key(&vec![0; shape.key_size]), &mut |name, _| {
                names.push(name.to_owned())
            });
        }
        if shape.per_cpu {
            names.push("cpu".to_owned());
        }
        columns("value", &self.entries.value(&vec![0; shape.value_size]), &mut |name, _| {
            names.push(name.to_owned())
        });
        line(out, names.iter().map(String::as_str));
    }

    /// Appends an element: a line, or one for each CPU.
    pub fn write(&self, out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        let per_cpu = self.entries.shape().per_cpu;
        if self.entries.btf().is_none() && !per_cpu {
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
            if !key.is_empty() {
                columns("key", &entry.key, &mut |_, v| fields.push(field(v)));
            }
            if per_cpu {
                fields.push(cpu.to_string());
            }
            columns("value", value, &mut |_, v| fields.push(field(v)));
            line(out, fields.iter().map(String::as_str));
        }
    }
}

/// Calls `each` with the name and the value of every column: members of structures have their own,
/// arrays do not.
fn columns(name: &str, value: &Value, each: &mut dyn FnMut(&str, &Value)) {
    match value {
        Value::Struct(members) if !members.is_empty() => {
            for m in members {
                let inner =
                    if m.name.is_empty() { name.to_owned() } else { format!("{name}.{}", m.name) };
                columns(&inner, &m.value, each);
            }
        }
        other => each(name, other),
    }
}

fn field(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => hex(bytes),
        Value::Array(_) | Value::Struct(_) => to_json(value).to_string(),
        Value::Char(c) => c.to_string(),
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
    use skep::isa::MapType;

    #[test]
    fn maps_without_types_have_two_columns_and_quotes_stand_where_they_must() {
        let shape = |map_type| Shape {
            id: 1,
            name: "m".into(),
            map_type,
            key_size: 4,
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
