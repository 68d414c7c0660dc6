//! Elements made of what was read, all before the first is stored.

use serde_json::Value as Json;
use skep_isa::KeyShape;
use skep_object::Btf;
use skep_object::btf::{Kind, TypeId};

use super::direct::{Direct, Text};
use crate::elements::Elements;
use crate::entries::Shape;
use crate::from_json::{self, byte_string};
use crate::input::{self, Role};
use crate::value;

/// Makes elements of one map.
#[derive(Debug)]
pub struct Encoder<'a> {
    shape: &'a Shape,
    btf: Option<&'a Btf>,
    /// Keys and values are bytes in hex.
    pub raw: bool,
    cpus: usize,
    key: Option<Direct>,
    value: Option<Direct>,
    /// What was made.
    pub out: Elements,
}

impl<'a> Encoder<'a> {
    /// Looks at a map with as many values for each key as `cpus` says.
    pub fn new(shape: &'a Shape, btf: Option<&'a Btf>, raw: bool, cpus: usize) -> Self {
        let key = match shape.keys {
            KeyShape::Fixed(size) => Direct::of(btf, shape.key_type_id, size as usize),
            KeyShape::Bytes { .. } => None,
        };
        let value = Direct::of(btf, shape.value_type_id, shape.value_size);
        Self { shape, btf, raw, cpus, key, value, out: Elements::new(shape.keys) }
    }

    /// The map.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// Its types.
    pub fn btf(&self) -> Option<&'a Btf> {
        self.btf
    }

    /// How keys or values are made directly, if they can be.
    pub fn direct(&self, role: Role) -> Option<&Direct> {
        let direct = if role == Role::Key { &self.key } else { &self.value };
        direct.as_ref().filter(|_| !self.raw)
    }

    /// Adds an element from its bytes.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.out.push_key(key);
        self.out.values.extend_from_slice(value);
    }

    /// Adds an element from JSON; fails with what is wrong with it.
    pub fn push_json(&mut self, key: &str, value: &str) -> Result<(), String> {
        if !self.raw && !self.shape.per_cpu && self.push_direct(key, value) {
            return Ok(());
        }
        let json = |text| serde_json::from_str(text).map_err(|e| e.to_string());
        let (key, value) = (self.key_of(&json(key)?)?, json(value)?);
        let value = match value {
            Json::Array(each) if self.shape.per_cpu => {
                let each = each.iter().map(|one| self.value_of(one)).collect::<Result<_, _>>()?;
                self.values(each)?
            }
            one => self.one_value(self.value_of(&one)?)?,
        };
        self.push(&key, &value);
        Ok(())
    }

    /// As [`Self::push_json`], for most elements; `false` when it cannot be done so.
    fn push_direct(&mut self, key: &str, value: &str) -> bool {
        let (key_at, value_at) = (self.out.keys.len(), self.out.values.len());
        let Some(direct_value) = &self.value else { return false };
        let done = match (&self.key, self.shape.keys) {
            (Some(direct), KeyShape::Fixed(size)) => {
                self.out.keys.resize(key_at + size as usize, 0);
                direct.fill(key, self.out.keys.get_mut(key_at..).unwrap_or_default())
            }
            // Text, most of which needs no copy.
            (_, shape @ KeyShape::Bytes { .. }) => match serde_json::from_str::<Text<'_>>(key) {
                Ok(text) if shape.allows(text.0.len()) => {
                    self.out.keys.extend_from_slice(text.0.as_bytes());
                    true
                }
                _ => false,
            },
            (None, KeyShape::Fixed(_)) => false,
        };
        self.out.values.resize(value_at + self.shape.value_size, 0);
        let values = self.out.values.get_mut(value_at..).unwrap_or_default();
        if done && direct_value.fill(value, values) {
            self.out.end_key();
            return true;
        }
        self.out.keys.truncate(key_at);
        self.out.values.truncate(value_at);
        false
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
            KeyShape::Fixed(0) => Err("the map has no keys".to_owned()),
            // A type would make it zero, and only of floating-point numbers it is a value.
            KeyShape::Fixed(_) if json.is_null() && !self.has_float_keys() => {
                return Err(format!("an element of map `{}` has no `key`", self.shape.name));
            }
            KeyShape::Fixed(size) => self.part(json, self.shape.key_type_id, size as usize),
            KeyShape::Bytes { .. } => byte_string(json, self.raw),
        }
        .and_then(|key| self.shape.check_key(key.len()).map(|()| key))
        .map_err(wrong)
    }

    fn has_float_keys(&self) -> bool {
        let key_type = self.btf.and_then(|btf| btf.resolve(self.shape.key_type_id).ok());
        key_type.is_some_and(|(_, t)| matches!(t.kind, Kind::Float(_)))
    }

    /// Makes one value from JSON.
    pub fn value_of(&self, json: &Json) -> Result<Vec<u8>, String> {
        self.part(json, self.shape.value_type_id, self.shape.value_size)
            .map_err(|why| format!("{json} is not a value of map `{}`: {why}", self.shape.name))
    }

    fn part(&self, json: &Json, id: TypeId, size: usize) -> Result<Vec<u8>, String> {
        let sized = |bytes: Vec<u8>| match bytes.len() {
            n if n == size => Ok(bytes),
            n => Err(format!("it has {}, not {size}", value::bytes(n))),
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
            (None, _) => {
                Err(format!("the map has no types: give its {} in hex", value::bytes(size)))
            }
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
        let direct = if role == Role::Key { &self.key } else { &self.value };
        let Some(Direct::Uint(size) | Direct::Int(size)) = direct else { return false };
        let digits = text.strip_prefix("0x").unwrap_or(text);
        !self.raw
            && digits.len() == 2 * size
            && digits.bytes().all(|b| b.is_ascii_hexdigit())
            && (text.starts_with('0') && text.len() > 1
                || digits.bytes().any(|b| !b.is_ascii_digit()))
    }
}
