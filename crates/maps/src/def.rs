//! The definition of a map, and its bytes in the header of the map's file.

use skep_isa::{MapFlags, MapType};

use crate::error::{EINVAL, MapError};

/// Says what kind of map to make. The names are those of `union bpf_attr`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDef {
    /// The type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Most elements; for a ring buffer, bytes.
    pub max_entries: u32,
    /// Flags given at creation.
    pub flags: MapFlags,
    /// A number whose meaning depends on the type.
    pub map_extra: u64,
    /// Up to 15 characters of `[A-Za-z0-9_.]`.
    pub name: String,
    /// The BTF object that describes key and value, 0 none.
    pub btf_id: u32,
    /// The key's type there.
    pub key_type_id: u32,
    /// The value's type there.
    pub value_type_id: u32,
}

impl MapDef {
    /// Describes a map without flags, name and types.
    #[must_use]
    pub fn new(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        Self {
            map_type,
            key_size,
            value_size,
            max_entries,
            flags: MapFlags(0),
            map_extra: 0,
            name: String::new(),
            btf_id: 0,
            key_type_id: 0,
            value_type_id: 0,
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the flags.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = MapFlags(flags);
        self
    }

    pub(crate) fn invalid(&self, what: &'static str) -> MapError {
        MapError::Definition { map_type: self.map_type, what, errno: EINVAL }
    }

    pub(crate) fn check_name(&self) -> Result<(), MapError> {
        if self.name.len() > 15 || !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.') {
            return Err(self.invalid("its name is longer than 15 characters or has others than letters, digits, `_` and `.`"));
        }
        Ok(())
    }

    /// Writes the 64 bytes that `docs/shm-format.md` calls the map description.
    pub(crate) fn to_meta(&self, seed: u64) -> [u8; META_LEN] {
        let mut m = [0; META_LEN];
        let mut put = |at: usize, bytes: &[u8]| m[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.map_type as u32).to_le_bytes());
        put(4, &self.key_size.to_le_bytes());
        put(8, &self.value_size.to_le_bytes());
        put(12, &self.max_entries.to_le_bytes());
        put(16, &self.flags.0.to_le_bytes());
        put(20, &self.btf_id.to_le_bytes());
        put(24, &self.key_type_id.to_le_bytes());
        put(28, &self.value_type_id.to_le_bytes());
        put(32, &self.map_extra.to_le_bytes());
        put(40, &seed.to_le_bytes());
        put(48, self.name.as_bytes());
        m
    }

    /// Reads them back: the definition and the hash seed.
    pub(crate) fn from_meta(m: &[u8]) -> Result<(Self, u64), &'static str> {
        let m: &[u8; META_LEN] = m.try_into().map_err(|_| "its description has the wrong length")?;
        let u32_at = |at: usize| u32::from_le_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let name = m[48..64].split(|b| *b == 0).next().unwrap_or_default();
        let def = Self {
            map_type: MapType::from_raw(u32_at(0)).ok_or("unknown map type")?,
            key_size: u32_at(4),
            value_size: u32_at(8),
            max_entries: u32_at(12),
            flags: MapFlags(u32_at(16)),
            btf_id: u32_at(20),
            key_type_id: u32_at(24),
            value_type_id: u32_at(28),
            map_extra: u64_at(32),
            name: String::from_utf8(name.to_vec()).map_err(|_| "its name is no text")?,
        };
        def.check_name().map_err(|_| "its name has forbidden characters")?;
        Ok((def, u64_at(40)))
    }
}

/// Bytes of a map's description.
pub(crate) const META_LEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_survives_its_bytes() {
        let mut def = MapDef::new(MapType::Hash, 513, 8, 77).named("k.bss_0123456.x").flags(MapFlags::ZERO_SEED);
        (def.map_extra, def.btf_id, def.key_type_id, def.value_type_id) = (u64::MAX - 1, 1, 2, 3);
        assert_eq!(MapDef::from_meta(&def.to_meta(42)), Ok((def, 42)));
    }

    #[test]
    fn names_are_the_kernels() {
        let def = MapDef::new(MapType::Array, 4, 4, 1);
        for (name, good) in
            [("", true), ("a.b_C9", true), ("a b", false), ("é", false), ("0123456789abcde", true), ("0123456789abcdef", false)]
        {
            assert_eq!(def.clone().named(name).check_name().is_ok(), good, "{name}");
        }
    }
}
