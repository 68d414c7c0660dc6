//! Keys and values as they are typed.

use serde_json::Value as Json;
use skep_isa::KeyShape;
use skep_object::Btf;
use skep_object::btf::{Value, ValueMember};

use crate::entries::Shape;
use crate::key;
use crate::value::bytes;

/// What typed text stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A key.
    Key,
    /// A value.
    Value,
}

impl Role {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        if self == Self::Key { "key" } else { "value" }
    }
}

/// How keys of variable length are typed.
pub const BYTE_STRINGS: &str =
    "keys of this map are text, or bytes after `hex`, as in `'hex 2f65 7463'`";

/// Makes the bytes of a key or a value from what was typed. `btf` is `None` when there are no
/// types. Fails with what is wrong with the text.
pub fn read(
    shape: &Shape,
    btf: Option<&Btf>,
    role: Role,
    text: &str,
    raw: bool,
) -> Result<Vec<u8>, String> {
    let (size, type_id) = match (role, shape.keys) {
        (Role::Key, KeyShape::Bytes { .. }) => {
            let key = byte_string(text, raw)?;
            shape.check_key(key.len())?;
            return Ok(key);
        }
        (Role::Key, KeyShape::Fixed(size)) => (size as usize, shape.key_type_id),
        (Role::Value, _) => (shape.value_size, shape.value_type_id),
    };
    let name = role.name();
    // As bpftool takes them; a text that begins so is not likely to be as long.
    if let Some(bytes) = text.strip_prefix("hex ").and_then(hex).filter(|b| b.len() == size) {
        return Ok(bytes);
    }
    if raw {
        return match hex(text) {
            Some(read) if read.len() == size => Ok(read),
            Some(read) => Err(format!("it has {}, but a {name} has {size}", bytes(read.len()))),
            None => Err("it is not hexadecimal".to_owned()),
        };
    }
    if let Some(btf) = btf
        && type_id != 0
    {
        let value = typed(text)
            .or_else(|| btf.read_text(type_id, text).ok())
            .unwrap_or_else(|| Value::Text(text.to_owned()));
        return btf.encode(type_id, &value).map_err(|e| e.to_string());
    }
    match typed(text).and_then(|v| v.as_i128()) {
        Some(n) if matches!(size, 1 | 2 | 4 | 8) => number(n, size),
        _ if matches!(size, 1 | 2 | 4 | 8) => Err(format!(
            "the map has no types: give a number, or its {} in hex with `--raw`",
            bytes(size)
        )),
        // As it is printed.
        _ => hex(text)
            .filter(|bytes| bytes.len() == size)
            .ok_or_else(|| format!("the map has no types: give its {} in hex", bytes(size))),
    }
}

/// Reads a byte string, of any length.
pub fn byte_string(text: &str, raw: bool) -> Result<Vec<u8>, String> {
    if raw { key::read_hex(text.strip_prefix("hex ").unwrap_or(text)) } else { key::read(text) }
}

/// Makes the bytes of a number where there is no type.
pub fn number(n: i128, size: usize) -> Result<Vec<u8>, String> {
    let bits = size as u32 * 8;
    let fits = if n < 0 { n >= -(1_i128 << (bits - 1)) } else { n < 1_i128 << bits };
    match n.to_le_bytes().get(..size) {
        Some(bytes) if fits => Ok(bytes.to_vec()),
        _ => Err(format!("it does not fit in {}", bytes(size))),
    }
}

/// Puts the values of CPUs together, from the first one on; the others are zero.
pub fn of_cpus(shape: &Shape, each: Vec<Vec<u8>>, cpus: usize) -> Result<Vec<u8>, String> {
    if each.len() > cpus {
        return Err(format!("there are values for {} CPUs, but the map has {cpus}", each.len()));
    }
    let mut out = Vec::new();
    for one in &each {
        out.extend(one);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    out.resize(shape.value_size.next_multiple_of(8) * cpus, 0);
    Ok(out)
}

/// Reads bytes in hex, with or without spaces.
pub fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.trim_start_matches("0x").bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
    digits.chunks(2).map(|pair| if pair.len() == 2 { byte(pair) } else { None }).collect()
}

/// Reads a number or JSON.
fn typed(text: &str) -> Option<Value> {
    let (digits, minus) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    let number = match digits.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    match number {
        Ok(n) if digits.starts_with(|c: char| c.is_ascii_digit()) => {
            Some(Value::Int(if minus { -n } else { n }))
        }
        _ => serde_json::from_str(text).ok().map(|json: Json| from_json(&json)),
    }
}

/// Makes a value from JSON without looking at types.
pub fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Int(0),
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => n
            .as_i64()
            .map(i128::from)
            .or(n.as_u64().map(i128::from))
            .map_or(Value::Float(n.as_f64().unwrap_or(0.0)), Value::Int),
        Json::String(s) => Value::Text(s.clone()),
        Json::Array(all) => Value::Array(all.iter().map(from_json).collect()),
        Json::Object(members) => Value::Struct(
            members
                .iter()
                .map(|(name, value)| ValueMember { name: name.clone(), value: from_json(value) })
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use skep_isa::MapType;

    use super::*;
    use crate::value::to_json;

    fn shape(value_size: usize) -> Shape {
        Shape {
            id: 1,
            name: "m".to_owned(),
            map_type: MapType::Hash,
            keys: KeyShape::Fixed(4),
            value_size,
            per_cpu: false,
            key_type_id: 0,
            value_type_id: 0,
        }
    }

    #[test]
    fn what_is_typed_is_a_number_or_a_structure() {
        assert_eq!(typed("-7"), Some(Value::Int(-7)));
        assert_eq!((typed("0xff"), typed("-0x10")), (Some(Value::Int(255)), Some(Value::Int(-16))));
        assert_eq!((typed("cat"), typed("--7"), typed("+7")), (None, None, None));
        assert_eq!(typed("\"7\""), Some(Value::Text("7".to_owned())));
        assert_eq!(
            to_json(&typed("{\"a\": [1, true]}").expect("JSON")).to_string(),
            r#"{"a":[1,true]}"#
        );
    }

    #[test]
    fn keys_without_types_are_numbers_of_their_size_or_hex() {
        let key = |text, raw| read(&shape(8), None, Role::Key, text, raw);
        assert_eq!(key("258", false), Ok(vec![2, 1, 0, 0]));
        assert_eq!(key("-1", false), Ok(vec![255; 4]));
        assert_eq!(key("4294967296", false), Err("it does not fit in 4 bytes".to_owned()));
        assert_eq!(
            (key("0a0b0c0d", true), key("0a 0b 0c 0d", true)),
            (Ok(vec![10, 11, 12, 13]), Ok(vec![10, 11, 12, 13]))
        );
        assert_eq!(key("0a", true), Err("it has 1 byte, but a key has 4".to_owned()));
        assert_eq!(key("0a0b0c0", true), Err("it is not hexadecimal".to_owned()));
        assert_eq!(
            (key("hex 0a 0b 0c 0d", false), key("hex 0a 0b 0c 0d", true)),
            (Ok(vec![10, 11, 12, 13]), Ok(vec![10, 11, 12, 13]))
        );
        assert!(key("hex 0a 0b 0c", false).is_err() && key("hexes", false).is_err());
        assert!(
            key("cat", false).is_err_and(|m| m.contains("give a number, or its 4 bytes in hex"))
        );
    }

    /// Without types: the text of every key and value, in all forms, leads back to its bytes.
    #[test]
    fn what_is_printed_can_be_typed() {
        let mut seed = 3_u64;
        for size in [1, 2, 3, 4, 5, 8, 12, 16] {
            for raw in [false, true] {
                let shape = Shape { keys: KeyShape::Fixed(size as u32), ..shape(size) };
                let entries = crate::entries::Entries::of(shape.clone(), None, raw);
                for _ in 0..50 {
                    let data: Vec<u8> = (0..size)
                        .map(|_| {
                            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (seed >> 56) as u8 & if seed >> 48 & 1 == 0 { 0 } else { 0xff }
                        })
                        .collect();
                    let json = entries.key(&data).json().to_string();
                    for text in [entries.key(&data).to_string(), json.trim_matches('"').to_owned()]
                    {
                        assert_eq!(
                            read(&shape, None, Role::Key, &text, raw),
                            Ok(data.clone()),
                            "{text}"
                        );
                        assert_eq!(
                            read(&shape, None, Role::Value, &text, raw),
                            Ok(data.clone()),
                            "{text}"
                        );
                    }
                }
            }
        }
    }
}
