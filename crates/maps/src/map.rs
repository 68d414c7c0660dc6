//! A map as its users see it: create, open, read, write; and as programs see it, through raw
//! addresses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use skep_isa::map::update;
use skep_isa::{MapFlags, MapShape, MapType};

use crate::array;
use crate::def::MapDef;
use crate::dump::Position;
use crate::error::{ENOTSUPP, EPERM, MapError, STRANGER};
use crate::percpu;
use crate::shm::epoch::{self, InsertionEpochs};
use crate::shm::{
    Access, Limit, NewObject, ObjectError, ObjectFile, ObjectKind, PAGE, PayloadMode,
};
use crate::slots::{MAX_SLOTS, SlotTable, possible_cpus};
use crate::types::{self, MapFile, MapOps};

/// Mutable word 0 of the header: not zero when users may no longer write.
const FROZEN: usize = 0;

/// Values up to this size are copied by way of the stack, so that memory is only taken for one that
/// is there, and not cleared before.
const SMALL: usize = 64;

/// An open map.
///
/// Any number of threads and processes may use a map at once. The file counts as used while the
/// value lives, in this process or in a child forked meanwhile.
pub struct Map {
    def: MapDef,
    file: Arc<ObjectFile>,
    ops: Box<dyn MapOps>,
    per_cpu: bool,
    /// Bytes of a user's value, for types where they never change: all that are not per-CPU.
    value_size: usize,
    epochs: InsertionEpochs,
    /// Elements of the type come and go, whether the file tells when or not.
    has_epochs: bool,
}

/// How the file of a map without a mirror is mapped, of which the first `entries` elements are
/// used.
fn columns(def: &MapDef, entries: u32) -> PayloadMode {
    if def.map_type == MapType::PercpuArray {
        array::view(def, entries)
    } else {
        PayloadMode::Whole
    }
}

/// A program's walk through a map; the keys of arrays lie in it.
#[derive(Debug, Default)]
pub struct ProgWalk {
    at: Position,
    index: u32,
}

/// Finds how many entries a map like one may have when there are so many bytes for it; `None` when
/// not even one fits, or the number is something else.
fn fitting(row: &types::TypeRow, def: &MapDef, slots: u32, room: u64) -> Option<u32> {
    if matches!(def.map_type, MapType::Ringbuf | MapType::UserRingbuf | MapType::BloomFilter) {
        return None;
    }
    let fits = |max_entries: u32| {
        let smaller = MapDef { max_entries, ..def.clone() };
        (row.layout)(&smaller).is_ok_and(|l| {
            l.reserved(slots).iter().map(|(_, len)| len + PAGE).sum::<u64>() + PAGE <= room
        })
    };
    let (mut least, mut most) = (0, def.max_entries);
    while most - least > 1 {
        let middle = least + (most - least) / 2;
        if fits(middle) { least = middle } else { most = middle }
    }
    (least > 0).then_some(least)
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("id", &self.id())
            .field("def", &self.def)
            .finish_non_exhaustive()
    }
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
        let file = ObjectFile::create_with(dir, &name, &new, &reserved, columns(def, u32::MAX))
            .map_err(|source| match source {
                ObjectError::NoRoom { room, limit, .. } => {
                    let fits = if limit == Limit::FileSize {
                        None
                    } else {
                        fitting(row, def, slots, room)
                    };
                    MapError::NoRoom { map_type: def.map_type, source: Box::new(source), fits }
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
            let Ok((def, _)) = MapDef::from_meta(meta) else { return PayloadMode::Whole };
            match types::row(&def).and_then(|row| (row.layout)(&def)) {
                Ok(layout) => {
                    layout.mirror.map_or_else(|| columns(&def, entries), PayloadMode::Mirrored)
                }
                Err(_) => PayloadMode::Whole,
            }
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
        let ops = (row.open)(MapFile {
            def: def.clone(),
            seed,
            file: Arc::clone(&file),
            slots,
            epochs: epochs.clone(),
            entries,
        })?;
        let value_size = ops.user_value_size();
        Ok(Self { def, file, ops, per_cpu, value_size, epochs, has_epochs: layout.epochs != 0 })
    }

    /// Returns the definition the map was made with.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// Returns the map's number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.file.id()
    }

    /// Returns the file behind the map.
    #[must_use]
    pub fn file(&self) -> &ObjectFile {
        &self.file
    }

    /// Returns a number that no other map has.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.file.generation()
    }

    /// Returns what generated code may know of the map.
    #[must_use]
    pub fn shape(&self) -> MapShape {
        self.ops.shape()
    }

    /// Returns the address of byte 0 of the payload: for arrays, of value 0.
    #[must_use]
    pub fn value_base(&self) -> u64 {
        self.file.payload().base()
    }

    /// Returns the bytes of a value as [`Map::lookup`] gives it: for per-CPU types, all shown
    /// values.
    #[must_use]
    #[inline]
    pub fn user_value_size(&self) -> usize {
        if self.per_cpu { self.ops.user_value_size() } else { self.value_size }
    }

    /// Tells whether somebody may wait for programs that have found something in the map, as
    /// [`Take::Exact`](crate::Take::Exact) does: then each of their runs begins with
    /// [`slots::enter`](crate::slots::enter). Maps that lead to such maps are among them.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.ops.exact_take().is_some()
            || matches!(
                self.def.map_type,
                MapType::ArrayOfMaps | MapType::HashOfMaps | MapType::ProgArray
            )
    }

    /// Tells whether the map keeps a value for each slot.
    #[must_use]
    pub fn is_per_cpu(&self) -> bool {
        self.per_cpu
    }

    pub(crate) fn ops(&self) -> &dyn MapOps {
        &*self.ops
    }

    /// Tells whether elements of the type come and go.
    pub(crate) fn has_epochs(&self) -> bool {
        self.has_epochs
    }

    /// Begins a strict walk: its number, 0 for types in which everything is there from the
    /// beginning.
    ///
    /// # Errors
    /// `EPERM` where the map cannot be written, or its file was made by an older version.
    pub(crate) fn begin_strict_walk(&self) -> Result<u32, MapError> {
        if !self.has_epochs {
            return Ok(0);
        }
        let why = if self.epochs.is_empty() {
            "the map's file was made by an older version, which does not note when elements were put in"
        } else if !self.file.writable() {
            "a strict walk notes its beginning in the map, which was opened for reading"
        } else if !self.epochs.are_kept() && !self.epochs.get_memory() {
            return Err(MapError::NoMemory { what: "the times at which elements were put in" });
        } else if let Some(number) = self.epochs.begin() {
            return Ok(number);
        } else {
            "the map has had as many strict walks as can be counted"
        };
        Err(MapError::Denied { why })
    }

    #[inline]
    pub(crate) fn check_readable(&self) -> Result<(), MapError> {
        if self.def.flags.has(MapFlags::WRONLY) {
            Err(MapError::Denied { why: "the map is write-only" })
        } else {
            Ok(())
        }
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<(), MapError> {
        match self.why_not_writable() {
            None => Ok(()),
            Some(why) => Err(MapError::Denied { why }),
        }
    }

    #[inline]
    fn why_not_writable(&self) -> Option<&'static str> {
        if !self.file.writable() {
            Some("the map was opened for reading")
        } else if self.def.flags.has(MapFlags::RDONLY) {
            Some("the map is read-only")
        } else if self.is_frozen() {
            Some("the map is frozen")
        } else if crate::stays_out() {
            Some(STRANGER)
        } else {
            None
        }
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), MapError> {
        let want = self.def.key_size as usize;
        if key.len() == want {
            Ok(())
        } else {
            Err(MapError::Length { what: "key", given: key.len(), want })
        }
    }

    /// Copies the value of a key out.
    ///
    /// # Errors
    /// [`MapError::NoElement`]; a key of the wrong size; a write-only map.
    pub fn lookup(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        let size = self.user_value_size();
        let mut small = [0; SMALL];
        if let Some(out) = small.get_mut(..size) {
            self.lookup_into(key, out, 0)?;
            return Ok(out.to_vec());
        }
        let mut out = vec![0; size];
        self.lookup_into(key, &mut out, 0)?;
        Ok(out)
    }

    /// Copies the value of a key into a buffer of [`Map::user_value_size`], or for per-CPU types of
    /// any number of values.
    ///
    /// # Errors
    /// As [`Map::lookup`], for a buffer of the wrong size, and for flags other than `BPF_F_LOCK`.
    #[doc(alias = "BPF_MAP_LOOKUP_ELEM")]
    pub fn lookup_into(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.check_readable()?;
        self.check_lock_flag(flags, flags)?;
        self.check_key(key)?;
        self.check_value(out.len())?;
        self.ops.lookup(key, out, flags)
    }

    /// Removes the element with a key (from queues and stacks, the next one) and copies its last
    /// value out.
    ///
    /// # Errors
    /// As the kernel's lookup-and-delete: 524 for types that have none.
    #[doc(alias = "BPF_MAP_LOOKUP_AND_DELETE_ELEM")]
    pub fn lookup_and_delete(
        &self,
        key: &[u8],
        out: &mut [u8],
        flags: u64,
    ) -> Result<(), MapError> {
        self.check_readable()?;
        self.check_writable()?;
        self.check_lock_flag(flags, flags)?;
        self.check_key(key)?;
        self.check_value(out.len())?;
        let none = MapError::Unsupported {
            map_type: self.def.map_type,
            operation: "lookup and delete",
            errno: ENOTSUPP,
        };
        self.ops.take(key, out, flags).unwrap_or(Err(none))
    }

    /// Refuses flags of which some of `all` are unknown, and a lock where there is none.
    #[inline]
    fn check_lock_flag(&self, flags: u64, all: u64) -> Result<(), MapError> {
        if flags == 0 {
            return Ok(());
        }
        let lock = flags & update::LOCK != 0;
        if all & !update::LOCK != 0
            || (lock && (self.def.spin_lock.is_none() || !self.file.writable()))
        {
            return Err(MapError::Flags { flags });
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_value(&self, given: usize) -> Result<(), MapError> {
        if !self.per_cpu && given == self.value_size {
            return Ok(());
        }
        self.check_values(given)
    }

    #[inline(never)]
    fn check_values(&self, given: usize) -> Result<(), MapError> {
        let want = self.user_value_size();
        let each = (self.def.value_size as usize).next_multiple_of(8);
        let fits = if self.per_cpu {
            given > 0 && given.is_multiple_of(each) && given / each <= MAX_SLOTS as usize
        } else {
            given == want
        };
        if fits { Ok(()) } else { Err(MapError::Length { what: "value", given, want }) }
    }

    /// Stores a value; `flags` are those of [`skep_isa::map::update`]. For per-CPU types, `value`
    /// has the values of the slots from 0 on, each rounded up to eight bytes; the remaining
    /// slots become zero.
    ///
    /// # Errors
    /// As the kernel's map update.
    #[doc(alias = "BPF_MAP_UPDATE_ELEM")]
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        self.check_writable()?;
        self.check_lock_flag(flags, 0)?;
        self.check_key(key)?;
        self.check_value(value.len())?;
        self.ops.update(key, value, flags)
    }

    /// Removes the element with a key.
    ///
    /// # Errors
    /// As the kernel's map delete; `EINVAL` for arrays.
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.check_writable()?;
        self.check_key(key)?;
        self.ops.delete(key)
    }

    /// Returns the key after `key`, or the first one for `None` and for a key that is not there.
    ///
    /// A walk by keys repeats itself when elements vanish under it; [`Map::iter`] and [`Map::dump`]
    /// do not.
    ///
    /// # Errors
    /// [`MapError::NoElement`] at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, MapError> {
        self.check_readable()?;
        if let Some(key) = key {
            self.check_key(key)?;
        }
        let mut out = vec![0; self.def.key_size as usize];
        self.ops.next_key(key, &mut out)?;
        Ok(out)
    }

    /// Forbids all users, but not programs, to write from now on.
    ///
    /// # Errors
    /// `EPERM` when that is so already.
    pub fn freeze(&self) -> Result<(), MapError> {
        self.check_writable()?;
        match self.file.state(FROZEN).map(|w| w.swap(1, AcqRel)) {
            Some(0) => Ok(()),
            _ => Err(MapError::Denied { why: "the map is frozen" }),
        }
    }

    /// Tells whether users are forbidden to write.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.file.state(FROZEN).is_some_and(|w| w.load(Acquire) != 0)
    }

    /// Finds a value for a program: its address in this process, or null. The address stays mapped
    /// as long as the map.
    ///
    /// # Safety
    /// `key` points to `key_size` readable bytes. For per-CPU types the thread is between
    /// [`crate::slots::enter`] and [`crate::slots::exit`].
    #[inline]
    #[must_use]
    pub unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_lookup(key) }
    }

    /// Stores a value for a program; returns 0 or a negative errno.
    ///
    /// # Safety
    /// `key` and `value` point to `key_size` and `value_size` readable bytes; slots as in
    /// [`Map::prog_lookup`].
    #[inline]
    pub unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_update(key, value, flags) }
    }

    /// Finds a CPU's value for a program: its address in this process, or null, as for types that
    /// are not per-CPU.
    ///
    /// # Safety
    /// As [`Map::prog_lookup`].
    #[doc(alias = "bpf_map_lookup_percpu_elem")]
    #[inline]
    #[must_use]
    pub unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_lookup_cpu(key, cpu) }
    }

    /// Puts a value into a queue, stack or bloom filter for a program; returns 0 or a negative
    /// errno.
    ///
    /// # Safety
    /// `value` points to `value_size` readable bytes.
    #[doc(alias = "bpf_map_push_elem")]
    pub unsafe fn prog_push(&self, value: *const u8, flags: u64) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_push(value, flags) }
    }

    /// Takes the next value out of a queue or stack for a program; returns 0 or a negative errno,
    /// and then the value is zero.
    ///
    /// # Safety
    /// `value` points to `value_size` writable bytes.
    #[doc(alias = "bpf_map_pop_elem")]
    pub unsafe fn prog_pop(&self, value: *mut u8) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_pop(value) }
    }

    /// Copies out what [`Map::prog_pop`] would take. A bloom filter is asked instead whether it may
    /// hold the value: 0, or `-ENOENT`.
    ///
    /// # Safety
    /// As [`Map::prog_pop`], and the value is readable.
    #[doc(alias = "bpf_map_peek_elem")]
    pub unsafe fn prog_peek(&self, value: *mut u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_peek(value) }
    }

    /// Finds the next element of a walk for a program, `None` at the end. Safe on the event path.
    ///
    /// The addresses stay mapped as long as the map; what lies there is another element's when this
    /// one is deleted.
    ///
    /// # Safety
    /// Slots as in [`Map::prog_lookup`].
    #[doc(alias = "bpf_for_each_map_elem")]
    pub unsafe fn prog_next(&self, walk: &mut ProgWalk) -> Option<(*const u8, *mut u8)> {
        // SAFETY: the caller's duty.
        let e = unsafe { self.ops.prog_next(&mut walk.at) }?;
        walk.index = e.index;
        Some((e.key.unwrap_or(std::ptr::from_ref::<u32>(&walk.index).cast()), e.value))
    }

    /// Removes an element for a program; returns 0 or a negative errno.
    ///
    /// # Safety
    /// `key` points to `key_size` readable bytes.
    #[inline]
    pub unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        if !self.file.writable() {
            return -i64::from(EPERM);
        }
        // SAFETY: the caller's duty.
        unsafe { self.ops.prog_delete(key) }
    }
}
