//! `skep map`: maps as files, read while a target runs and after it is gone, and the running
//! kernel's.
//!
//! [`find`] knows where maps are, [`dump`] prints all of one, [`change`] has what writes and
//! [`create`] what makes; [`load`] puts in what was dumped. [`input`] reads what is typed.

mod change;
mod copy;
mod create;
mod destination;
mod dump;
mod filter;
pub mod find;
mod input;
mod load;
mod ordered;
mod pin;
mod show;

use serde_json::json;
use skep::isa::MapType;
use skep::maps::Access;
use skep_text::entries::Entries;
use skep_text::input::Role;
use skep_text::value::to_json;

use crate::args::{LookupArgs, MapArgs, MapCommand};
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};
use find::Source;

/// Does what was asked for.
pub fn run(command: &MapCommand, printer: Printer) -> Result<u8> {
    match command {
        MapCommand::List { kernel, format } => show::list(*kernel, format.json, printer)?,
        MapCommand::Show { map, format } => show::show(map, format.json, printer)?,
        MapCommand::Dump(args) => return dump::run(args, printer),
        MapCommand::Lookup(args) => lookup(args, printer)?,
        MapCommand::Update { map, key, value, noexist, exist, raw } => {
            change::update(map, key, value, change::flags(*noexist, *exist), *raw, printer)?;
        }
        MapCommand::Delete(args) => change::delete(args, printer)?,
        MapCommand::Push { map, value, exist, raw } => {
            change::push(map, value, change::flags(false, *exist), *raw, printer)?
        }
        MapCommand::Pop { map, raw, format } => change::pop(map, *raw, format.json, printer)?,
        MapCommand::Peek { map, raw, format } => peek(map, *raw, format.json, printer)?,
        MapCommand::Getnext { map, key, raw, format } => {
            next_key(map, key.as_deref(), *raw, format.json, printer)?
        }
        MapCommand::Load(args) => return load::load(args, printer),
        MapCommand::Copy(args) => return copy::copy(args, printer),
        MapCommand::Create(args) => create::create(args, printer)?,
        MapCommand::Pin { map, name } => pin::pin(map, name, printer)?,
        MapCommand::Unpin { name } => pin::unpin(name)?,
        MapCommand::Freeze { map } => change::freeze(map, printer)?,
    }
    Ok(0)
}

/// Says why there is nothing to print of a map that has no elements.
fn no_elements(name: &str, map_type: MapType) -> Failure {
    match map_type {
        MapType::BloomFilter => {
            Failure::failed(format!("map `{name}` is a bloom filter: it does not keep its values"))
        }
        MapType::Queue | MapType::Stack => {
            Failure::failed(format!("map `{name}` is a {map_type}: it has no keys"))
                .hint("`skep map peek` prints its next value")
        }
        MapType::UserRingbuf => Failure::failed(format!(
            "map `{name}` is a stream of records to programs: it has no keys"
        )),
        _ => Failure::failed(format!("map `{name}` is a stream of records: it has no keys"))
            .hint("`skep run` prints its records"),
    }
}

/// Prints the next value of a queue or a stack, which stays there.
fn peek(args: &MapArgs, raw: bool, as_json: bool, printer: Printer) -> Result {
    let source = Source::find(args, Access::ReadOnly, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), raw);
    let map_type = entries.shape().map_type;
    if !matches!(map_type, MapType::Queue | MapType::Stack) {
        return Err(Failure::failed(format!(
            "map `{}` is a {map_type}: only queues and stacks have `peek`",
            args.map
        )));
    }
    let value = source
        .lookup(&[])?
        .ok_or_else(|| Failure::failed(format!("map `{}` is empty", args.map)))?;
    let value = entries.value(&value);
    if as_json {
        return printer
            .json(Output::Stdout, &json!({"map": entries.map_json(), "value": to_json(&value)}));
    }
    printer.data(Output::Stdout, |out| writeln!(out, "{value}"))
}

/// Prints the key after another one, or the first one.
fn next_key(
    args: &MapArgs,
    key: Option<&str>,
    raw: bool,
    as_json: bool,
    printer: Printer,
) -> Result {
    let source = Source::find(args, Access::ReadOnly, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), raw);
    if !entries.has_elements() || entries.shape().keys.max_len() == 0 {
        return Err(no_elements(&args.map, entries.shape().map_type));
    }
    let after = key
        .map(|key| input::bytes(entries.shape(), entries.btf(), Role::Key, key, raw))
        .transpose()?;
    let next = source.next_key(after.as_deref())?;
    let next = next.ok_or_else(|| match key {
        Some(key) => Failure::failed(format!("map `{}` has no key after `{key}`", args.map)),
        None => Failure::failed(format!("map `{}` is empty", args.map)),
    })?;
    let next = entries.key(&next);
    if as_json {
        return printer
            .json(Output::Stdout, &json!({"map": entries.map_json(), "next_key": next.json()}));
    }
    printer.data(Output::Stdout, |out| writeln!(out, "{next}"))
}

fn lookup(args: &LookupArgs, printer: Printer) -> Result {
    let (name, key) = (&args.map.map, &args.key);
    let source = Source::find(&args.map, Access::ReadOnly, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), args.raw);
    if !entries.has_elements() || entries.shape().keys.max_len() == 0 {
        return Err(no_elements(name, entries.shape().map_type));
    }
    let (key, value) = match ordered::nearest(args) {
        Some(which) => ordered::lookup(&source, &entries, args, which)?,
        None => {
            let key = input::bytes(entries.shape(), entries.btf(), Role::Key, key, args.raw)?;
            let value = source.lookup(&key)?;
            (
                key,
                value.ok_or_else(|| {
                    Failure::failed(format!("map `{name}` has no key `{}`", args.key))
                })?,
            )
        }
    };
    let entry = entries.entry(&key, &value);
    if args.format.json {
        printer.json(
            Output::Stdout,
            &json!({"map": entries.map_json(), "entry": entry.json_of(&entries)}),
        )
    } else {
        printer.data(Output::Stdout, |out| writeln!(out, "{}", entry.text()))
    }
}
