//! `BPF_MAP_TYPE_ARRAY_OF_MAPS` and `BPF_MAP_TYPE_HASH_OF_MAPS`: maps as values, by their ids.
//!
//! The file holds ids. A process that looks an inner map up needs it open, so it keeps a table of
//! those it has opened ([`InnerMaps`]), which only grows: a program may still use an inner map that
//! is not in the outer one any more. Inner maps are opened when the outer one is, when this process
//! stores them, and, for those that another process stored later, at the first lookup that finds
//! them. Opening needs memory and system calls, which is nothing for the event path, so it is left
//! to a function that the process sets ([`set_inner_opener`]) and that knows how to do such things
//! there; without one, such a lookup finds nothing.
//!
//! An inner map must be like the one the outer map was made with, and is no garbage while it is in
//! there ([`crate::references`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use skep_isa::map::update;
use skep_isa::{MapFlags, MapType};

use crate::def::MapDef;
use crate::dump::position::Position;
use crate::error::{E2BIG, EINVAL, ENOENT, MapError};
use crate::hash::Hash;
use crate::hash::plain::{self, Plain};
use crate::id_table::{IdTable, Rows, Table, number};
use crate::layout::Layout;
use crate::map::Map;
use crate::map_file::MapFile;
use crate::ops::{MapOps, ProgOps, UserOps, WalkOps};
use crate::references::{References, Referent, root};
use crate::shm::{Access, copy};

/// Opens inner maps on behalf of a running program; see [`set_inner_opener`].
pub type InnerOpener = unsafe extern "C" fn(maps: *const InnerMaps, id: u32);

static OPENER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets what is called when a program of this process looks up an inner map that is not open here.
///
/// It should make sure that memory can be had, and call [`InnerMaps::open`].
///
/// # Safety
/// `opener` may be called with inner maps and an id on any thread, between any two instructions of
/// the process: it keeps all vector registers, and what it calls takes no lock that the thread may
/// have.
///
/// ```compile_fail,E0133
/// extern "C" fn open(_: *const skep_maps::InnerMaps, _: u32) {}
/// skep_maps::set_inner_opener(open);
/// ```
pub unsafe fn set_inner_opener(opener: InnerOpener) {
    OPENER.store(opener as *mut (), Release);
}

const BUCKETS: usize = 256;

/// The inner maps of one outer map that this process has open.
#[derive(Debug)]
pub struct InnerMaps {
    like: MapDef,
    root: Option<PathBuf>,
    access: Access,
    known: [AtomicPtr<Known>; BUCKETS],
}

/// One of them; `None` for an id whose file cannot be used, so that not every lookup tries again.
#[derive(Debug)]
struct Known {
    id: u32,
    map: Option<Arc<Map>>,
    next: *mut Known,
}

// SAFETY: nodes are immutable once they are in the list, hold only what is `Send` and `Sync`, and
// live as long as the list.
unsafe impl Send for InnerMaps {}
// SAFETY: nodes are immutable once they are in the list, hold only what is `Send` and `Sync`, and
// live as long as the list.
unsafe impl Sync for InnerMaps {}

impl InnerMaps {
    fn new(file: &MapFile) -> Result<Self, MapError> {
        let like = file.def.inner.as_deref().ok_or(MapError::Damaged {
            what: "a map of maps without a definition of inner maps",
        })?;
        // Per-CPU maps ask for it when they are opened; the answer is kept.
        let _ = crate::slots::possible_cpus();
        Ok(Self {
            like: like.clone(),
            root: root(&file.object),
            access: if file.object.writable() { Access::ReadWrite } else { Access::ReadOnly },
            known: [const { AtomicPtr::new(std::ptr::null_mut()) }; BUCKETS],
        })
    }

    fn bucket(&self, id: u32) -> &AtomicPtr<Known> {
        // A mask below the length of the array.
        &self.known[id as usize & (BUCKETS - 1)]
    }

    fn find(&self, id: u32) -> Option<&Known> {
        // Pairs with the Release in `add`.
        let mut at = self.bucket(id).load(Acquire).cast_const();
        // SAFETY: nodes come from `Box::into_raw` and live as long as `self`.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.id == id {
                return Some(known);
            }
            at = known.next;
        }
        None
    }

    fn add(&self, id: u32, map: Option<Arc<Map>>) {
        let bucket = self.bucket(id);
        let node = Box::into_raw(Box::new(Known { id, map, next: bucket.load(Relaxed) }));
        // SAFETY: the node is ours until it is in the list.
        while let Err(now) = bucket.compare_exchange(unsafe { (*node).next }, node, AcqRel, Relaxed)
        {
            // SAFETY: the node is still ours.
            unsafe { (*node).next = now };
        }
    }

    /// Opens the inner map with an id, unless it is open already or can never be.
    pub fn open(&self, id: u32) {
        if self.find(id).is_none() {
            let map = self.load(id).ok().filter(|m| like(&self.like, m.def()));
            self.add(id, map.map(Arc::new));
        }
    }

    fn load(&self, id: u32) -> Result<Map, MapError> {
        let missing = MapError::Value {
            value: u64::from(id),
            why: "there is no such map",
            errno: crate::error::EBADF,
        };
        let Some(root) = self.root.as_ref().filter(|_| id != 0) else { return Err(missing) };
        Map::open(&root.join("maps").join(id.to_string()), self.access)
            .map_err(|e| if e.errno() == ENOENT { missing } else { e })
    }

    /// Checks a map that shall go in, and keeps it open.
    fn admit(&self, id: u32) -> Result<(), MapError> {
        let unlike = MapError::Value {
            value: u64::from(id),
            why: "it is not like the inner map the outer one was made with",
            errno: EINVAL,
        };
        match self.find(id) {
            Some(known) if known.map.is_some() => return Ok(()),
            _ => {}
        }
        let map = self.load(id)?;
        if !like(&self.like, map.def()) {
            return Err(unlike);
        }
        self.add(id, Some(Arc::new(map)));
        Ok(())
    }

    /// Returns the inner map as programs hold it: the address of the process's [`Map`].
    fn handle(&self, id: u32) -> *mut u8 {
        if let Some(known) = self.find(id) {
            return known
                .map
                .as_ref()
                .map_or(std::ptr::null_mut(), |m| Arc::as_ptr(m).cast_mut().cast());
        }
        self.handle_anew(id)
    }

    #[cold]
    #[inline(never)]
    fn handle_anew(&self, id: u32) -> *mut u8 {
        let opener = OPENER.load(Acquire);
        if opener.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: only `set_inner_opener` stores there; the opener is given what it is made for.
        unsafe { std::mem::transmute::<*mut (), InnerOpener>(opener)(self, id) };
        let known = self.find(id).and_then(|k| k.map.as_ref());
        known.map_or(std::ptr::null_mut(), |m| Arc::as_ptr(m).cast_mut().cast())
    }
}

impl Drop for InnerMaps {
    fn drop(&mut self) {
        for bucket in &mut self.known {
            let mut at = *bucket.get_mut();
            while !at.is_null() {
                // SAFETY: each node came from `Box::into_raw` and is in one list once.
                let known = unsafe { Box::from_raw(at) };
                at = known.next;
            }
        }
    }
}

/// Tells whether a map may be where one of another definition is expected (kernel:
/// `map_meta_equal`).
pub(crate) fn like(want: &MapDef, is: &MapDef) -> bool {
    let same_size = want.max_entries == is.max_entries
        || !matches!(want.map_type, MapType::Array | MapType::PercpuArray | MapType::Xskmap)
        || want.flags.has(MapFlags::INNER_MAP);
    (want.map_type, want.key_size, want.value_size, want.flags, want.spin_lock, want.map_extra)
        == (is.map_type, is.key_size, is.value_size, is.flags, is.spin_lock, is.map_extra)
        && same_size
}

pub(crate) fn open_array(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let maps = InnerMaps::new(&file)?;
    let references = References::of(&file.object, Referent::Map);
    let outer = IdTable::new(file, ArrayOfMaps { maps, references });
    (0..outer.table.entries)
        .map(|i| outer.table.get(i) as u32)
        .filter(|id| *id != 0)
        .for_each(|id| outer.rows.maps.open(id));
    Ok(Box::new(outer))
}

struct ArrayOfMaps {
    maps: InnerMaps,
    references: References,
}

impl Rows for ArrayOfMaps {
    const OUT_OF_RANGE: i32 = E2BIG;
    const EMPTY: i32 = ENOENT;

    fn check_flags(&self, flags: u64) -> Result<(), MapError> {
        if flags == update::ANY { Ok(()) } else { Err(MapError::Flags { flags }) }
    }

    fn word(&self, _index: u32, value: &[u8], _flags: u64, _taken: bool) -> Result<u64, MapError> {
        let id = number(value, 0);
        self.maps.admit(id)?;
        Ok(u64::from(id))
    }

    fn change(&self, table: &Table, index: u32, word: u64) -> Result<u64, MapError> {
        self.references
            .change(
                word as u32,
                true,
                || table.set(index, word).map(|old| old as u32),
                |id| table.has(u64::from(id)),
            )
            .map(u64::from)
    }

    unsafe fn seen_by_program(&self, word: *mut u8) -> *mut u8 {
        // SAFETY: a row of the table.
        self.maps.handle(unsafe { copy::load8(word) } as u32)
    }
}

pub(crate) fn hash_layout(def: &MapDef) -> Result<Layout, MapError> {
    if def.value_size != 4 {
        return Err(def.invalid("values of a map of maps have 4 bytes"));
    }
    plain::layout(def)
}

pub(crate) fn open_hash(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let maps = InnerMaps::new(&file)?;
    let references = References::of(&file.object, Referent::Map);
    let outer = HashOfMaps {
        key_size: file.def.key_size as usize,
        hash: plain::make(file)?,
        maps,
        references,
    };
    outer.each_id(|id| {
        outer.maps.open(id);
        false
    });
    Ok(Box::new(outer))
}

struct HashOfMaps {
    hash: Hash<Plain>,
    key_size: usize,
    maps: InnerMaps,
    references: References,
}

impl HashOfMaps {
    /// Walks over the ids until `f` has enough; tells whether it had.
    fn each_id(&self, mut f: impl FnMut(u32) -> bool) -> bool {
        let (mut at, mut key, mut value) = (Position::default(), vec![0; self.key_size], [0; 4]);
        while matches!(self.hash.step(&mut at, &mut key, &mut value), Ok(true)) {
            if f(number(&value, 0)) {
                return true;
            }
        }
        false
    }

    fn id(&self, key: &[u8]) -> u32 {
        let mut value = [0; 4];
        self.hash.lookup(key, &mut value, 0).map_or(0, |()| number(&value, 0))
    }

    fn has(&self, id: u32) -> bool {
        self.each_id(|i| i == id)
    }
}

impl UserOps for HashOfMaps {
    fn user_value_size(&self) -> usize {
        4
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.hash.lookup(key, out, flags)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        let id = number(value, 0);
        self.maps.admit(id)?;
        let store = || {
            let old = self.id(key);
            self.hash.update(key, value, flags).map(|()| old)
        };
        self.references.change(id, true, store, |id| self.has(id)).map(drop)
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        let remove = || {
            let old = self.id(key);
            self.hash.delete(key).map(|()| old)
        };
        self.references.change(0, true, remove, |id| self.has(id)).map(drop)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        self.hash.next_key(key, out)
    }
}

impl WalkOps for HashOfMaps {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        self.hash.step(at, key, value)
    }
}

impl ProgOps for HashOfMaps {
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        let value = unsafe { self.hash.prog_lookup(key) };
        if value.is_null() {
            return value;
        }
        // SAFETY: a value's four bytes.
        self.maps.handle(unsafe { copy::load4(value) })
    }
}
