//! Values and bytes as JSON.

use serde_json::{Map as Object, Value as Json, json};
use skep_object::btf::Value;

/// Writes bytes as hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Writes a size in a message: `1 byte`, `2 bytes`.
pub fn bytes(n: usize) -> String {
    format!("{n} byte{}", if n == 1 { "" } else { "s" })
}

/// Turns a value into JSON: enumerations by name, addresses and bytes in hex, numbers of types that have
/// more than 64 bits as text, whatever they are.
pub fn to_json(value: &Value) -> Json {
    let number = |n: i128| {
        i64::try_from(n)
            .map(Json::from)
            .or_else(|_| u64::try_from(n).map(Json::from))
            .unwrap_or_else(|_| n.to_string().into())
    };
    match value {
        Value::Int(n) => number(*n),
        Value::Uint(n) => i128::try_from(*n).map_or_else(|_| n.to_string().into(), number),
        Value::Int128(n) => n.to_string().into(),
        Value::Uint128(n) => n.to_string().into(),
        Value::LongDouble(x) => x.to_string().into(),
        Value::Bool(b) => (*b).into(),
        Value::Char(c) => (*c).into(),
        Value::Unicode(c) => c.to_string().into(),
        // JSON has `null` for what is no number, and nothing for what is infinite.
        Value::Float(x) if x.is_infinite() => json!(x.to_string()),
        Value::Float(x) => json!(x),
        Value::Enum { name: Some(name), .. } => name.as_str().into(),
        Value::Enum { name: None, value } => number(*value),
        Value::Pointer(p) => format!("{p:#x}").into(),
        Value::Text(text) => text.as_str().into(),
        Value::Array(all) => all.iter().map(to_json).collect(),
        Value::Struct(_) => {
            let mut object = Object::new();
            flatten(value, &mut object);
            object.into()
        }
        Value::Bytes(bytes) => hex(bytes).into(),
    }
}

/// Members of anonymous structures belong to the one around them, as in C.
fn flatten(value: &Value, object: &mut Object<String, Json>) {
    if let Value::Struct(members) = value {
        for m in members {
            if m.name.is_empty() {
                flatten(&m.value, object);
            } else {
                object.insert(m.name.clone(), to_json(&m.value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use skep_object::btf::ValueMember;

    use super::*;

    fn member(name: &str, value: Value) -> ValueMember {
        ValueMember { name: name.to_owned(), value }
    }

    #[test]
    fn values_become_json() {
        let value = Value::Struct(vec![
            member("count", Value::Uint(u64::MAX.into())),
            member("", Value::Struct(vec![member("inner", Value::Int(-3))])),
            member("comm", Value::Text("cat".to_owned())),
            member("at", Value::Pointer(0x7fff)),
            member("kind", Value::Enum { name: Some("READ".to_owned()), value: 1 }),
            member("other", Value::Enum { name: None, value: 7 }),
            member("wide", Value::Uint128(u128::MAX)),
            member("small", Value::Int128(-5)),
            member("nan", Value::Float(f64::NAN)),
            member("far", Value::Float(f64::NEG_INFINITY)),
            member("list", Value::Array(vec![Value::Bool(true), Value::Char(65)])),
            member("rest", Value::Bytes(vec![0, 255])),
        ]);
        assert_eq!(
            to_json(&value).to_string(),
            r#"{"count":18446744073709551615,"inner":-3,"comm":"cat","at":"0x7fff","kind":"READ","other":7,"#.to_owned()
                + r#""wide":"340282366920938463463374607431768211455","small":"-5","nan":null,"far":"-inf","list":[true,65],"rest":"00ff"}"#
        );
    }
}
