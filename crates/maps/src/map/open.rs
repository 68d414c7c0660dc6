//! Making and opening maps.

use std::path::Path;
use std::sync::Arc;

use skep_isa::{MapFlags, MapType};

use super::{KeyLengths, Map};
use crate::def::MapDef;
use crate::error::MapError;
use crate::map_file::MapFile;
use crate::percpu;
use crate::shm::epoch::{self, InsertionEpochs};
use crate::shm::{
    Access, Limit, NewObject, ObjectError, ObjectFile, ObjectKind, PAGE, PayloadMode,
};
use crate::slots::{SlotTable, possible_cpus};
use crate::types::{self, TypeRow};

/// Finds the largest `max_entries` with which a map like this one takes at most `available` bytes;
/// `None` when not even one entry does, or the number means something else.
fn max_entries_within(row: &TypeRow, def: &MapDef, slots: u32, available: u64) -> Option<u32> {
    if matches!(def.map_type, MapType::Ringbuf | MapType::UserRingbuf | MapType::BloomFilter) {
        return None;
    }
    let is_enough_for = |max_entries: u32| {
        let smaller = MapDef { max_entries, ..def.clone() };
        (row.layout)(&smaller).is_ok_and(|l| {
            l.reserved(slots).iter().map(|(_, len)| len + PAGE).sum::<u64>() + PAGE <= available
        })
    };
    let (mut least, mut most) = (0, def.max_entries);
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        if is_enough_for(middle) { least = middle } else { most = middle }
    }
    (least > 0).then_some(least)
}

/// Chooses how the payload of a map with this meta is mapped, of which the first `entries` elements
/// are used; `None` for a definition that opening refuses afterwards.
fn payload_mode(meta: &[u8], entries: u32) -> Option<PayloadMode> {
    let (def, _) = MapDef::from_meta(meta).ok()?;
    let row = types::row(&def).ok()?;
    let layout = (row.layout)(&def).ok()?;
    let mode = || (row.mode)(&def, entries);
    Some(layout.mirror.map_or_else(mode, PayloadMode::Mirrored))
}

impl Map {
    /// Makes map `id` in the directory `maps` of a skep directory, which is its parent.
    ///
    /// # Errors
    /// [`MapError::Definition`] with the kernel's errno; `EEXIST` when the id is taken; what the
    /// file system says.
    pub fn create(dir: &Path, id: u32, def: &MapDef) -> Result<Self, MapError> {
        Self::create_with(dir, id, def, false)
    }

    /// As [`Map::create`], for a per-CPU array of which few elements are used: it gets memory where
    /// a program first stores something, and when there is none left then, the store is lost
    /// and the process gets `SIGBUS`, which it must be prepared for.
    ///
    /// # Errors
    /// As there.
    pub fn create_sparse(dir: &Path, id: u32, def: &MapDef) -> Result<Self, MapError> {
        Self::create_with(dir, id, def, def.map_type == MapType::PercpuArray)
    }

    fn create_with(dir: &Path, id: u32, def: &MapDef, sparse: bool) -> Result<Self, MapError> {
        let (row, layout, payload_len) = types::checked(def)?;
        if def.map_type.row().per_cpu {
            let above = dir.canonicalize().ok().and_then(|d| d.parent().map(Path::to_owned));
            SlotTable::open_or_create(
                &above.ok_or_else(|| def.invalid("its directory has no parent"))?,
            )?;
        }
        let mut seed = [0; 8];
        if !def.flags.has(MapFlags::ZERO_SEED) {
            rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).map_err(
                |e| {
                    let (path, errno) = (dir.to_owned(), e.raw_os_error());
                    ObjectError::Os { call: "getrandom", path, errno }
                },
            )?;
        }
        let meta = def.to_meta(u64::from_le_bytes(seed));
        let new = NewObject { kind: ObjectKind::Map, id, payload_len, meta: &meta };
        let name = id.to_string();
        let slots = possible_cpus();
        let reserved = if sparse { Vec::new() } else { layout.reserved(slots) };
        let file = ObjectFile::create_with(dir, &name, &new, &reserved, (row.mode)(def, u32::MAX))
            .map_err(|source| match source {
                ObjectError::NoMemory { available, limit, .. } => {
                    let max_entries = (limit != Limit::FileSize)
                        .then(|| max_entries_within(row, def, slots, available))
                        .flatten();
                    let source = Box::new(source);
                    MapError::CreationMemory { map_type: def.map_type, source, max_entries }
                }
                e => e.into(),
            })?;
        if layout.percpu().is_some() {
            percpu::begin(&file, slots, sparse);
        }
        match layout.mirror {
            None => Self::with(file, u32::MAX),
            // Mapped anew with its mirror; `file` keeps the lock meanwhile.
            Some(_) => Self::open(&dir.join(name), Access::ReadWrite),
        }
    }

    /// Opens the map in a file.
    ///
    /// # Errors
    /// A file that is no map, is damaged, or was made by another version; see [`ObjectError`].
    pub fn open(path: &Path, access: Access) -> Result<Self, MapError> {
        Self::open_first(path, access, u32::MAX)
    }

    /// As [`Map::open`], for a process that will use only the first `entries` elements of a large
    /// per-CPU array: programs find no others, and they take no address space. No other type
    /// minds.
    ///
    /// # Errors
    /// As [`Map::open`].
    pub fn open_first(path: &Path, access: Access, entries: u32) -> Result<Self, MapError> {
        let file = ObjectFile::open_as(path, ObjectKind::Map, access, |meta| {
            payload_mode(meta, entries).unwrap_or(PayloadMode::Whole)
        })?;
        Self::with(file, entries)
    }

    /// `entries`: how many were asked for.
    fn with(file: ObjectFile, entries: u32) -> Result<Self, MapError> {
        let damaged = |what| ObjectError::Damaged { path: file.path().to_owned(), what };
        let (def, seed) = MapDef::from_meta(file.meta()).map_err(damaged)?;
        let row = types::row(&def)?;
        file.check_version(row.since)?;
        let layout = (row.layout)(&def)?;
        let (epochs_at, with_epochs) = epoch::area(layout.payload_len, layout.epochs)
            .ok_or_else(|| damaged("it is too large"))?;
        let rows = match file.payload_len() {
            len if len == with_epochs => layout.epochs,
            // As older versions made it.
            len if len == layout.payload_len => 0,
            _ => return Err(damaged("its length does not fit its definition").into()),
        };
        let access = if file.writable() { Access::ReadWrite } else { Access::ReadOnly };
        let per_cpu = def.map_type.row().per_cpu;
        let slots = if per_cpu { Some(SlotTable::of_object(&file, access)?) } else { None };
        let file = Arc::new(file);
        let epochs = InsertionEpochs::new(Arc::clone(&file), epochs_at, rows)
            .ok_or(MapError::Damaged { what: "the file is too short" })?;
        let (ops, special) = row.open(MapFile {
            def: def.clone(),
            seed,
            object: Arc::clone(&file),
            slots,
            epochs: epochs.clone(),
            entries,
        })?;
        #[cfg(feature = "users")]
        let value_size = ops.user_value_size();
        #[cfg(feature = "users")]
        let plain_value = match per_cpu || def.flags.has(MapFlags::WRONLY) {
            true => usize::MAX,
            false => value_size,
        };
        let keys = def.key_shape();
        Ok(Self {
            def,
            file,
            ops,
            special,
            keys,
            key_lengths: KeyLengths::of(keys),
            per_cpu,
            #[cfg(feature = "users")]
            value_size,
            #[cfg(feature = "users")]
            plain_value,
            epochs,
            has_epochs: layout.epochs != 0,
        })
    }
}
