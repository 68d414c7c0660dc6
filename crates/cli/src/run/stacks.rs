//! The call stacks that programs recorded, out of their maps.
//!
//! A stack is in one of three places: under a number in a map of stacks, where keys of other maps
//! have that number (`bpf_get_stackid`); as an array of 64-bit addresses in a key
//! (`bpf_get_stack`); or as text in a key, addresses in hex with `;` between them, the outermost
//! first. The value is the weight.

use std::collections::HashMap;

use skep::isa::MapType;
use skep::object::btf::Value;
use skep_text::entries::{Entries, Entry};
use skep_text::key::Key;

use super::load::Loaded;
use crate::args::RunArgs;
use crate::failure::{Context, Result};
use crate::printer::Printer;
use crate::stacks::{Files, Stack, named};

/// Files that stacks are written to, created before the command starts.
pub struct Stacks {
    files: Files,
}

impl Stacks {
    /// Creates the files that were asked for; `None` if there is none.
    pub fn open(args: &RunArgs) -> Result<Option<Self>> {
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
        let def = m.map.def();
        let plain = matches!(
            def.map_type,
            MapType::Hash
                | MapType::LruHash
                | MapType::PercpuHash
                | MapType::LruPercpuHash
                | MapType::QpTrie
        );
        if !plain {
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
        Key::Bytes(text) => addresses_of_text(text)?,
        Key::Typed(value) => {
            let mut found = None;
            each_member(value, &mut |name, member| match member {
                Value::Array(words) if found.is_none() => {
                    let words: Option<Vec<u64>> = words.iter().map(unsigned).collect();
                    found = words
                        .filter(|w| w.len() > 1)
                        .map(|words| words.into_iter().take_while(|addr| *addr != 0).collect());
                }
                Value::Text(text) if root.is_none() => root = Some(text.clone()),
                Value::Uint(_) | Value::Int(_) if found.is_none() => {
                    let is_stack = name.is_empty() || name.contains("stack");
                    let number = integer(member).filter(|_| is_stack);
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

/// Calls `f` with the value, or with each member of a structure and its name.
fn each_member<'v>(value: &'v Value, f: &mut dyn FnMut(&str, &'v Value)) {
    match value {
        Value::Struct(members) => members.iter().for_each(|m| f(&m.name, &m.value)),
        value => f("", value),
    }
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
    let mut found = None;
    each_member(value, &mut |name, member| {
        if found.is_none() && asked.is_none_or(|asked| asked == name || name.is_empty()) {
            found = unsigned(member);
        }
    });
    found.unwrap_or(0)
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
}
