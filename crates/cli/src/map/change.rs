//! The commands that change what is in a map.

use serde_json::json;
use skep::isa::MapType;
use skep::isa::map::update;
use skep::maps::{Access, Map, MapError};
use skep::object::Btf;
use skep_text::entries::{Entries, Shape};
use skep_text::input::Role;
use skep_text::value::to_json;

use super::find::{Source, find};
use super::input;
use super::ordered;
use crate::args::{DeleteArgs, MapArgs};
use crate::directory;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};
use crate::units;

/// A map to change, and how its elements look.
struct Target {
    map: Map,
    btf: Option<Btf>,
}

impl Target {
    fn open(text: &str, printer: Printer) -> Result<Self> {
        let dir = directory::open()?;
        let map = find(&dir, text, Access::ReadWrite, printer)?;
        let btf = match map.def().btf_id {
            0 => None,
            id => skep::btf::open(&dir, id),
        };
        Ok(Self { map, btf })
    }

    fn key(&self, text: &str, raw: bool) -> Result<Vec<u8>> {
        input::bytes(&Shape::from(&self.map), self.btf.as_ref(), Role::Key, text, raw)
    }

    fn value(&self, text: &str, raw: bool) -> Result<Vec<u8>> {
        let shape = Shape::from(&self.map);
        let cpus = self.map.user_value_size() / shape.value_size.next_multiple_of(8).max(1);
        input::value(&shape, self.btf.as_ref(), text, raw, cpus)
    }
}

fn failed(what: String, error: &MapError) -> Failure {
    Failure::failed(what).because(error)
}

/// Stores a value.
pub fn update(
    text: &str,
    key: &str,
    value: &str,
    flags: u64,
    raw: bool,
    printer: Printer,
) -> Result {
    let target = Target::open(text, printer)?;
    let (key_bytes, value_bytes) = (target.key(key, raw)?, target.value(value, raw)?);
    target.map.update(&key_bytes, &value_bytes, flags).map_err(|e| match e {
        MapError::Exists => Failure::failed(format!("map `{text}` already has a key `{key}`")),
        MapError::NoElement => Failure::failed(format!("map `{text}` has no key `{key}`")),
        e => failed(format!("cannot store `{key}` in map `{text}`"), &e),
    })
}

/// Removes a key, or a range of keys.
pub fn delete(args: &DeleteArgs, printer: Printer) -> Result {
    let name = &args.map;
    let Some(key) = &args.key else { return delete_range(args, printer) };
    let target = Target::open(name, printer)?;
    target.map.delete(&target.key(key, args.raw)?).map_err(|e| match e {
        MapError::NoElement => Failure::failed(format!("map `{name}` has no key `{key}`")),
        e => failed(format!("cannot remove `{key}` from map `{name}`"), &e),
    })
}

fn delete_range(args: &DeleteArgs, printer: Printer) -> Result {
    let name = &args.map;
    let which = MapArgs { map: name.clone(), kernel: false };
    let source = Source::find(&which, Access::ReadWrite, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), args.raw);
    let range = ordered::range(&source, name, &entries, &args.range, args.raw)?;
    let (Source::Ours(map, _), Some(range)) = (&source, range) else {
        return Err(Failure::environment(format!("there is nothing to remove from map `{name}`")));
    };
    match map.delete_range(&range) {
        Ok(0) => Err(Failure::failed(format!("map `{name}` has no such keys"))),
        Ok(n) => {
            printer.note(&format!("removed {}", units::entries(n)));
            Ok(())
        }
        Err(e) => Err(failed(format!("cannot remove keys from map `{name}`"), &e)),
    }
}

/// Puts a value into a queue or a stack.
pub fn push(text: &str, value: &str, flags: u64, raw: bool, printer: Printer) -> Result {
    let target = Target::open(text, printer)?;
    queue_only(&target.map, text, "push")?;
    target
        .map
        .update(&[], &target.value(value, raw)?, flags)
        .map_err(|e| failed(format!("cannot push to map `{text}`"), &e))
}

/// Takes the next value out of a queue or a stack.
pub fn pop(text: &str, raw: bool, as_json: bool, printer: Printer) -> Result {
    let target = Target::open(text, printer)?;
    queue_only(&target.map, text, "pop")?;
    let mut value = vec![0; target.map.user_value_size()];
    target.map.lookup_and_delete(&[], &mut value, 0).map_err(|e| match e {
        MapError::NoElement => Failure::failed(format!("map `{text}` is empty")),
        e => failed(format!("cannot pop from map `{text}`"), &e),
    })?;
    let entries = Entries::of(Shape::from(&target.map), target.btf.as_ref(), raw);
    let value = entries.value(&value);
    if as_json {
        return printer
            .json(Output::Stdout, &json!({"map": entries.map_json(), "value": to_json(&value)}));
    }
    printer.data(Output::Stdout, |out| writeln!(out, "{value}"))
}

fn queue_only(map: &Map, text: &str, what: &str) -> Result {
    match map.def().map_type {
        MapType::Queue | MapType::Stack => Ok(()),
        MapType::BloomFilter if what == "push" => Ok(()),
        other => Err(Failure::failed(format!(
            "map `{text}` is a {other}: only queues and stacks have `{what}`"
        ))),
    }
}

/// Forbids users to write.
pub fn freeze(text: &str, printer: Printer) -> Result {
    let target = Target::open(text, printer)?;
    target.map.freeze().map_err(|e| failed(format!("cannot freeze map `{text}`"), &e))
}

/// The flags of an update.
pub fn flags(noexist: bool, exist: bool) -> u64 {
    match (noexist, exist) {
        (true, _) => update::NOEXIST,
        (_, true) => update::EXIST,
        _ => update::ANY,
    }
}
