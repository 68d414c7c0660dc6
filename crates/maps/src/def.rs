//! The definition of a map, and its bytes in the header of the map's file.

use std::path::Path;

use skep_isa::{KeyShape, MapFlags, MapType};

use crate::error::{EACCES, EBADF, EINVAL, ENOTSUPP, EOPNOTSUPP, MapError};
use crate::shm::value::Format;
use crate::shm::{ObjectError, ObjectKind, read_meta};

/// Says what kind of map to make. The names are those of `union bpf_attr`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDef {
    /// The type.
    pub map_type: MapType,
    /// Bytes of a key; what it means for keys of variable length, [`MapDef::key_shape`] tells.
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
    /// Where a value holds its `struct bpf_spin_lock`, if it has one.
    pub spin_lock: Option<u32>,
    /// What the inner maps are like, for maps of maps.
    pub inner: Option<Box<MapDef>>,
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
            spin_lock: None,
            inner: None,
        }
    }

    /// Reads the definition of the map in a file, without marking the map as used: it may go meanwhile.
    ///
    /// # Errors
    /// When the file cannot be read, or is no map.
    pub fn of_file(path: &Path) -> Result<Self, ObjectError> {
        let meta = read_meta(path, ObjectKind::Map)?;
        let (def, _) = Self::from_meta(&meta)
            .map_err(|what| ObjectError::Damaged { path: path.to_owned(), what })?;
        Ok(def)
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

    /// Sets the number whose meaning depends on the type.
    #[must_use]
    pub fn extra(mut self, map_extra: u64) -> Self {
        self.map_extra = map_extra;
        self
    }

    /// Says that values hold a `struct bpf_spin_lock` at this offset.
    #[must_use]
    pub fn spin_lock(mut self, offset: u32) -> Self {
        self.spin_lock = Some(offset);
        self
    }

    /// Says what the inner maps of a map of maps are like.
    #[must_use]
    pub fn inner(mut self, inner: &Self) -> Self {
        self.inner = Some(Box::new(inner.clone()));
        self
    }

    /// Tells what the map's keys look like.
    #[must_use]
    pub fn key_shape(&self) -> KeyShape {
        self.map_type.row().key_shape(self.key_size, self.map_extra)
    }

    /// Tells what the map's values are made of.
    pub(crate) fn value_format(&self) -> Format {
        Format::new(self.value_size as usize, self.spin_lock)
    }

    pub(crate) fn invalid(&self, what: &'static str) -> MapError {
        self.refused(what, EINVAL)
    }

    pub(crate) fn refused(&self, what: &'static str, errno: i32) -> MapError {
        MapError::Definition { map_type: self.map_type, what, errno }
    }

    pub(crate) fn check_name(&self) -> Result<(), MapError> {
        if self.name.len() > 15
            || !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.')
        {
            return Err(self.invalid("its name is longer than 15 characters or has others than letters, digits, `_` and `.`"));
        }
        Ok(())
    }

    /// Checks what does not depend on the type's own rules.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.check_name()?;
        if self.flags.has(MapFlags::RDONLY | MapFlags::WRONLY)
            || self.flags.has(MapFlags::RDONLY_PROG | MapFlags::WRONLY_PROG)
        {
            return Err(self.invalid("it cannot be both read-only and write-only"));
        }
        let takes_extra = self.map_type == MapType::BloomFilter || self.map_type == MapType::QpTrie;
        if self.map_extra != 0 && !takes_extra {
            return Err(self.invalid("only bloom filters and qp-tries take `map_extra`"));
        }
        self.check_parts()
    }

    /// Checks what has to fit before anything is read or written by it.
    fn check_parts(&self) -> Result<(), MapError> {
        if let Some(at) = self.spin_lock {
            // kernel/bpf/syscall.c, map_check_btf
            if !matches!(self.map_type, MapType::Hash | MapType::Array) {
                return Err(self.refused("values of this type cannot hold a spin lock", EOPNOTSUPP));
            }
            if self.flags.0 & (MapFlags::RDONLY_PROG | MapFlags::WRONLY_PROG) != 0 {
                return Err(
                    self.refused("programs must be able to read and write a spin lock", EACCES)
                );
            }
            if !at.is_multiple_of(4) || u64::from(at) + 4 > u64::from(self.value_size) {
                return Err(self.invalid("the spin lock lies outside the value"));
            }
        }
        let nested = matches!(self.map_type, MapType::ArrayOfMaps | MapType::HashOfMaps);
        match &self.inner {
            None if nested => {
                return Err(
                    self.refused("a map of maps needs the definition of an inner map", EBADF)
                );
            }
            Some(_) if !nested => return Err(self.invalid("only a map of maps has inner maps")),
            Some(inner)
                if matches!(inner.map_type, MapType::ArrayOfMaps | MapType::HashOfMaps)
                    || inner.inner.is_some() =>
            {
                return Err(self.invalid("an inner map cannot hold maps itself"));
            }
            Some(inner) if inner.map_type == MapType::ProgArray => {
                return Err(self.refused("a program array cannot be an inner map", ENOTSUPP));
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the bytes that `docs/shm-format.md` calls the map description.
    pub(crate) fn to_meta(&self, seed: u64) -> Vec<u8> {
        let mut m = self.to_words(seed).to_vec();
        if self.spin_lock.is_some() || self.inner.is_some() {
            let lock = |def: &Self| def.spin_lock.map_or(0, |at| at.wrapping_add(1)).to_le_bytes();
            m.resize(LONG_META_LEN, 0);
            m[64..68].copy_from_slice(&lock(self));
            if let Some(inner) = &self.inner {
                m[68..72].copy_from_slice(&lock(inner));
                m[128..].copy_from_slice(&inner.to_words(0));
            }
        }
        m
    }

    fn to_words(&self, seed: u64) -> [u8; META_LEN] {
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
        let (words, more) =
            m.split_first_chunk::<META_LEN>().ok_or("its description has the wrong length")?;
        let (mut def, seed) = Self::from_words(words)?;
        match more.split_last_chunk::<META_LEN>() {
            None if more.is_empty() => {}
            Some((locks, inner)) if m.len() == LONG_META_LEN => {
                let lock = |at: usize| {
                    locks
                        .get(at..at + 4)
                        .and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)))
                        .and_then(|n| n.checked_sub(1))
                };
                def.spin_lock = lock(0);
                if inner.iter().any(|b| *b != 0) {
                    let (mut inner, _) = Self::from_words(inner)?;
                    inner.spin_lock = lock(4);
                    def.inner = Some(Box::new(inner));
                }
            }
            _ => return Err("its description has the wrong length"),
        }
        def.check_parts().map_err(|_| "its definition is not one this version makes")?;
        Ok((def, seed))
    }

    fn from_words(m: &[u8; META_LEN]) -> Result<(Self, u64), &'static str> {
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
            spin_lock: None,
            inner: None,
        };
        def.check_name().map_err(|_| "its name has forbidden characters")?;
        Ok((def, u64_at(40)))
    }
}

/// Bytes of a map's description.
const META_LEN: usize = 64;
/// Bytes of one that also has a spin lock or an inner map.
const LONG_META_LEN: usize = 192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_survives_its_bytes() {
        let mut def = MapDef::new(MapType::Hash, 513, 8, 77)
            .named("k.bss_0123456.x")
            .flags(MapFlags::ZERO_SEED);
        (def.btf_id, def.key_type_id, def.value_type_id) = (1, 2, 3);
        assert_eq!(MapDef::from_meta(&def.to_meta(42)), Ok((def.clone(), 42)));
        let locked = def.clone().spin_lock(4);
        assert_eq!(MapDef::from_meta(&locked.to_meta(42)), Ok((locked.clone(), 42)));
        let nested = MapDef::new(MapType::HashOfMaps, 8, 4, 7).inner(&locked);
        assert_eq!(MapDef::from_meta(&nested.to_meta(42)), Ok((nested.clone(), 42)));
        for short in [0, 63, 65, 128, 191] {
            assert!(MapDef::from_meta(&nested.to_meta(42)[..short]).is_err());
        }
    }

    #[test]
    fn names_are_the_kernels() {
        let def = MapDef::new(MapType::Array, 4, 4, 1);
        for (name, good) in [
            ("", true),
            ("a.b_C9", true),
            ("a b", false),
            ("é", false),
            ("0123456789abcde", true),
            ("0123456789abcdef", false),
        ] {
            assert_eq!(def.clone().named(name).check_name().is_ok(), good, "{name}");
        }
    }
}
