//! The map types that are tables: one implementation for all kinds of values.

use skep_isa::map::update;
use skep_isa::{MapShape, ShapeKind};

use super::change::user_result;
use super::table::{Table, Values};
use crate::dump::output::Output;
use crate::dump::position::Position;
use crate::error::{EINVAL, MapError};
use crate::map_file::MapFile;
use crate::ops::{Element, ElementKey, ExactTake, LastKey, ProgOps, UserOps, WalkOps};
use crate::shm::lock::Held;
use crate::shm::table::Geometry;

/// How a kind of hash keeps its values.
pub(crate) trait Kind: Send + Sync {
    /// Values hold a spin lock.
    const HAS_LOCK: bool = false;
    /// Bytes of a value as users see it now.
    fn user_size(&self, table: &Table) -> usize;
    /// A user's value for storing.
    fn of_user<'a>(&'a self, value: &'a [u8], flags: u64) -> impl Values + 'a;
    /// A program's value for storing.
    ///
    /// # Safety
    /// It is readable for the size of a value, as long as what is returned is used.
    unsafe fn of_program(&self, value: *const u8, flags: u64) -> impl Values + '_;
    /// Copies a value out; `flags` as for a lookup. It is whole if its bucket is the same before
    /// and after.
    fn load(&self, table: &Table, reference: u32, out: &mut [u8], flags: u64);
    /// The slot a running program uses.
    fn slot(&self) -> u32;
    /// The slot that belongs to a CPU, if its values have memory.
    fn slot_of(&self, table: &Table, cpu: u32) -> Option<u32>;
}

impl<K: Kind> ExactTake for Hash<K> {
    fn begin(&self) -> Result<Held, MapError> {
        self.table.limbo_begin()
    }

    fn detach(&self, key: &[u8]) -> Result<Option<u32>, MapError> {
        self.table.detach(key)
    }

    fn heartbeat(&self, held: &mut Held) {
        self.table.limbo_heartbeat(held);
    }

    fn load(&self, reference: u32, value: &mut [u8]) {
        self.kind.load(&self.table, reference, value, 0);
    }

    fn end(&self, mut count: usize, held: Held) {
        while count > 0 && self.table.settle_first() {
            count -= 1;
        }
        self.table.limbo_end(held);
    }
}

#[derive(Debug)]
pub(crate) struct Hash<K> {
    pub(crate) table: Table,
    kind: K,
    lru: bool,
    max_entries: u32,
}

impl<K: Kind> Hash<K> {
    /// Opens a table with values of a kind.
    pub(super) fn new(kind: K, geometry: Geometry, file: MapFile) -> Result<Self, MapError> {
        let max_entries = file.def.max_entries;
        let table = Table::new(file, geometry)?;
        Ok(Self { lru: table.lru, table, kind, max_entries })
    }

    #[cold]
    #[inline(never)]
    fn lookup_again(&self, key: &[u8], out: &mut [u8]) -> Result<(), MapError> {
        self.table.lookup(key, |r| self.kind.load(&self.table, r, out, 0))
    }

    /// # Safety
    /// As [`ProgOps::prog_lookup`].
    #[inline(always)]
    unsafe fn prog_find(&self, key: *const u8, slot: u32) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.prog_find_sized(key, self.table.key_size(), slot) }
    }

    /// # Safety
    /// As [`ProgOps::prog_lookup`]; `size` is the key size.
    #[inline(always)]
    unsafe fn prog_find_sized(&self, key: *const u8, size: usize, slot: u32) -> *mut u8 {
        // SAFETY: the caller's duty.
        let found = unsafe { self.table.find(key, size) };
        if self.lru {
            self.table.touch(found);
        }
        self.table.memory.value(found, slot).unwrap_or(std::ptr::null_mut())
    }
}

/// What compiled programs call for keys of `SIZE` bytes ([`ShapeKind::Direct`]).
///
/// # Safety
/// As [`ProgOps::prog_lookup`]; `map` is the address of a `Hash<K>` with keys of that size.
#[unsafe(link_section = ".text.skep_event")]
unsafe extern "C" fn lookup_sized<K: Kind, const SIZE: usize>(map: u64, key: u64) -> u64 {
    // SAFETY: the caller's duty.
    unsafe {
        let map = &*(map as *const Hash<K>);
        map.prog_find_sized(key as *const u8, SIZE, map.kind.slot()) as u64
    }
}

impl<K: Kind> UserOps for Hash<K> {
    fn user_value_size(&self) -> usize {
        self.kind.user_size(&self.table)
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        if K::HAS_LOCK && flags & update::LOCK != 0 {
            return self.table.lookup_locked(key, |r| self.kind.load(&self.table, r, out, flags));
        }
        let seen = self.table.look_up(key);
        if seen.found != 0 {
            self.kind.load(&self.table, seen.found, out, 0);
        }
        match (seen.is_whole(), seen.found) {
            (true, 0) => Err(MapError::NoElement),
            (true, _) => Ok(()),
            (false, _) => self.lookup_again(key, out),
        }
    }

    fn prefetch(&self, keys: &[u8]) {
        self.table.prefetch_keys(keys);
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let new = self.kind.of_user(value, flags);
        if let Some(areas) = &self.table.areas {
            areas.ensure_for(value, self.table.memory.geometry.value_stride)?;
        }
        // SAFETY: the front end checked the length of the key.
        user_result(
            unsafe { self.table.update(key.as_ptr(), flags, &new) },
            flags,
            self.max_entries,
        )
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        // SAFETY: the front end checked the length of the key.
        user_result(unsafe { self.table.delete(key.as_ptr(), |_| {}) }, 0, self.max_entries)
    }

    fn take(&self, key: &[u8], out: &mut [u8], flags: u64) -> Option<Result<(), MapError>> {
        // SAFETY: the front end checked the length of the key.
        let r = unsafe {
            self.table.delete(key.as_ptr(), |r| self.kind.load(&self.table, r, out, flags))
        };
        Some(user_result(r, flags, self.max_entries))
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        self.table.next_key(key, out)
    }
}

impl<K: Kind> WalkOps for Hash<K> {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        self.table.step(at, |e, r| {
            e.read_key(key);
            self.kind.load(&self.table, r, value, 0);
        })
    }

    fn fill(&self, at: &mut Position, out: &mut Output<'_>) -> Result<bool, MapError> {
        self.table.fill(at, out, |r, value| self.kind.load(&self.table, r, value, 0))
    }

    fn seek(&self, key: &[u8]) -> Result<Option<Position>, MapError> {
        self.table.seek(key)
    }

    fn exact_take(&self) -> Option<&dyn ExactTake> {
        Some(self)
    }
}

impl<K: Kind> ProgOps for Hash<K> {
    fn is_waited_for(&self) -> bool {
        true
    }

    fn shape(&self) -> MapShape {
        let func: unsafe extern "C" fn(u64, u64) -> u64 = match self.table.key_size() {
            4 => lookup_sized::<K, 4>,
            8 => lookup_sized::<K, 8>,
            12 => lookup_sized::<K, 12>,
            16 => lookup_sized::<K, 16>,
            // Of packets, which targets do not see.
            #[cfg(feature = "users")]
            20 => lookup_sized::<K, 20>,
            24 => lookup_sized::<K, 24>,
            32 => lookup_sized::<K, 32>,
            #[cfg(feature = "users")]
            40 => lookup_sized::<K, 40>,
            _ => return MapShape { base: 0, stride: 0, entries: 0, kind: ShapeKind::Opaque },
        };
        // The map is behind a box, which programs keep.
        let kind =
            ShapeKind::Direct { func: func as usize as u64, map: std::ptr::from_ref(self) as u64 };
        MapShape { base: 0, stride: 0, entries: 0, kind }
    }

    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.prog_find(key, self.kind.slot()) }
    }

    unsafe fn prog_lookup_cpu(&self, key: *const u8, cpu: u32) -> *mut u8 {
        match self.kind.slot_of(&self.table, cpu) {
            // SAFETY: the caller's duty.
            Some(slot) => unsafe { self.prog_find(key, slot) },
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn prog_update(&self, key: *const u8, value: *const u8, flags: u64) -> i64 {
        if flags & !(update::LOCK | 3) != 0 || (flags & update::LOCK != 0 && !K::HAS_LOCK) {
            return -i64::from(EINVAL);
        }
        // SAFETY: the caller's duty.
        unsafe { self.table.update(key, flags, &self.kind.of_program(value, flags)) }
    }

    unsafe fn prog_delete(&self, key: *const u8) -> i64 {
        // SAFETY: the caller's duty.
        unsafe { self.table.delete(key, |_| {}) }
    }

    unsafe fn prog_next(&self, at: &mut Position, _last: &mut LastKey) -> Option<Element> {
        let mut key = std::ptr::null();
        let mut found = 0;
        let more = self.table.step(at, |e, r| {
            key = e.key().cast_const();
            found = r;
        });
        if !matches!(more, Ok(true)) {
            return None;
        }
        let value = self.table.memory.value(found, self.kind.slot())?;
        Some(Element { key: ElementKey::Fixed(key), value })
    }
}
