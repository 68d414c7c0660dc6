//! The call stacks that programs recorded, out of their maps.
//!
//! A stack is in one of three places: under a number in a map of stacks, where keys of other maps
//! have that number (`bpf_get_stackid`); as an array of 64-bit addresses in a key
//! (`bpf_get_stack`); or as text in a key, addresses in hex with `;` between them, the outermost
//! first. The value is the weight.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use skep::isa::MapType;
use skep::load::LoadedMap;
use skep::object::btf::Value;
use skep_text::entries::{Entries, Entry};
use skep_text::key::Key;

use super::load::Loaded;
use crate::args::RunArgs;
use crate::failure::{Context, Failure, Result};
use crate::printer::{Printer, check_apart};
use crate::stacks::{Files, Stack, named};

/// Files that stacks are written to, created before the command starts.
pub struct Stacks {
    files: Files,
}

impl Stacks {
    /// Creates the files that were asked for; `None` if there is none. Fails if no map has the weight.
    pub fn open(args: &RunArgs, loaded: &[Loaded]) -> Result<Option<Self>> {
        if let Some(weight) = &args.weight {
            if args.folded.is_none() && args.flame.is_none() && args.pprof.is_none() {
                let message =
                    "`--weight` says what call stacks are worth, and no file is written with any";
                return Err(
                    Failure::environment(message).hint("add `--folded`, `--flame` or `--pprof`")
                );
            }
            check_weight(weight, &weights(loaded))?;
        }
        let files = [
            ("--folded", args.folded.as_deref()),
            ("--flame", args.flame.as_deref()),
            ("--pprof", args.pprof.as_deref()),
        ];
        let objects: Vec<&Path> = args.objects.iter().map(PathBuf::as_path).collect();
        check_apart(args.report.output.as_deref(), &files, &objects)?;
        let files = Files::open(args.folded.as_ref(), args.flame.as_ref(), args.pprof.as_ref())?;
        Ok((!files.is_empty()).then_some(Self { files }))
    }

    /// Collects the stacks, names their frames and writes them.
    pub fn write(self, loaded: &[Loaded], args: &RunArgs, printer: Printer) -> Result {
        let mut stacks = Vec::new();
        for object in loaded {
            collect(object, args.weight.as_deref(), &mut stacks)?;
        }
        if stacks.is_empty() {
            printer.warning("there are no call stacks in the maps: the files are empty");
            printer.note("hint: `docs/symbolize.md` says which maps have stacks");
        }
        let mut mapped = Vec::new();
        for (.., link) in loaded.iter().flat_map(|l| &l.links) {
            mapped.extend(link.read()?.mapped);
        }
        self.files.write(&named(stacks, &mapped), printer)
    }
}

fn collect(loaded: &Loaded, weight: Option<&str>, out: &mut Vec<Stack>) -> Result {
    let by_number = numbered(loaded)?;
    let mut used = false;
    for m in &loaded.maps {
        let typed = Entries::new(&m.map, &m.name, loaded.object.btf.as_deref(), false);
        if !has_keys(m) {
            continue;
        }
        for entry in typed.iter() {
            let entry = entry.context("cannot read a map")?;
            if let Some(stack) = stack_of(&entry, &by_number, weight) {
                used = true;
                out.push(stack);
            }
        }
    }
    if !used {
        // Nobody counts them: each was there.
        out.extend(by_number.into_values().map(|addrs| Stack { addrs, root: None, weight: 1 }));
    }
    Ok(())
}

/// Tells whether keys of a map may stand for stacks.
fn has_keys(map: &LoadedMap) -> bool {
    matches!(
        map.map.def().map_type,
        MapType::Hash
            | MapType::LruHash
            | MapType::PercpuHash
            | MapType::LruPercpuHash
            | MapType::QpTrie
    )
}

/// What may be the weight in maps that may have stacks: names of members, empty for a value that is a
/// number itself.
fn weights(loaded: &[Loaded]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for object in loaded {
        let numbered = object.maps.iter().any(|m| m.map.def().map_type == MapType::StackTrace);
        for m in object.maps.iter().filter(|m| has_keys(m)) {
            let typed = Entries::new(&m.map, &m.name, object.object.btf.as_deref(), false);
            // Zeros show what members there are.
            let zeros = |size: u32| vec![0; size as usize];
            let (key, value) = (m.map.def().key_size, m.map.def().value_size);
            if may_be_stack(&typed.key(&zeros(key)), numbered) {
                names.extend(numbers(&typed.value(&zeros(value))).map(|(name, _)| name.to_owned()));
            }
        }
    }
    names
}

/// Tells whether keys like this one can stand for stacks; `numbered`: there is a map of stacks.
fn may_be_stack(key: &Key, numbered: bool) -> bool {
    let value = match key {
        Key::Typed(value) => value,
        Key::Bytes(_) => return true,
        Key::None => return false,
    };
    members(value).any(|(name, member)| match member {
        Value::Array(words) => words.len() > 1 && words.iter().all(|w| unsigned(w).is_some()),
        Value::Uint(_) | Value::Int(_) => numbered && names_stack(name),
        _ => false,
    })
}

/// Tells whether a number of this name may be that of a stack.
fn names_stack(name: &str) -> bool {
    name.is_empty() || name.contains("stack")
}

fn check_weight(asked: &str, names: &BTreeSet<String>) -> Result {
    if names.contains(asked) || names.contains("") {
        return Ok(());
    }
    let failure = Failure::environment(format!(
        "--weight: no map with call stacks has a number `{asked}` in its values"
    ));
    if names.is_empty() {
        return Err(failure);
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    Err(failure.hint(format!("there are {}", names.join(", "))))
}

/// The stacks in maps of stacks, by number.
fn numbered(loaded: &Loaded) -> Result<HashMap<u32, Vec<u64>>> {
    let mut all = HashMap::new();
    for m in loaded.maps.iter().filter(|m| m.map.def().map_type == MapType::StackTrace) {
        for element in &*m.map {
            let (key, value) = element.context("cannot read a map")?;
            let Some(number) = key.first_chunk::<4>() else { continue };
            all.insert(u32::from_le_bytes(*number), addresses(&value));
        }
    }
    Ok(all)
}

fn addresses(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    words.take_while(|addr| *addr != 0).collect()
}

/// The stack that an entry's key stands for.
fn stack_of(
    entry: &Entry,
    by_number: &HashMap<u32, Vec<u64>>,
    weight: Option<&str>,
) -> Option<Stack> {
    let mut root = None;
    let addrs = match &entry.key {
        Key::None => return None,
        Key::Bytes(text) => addresses_of_text(text)?,
        Key::Typed(value) => {
            let mut found = None;
            members(value).for_each(|(name, member)| match member {
                Value::Array(words) if found.is_none() => {
                    let words: Option<Vec<u64>> = words.iter().map(unsigned).collect();
                    found = words
                        .filter(|w| w.len() > 1)
                        .map(|words| words.into_iter().take_while(|addr| *addr != 0).collect());
                }
                Value::Text(text) if root.is_none() => root = Some(text.clone()),
                Value::Uint(_) | Value::Int(_) if found.is_none() => {
                    let number = integer(member).filter(|_| names_stack(name));
                    found = number.and_then(|n| by_number.get(&u32::try_from(n).ok()?)).cloned();
                }
                _ => {}
            });
            found?
        }
    };
    let weight = entry.values.iter().map(|value| weight_of(value, weight)).sum();
    (!addrs.is_empty()).then_some(Stack { addrs, root, weight })
}

/// The members of a structure with their names, or the value itself.
fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let (members, whole) = match value {
        Value::Struct(members) => (members.as_slice(), None),
        value => (&[][..], Some(("", value))),
    };
    members.iter().map(|m| (m.name.as_str(), &m.value)).chain(whole)
}

/// The numbers among them.
fn numbers(value: &Value) -> impl Iterator<Item = (&str, u64)> {
    members(value).filter_map(|(name, member)| Some((name, unsigned(member)?)))
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Int(n) => Some(*n),
        Value::Uint(n) => i128::try_from(*n).ok(),
        _ => None,
    }
}

fn unsigned(value: &Value) -> Option<u64> {
    match value {
        Value::Pointer(addr) => Some(*addr),
        value => integer(value).and_then(|n| u64::try_from(n).ok()),
    }
}

/// The number of a value that is asked for, else its first.
fn weight_of(value: &Value, asked: Option<&str>) -> u64 {
    let is_meant = |name: &str| asked.is_none_or(|asked| asked == name || name.is_empty());
    numbers(value).find(|(name, _)| is_meant(name)).map_or(0, |(_, number)| number)
}

/// Reads `AAA;BBB;CCC`, the outermost first.
fn addresses_of_text(text: &[u8]) -> Option<Vec<u64>> {
    let text = str::from_utf8(text).ok()?;
    let hex = |part: &str| (part.len() >= 8).then(|| u64::from_str_radix(part, 16).ok())?;
    text.rsplit(';').map(hex).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_stack_if_all_of_it_is_addresses() {
        assert_eq!(addresses_of_text(b"000000401196;000000401171"), Some(vec![0x401171, 0x401196]));
        for text in ["", "main;f", "000000401196;", "12;34"] {
            assert_eq!(addresses_of_text(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_weight_is_the_member_asked_for() {
        let member = |name: &str, n| skep::object::btf::ValueMember {
            name: name.to_owned(),
            value: Value::Uint(n),
        };
        let value = Value::Struct(vec![member("calls", 3), member("bytes", 90)]);
        assert_eq!(weight_of(&value, None), 3);
        assert_eq!(weight_of(&value, Some("bytes")), 90);
        assert_eq!(weight_of(&value, Some("none")), 0);
        assert_eq!(weight_of(&Value::Uint(7), Some("bytes")), 7);
    }

    /// A member that no map has was a weight of 0 for each stack.
    #[test]
    fn a_weight_that_no_map_has_is_refused() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert!(check_weight("bytes", &set(&["bytes", "calls"])).is_ok());
        assert!(check_weight("calls", &set(&[""])).is_ok());
        let refused = |names| {
            let failure = check_weight("byte", &set(names)).expect_err("it is not there");
            (failure.message, failure.hint)
        };
        let message = "--weight: no map with call stacks has a number `byte` in its values";
        let hint = Some("there are `bytes`, `calls`".to_owned());
        assert_eq!(refused(&["bytes", "calls"]), (message.to_owned(), hint));
        assert_eq!(refused(&[]), (message.to_owned(), None));
    }

    #[test]
    fn keys_that_may_be_stacks() {
        let key = |name: &str, value| {
            let name = name.to_owned();
            Key::Typed(Value::Struct(vec![skep::object::btf::ValueMember { name, value }]))
        };
        let words = Value::Array(vec![Value::Uint(0); 2]);
        assert!(may_be_stack(&Key::Bytes(vec![0]), false));
        assert!(may_be_stack(&key("ips", words), false));
        assert!(may_be_stack(&key("user_stack", Value::Int(0)), true));
        assert!(!may_be_stack(&key("user_stack", Value::Int(0)), false));
        assert!(!may_be_stack(&key("pid", Value::Int(0)), true));
    }
}
