//! What an object says about its maps.

mod btf;
mod data;
mod legacy;

use crate::elf::Elf;
use crate::{Btf, KconfigVar, ObjectError, kconfig};
use skep_isa::{KeyShape, MapFlags, MapType};
use std::collections::HashMap;

/// Describes one map an object defines: everything needed to create it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MapSpec {
    /// The variable's name; for global data, libbpf's name (`OBJECT.rodata`, at most 15 bytes).
    pub name: String,
    /// The kind of map.
    pub map_type: MapType,
    /// What keys are. Those of keyless maps, and of definitions that leave it out, have 0 bytes.
    pub keys: KeyShape,
    /// Bytes in a value.
    pub value_size: u32,
    /// Most entries; bytes for ring buffers. 0 when the definition leaves it to the loader.
    pub max_entries: u32,
    /// `map_flags` of the definition.
    pub flags: MapFlags,
    /// `map_extra`: its meaning depends on the type.
    pub map_extra: u64,
    /// NUMA node of the definition, used with [`MapFlags::NUMA_NODE`].
    pub numa_node: u32,
    /// BTF type of the key, 0 when there is none.
    pub key_type_id: u32,
    /// BTF type of the value, 0 when there is none.
    pub value_type_id: u32,
    /// The definition asks for pinning by name (`LIBBPF_PIN_BY_NAME`).
    pub pinning: bool,
    /// First contents of a global-data map: its only value. May be shorter than `value_size`
    /// (`.bss`); the rest is zero.
    pub data: Option<Vec<u8>>,
    /// Nobody may change the contents after loading (`.rodata`, `.kconfig`).
    pub frozen: bool,
    /// The ELF section the map comes from (`.maps`, `maps`, `.rodata.str1.1`).
    pub section: String,
    /// The shape of inner maps, for maps of maps.
    pub inner: Option<Box<MapSpec>>,
    /// First contents of maps of maps and program arrays: which slot holds what.
    pub values: Vec<(u32, InnerValue)>,
}

/// Names what a slot of a map of maps, or of a program array, holds at the beginning.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum InnerValue {
    /// The map with this index in the object.
    Map(usize),
    /// The program with this name.
    Program(String),
}

impl MapSpec {
    /// Describes a plain map with keys of a fixed size; flags, types and contents can be set
    /// afterwards.
    ///
    /// ```
    /// use skep_object::MapSpec;
    /// let spec = MapSpec::new("counts", skep_isa::MapType::Hash, 4, 8, 1024);
    /// assert!(!spec.is_global_data());
    /// ```
    #[must_use]
    pub fn new(
        name: &str,
        map_type: MapType,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
    ) -> Self {
        Self {
            name: name.to_owned(),
            map_type,
            keys: KeyShape::Fixed(key_size),
            value_size,
            max_entries,
            flags: MapFlags(0),
            map_extra: 0,
            numa_node: 0,
            key_type_id: 0,
            value_type_id: 0,
            pinning: false,
            data: None,
            frozen: false,
            section: String::new(),
            inner: None,
            values: Vec::new(),
        }
    }

    /// Returns how many bytes a pointer to a key leads to.
    #[must_use]
    pub fn key_size(&self) -> u32 {
        self.keys.key_size()
    }

    /// Tells whether this is the hidden map behind global variables.
    #[must_use]
    pub fn is_global_data(&self) -> bool {
        self.data.is_some()
    }
}

/// The maps of an object and where in the file they were defined.
#[derive(Default)]
pub(crate) struct Maps {
    pub specs: Vec<MapSpec>,
    /// Section and offset of a definition to its map.
    pub at: HashMap<(usize, u64), usize>,
    /// Section of global data to its map.
    pub data: HashMap<usize, usize>,
}

impl Maps {
    /// Collects all maps: definitions first, then global data, then configuration values.
    pub fn collect(
        elf: &Elf<'_>,
        btf: Option<&Btf>,
        object: &str,
    ) -> Result<(Self, Vec<KconfigVar>), ObjectError> {
        let mut maps = Self::default();
        for (index, section) in elf.sections.iter().enumerate() {
            match section.name {
                ".maps" => btf::collect(&mut maps, elf, index, btf)?,
                "maps" => legacy::collect(&mut maps, elf, index, btf)?,
                _ => {}
            }
        }
        data::collect(&mut maps, elf, btf, object)?;
        let values =
            kconfig::collect(&mut maps, elf, btf, data::map_name(object, kconfig::SECTION));
        Ok((maps, values))
    }
}

fn error(map: &str, what: impl Into<String>) -> ObjectError {
    ObjectError::Map { map: map.to_owned(), what: what.into() }
}

fn known_type(map: &str, number: u32) -> Result<MapType, ObjectError> {
    MapType::from_raw(number).ok_or_else(|| error(map, format!("unknown map type {number}")))
}
