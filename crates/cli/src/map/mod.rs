//! `skep map`: maps as files, read while a target runs and after it is gone, and the running kernel's.
//!
//! [`find`] knows where maps are, [`dump`] prints all of one, [`change`] has what writes and [`create`] what makes, [`input`] reads what is typed.

mod change;
mod create;
mod csv;
mod dump;
mod filter;
mod find;
mod input;
mod layout;
mod show;

use serde_json::json;
use skep::maps::Access;

use crate::args::{MapArgs, MapCommand};
use crate::entries::Entries;
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};
use find::Source;
use input::Role;

/// Does what was asked for.
pub fn run(command: &MapCommand, printer: Printer) -> Result<u8> {
    match command {
        MapCommand::List { kernel, format } => show::list(*kernel, format.json, printer)?,
        MapCommand::Show { map, format } => show::show(map, format.json, printer)?,
        MapCommand::Dump(args) => return dump::run(args, printer),
        MapCommand::Lookup { map, key, raw, format } => lookup(map, key, *raw, format.json, printer)?,
        MapCommand::Update { map, key, value, noexist, exist, raw } => {
            change::update(map, key, value, change::flags(*noexist, *exist), *raw, printer)?;
        }
        MapCommand::Delete { map, key, raw } => change::delete(map, key, *raw, printer)?,
        MapCommand::Push { map, value, exist, raw } => change::push(map, value, change::flags(false, *exist), *raw, printer)?,
        MapCommand::Pop { map, raw, format } => change::pop(map, *raw, format.json, printer)?,
        MapCommand::Create(args) => create::create(args, printer)?,
        MapCommand::Pin { map, name } => change::pin(map, name, printer)?,
        MapCommand::Unpin { name } => change::unpin(name)?,
        MapCommand::Freeze { map } => change::freeze(map, printer)?,
    }
    Ok(0)
}

fn no_elements(name: &str) -> Failure {
    Failure::failed(format!("map `{name}` is a stream of records: it has no keys")).hint("`skep run` prints what comes out of it")
}

fn lookup(args: &MapArgs, key: &str, raw: bool, as_json: bool, printer: Printer) -> Result {
    let source = Source::find(args, Access::ReadOnly, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), raw);
    if !entries.has_elements() {
        return Err(no_elements(&args.map));
    }
    let bytes = input::bytes(entries.shape(), entries.btf(), Role::Key, key, raw)?;
    let value = source.lookup(&bytes)?.ok_or_else(|| Failure::failed(format!("map `{}` has no key `{key}`", args.map)))?;
    let entry = entries.entry(&bytes, &value);
    if as_json {
        printer.json(Output::Stdout, &json!({"map": entries.map_json(), "entry": entry.json_of(&entries)}))
    } else {
        printer.data(Output::Stdout, |out| writeln!(out, "{}", entry.text()))
    }
}
