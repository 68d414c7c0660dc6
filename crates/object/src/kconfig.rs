//! Configuration values: `extern … __kconfig` variables, which the loader fills in before a program
//! is verified.
//!
//! They live in one read-only map, laid out as libbpf does. What the values are is not for this
//! crate to find out: [`Object::set_kconfig`] asks its caller, in the words of a kernel
//! configuration file.

use crate::btf::{Kind, MAX_DEPTH, SecVar, TypeId};
use crate::elf::{Elf, Place};
use crate::map::Maps;
use crate::{Btf, MapSpec, Object, ObjectError};
use skep_isa::{MapFlags, MapType};
use std::collections::HashMap;

pub(crate) const SECTION: &str = ".kconfig";
/// Largest value an author may ask for: the longest string.
const MAX_SIZE: u64 = 4096;

/// One configuration value an object asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KconfigVar {
    /// The name: `CONFIG_HZ`, `LINUX_KERNEL_VERSION`.
    pub name: String,
    /// A missing value means 0, not an error.
    pub weak: bool,
    /// What the variable takes.
    pub kind: KconfigKind,
    /// Where it lies in the map's value.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
    /// A value was given.
    pub set: bool,
    /// It was given by hand: what the machine says does not count.
    pub fixed: bool,
}

impl KconfigVar {
    /// Marks the value as given by hand.
    pub(crate) fn fix(&mut self) {
        (self.set, self.fixed) = (true, true);
    }
}

/// Tells what a configuration variable takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KconfigKind {
    /// `bool`: `y` or `n`, `1` or `0`.
    Bool,
    /// `enum libbpf_tristate`: `y`, `n` or `m`.
    Tristate,
    /// `char`: `y`, `n`, `m` or a number.
    Char {
        /// It has a sign.
        signed: bool,
    },
    /// A number.
    Int {
        /// It has a sign.
        signed: bool,
    },
    /// An array of characters: a text in quotes.
    Text,
}

impl Object {
    /// Fills in the configuration values; `lookup` gives each as a configuration file has it: `y`,
    /// `250`, `"text"`.
    ///
    /// Values given by [`set_global`](Self::set_global) stay.
    ///
    /// A program that uses a variable without a value is refused when it is linked, unless the
    /// variable is weak.
    ///
    /// # Errors
    /// When a value does not fit its variable.
    pub fn set_kconfig(
        &mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<(), ObjectError> {
        let Some(map) = self.maps.iter_mut().find(|m| m.section == SECTION && m.is_global_data())
        else {
            return Ok(());
        };
        let Some(data) = &mut map.data else { return Ok(()) };
        for var in self.kconfig.iter_mut().filter(|v| !v.fixed) {
            let Some(text) = lookup(&var.name) else { continue };
            let bytes = encode(var, text.trim());
            let bytes = bytes.ok_or_else(|| ObjectError::Kconfig {
                name: var.name.clone(),
                value: text.clone(),
                kind: var.kind,
            })?;
            put(data, var, bytes);
            var.set = true;
        }
        Ok(())
    }

    /// Gives one value by hand, in the words of a configuration file; false when it is not in such
    /// words.
    pub(crate) fn fix_kconfig(&mut self, name: &str, text: &str) -> bool {
        let map = self.maps.iter_mut().find(|m| m.section == SECTION && m.is_global_data());
        let (Some(data), Some(var)) =
            (map.and_then(|m| m.data.as_mut()), self.kconfig.iter_mut().find(|v| v.name == name))
        else {
            return false;
        };
        let Some(bytes) = encode(var, text.trim()) else { return false };
        put(data, var, bytes);
        var.fix();
        true
    }
}

fn put(data: &mut [u8], var: &KconfigVar, bytes: Vec<u8>) {
    let place = data.iter_mut().skip(var.offset as usize).take(var.size as usize);
    place.zip(bytes.into_iter().chain(std::iter::repeat(0))).for_each(|(to, from)| *to = from);
}

/// Turns a value into bytes, when it fits; text that is too long is cut, as libbpf does.
fn encode(var: &KconfigVar, text: &str) -> Option<Vec<u8>> {
    let size = var.size as usize;
    Some(match (var.kind, text) {
        (KconfigKind::Bool, "y" | "n") => vec![u8::from(text == "y")],
        // What a kernel can do (`LINUX_HAS_…`) is said in numbers.
        (KconfigKind::Bool, "0" | "1") => vec![u8::from(text == "1")],
        (KconfigKind::Tristate, "n") => 0u32.to_le_bytes().to_vec(),
        (KconfigKind::Tristate, "y") => 1u32.to_le_bytes().to_vec(),
        (KconfigKind::Tristate, "m") => 2u32.to_le_bytes().to_vec(),
        (KconfigKind::Char { .. }, "y" | "n" | "m") => text.as_bytes().to_vec(),
        (KconfigKind::Char { signed } | KconfigKind::Int { signed }, _) => {
            let n = number(text)?;
            let bits = u32::try_from(size).ok()?.checked_mul(8).filter(|b| (1..=64).contains(b))?;
            let fits =
                if signed { n >> (bits - 1) == 0 || n >> (bits - 1) == -1 } else { n >> bits == 0 };
            n.to_le_bytes().get(..size).filter(|_| fits)?.to_vec()
        }
        (KconfigKind::Text, _) => {
            let inside = text.strip_prefix('"')?.strip_suffix('"')?;
            inside.bytes().take(size.saturating_sub(1)).collect()
        }
        _ => return None,
    })
}

/// Reads a number as C writes it: decimal, hexadecimal or octal.
fn number(text: &str) -> Option<i128> {
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (digits, radix) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let n = i128::from(u64::from_str_radix(digits, radix).ok()?);
    Some(if negative { -n } else { n })
}

/// Gives every variable of the `.kconfig` section its place in the types: the strictest alignment
/// first, then by size and name.
pub(crate) fn place(btf: &mut Btf) -> Result<(), ObjectError> {
    let Some((id, vars)) = section(btf) else { return Ok(()) };
    let mut order = Vec::with_capacity(vars.len());
    for v in vars {
        let name = btf.name(v.type_id).to_owned();
        let unfit = || ObjectError::Section {
            section: SECTION.to_owned(),
            offset: 0,
            what: format!("`{name}` is of no usable type"),
        };
        let size =
            btf.size_of(v.type_id).ok().filter(|s| (1..=MAX_SIZE).contains(s)).ok_or_else(unfit)?
                as u32;
        let align = scalar_size(btf, v.type_id).ok_or_else(unfit)?;
        order.push((std::cmp::Reverse(align), size, name, v.type_id));
    }
    order.sort();
    let mut offsets = HashMap::new();
    let mut end = 0u32;
    for (std::cmp::Reverse(align), size, name, id) in order {
        let full = || ObjectError::Section {
            section: SECTION.to_owned(),
            offset: 0,
            what: format!("no room for `{name}`"),
        };
        let at = end.checked_next_multiple_of(align).ok_or_else(full)?;
        end = at.checked_add(size).ok_or_else(full)?;
        offsets.insert(id, at);
    }
    btf.place_section(id, end, |var| offsets.get(&var).copied());
    Ok(())
}

/// Makes the map of configuration values and lists them.
pub(crate) fn collect(
    maps: &mut Maps,
    elf: &Elf<'_>,
    btf: Option<&Btf>,
    name: String,
) -> Vec<KconfigVar> {
    let Some(btf) = btf else { return Vec::new() };
    let Some((id, vars)) = section(btf) else { return Vec::new() };
    let weak: HashMap<&str, bool> = elf
        .symbols
        .iter()
        .filter(|s| s.place == Place::Undefined)
        .map(|s| (s.name, s.is_weak()))
        .collect();
    let mut out = Vec::with_capacity(vars.len());
    for v in vars {
        let (Some(kind), Ok(size)) = (kind(btf, v.type_id), btf.size_of(v.type_id)) else {
            continue;
        };
        let name = btf.name(v.type_id);
        let weak = weak.get(name).copied().unwrap_or(false);
        out.push(KconfigVar {
            name: name.to_owned(),
            weak,
            kind,
            offset: v.offset,
            size: size as u32,
            set: false,
            fixed: false,
        });
    }
    let size = btf.size_of(id).unwrap_or(0) as u32;
    let mut spec = MapSpec::new(&name, MapType::Array, 4, size, 1);
    spec.section = SECTION.to_owned();
    spec.flags = MapFlags(MapFlags::MMAPABLE | MapFlags::RDONLY_PROG);
    spec.frozen = true;
    spec.value_type_id = id;
    spec.data = Some(vec![0; size as usize]);
    maps.specs.push(spec);
    out
}

fn section(btf: &Btf) -> Option<(TypeId, Vec<SecVar>)> {
    let id = btf.find(SECTION, |k| matches!(k, Kind::DataSec(_)))?;
    let Kind::DataSec(sec) = &btf.get(id).ok()?.kind else { return None };
    (!sec.vars.is_empty()).then(|| (id, sec.vars.to_vec()))
}

/// Finds the size of the number or enumeration at the bottom of a type: its alignment.
fn scalar_size(btf: &Btf, mut id: TypeId) -> Option<u32> {
    for _ in 0..MAX_DEPTH {
        match &btf.resolve(id).ok()?.1.kind {
            Kind::Var(v) => id = v.type_id,
            Kind::Array(a) => id = a.elem,
            Kind::Int(i) => return Some(i.size.next_power_of_two().min(8)),
            Kind::Enum(e) => return Some(e.size),
            _ => return None,
        }
    }
    None
}

fn kind(btf: &Btf, var: TypeId) -> Option<KconfigKind> {
    let Kind::Var(v) = &btf.get(var).ok()?.kind else { return None };
    let of = |id: TypeId| -> Option<KconfigKind> {
        let (id, t) = btf.resolve(id).ok()?;
        match &t.kind {
            Kind::Int(i) if i.bool => (i.size == 1).then_some(KconfigKind::Bool),
            Kind::Int(i) if i.size == 1 => Some(KconfigKind::Char { signed: i.signed }),
            Kind::Int(i) => {
                matches!(i.size, 2 | 4 | 8).then_some(KconfigKind::Int { signed: i.signed })
            }
            Kind::Enum(e) => {
                (e.size == 4 && btf.name(id) == "libbpf_tristate").then_some(KconfigKind::Tristate)
            }
            _ => None,
        }
    };
    match &btf.resolve(v.type_id).ok()?.1.kind {
        Kind::Array(a) => {
            matches!(of(a.elem)?, KconfigKind::Char { .. }).then_some(KconfigKind::Text)
        }
        _ => of(v.type_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_writes_them() {
        assert_eq!(
            (number("250"), number("0x1F"), number("010"), number("0"), number("-5")),
            (Some(250), Some(31), Some(8), Some(0), Some(-5))
        );
        assert_eq!(
            (number(""), number("-"), number("12a"), number("0x")),
            (None, None, None, None)
        );
    }
}
