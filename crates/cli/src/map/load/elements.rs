//! Elements made of what was read, all before the first is stored.

use serde_json::Value as Json;
use skep::isa::KeyShape;
use skep::object::Btf;
use skep::object::btf::{Kind, TypeId};

use super::super::destination::Elements;
use super::super::from_json::{self, byte_string};
use super::super::input::{self, Role};
use crate::entries::Shape;

/// A number that is stored as it is.
#[derive(Clone, Copy, Debug)]
struct Number {
    size: usize,
    signed: bool,
}

/// Makes elements of one map.
#[derive(Debug)]
pub struct Encoder<'a> {
    shape: &'a Shape,
    btf: Option<&'a Btf>,
    /// Keys and values are bytes in hex.
    pub raw: bool,
    cpus: usize,
    key: Option<Number>,
    value: Option<Number>,
    /// What was made.
    pub out: Elements,
}

impl<'a> Encoder<'a> {
    /// Looks at a map with as many values for each key as `cpus` says.
    pub fn new(shape: &'a Shape, btf: Option<&'a Btf>, raw: bool, cpus: usize) -> Self {
        let key = match shape.keys {
            KeyShape::Fixed(size) => number(btf, shape.key_type_id, size as usize),
            KeyShape::Bytes { .. } => None,
        };
        let value = number(btf, shape.value_type_id, shape.value_size);
        Self { shape, btf, raw, cpus, key, value, out: Elements::default() }
    }

    /// The map.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// Its types.
    pub fn btf(&self) -> Option<&'a Btf> {
        self.btf
    }

    /// Adds an element from its bytes.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.out.push_key(self.shape.keys, key);
        self.out.values.extend_from_slice(value);
    }

    /// Adds an element from JSON; fails with what is wrong with it.
    pub fn push_json(&mut self, key: &Json, value: &Json) -> Result<(), String> {
        // By far the most.
        if let (Some(k), Some(v), false, false) =
            (self.key, self.value, self.raw, self.shape.per_cpu)
            && let (Some(k), Some(v)) = (k.bytes(key), v.bytes(value))
        {
            self.push(k.as_slice(), v.as_slice());
            return Ok(());
        }
        let key = self.key_of(key)?;
        let value = match value {
            Json::Array(each) if self.shape.per_cpu => {
                let each = each.iter().map(|one| self.value_of(one)).collect::<Result<_, _>>()?;
                input::of_cpus(self.shape, each, self.cpus)?
            }
            one => self.one_value(self.value_of(one)?)?,
        };
        self.push(&key, &value);
        Ok(())
    }

    /// Makes the whole value of one, the first CPU's.
    pub fn one_value(&self, value: Vec<u8>) -> Result<Vec<u8>, String> {
        if self.shape.per_cpu { self.values(vec![value]) } else { Ok(value) }
    }

    /// Puts the values of CPUs together.
    pub fn values(&self, each: Vec<Vec<u8>>) -> Result<Vec<u8>, String> {
        input::of_cpus(self.shape, each, self.cpus)
    }

    /// Makes a key from JSON.
    pub fn key_of(&self, json: &Json) -> Result<Vec<u8>, String> {
        let wrong =
            |why: String| format!("{json} is not a key of map `{}`: {why}", self.shape.name);
        match self.shape.keys {
            KeyShape::Fixed(0) if json.is_null() => Ok(Vec::new()),
            KeyShape::Fixed(0) => Err(wrong("the map has no keys".to_owned())),
            KeyShape::Fixed(size) => self.part(json, self.shape.key_type_id, size as usize),
            KeyShape::Bytes { .. } => byte_string(json, self.raw),
        }
        .and_then(|key| self.shape.check_key(key.len()).map(|()| key))
        .map_err(wrong)
    }

    /// Makes one value from JSON.
    pub fn value_of(&self, json: &Json) -> Result<Vec<u8>, String> {
        self.part(json, self.shape.value_type_id, self.shape.value_size)
            .map_err(|why| format!("{json} is not a value of map `{}`: {why}", self.shape.name))
    }

    fn part(&self, json: &Json, id: TypeId, size: usize) -> Result<Vec<u8>, String> {
        let sized = |bytes: Vec<u8>| match bytes.len() {
            n if n == size => Ok(bytes),
            n => Err(format!("it has {n} bytes, not {size}")),
        };
        if self.raw {
            return byte_string(json, true).and_then(sized);
        }
        match (self.btf.filter(|_| id != 0), json) {
            (Some(btf), _) => {
                let value = from_json::value(btf, id, json);
                btf.encode(id, &value).map_err(|e| e.to_string())
            }
            (None, Json::Number(n)) if matches!(size, 1 | 2 | 4 | 8) => {
                let n = n.as_i64().map(i128::from).or(n.as_u64().map(i128::from));
                n.ok_or("it is not a whole number".to_owned()).and_then(|n| input::number(n, size))
            }
            (None, Json::String(text)) if !matches!(size, 1 | 2 | 4 | 8) => {
                byte_string(&Json::from(text.as_str()), true).and_then(sized)
            }
            (None, Json::String(_)) => {
                Err("the map has no types: numbers are wanted, or with `--raw` bytes in hex"
                    .to_owned())
            }
            (None, _) => Err(format!("the map has no types: {size} bytes in hex are wanted")),
        }
    }

    /// Makes a key or a value from text as `dump` prints it.
    pub fn text(&self, role: Role, text: &str) -> Result<Vec<u8>, String> {
        let of_type = match role {
            Role::Value => self.shape.value_type_id,
            Role::Key if matches!(self.shape.keys, KeyShape::Bytes { .. }) => 0,
            Role::Key => self.shape.key_type_id,
        };
        let typed = self.btf.filter(|_| of_type != 0 && !self.raw).and_then(|btf| {
            let value = btf.read_text(of_type, text).ok()?;
            btf.encode(of_type, &value).ok()
        });
        match typed {
            Some(bytes) => Ok(bytes),
            None => input::read(self.shape, self.btf, role, text, self.raw).map_err(|why| {
                let what = if role == Role::Key { "key" } else { "value" };
                format!("`{text}` is not a {what} of map `{}`: {why}", self.shape.name)
            }),
        }
    }

    /// Tells whether text is bytes in hex, as `dump --raw` prints them, where it otherwise prints a
    /// number.
    pub fn looks_raw(&self, role: Role, text: &str) -> bool {
        let number = if role == Role::Key { self.key } else { self.value };
        let digits = text.strip_prefix("0x").unwrap_or(text);
        !self.raw
            && number.is_some_and(|n| digits.len() == 2 * n.size)
            && digits.bytes().all(|b| b.is_ascii_hexdigit())
            && (text.starts_with('0') && text.len() > 1
                || digits.bytes().any(|b| !b.is_ascii_digit()))
    }
}

/// Finds out whether a part of an element is a number.
fn number(btf: Option<&Btf>, id: TypeId, size: usize) -> Option<Number> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return None;
    }
    let Some(btf) = btf.filter(|_| id != 0) else { return Some(Number { size, signed: false }) };
    match &btf.resolve(id).ok()?.1.kind {
        Kind::Int(i)
            if i.size as usize == size
                && usize::from(i.bits) == size * 8
                && i.offset == 0
                && !i.bool
                && !i.char =>
        {
            Some(Number { size, signed: i.signed })
        }
        _ => None,
    }
}

/// Up to eight bytes.
struct Few([u8; 8], usize);

impl Few {
    fn as_slice(&self) -> &[u8] {
        self.0.get(..self.1).unwrap_or_default()
    }
}

impl Number {
    /// Makes the bytes of a number that fits.
    fn bytes(self, json: &Json) -> Option<Few> {
        let bits = self.size as u32 * 8;
        let word = if self.signed {
            let n = json.as_i64()?;
            (n << (64 - bits) >> (64 - bits) == n).then_some(n as u64)?
        } else {
            let n = json.as_u64()?;
            (n << (64 - bits) >> (64 - bits) == n).then_some(n)?
        };
        Some(Few(word.to_le_bytes(), self.size))
    }
}
