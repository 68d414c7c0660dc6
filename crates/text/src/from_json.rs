//! Values from the JSON that [`to_json`](crate::value::to_json) makes of them: addresses and bytes
//! in hex, numbers beyond 64 bits as text. Only the type tells those from text.

use serde_json::Value as Json;
use skep_object::Btf;
use skep_object::btf::{Array, Composite, Kind, TypeId, Value, ValueMember};

use crate::input;
use crate::key;

/// Types inside types that are looked into, as deep as `Btf` itself does.
const DEEPEST: usize = 32;

/// Makes a value of a type from JSON, or from the text of a single number, name or list. What does
/// not fit is left for `Btf::encode` to refuse.
pub fn value(btf: &Btf, id: TypeId, json: &Json) -> Value {
    at_depth(btf, id, json, 0)
}

fn at_depth(btf: &Btf, id: TypeId, json: &Json, depth: usize) -> Value {
    let as_it_is = || input::from_json(json);
    let Ok((id, t)) = btf.resolve(id) else { return as_it_is() };
    if depth > DEEPEST {
        return as_it_is();
    }
    let bytes = |text: &str| {
        let size = btf.size_of(id).ok().and_then(|n| usize::try_from(n).ok());
        key::read_hex(text).ok().filter(|b| Some(b.len()) == size).map(Value::Bytes)
    };
    match (&t.kind, json) {
        (Kind::Var(v), _) => at_depth(btf, v.type_id, json, depth + 1),
        (Kind::Ptr(_), Json::String(text)) => number(text).unwrap_or_else(as_it_is),
        (Kind::Int(_), Json::String(text)) => match text.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            text => number(text).unwrap_or_else(as_it_is),
        },
        // Characters are printed by their byte, whether they have a sign or not.
        (Kind::Int(i), Json::Number(n)) if i.char && i.bits == 8 => {
            n.as_u64().and_then(|n| u8::try_from(n).ok()).map_or_else(as_it_is, Value::Char)
        }
        // JSON has no other word for what is not a number.
        (Kind::Float(4 | 8), Json::Null) => Value::Float(f64::NAN),
        (Kind::Float(4 | 8), Json::Number(n)) => n.as_f64().map_or_else(as_it_is, Value::Float),
        (Kind::Float(4 | 8), Json::String(text)) => {
            text.parse().map_or_else(|_| as_it_is(), Value::Float)
        }
        (Kind::Enum(_) | Kind::Enum64(_), Json::String(text)) => {
            number(text).unwrap_or_else(as_it_is)
        }
        (Kind::Array(a), Json::Array(all)) => {
            Value::Array(all.iter().map(|one| at_depth(btf, a.elem, one, depth + 1)).collect())
        }
        // A list has more characters than the array has elements, a text has not.
        (Kind::Array(a), Json::String(text)) if !is_text(btf, a) || text.len() > a.len as usize => {
            match serde_json::from_str(text) {
                Ok(list @ Json::Array(_)) => at_depth(btf, id, &list, depth + 1),
                _ => as_it_is(),
            }
        }
        (Kind::Struct(c) | Kind::Union(c), Json::Object(given)) => {
            let of = |(name, json): (&String, &Json)| {
                let value = match member(btf, c, name, 0) {
                    Some(id) => at_depth(btf, id, json, depth + 1),
                    None => input::from_json(json),
                };
                ValueMember { name: name.clone(), value }
            };
            Value::Struct(given.iter().map(of).collect())
        }
        (Kind::Struct(_) | Kind::Union(_), Json::String(text)) => {
            match serde_json::from_str(text) {
                Ok(object @ Json::Object(_)) => at_depth(btf, id, &object, depth + 1),
                _ => as_it_is(),
            }
        }
        (Kind::DataSec(d), Json::Object(given)) => {
            let of = |(name, json): (&String, &Json)| {
                let var = d.vars.iter().find(|v| btf.name(v.type_id) == name);
                let value = match var {
                    Some(var) => at_depth(btf, var.type_id, json, depth + 1),
                    None => input::from_json(json),
                };
                ValueMember { name: name.clone(), value }
            };
            Value::Struct(given.iter().map(of).collect())
        }
        (Kind::Array(_), _) => as_it_is(),
        (_, Json::String(text)) => bytes(text).unwrap_or_else(as_it_is),
        _ => as_it_is(),
    }
}

fn is_text(btf: &Btf, a: &Array) -> bool {
    matches!(btf.resolve(a.elem), Ok((_, t)) if matches!(&t.kind, Kind::Int(i) if i.size == 1))
}

/// Finds the type of a member, also inside anonymous members.
fn member(btf: &Btf, c: &Composite, name: &str, depth: usize) -> Option<TypeId> {
    if depth > DEEPEST {
        return None;
    }
    c.members.iter().find_map(|m| match btf.string(m.name_off) {
        "" => match &btf.resolve(m.type_id).ok()?.1.kind {
            Kind::Struct(inner) | Kind::Union(inner) => member(btf, inner, name, depth + 1),
            _ => None,
        },
        n => (n == name).then_some(m.type_id),
    })
}

fn number(text: &str) -> Option<Value> {
    let (digits, minus) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let n = match digits.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16),
        None => digits.parse(),
    }
    .ok()?;
    if minus { i128::try_from(n).ok().map(|n| Value::Int(-n)) } else { Some(Value::Uint(n)) }
}

/// Makes a byte string: from text, `{"hex":…}`, or as bpftool prints it, `{"size":…,"data":[…]}`.
/// With `raw`, text is hex.
pub fn byte_string(json: &Json, raw: bool) -> Result<Vec<u8>, String> {
    let each = |list: &[Json]| {
        let byte = |one: &Json| match one {
            Json::String(text) => key::read_hex(text).ok().filter(|b| b.len() == 1)?.pop(),
            other => u8::try_from(other.as_u64()?).ok(),
        };
        list.iter().map(byte).collect::<Option<Vec<u8>>>().ok_or("it is not a list of bytes".into())
    };
    match json {
        Json::String(text) if raw => key::read_hex(text),
        Json::String(text) => Ok(text.clone().into_bytes()),
        Json::Array(list) => each(list),
        Json::Object(members) => match (members.get("hex"), members.get("data")) {
            (Some(Json::String(text)), None) => key::read_hex(text),
            (None, Some(Json::Array(list))) => each(list),
            _ => Err("only `{\"hex\":…}` can stand for bytes".to_owned()),
        },
        _ if raw => Err("bytes in hex are wanted".to_owned()),
        _ => Err("text is wanted, or `{\"hex\":…}`".to_owned()),
    }
}
