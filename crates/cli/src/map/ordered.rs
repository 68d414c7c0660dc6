//! What only maps in the order of their keys have: ranges, and lookups beside a key.

use std::ops::Bound;

use skep::isa::KeyShape;
use skep::maps::{KeyRange, Map, MapError, Nearest};
use skep_text::entries::Entries;
use skep_text::input::{BYTE_STRINGS, Role, byte_string};

use super::find::Source;
use super::input;
use crate::args::{LookupArgs, RangeArgs};
use crate::failure::{Failure, Result};

/// Which element beside a key is asked for, if any.
pub fn nearest(args: &LookupArgs) -> Option<Nearest> {
    match (args.floor, args.ceiling, args.longest) {
        (true, ..) => Some(Nearest::Floor),
        (_, true, _) => Some(Nearest::Ceiling),
        (.., true) => Some(Nearest::LongestPrefix),
        _ => None,
    }
}

/// Finds the element beside a key.
pub fn lookup(
    source: &Source,
    entries: &Entries<'_>,
    args: &LookupArgs,
    which: Nearest,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let (option, what) = match which {
        Nearest::Floor => ("--floor", "no key at or before"),
        Nearest::Ceiling => ("--ceiling", "no key at or behind"),
        Nearest::LongestPrefix => ("--longest", "no key that begins"),
    };
    let name = &args.map.map;
    let map = ordered(source, name, option)?;
    let key = bound(entries, &args.key, args.raw)?;
    map.lookup_nearest(&key, which).map_err(|e| match e {
        MapError::NoElement => Failure::failed(format!("map `{name}` has {what} `{}`", args.key)),
        e => Failure::failed(format!("cannot look into map `{name}`")).because(&e),
    })
}

/// Makes the range that was asked for; `None` for all keys.
pub fn range(
    source: &Source,
    name: &str,
    entries: &Entries<'_>,
    args: &RangeArgs,
    raw: bool,
) -> Result<Option<KeyRange>> {
    let option = match args {
        RangeArgs { prefix: Some(_), .. } => "--prefix",
        RangeArgs { from: Some(_), .. } => "--from",
        RangeArgs { to: Some(_), .. } => "--to",
        _ => return Ok(None),
    };
    ordered(source, name, option)?;
    if let Some(text) = &args.prefix {
        let prefix = prefix(entries, text, raw)?;
        return Ok(Some(KeyRange::prefix(&prefix)));
    }
    let end = |text: &Option<String>| {
        let text = text.as_ref();
        text.map(|text| bound(entries, text, raw)).transpose()
    };
    let (from, to) = (end(&args.from)?, end(&args.to)?);
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        let text = |end: &Option<String>| end.clone().unwrap_or_default();
        return Err(Failure::environment(format!(
            "no key is between `{}` and `{}`",
            text(&args.from),
            text(&args.to)
        ))
        .hint("keys are in the order of their bytes; `--from` takes the one that comes first"));
    }
    let included = |end: &'_ Option<Vec<u8>>| match end {
        Some(key) => Bound::Included(key.clone()),
        None => Bound::Unbounded,
    };
    let (from, to) = (included(&from), included(&to));
    Ok(Some(KeyRange::new(from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice))))
}

/// Refuses maps without an order of keys.
pub fn ordered<'a>(source: &'a Source, name: &str, option: &str) -> Result<&'a Map> {
    let map_type = match source {
        Source::Ours(map, _) if map.is_ordered() => return Ok(map),
        Source::Ours(map, _) => map.def().map_type.name().to_owned(),
        Source::Kernel(_) => "map of the kernel".to_owned(),
    };
    Err(Failure::environment(format!(
        "`{option}` needs keys in an order, and map `{name}` is a {map_type}"
    ))
    .hint("only maps of type qp_trie are in the order of their keys"))
}

/// Reads a key that need not be in the map: byte strings may have any length.
fn bound(entries: &Entries<'_>, text: &str, raw: bool) -> Result<Vec<u8>> {
    match entries.shape().keys {
        KeyShape::Fixed(_) => input::bytes(entries.shape(), entries.btf(), Role::Key, text, raw),
        KeyShape::Bytes { .. } => {
            let key = byte_string(text, raw);
            key.and_then(|key| if key.is_empty() { Err("it is empty".to_owned()) } else { Ok(key) })
                .map_err(|why| not_a("key", text, entries, &why))
        }
    }
}

/// Reads the beginning of keys; of fixed ones, in hex.
fn prefix(entries: &Entries<'_>, text: &str, raw: bool) -> Result<Vec<u8>> {
    let shape = entries.shape();
    let fixed = matches!(shape.keys, KeyShape::Fixed(_));
    let prefix = byte_string(text, raw || fixed);
    prefix
        .and_then(|prefix| match prefix.len() {
            0 => Err("it is empty".to_owned()),
            n if n > shape.keys.max_len() => {
                Err(format!("it has {n} bytes, but a key has at most {}", shape.keys.max_len()))
            }
            _ => Ok(prefix),
        })
        .map_err(|why| not_a("beginning of a key", text, entries, &why))
}

fn not_a(what: &str, text: &str, entries: &Entries<'_>, why: &str) -> Failure {
    let shape = entries.shape();
    let failure =
        Failure::environment(format!("`{text}` is not a {what} of map `{}`: {why}", shape.name));
    match shape.keys {
        KeyShape::Bytes { .. } => failure.hint(BYTE_STRINGS),
        KeyShape::Fixed(_) => failure.hint("the first bytes of keys are given in hex"),
    }
}
