//! What the kernel tells of its maps, and which there are.

use skep_isa::{MapFlags, MapType};

use crate::error::Result;
use crate::{attr, cpu, sys};

/// What the kernel tells of a map (`struct bpf_map_info`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MapInfo {
    /// Its id.
    pub id: u32,
    /// Its name, up to 15 characters.
    pub name: String,
    /// The number of its type.
    pub type_number: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements.
    pub max_entries: u32,
    /// Flags given at creation.
    pub flags: MapFlags,
    /// A number whose meaning depends on the type.
    pub map_extra: u64,
    /// The BTF object with its types, 0 for none.
    pub btf_id: u32,
    /// The key's type there.
    pub key_type_id: u32,
    /// The value's type there.
    pub value_type_id: u32,
}

impl MapInfo {
    pub(crate) fn new(info: &attr::MapInfo) -> Self {
        let name = info.name.split(|b| *b == 0).next().unwrap_or_default();
        Self {
            id: info.id,
            name: String::from_utf8_lossy(name).into_owned(),
            type_number: info.map_type,
            key_size: info.key_size,
            value_size: info.value_size,
            max_entries: info.max_entries,
            flags: MapFlags(info.map_flags),
            map_extra: info.map_extra,
            btf_id: info.btf_id,
            key_type_id: info.btf_key_type_id,
            value_type_id: info.btf_value_type_id,
        }
    }

    /// Tells whether keys have a value for each CPU.
    #[must_use]
    pub fn is_per_cpu(&self) -> bool {
        self.map_type().is_some_and(cpu::is_per_cpu)
    }

    /// Returns its type; `None` for a type newer than this crate.
    #[must_use]
    pub fn map_type(&self) -> Option<MapType> {
        MapType::from_raw(self.type_number)
    }
}

/// Lists the ids of all maps, in order.
///
/// # Errors
/// The kernel's errno: `EPERM` without `CAP_SYS_ADMIN`.
pub fn map_ids() -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    loop {
        match sys::next_map_id(ids.last().copied().unwrap_or(0)) {
            Ok(id) => ids.push(id),
            Err(e) if e.is_not_found() => return Ok(ids),
            Err(e) => return Err(e),
        }
    }
}
