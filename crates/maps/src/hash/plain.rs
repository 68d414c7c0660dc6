//! Values inside their elements: `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_LRU_HASH`.
//!
//! A value of at most eight bytes is overwritten in place with one store, so a program that holds
//! its address sees the change. A larger one is replaced together with its element, and readers see
//! the old value or the new one. With `BPF_F_LOCK` a value of any size is overwritten in place,
//! under its own lock.

use skep_isa::map::update;

use super::layout;
use super::ops::{Hash, Kind};
use super::table::{Table, Values};
use crate::def::MapDef;
use crate::error::MapError;
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::MapOps;
use crate::shm::value::Format;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    layout::geometry(def, 0).map(|g| layout::layout(def, &g))
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    if file.def.spin_lock.is_some() {
        Ok(Box::new(make::<true>(file)?))
    } else {
        Ok(Box::new(make::<false>(file)?))
    }
}

pub(crate) fn make<const LOCK: bool>(file: MapFile) -> Result<Hash<Plain<LOCK>>, MapError> {
    let geometry = layout::geometry(&file.def, 0)?;
    Hash::new(Plain { format: file.def.value_format() }, geometry, file)
}

/// `LOCK`: values hold a spin lock. Maps where they do not, most of all, pay nothing for it.
#[derive(Debug)]
pub(crate) struct Plain<const LOCK: bool = false> {
    format: Format,
}

impl<const LOCK: bool> Plain<LOCK> {
    /// Copies a value by the format, which is not copied itself: that would take vector registers.
    #[inline(always)]
    fn by_format<R>(&self, copy: impl FnOnce(&Format) -> R) -> R {
        if LOCK { copy(&self.format) } else { copy(&self.format.without_lock()) }
    }
}

/// A value to store, readable for its size.
struct New<'a, const LOCK: bool> {
    from: *const u8,
    kind: &'a Plain<LOCK>,
    locked: bool,
}

impl<const LOCK: bool> Values for New<'_, LOCK> {
    #[inline(always)]
    fn overwrite(&self, table: &Table, reference: u32) -> bool {
        if self.kind.format.size > 8 {
            return false;
        }
        if let Some(to) = table.memory.value(reference, 0) {
            // SAFETY: `to` has room for the value rounded up; `from` is as long as the maker said.
            self.kind.by_format(|format| unsafe { format.store(to, self.from) });
        }
        true
    }

    #[inline(always)]
    fn is_locked(&self) -> bool {
        self.locked
    }

    #[inline(always)]
    fn fill(&self, table: &Table, reference: u32) {
        if let Some(to) = table.memory.value(reference, 0) {
            // SAFETY: `to` has room for the value rounded up; `from` is as long as the maker said.
            self.kind.by_format(|format| unsafe { format.store_new(to, self.from) });
        }
    }
}

impl<const LOCK: bool> Kind for Plain<LOCK> {
    const HAS_LOCK: bool = LOCK;

    fn user_size(&self, _table: &Table) -> usize {
        self.format.size
    }

    fn of_user<'a>(&'a self, value: &'a [u8], flags: u64) -> impl Values + 'a {
        assert!(value.len() >= self.format.size, "the front end checked the length");
        // SAFETY: it has the size of a value, and is borrowed as long.
        unsafe { self.of_program(value.as_ptr(), flags) }
    }

    #[inline(always)]
    unsafe fn of_program(&self, value: *const u8, flags: u64) -> impl Values + '_ {
        New { from: value, kind: self, locked: LOCK && flags & update::LOCK != 0 }
    }

    #[inline(always)]
    fn load(&self, table: &Table, reference: u32, out: &mut [u8], flags: u64) {
        let Some(from) = table.memory.value(reference, 0) else { return };
        if LOCK && flags & update::LOCK != 0 {
            // SAFETY: a value has its size rounded up; who asks for the lock has checked that the
            // memory is writable.
            unsafe { self.format.load_locked(out, from) }
            return;
        }
        // SAFETY: a value has its size rounded up.
        self.by_format(|format| unsafe { format.load(out, from) });
        if LOCK && let Some(whole) = table.spare_for(reference) {
            // SAFETY: the value in a spare has its size rounded up.
            unsafe { self.format.load(out, whole) }
        }
    }

    #[inline(always)]
    fn slot(&self) -> u32 {
        0
    }

    fn slot_of(&self, _table: &Table, _cpu: u32) -> Option<u32> {
        None
    }
}
