//! Maps in the `.maps` section: variables whose *type* is the definition
//! (tools/lib/bpf/bpf_helpers.h).
//!
//! `__uint(name, n)` is a pointer to an array of `n`, `__ulong` an enumeration with one value,
//! `__type` a pointer to the type itself, and `__array` an array of pointers without a length.

use super::{InnerValue, MapSpec, Maps, error, known_type};
use crate::btf::{Kind, TypeId};
use crate::elf::{Elf, Place};
use crate::{Btf, ObjectError};
use object::elf::R_BPF_64_64;
use skep_isa::{MapFlags, MapType};

/// Eight bytes of data (Documentation/bpf/llvm_reloc.rst). Before LLVM 13 these were of type
/// [`R_BPF_64_64`].
const R_BPF_64_ABS64: u32 = 2;

pub(super) fn collect(
    maps: &mut Maps,
    elf: &Elf<'_>,
    section: usize,
    btf: Option<&Btf>,
) -> Result<(), ObjectError> {
    let Some(elf_section) = elf.sections.get(section) else { return Ok(()) };
    let Some(btf) = btf else { return Err(elf_section.error(0, "map definitions need BTF")) };
    let sec_id = btf.find(elf_section.name, |k| matches!(k, Kind::DataSec(_)));
    let Some(Kind::DataSec(sec)) = sec_id.and_then(|id| btf.get(id).ok()).map(|t| &t.kind) else {
        return Err(elf_section.error(0, "BTF says nothing about it"));
    };
    let mut slots = Vec::new();
    for var in &sec.vars {
        let name = btf.name(var.type_id);
        let Ok(Kind::Var(v)) = btf.get(var.type_id).map(|t| &t.kind) else {
            return Err(error(name, "its definition is no variable"));
        };
        let mut def = Definition::new(name, btf);
        def.read(v.type_id, false)?;
        let (mut spec, values_at) = def.finish()?;
        spec.section = elf_section.name.to_owned();
        let index = maps.specs.len();
        maps.at.insert((section, u64::from(var.offset)), index);
        maps.specs.push(spec);
        if let Some(at) = values_at {
            slots.push((
                index,
                u64::from(var.offset) + u64::from(at),
                u64::from(var.offset) + u64::from(var.size),
            ));
        }
    }
    for (map, start, end) in slots {
        let values = initial_values(maps, elf, section, map, start, end)?;
        if let Some(spec) = maps.specs.get_mut(map) {
            spec.values = values;
        }
    }
    Ok(())
}

/// Reads the relocations in the `values` member: each names a map or a program for its slot.
fn initial_values(
    maps: &Maps,
    elf: &Elf<'_>,
    section: usize,
    map: usize,
    start: u64,
    end: u64,
) -> Result<Vec<(u32, InnerValue)>, ObjectError> {
    let (Some(spec), Some(elf_section)) = (maps.specs.get(map), elf.sections.get(section)) else {
        return Ok(Vec::new());
    };
    let mut out = Vec::new();
    for r in elf_section.relocs.iter().filter(|r| (start..end).contains(&r.offset)) {
        let slot = u32::try_from((r.offset - start) / 8).unwrap_or(u32::MAX);
        let fits =
            matches!(r.kind, R_BPF_64_ABS64 | R_BPF_64_64) && (r.offset - start).is_multiple_of(8);
        if !fits || spec.max_entries != 0 && slot >= spec.max_entries {
            return Err(error(
                &spec.name,
                format!("relocation for slot {slot} of `values` cannot be used"),
            ));
        }
        let Some(symbol) = elf.symbols.get(r.symbol) else { continue };
        let value = if spec.map_type == MapType::ProgArray {
            symbol.is_func().then(|| InnerValue::Program(symbol.name.to_owned()))
        } else {
            match symbol.place {
                Place::Section(s) => maps.at.get(&(s, symbol.value)).map(|m| InnerValue::Map(*m)),
                _ => None,
            }
        };
        let value = value.ok_or_else(|| {
            error(&spec.name, format!("slot {slot} of `values`: `{}` does not fit", symbol.name))
        })?;
        out.push((slot, value));
    }
    Ok(out)
}

/// Rounds the size of a ring buffer up to a power of two of whole pages, as libbpf does.
fn ring_size(bytes: u32) -> u32 {
    const PAGE: u32 = 4096;
    match bytes {
        0 => 0,
        _ => bytes.checked_next_power_of_two().map_or(bytes, |n| n.max(PAGE)),
    }
}

struct Definition<'a> {
    btf: &'a Btf,
    name: &'a str,
    map_type: Option<MapType>,
    key_size: Option<u32>,
    value_size: Option<u32>,
    spec: MapSpec,
    /// Where the `values` member lies in the definition.
    values_at: Option<u32>,
}

impl<'a> Definition<'a> {
    fn new(name: &'a str, btf: &'a Btf) -> Self {
        let spec = MapSpec::new(name, MapType::Array, 0, 0, 0);
        Self { btf, name, map_type: None, key_size: None, value_size: None, spec, values_at: None }
    }

    fn error(&self, what: impl Into<String>) -> ObjectError {
        error(self.name, what)
    }

    fn read(&mut self, type_id: TypeId, inner: bool) -> Result<(), ObjectError> {
        let btf = self.btf;
        let (_, t) = btf.resolve(type_id).map_err(|e| self.error(e.to_string()))?;
        let Kind::Struct(def) = &t.kind else { return Err(self.error("its type is no structure")) };
        for (i, m) in def.members.iter().enumerate() {
            let field = btf.string(m.name_off);
            if def.members.iter().take(i).any(|before| btf.string(before.name_off) == field) {
                return Err(self.error(format!("field `{field}` is given twice")));
            }
            match field {
                "type" => {
                    let number = self.uint(field, m.type_id)?;
                    self.map_type = Some(known_type(self.name, number)?);
                }
                "max_entries" => self.spec.max_entries = self.uint(field, m.type_id)?,
                "map_flags" => self.spec.flags = MapFlags(self.uint(field, m.type_id)?),
                "map_extra" => self.spec.map_extra = self.ulong(field, m.type_id)?,
                "numa_node" => self.spec.numa_node = self.uint(field, m.type_id)?,
                "key_size" => {
                    self.key_size =
                        Some(self.agree(field, self.key_size, self.uint(field, m.type_id)?)?)
                }
                "value_size" => {
                    self.value_size =
                        Some(self.agree(field, self.value_size, self.uint(field, m.type_id)?)?)
                }
                "key" => {
                    let (id, size) = self.pointee(field, m.type_id)?;
                    self.key_size = Some(self.agree(field, self.key_size, size)?);
                    self.spec.key_type_id = id;
                }
                "value" => {
                    let (id, size) = self.pointee(field, m.type_id)?;
                    self.value_size = Some(self.agree(field, self.value_size, size)?);
                    self.spec.value_type_id = id;
                }
                "pinning" if inner => return Err(self.error("an inner map cannot be pinned")),
                "pinning" => match self.uint(field, m.type_id)? {
                    0 => {}
                    1 => self.spec.pinning = true,
                    n => return Err(self.error(format!("unknown `pinning` {n}"))),
                },
                "values" if inner => return Err(self.error("an inner map cannot have `values`")),
                "values" => {
                    self.values_at = Some(m.bit_offset / 8);
                    self.values(m.type_id)?;
                }
                _ => return Err(self.error(format!("unknown field `{field}`"))),
            }
        }
        Ok(())
    }

    fn values(&mut self, type_id: TypeId) -> Result<(), ObjectError> {
        let btf = self.btf;
        let shape = || -> Option<TypeId> {
            let (_, t) = btf.resolve(type_id).ok()?;
            let Kind::Array(a) = &t.kind else { return None };
            let (_, t) = btf.resolve(a.elem).ok()?;
            let Kind::Ptr(to) = t.kind else { return None };
            Some(btf.resolve(to).ok()?.0)
        };
        let to = shape().ok_or_else(|| self.error("`values` is no array of pointers"))?;
        self.value_size = Some(self.agree("values", self.value_size, 4)?);
        match btf.get(to).map(|t| &t.kind) {
            Ok(Kind::Struct(_)) => {
                let name = format!("{}.inner", self.name);
                let mut inner = Definition::new(&name, btf);
                inner.read(to, true)?;
                self.spec.inner = Some(Box::new(inner.finish()?.0));
                Ok(())
            }
            Ok(Kind::FuncProto(_)) => Ok(()),
            _ => Err(self.error("`values` points neither to a map nor to a function")),
        }
    }

    fn finish(self) -> Result<(MapSpec, Option<u32>), ObjectError> {
        let Some(map_type) = self.map_type else {
            return Err(self.error("its definition has no `type`"));
        };
        let nested = matches!(map_type, MapType::ArrayOfMaps | MapType::HashOfMaps);
        if self.values_at.is_some() && nested != self.spec.inner.is_some() {
            return Err(self.error(format!("`values` does not fit a map of type {map_type}")));
        }
        if self.values_at.is_some() && !nested && map_type != MapType::ProgArray {
            return Err(self.error(format!("a map of type {map_type} has no `values`")));
        }
        let mut spec = self.spec;
        spec.map_type = map_type;
        spec.keys = map_type.row().key_shape(self.key_size.unwrap_or(0), spec.map_extra);
        spec.value_size = self.value_size.unwrap_or(0);
        if matches!(map_type, MapType::Ringbuf | MapType::UserRingbuf) {
            spec.max_entries = ring_size(spec.max_entries);
        }
        Ok((spec, self.values_at))
    }

    /// Checks that two fields that give the same size agree.
    fn agree(&self, field: &str, before: Option<u32>, now: u32) -> Result<u32, ObjectError> {
        match before {
            Some(b) if b != now => {
                Err(self.error(format!("`{field}` says {now} bytes, another field {b}")))
            }
            _ => Ok(now),
        }
    }

    fn uint(&self, field: &str, type_id: TypeId) -> Result<u32, ObjectError> {
        let btf = self.btf;
        let read = || -> Option<u32> {
            let Kind::Ptr(to) = btf.resolve(type_id).ok()?.1.kind else { return None };
            let Kind::Array(a) = &btf.resolve(to).ok()?.1.kind else { return None };
            Some(a.len)
        };
        read().ok_or_else(|| self.error(format!("`{field}` is no `__uint`")))
    }

    fn ulong(&self, field: &str, type_id: TypeId) -> Result<u64, ObjectError> {
        match self.btf.resolve(type_id).map(|(_, t)| &t.kind) {
            Ok(Kind::Enum(e) | Kind::Enum64(e)) => match &*e.values {
                [one] => Ok(one.value as u64),
                _ => Err(self.error(format!("`{field}` is no `__ulong`"))),
            },
            _ => self.uint(field, type_id).map(u64::from),
        }
    }

    fn pointee(&self, field: &str, type_id: TypeId) -> Result<(TypeId, u32), ObjectError> {
        let Ok((_, crate::btf::Type { kind: Kind::Ptr(to), .. })) = self.btf.resolve(type_id)
        else {
            return Err(self.error(format!("`{field}` is no `__type`")));
        };
        let size = self.btf.size_of(*to).map_err(|e| self.error(format!("`{field}`: {e}")))?;
        let size =
            u32::try_from(size).map_err(|_| self.error(format!("`{field}` has {size} bytes")))?;
        Ok((*to, size))
    }
}

#[cfg(test)]
mod tests {
    use super::ring_size;

    #[test]
    fn ring_buffers_have_sizes_the_kernel_takes() {
        let sizes = [0, 1, 1000, 4096, 4097, 12288, 1 << 20, 3 << 20, 1 << 31, u32::MAX];
        assert_eq!(
            sizes.map(ring_size),
            [0, 4096, 4096, 4096, 8192, 16384, 1 << 20, 4 << 20, 1 << 31, u32::MAX]
        );
    }
}
