//! `skep map`: maps as files, read while a target runs and after it is gone.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use skep::Dir;
use skep::dir::Kind;
use skep::isa::MapFlags;
use skep::maps::{Access, Map, MapError};
use skep::object::Btf;
use skep::object::btf::{Value, ValueMember};

use crate::args::MapCommand;
use crate::entries::Entries;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};
use crate::session;
use crate::units;

/// Does what was asked for.
pub fn run(command: &MapCommand, printer: Printer) -> Result<u8> {
    let dir = session::existing_directory()?;
    match command {
        MapCommand::List(format) => list(&dir, format.json, printer)?,
        MapCommand::Show { map, format } => {
            let map = find(&dir, map, printer)?;
            if format.json {
                printer.json(Output::Stdout, &details(&map))?;
            } else {
                printer.data(Output::Stdout, |out| show(out, &details(&map)))?;
            }
        }
        MapCommand::Dump { map, raw, limit, format } => dump(&dir, map, *raw, *limit, format.json, printer)?,
        MapCommand::Lookup { map, key, raw, format } => lookup(&dir, map, key, *raw, format.json, printer)?,
    }
    Ok(0)
}

/// Opens every map that can be opened; the others are told of.
fn all(dir: &Dir, printer: Printer) -> Result<Vec<Map>> {
    let mut maps = Vec::new();
    for id in dir.ids(Kind::Map)? {
        let path = dir.object(Kind::Map, id);
        match open(&path) {
            Ok(map) => maps.push(map),
            // It was removed since the directory was read.
            Err(_) if !path.exists() => {}
            Err(e) => printer.warning(&format!("map {id} cannot be read: {e}")),
        }
    }
    Ok(maps)
}

/// Opens a map to read it. Where the file system is full, what it has no memory for reads as zero.
fn open(path: &Path) -> Result<Map, MapError> {
    let map = Map::open(path, Access::ReadOnly)?;
    skep::memory::guard(&map);
    Ok(map)
}

/// Finds a map by id, or by a name that only one map has.
fn find(dir: &Dir, text: &str, printer: Printer) -> Result<Map> {
    if let Ok(id) = text.parse::<u32>() {
        let path = dir.object(Kind::Map, id);
        return match open(&path) {
            Ok(map) => Ok(map),
            Err(_) if !path.exists() => Err(missing(text)),
            Err(e) => Err(Failure::environment(format!("map {id} cannot be read")).because(&e)),
        };
    }
    let mut named: Vec<Map> = all(dir, printer)?.into_iter().filter(|m| m.def().name == text || short(text) == m.def().name).collect();
    match (named.len(), named.pop()) {
        (1, Some(map)) => Ok(map),
        (0, _) | (_, None) => Err(missing(text)),
        (_, Some(last)) => {
            let mut ids: Vec<String> = named.iter().map(|m| m.id().to_string()).collect();
            ids.push(last.id().to_string());
            Err(Failure::failed(format!("several maps are called `{text}`: {}", ids.join(", "))).hint("use the id"))
        }
    }
}

fn missing(text: &str) -> Failure {
    Failure::failed(format!("there is no map `{text}`"))
        .hint("`skep map list` shows all; maps go when nobody uses them any more and the next command is loaded")
}

/// A name as files keep it.
fn short(name: &str) -> &str {
    name.get(..15).unwrap_or(name)
}

fn btf(dir: &Dir, map: &Map) -> Option<Btf> {
    match map.def().btf_id {
        0 => None,
        id => skep::types::open(dir, id),
    }
}

fn list(dir: &Dir, as_json: bool, printer: Printer) -> Result {
    let maps = all(dir, printer)?;
    if as_json {
        return printer.json(Output::Stdout, &maps.iter().map(details).collect::<Json>());
    }
    printer.data(Output::Stdout, |out| {
        writeln!(out, "{:>6}  {:15}  {:16} {:>6} {:>7} {:>9} {:>8}", "id", "name", "type", "key", "value", "entries", "memory")?;
        for map in &maps {
            let def = map.def();
            writeln!(
                out,
                "{:>6}  {:15}  {:16} {:>6} {:>7} {:>9} {:>8}",
                map.id(),
                if def.name.is_empty() { "-" } else { &def.name },
                def.map_type,
                units::size(def.key_size.into()),
                units::size(def.value_size.into()),
                def.max_entries,
                units::size(memory(map)),
            )?;
        }
        Ok(())
    })
}

/// Memory that was touched.
fn memory(map: &Map) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(map.file().path()).map_or(0, |m| m.blocks() * 512)
}

fn details(map: &Map) -> Json {
    let def = map.def();
    json!({
        "id": map.id(),
        "name": def.name,
        "type": def.map_type.name(),
        "key_size": def.key_size,
        "value_size": def.value_size,
        "max_entries": def.max_entries,
        "flags": def.flags.0,
        "map_extra": def.map_extra,
        "frozen": map.is_frozen(),
        "btf_id": def.btf_id,
        "key_type_id": def.key_type_id,
        "value_type_id": def.value_type_id,
        "memory": memory(map),
        "path": map.file().path().to_string_lossy(),
    })
}

fn show(out: &mut dyn Write, details: &Json) -> std::io::Result<()> {
    for (name, value) in details.as_object().into_iter().flatten() {
        let text = match (name.as_str(), value) {
            ("key_size" | "value_size" | "memory", Json::Number(n)) => units::size(n.as_u64().unwrap_or(0)),
            ("flags", Json::Number(n)) => flags(n.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0)),
            (_, Json::String(s)) => s.clone(),
            (_, other) => other.to_string(),
        };
        writeln!(out, "{name:14} {text}")?;
    }
    Ok(())
}

fn flags(bits: u32) -> String {
    const NAMES: [(u32, &str); 3] =
        [(MapFlags::NO_PREALLOC, "no_prealloc"), (MapFlags::RDONLY_PROG, "rdonly_prog"), (MapFlags::MMAPABLE, "mmapable")];
    let names: Vec<&str> = NAMES.iter().filter(|(f, _)| bits & f != 0).map(|(_, n)| *n).collect();
    if names.is_empty() { format!("{bits:#x}") } else { format!("{bits:#x} ({})", names.join(", ")) }
}

fn no_elements(name: &str) -> Failure {
    Failure::failed(format!("map `{name}` is a stream of records: it has no keys")).hint("`skep run` prints what comes out of it")
}

fn dump(dir: &Dir, text: &str, raw: bool, limit: usize, as_json: bool, printer: Printer) -> Result {
    let map = find(dir, text, printer)?;
    let types = btf(dir, &map);
    let name = map.def().name.clone();
    let entries = Entries::new(&map, &name, types.as_ref(), raw);
    if !entries.has_elements() {
        return Err(no_elements(text));
    }
    let limit = if limit == 0 { usize::MAX } else { limit };
    let mut failed = None;
    let walk = entries.iter().take(limit).map_while(|e| e.map_err(|e| failed = Some(e)).ok());
    // Elements are written as they are read: a map can be larger than memory for its text.
    if as_json {
        printer.data(Output::Stdout, |out| {
            write!(out, "{{\"map\":{},\"entries\":[", entries.map_json())?;
            for (i, entry) in walk.enumerate() {
                write!(out, "{}{}", if i == 0 { "" } else { "," }, entry.json_of(&entries))?;
            }
            writeln!(out, "]}}")
        })?;
    } else {
        printer.data(Output::Stdout, |out| {
            for entry in walk {
                writeln!(out, "{}", entry.text())?;
            }
            Ok(())
        })?;
    }
    match failed {
        Some(e) => Err(Failure::from(e)),
        None => Ok(()),
    }
}

fn lookup(dir: &Dir, text: &str, key: &str, raw: bool, as_json: bool, printer: Printer) -> Result {
    let map = find(dir, text, printer)?;
    let types = btf(dir, &map).map(Arc::new);
    let name = map.def().name.clone();
    let entries = Entries::new(&map, &name, types.as_deref(), raw);
    if !entries.has_elements() {
        return Err(no_elements(text));
    }
    let bytes = key_bytes(&map, types.as_deref().filter(|_| !raw), key, raw)?;
    let value = map.lookup(&bytes).map_err(|e| match e {
        MapError::NoElement => Failure::failed(format!("map `{text}` has no key `{key}`")),
        e => Failure::failed(format!("cannot look up `{key}` in map `{text}`")).because(&e),
    })?;
    let entry = entries.entry(&bytes, &value);
    if as_json {
        printer.json(Output::Stdout, &json!({"map": entries.map_json(), "entry": entry.json_of(&entries)}))
    } else {
        printer.data(Output::Stdout, |out| writeln!(out, "{}", entry.text()))
    }
}

/// Makes the bytes of a key from what was typed.
fn key_bytes(map: &Map, btf: Option<&Btf>, text: &str, raw: bool) -> Result<Vec<u8>> {
    let def = map.def();
    let size = def.key_size as usize;
    let wrong = |why: String| Failure::environment(format!("`{text}` is no key of map `{}`: {why}", def.name));
    if raw {
        let digits = text.trim_start_matches("0x").as_bytes();
        let byte = |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(|pair| if pair.len() == 2 { byte(pair) } else { None }).collect();
        return match bytes {
            Some(bytes) if bytes.len() == size => Ok(bytes),
            Some(bytes) => Err(wrong(format!("it has {} bytes, a key has {size}", bytes.len()))),
            None => Err(wrong("it is not hexadecimal".to_owned())),
        };
    }
    if let Some(btf) = btf
        && def.key_type_id != 0
    {
        let value = typed(text);
        return btf.encode(def.key_type_id, &value).map_err(|e| wrong(e.to_string()));
    }
    match typed(text).as_i128() {
        Some(n) if matches!(size, 1 | 2 | 4 | 8) => {
            let bits = size as u32 * 8;
            let fits = if n < 0 { n >= -(1_i128 << (bits - 1)) } else { n < 1_i128 << bits };
            if fits { Ok(n.to_le_bytes()[..size].to_vec()) } else { Err(wrong(format!("it does not fit {size} bytes"))) }
        }
        _ => Err(wrong(format!("the map has no types; give its {size} bytes in hex with `--raw`"))),
    }
}

/// Reads what was typed: a number, JSON, or else a text.
fn typed(text: &str) -> Value {
    let number = match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16),
        None => text.parse(),
    };
    if let Ok(n) = number {
        return Value::Int(n);
    }
    serde_json::from_str(text).map_or_else(|_| Value::Text(text.to_owned()), |json: Json| from_json(&json))
}

fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Int(0),
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => {
            n.as_i64().map(i128::from).or(n.as_u64().map(i128::from)).map_or(Value::Float(n.as_f64().unwrap_or(0.0)), Value::Int)
        }
        Json::String(s) => Value::Text(s.clone()),
        Json::Array(all) => Value::Array(all.iter().map(from_json).collect()),
        Json::Object(members) => {
            Value::Struct(members.iter().map(|(name, value)| ValueMember { name: name.clone(), value: from_json(value) }).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entries::to_json;
    use skep::isa::MapType;
    use skep::maps::MapDef;

    #[test]
    fn what_is_typed_is_a_number_a_structure_or_a_text() {
        assert_eq!(typed("-7"), Value::Int(-7));
        assert_eq!(typed("0xff"), Value::Int(255));
        assert_eq!(typed("cat"), Value::Text("cat".to_owned()));
        assert_eq!(typed("\"7\""), Value::Text("7".to_owned()));
        assert_eq!(to_json(&typed("{\"a\": [1, true]}")).to_string(), r#"{"a":[1,true]}"#);
    }

    #[test]
    fn keys_without_types_are_numbers_of_their_size_or_hex() -> Result<(), Failure> {
        let path = std::env::temp_dir().join(format!("skep-cli-map-{}", std::process::id()));
        let dir = Dir::create(&path)?;
        let map = Map::create(&dir.kind(Kind::Map), 1, &MapDef::new(MapType::Array, 4, 8, 2).named("m"))?;
        let key = |text, raw| key_bytes(&map, None, text, raw).map_err(|f| f.message);
        assert_eq!(key("258", false), Ok(vec![2, 1, 0, 0]));
        assert_eq!(key("-1", false), Ok(vec![255; 4]));
        assert_eq!(key("4294967296", false), Err("`4294967296` is no key of map `m`: it does not fit 4 bytes".to_owned()));
        assert_eq!(key("0a0b0c0d", true), Ok(vec![10, 11, 12, 13]));
        assert_eq!(key("0a", true), Err("`0a` is no key of map `m`: it has 1 bytes, a key has 4".to_owned()));
        assert_eq!(key("0a0b0c0", true), Err("`0a0b0c0` is no key of map `m`: it is not hexadecimal".to_owned()));
        drop(std::fs::remove_dir_all(path));
        Ok(())
    }
}
