//! `skep map create`: a map by hand, with types out of a file or all of it as an object defines it.

use std::path::Path;

use serde_json::json;
use skep::Dir;
use skep::dir::Kind;
use skep::isa::map::DynptrUser;
use skep::isa::{KeyShape, MapFlags, MapType};
use skep::maps::{Access, Map, MapDef, MapError};
use skep::object::btf::{Kind as BtfKind, TypeId};
use skep::object::{Btf, MapSpec};
use skep::verifier::fields;
use skep_text::value::bytes;

use super::find::{Source, pin_path};
use super::pin::{already, link};
use super::show::FLAGS;
use crate::args::{CreateArgs, MapArgs};
use crate::failure::{self, Failure, Result};
use crate::printer::{Output, Printer};
use crate::{directory, objects};

/// Names offered in place of an unknown one.
const OFFERED: usize = 3;

/// Makes a map and pins it.
pub fn create(args: &CreateArgs, printer: Printer) -> Result {
    let (mut def, btf) = match (&args.from, &args.type_of) {
        (Some(from), _) => from_object(from)?,
        (None, Some(other)) => of_map(other, printer)?,
        (None, None) => by_hand(args)?,
    };
    if let Some(entries) = args.entries {
        def.max_entries = entries;
    }
    let dir = directory::create()?;
    let pin = pin_path(&dir, &args.name)?;
    if pin.exists() {
        return Err(already(&pin, &args.name));
    }
    let map = make(&dir, args, def, btf.as_ref())?;
    link(&dir, map.file().path(), &pin, &args.name)?;
    if args.format.json {
        return printer.json(
            Output::Stdout,
            &json!({"id": map.id(), "name": args.name, "pin": pin.to_string_lossy()}),
        );
    }
    printer.data(Output::Stdout, |out| writeln!(out, "{}", map.id()))
}

fn make(dir: &Dir, args: &CreateArgs, def: MapDef, btf: Option<&Btf>) -> Result<Map> {
    // Kept until there is the map, which refers to it.
    let stored = btf
        .map(|btf| skep::btf::store(dir, btf))
        .transpose()
        .map_err(|e| Failure::environment("cannot store the map's types").because(&e))?;
    let mut def = def.named(&args.name);
    def.btf_id = stored.as_ref().map_or(0, skep::btf::Stored::id);
    let id = dir.next_id(Kind::Map)?;
    Map::create(&dir.kind(Kind::Map), id, &def).map_err(|e| {
        let status =
            if matches!(e, MapError::Object(_)) { failure::ENVIRONMENT } else { failure::FAILED };
        if def.btf_id != 0 {
            drop(std::fs::remove_file(dir.object(Kind::Btf, def.btf_id)));
        }
        let refused = Failure {
            status,
            ..Failure::failed(format!("cannot create map `{}`", args.name)).because(&e)
        };
        what_lacks(args, &def).into_iter().fold(refused, Failure::hint)
    })
}

/// The definition by options, and the types it names.
fn by_hand(args: &CreateArgs) -> Result<(MapDef, Option<Btf>)> {
    let unknown = |what: &str, name: &str, all: Vec<&str>| {
        let hint = offer(name, all.iter().copied())
            .unwrap_or_else(|| format!("known are {}", all.join(", ")));
        Failure::environment(format!("there is no {what} `{name}`")).hint(hint)
    };
    let name = args.map_type.as_deref().unwrap_or_default();
    let map_type = MapType::from_name(name).ok_or_else(|| {
        unknown("map type", name, skep::maps::map_types().iter().map(|t| t.name()).collect())
    })?;
    let mut flags = 0;
    for name in &args.flags {
        let known = FLAGS.iter().find(|(_, n)| n == name).map(|(bit, _)| *bit);
        let number = || {
            name.strip_prefix("0x")
                .map_or_else(|| name.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
        };
        flags |= known
            .or_else(number)
            .ok_or_else(|| unknown("flag", name, FLAGS.iter().map(|(_, n)| *n).collect()))?;
    }
    let mut def = MapDef::new(
        map_type,
        args.key.unwrap_or(0),
        args.value.unwrap_or(0),
        args.entries.unwrap_or(0),
    )
    .flags(flags);
    if map_type == MapType::QpTrie {
        if args.key_type.as_deref().is_some_and(|name| bare(name).1 == "bpf_dynptr") {
            return Err(Failure::environment(
                "`struct bpf_dynptr` is not the type of the keys, which are byte strings",
            )
            .hint("omit `--key-type`; `--key` is the size of the longest key"));
        }
        def.flags.0 |= MapFlags::NO_PREALLOC;
        // A type of keys says their size.
        if !args.fixed_keys && args.key_type.is_none() {
            byte_strings(&mut def, args.key)?;
        }
    } else if args.fixed_keys {
        return Err(Failure::environment(format!(
            "`--fixed-keys` is for a qp_trie, not a {map_type}"
        ))
        .hint("keys of other types have the size of `--key`"));
    }
    sizes_given(args, map_type)?;
    let Some(file) = &args.btf else { return Ok((def, None)) };
    let all = objects::types(file)?;
    let all = all.btf();
    let typed = |name: &Option<String>, size: Option<u32>, option: &str| match name {
        Some(name) => find(all, file, name, size, option).map(Some),
        None => Ok(None),
    };
    let key = typed(&args.key_type, args.key, "--key")?;
    let value = typed(&args.value_type, args.value, "--value")?;
    if let Some((id, size)) = value {
        def.value_size = size;
        let locks = fields::find(all, id)
            .into_iter()
            .filter(|f| f.kind == fields::FieldKind::SpinLock)
            .map(|f| f.off);
        def.spin_lock = locks.min();
    }
    if let Some((_, size)) = key {
        def.key_size = size;
    }
    let roots: Vec<TypeId> = [key, value].into_iter().flatten().map(|(id, _)| id).collect();
    let bad = |e| {
        Failure::environment(format!("the types in `{}` cannot be used", file.display()))
            .because(&e)
    };
    let (few, ids) = all.subset(&roots).map_err(bad)?;
    let mut ids = ids.into_iter();
    def.key_type_id = key.and_then(|_| ids.next()).unwrap_or(0);
    def.value_type_id = value.and_then(|_| ids.next()).unwrap_or(0);
    Ok((def, Some(few)))
}

/// Refuses a definition that leaves out a size which the type needs.
fn sizes_given(args: &CreateArgs, map_type: MapType) -> Result {
    let (keys, values) = match map_type {
        MapType::Ringbuf | MapType::UserRingbuf => return Ok(()),
        other if !skep::maps::map_types().contains(&other) => return Ok(()),
        MapType::Queue | MapType::Stack | MapType::BloomFilter => (false, true),
        _ => (true, true),
    };
    let missing = if keys && args.key.is_none() && args.key_type.is_none() {
        "key"
    } else if values && args.value.is_none() && args.value_type.is_none() {
        "value"
    } else {
        return Ok(());
    };
    Err(Failure::environment(format!("a map of type {map_type} needs `--{missing}`"))
        .hint(format!("`--{missing}` is the size of a {missing} in bytes")))
}

/// What is to be added to a definition that was refused.
fn what_lacks(args: &CreateArgs, def: &MapDef) -> Option<&'static str> {
    match def.map_type {
        MapType::LpmTrie if def.flags.0 & MapFlags::NO_PREALLOC == 0 => {
            Some("add `--flags no_prealloc`")
        }
        MapType::ArrayOfMaps | MapType::HashOfMaps if args.from.is_none() => {
            Some("`--from OBJECT:MAP` takes the definition of an object file, with its inner map")
        }
        _ => None,
    }
}

/// Gives a map byte strings of up to `longest` bytes as keys.
fn byte_strings(def: &mut MapDef, longest: Option<u32>) -> Result {
    match longest {
        Some(longest @ 1..=KeyShape::LONGEST) => {
            (def.key_size, def.map_extra) = (DynptrUser::SIZE, longest.into());
            Ok(())
        }
        None => Err(Failure::environment("a qp_trie needs `--key`")
            .hint("`--key` is the size of the longest key, or with `--fixed-keys` of every key")),
        Some(other) => Err(Failure::environment(format!(
            "`--key {other}`: the longest key of a qp_trie can have 1 to {} bytes",
            KeyShape::LONGEST
        ))),
    }
}

/// Takes `struct`, `union` or `enum` off the name of a type: that word, and the rest.
fn bare(name: &str) -> (&str, &str) {
    match name.split_once(' ') {
        Some((word @ ("struct" | "union" | "enum"), rest)) => (word, rest.trim()),
        _ => ("", name.trim()),
    }
}

/// Finds a type by name, with or without `struct`, `union` or `enum`: id and size.
fn find(
    btf: &Btf,
    file: &Path,
    name: &str,
    size: Option<u32>,
    option: &str,
) -> Result<(TypeId, u32)> {
    let (word, bare) = bare(name);
    let fits = |kind: &BtfKind| match kind {
        BtfKind::Struct(_) => matches!(word, "" | "struct"),
        BtfKind::Union(_) => matches!(word, "" | "union"),
        BtfKind::Enum(_) | BtfKind::Enum64(_) => matches!(word, "" | "enum"),
        BtfKind::Int(_) | BtfKind::Float(_) | BtfKind::Typedef(_) => word.is_empty(),
        _ => false,
    };
    let Some(id) = btf.find(bare, fits) else {
        let failure =
            Failure::environment(format!("there is no type `{name}` in `{}`", file.display()));
        let names = btf.types().filter(|(_, t)| fits(&t.kind)).map(|(id, _)| btf.name(id));
        return Err(match offer(bare, names) {
            Some(offer) => failure.hint(offer),
            None => failure,
        });
    };
    let no_size = |e| {
        Failure::environment(format!("`{name}` cannot be the type of a key or value")).because(&e)
    };
    let is = btf.size_of(id).map_err(no_size)?;
    let is = u32::try_from(is)
        .map_err(|_| Failure::environment(format!("`{name}` is too large: {is} bytes")))?;
    match size {
        Some(size) if size != is => {
            let message =
                format!("`{name}` has {}, but `{option}` says {size}", bytes(is as usize));
            Err(Failure::environment(message)
                .hint(format!("omit `{option}`: the type determines the size")))
        }
        _ => Ok((id, is)),
    }
}

/// A map as an object defines it: `OBJECT`, or `OBJECT:MAP` where there are several.
fn from_object(from: &str) -> Result<(MapDef, Option<Btf>)> {
    let (path, map) = match from.rsplit_once(':') {
        Some((path, map)) if !Path::new(from).exists() => (path, Some(map)),
        _ => (from, None),
    };
    let object = objects::parse(Path::new(path))?;
    let defined: Vec<&MapSpec> = object.maps.iter().filter(|m| !m.is_global_data()).collect();
    let names = || defined.iter().map(|m| m.name.as_str());
    let spec = match map {
        Some(name) => defined.iter().find(|m| m.name == name).ok_or_else(|| {
            let failure = Failure::environment(format!("`{path}` defines no map `{name}`"));
            match offer(name, names()) {
                Some(offer) => failure.hint(offer),
                None => failure,
            }
        })?,
        None => match defined.as_slice() {
            [one] => one,
            [] => return Err(Failure::environment(format!("`{path}` defines no maps"))),
            _ => {
                let all: Vec<&str> = names().collect();
                let failure = Failure::environment(format!(
                    "`{path}` defines several maps: {}",
                    all.join(", ")
                ));
                return Err(failure.hint(format!(
                    "choose one, as in `--from {path}:{}`",
                    all.first().unwrap_or(&"")
                )));
            }
        },
    };
    skep::load::check_key_type(spec, object.btf.as_deref()).map_err(|e| {
        Failure::environment(format!("cannot create a map as `{}` in `{path}`", spec.name))
            .because(&e)
    })?;
    let btf = object.btf.as_deref().filter(|_| spec.key_type_id != 0 || spec.value_type_id != 0);
    Ok((skep::load::definition(spec, object.btf.as_deref(), 0), btf.cloned()))
}

/// The definition and the types of a map that is there.
fn of_map(other: &str, printer: Printer) -> Result<(MapDef, Option<Btf>)> {
    let args = MapArgs { map: other.to_owned(), kernel: false };
    let source = Source::find(&args, Access::ReadOnly, printer)?;
    let Source::Ours(map, _) = &source else {
        return Err(Failure::environment(format!("`{other}` is a map of the kernel"))
            .hint("`--type-of` names a map of skep's"));
    };
    let def = map.def().clone();
    match source.btf() {
        None if def.btf_id != 0 => {
            Err(Failure::environment(format!("the types of map `{other}` cannot be read")))
        }
        btf => Ok((def, btf)),
    }
}

/// Says which names may have been meant.
fn offer<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let limit = 1 + name.len() / 4;
    let mut near: Vec<(usize, &str)> = names
        .filter(|n| !n.is_empty())
        .filter_map(|n| Some((distance(name, n, limit)?, n)))
        .collect();
    near.sort_unstable();
    near.dedup();
    let near: Vec<String> = near.iter().take(OFFERED).map(|(_, n)| format!("`{n}`")).collect();
    if near.is_empty() { None } else { Some(format!("did you mean {}?", near.join(" or "))) }
}

/// Tells how far a name is from another one; `None` beyond a limit. Upper and lower case are the
/// same; a name that begins or ends with the other one, as `flow_key` does with `flow`, is no
/// farther than the limit.
fn distance(name: &str, from: &str, limit: usize) -> Option<usize> {
    let (name, from) = (name.to_ascii_lowercase(), from.to_ascii_lowercase());
    let holds = name.len() > 2 && (from.starts_with(&name) || from.ends_with(&name));
    Some(strsim::levenshtein(&name, &from)).filter(|d| *d <= limit).or(holds.then_some(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_near_are_offered() {
        for (name, want) in [
            ("strct", Some("did you mean `struct`?")),
            ("flow", Some("did you mean `flow_key`?")),
            ("zzz", None),
            ("Int", Some("did you mean `int`?")),
        ] {
            assert_eq!(
                offer(name, ["int", "struct", "", "flow_key", "int"].into_iter()).as_deref(),
                want,
                "{name}"
            );
        }
        for (a, b, want) in [
            ("kitten", "sitting", Some(3)),
            ("", "abc", Some(3)),
            ("abc", "ABC", Some(0)),
            ("kitten", "mittens on", None),
        ] {
            assert_eq!((distance(a, b, 3), distance(b, a, 3)), (want, want), "{a} {b}");
        }
    }
}
