//! `BPF_MAP_TYPE_DEVMAP` and `BPF_MAP_TYPE_DEVMAP_HASH`: where packets may be redirected to, as
//! interface numbers, each perhaps with the id of a program.
//!
//! The word, or value, is `struct bpf_devmap_val`: interface, program. Interfaces are not looked
//! up: the packets of programs that run here do not leave on real devices.

use skep_isa::map::update;

use crate::def::MapDef;
use crate::dump::position::Position;
use crate::error::{EEXIST, EINVAL, MapError};
use crate::hash::Hash;
use crate::hash::plain::{self, Plain};
use crate::id_table::{IdTable, Rows, number};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::{MapOps, ProgOps, UserOps, WalkOps};

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(IdTable::new(file, Devmap)))
}

struct Devmap;

impl Rows for Devmap {
    fn word(&self, _index: u32, value: &[u8], flags: u64, _taken: bool) -> Result<u64, MapError> {
        // Every row of the kernel's table exists always, for this question.
        if flags == update::NOEXIST {
            return Err(MapError::Exists);
        }
        let (interface, program) = (number(value, 0), number(value, 1));
        if interface == 0 && program as i32 > 0 {
            return Err(MapError::Value {
                value: u64::from(program),
                why: "a program needs an interface",
                errno: EINVAL,
            });
        }
        Ok(u64::from(if program as i32 > 0 { program } else { 0 }) << 32 | u64::from(interface))
            .map(|w| if interface == 0 { 0 } else { w })
    }
}

pub(crate) fn hash_layout(def: &MapDef) -> Result<Layout, MapError> {
    let row = def.map_type.row();
    if !row.key.allows(def.key_size) || !row.value.allows(def.value_size) {
        return Err(def.invalid("keys have 4 bytes, values 4 or 8"));
    }
    plain::layout(def)
}

pub(crate) fn open_hash(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(DevmapHash { hash: plain::make(file)? }))
}

/// The hash of all others, with rules of its own for stores.
struct DevmapHash {
    hash: Hash<Plain>,
}

impl UserOps for DevmapHash {
    fn user_value_size(&self) -> usize {
        self.hash.user_value_size()
    }

    fn lookup(&self, key: &[u8], out: &mut [u8], flags: u64) -> Result<(), MapError> {
        self.hash.lookup(key, out, flags)
    }

    fn update(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), MapError> {
        if flags > update::EXIST {
            return Err(MapError::Flags { flags });
        }
        if number(value, 0) == 0 {
            return Err(MapError::Value {
                value: 0,
                why: "no interface has this number",
                errno: EINVAL,
            });
        }
        let mut value = value.to_vec();
        // No program is 0 or, as descriptors were once, negative.
        if number(&value, 1) as i32 <= 0
            && let Some(program) = value.get_mut(4..)
        {
            program.fill(0);
        }
        // The kernel does not ask whether the element exists when it must.
        let flags = if flags == update::EXIST { update::ANY } else { flags };
        match self.hash.update(key, &value, flags) {
            Err(e) if e.errno() == EEXIST => Err(MapError::Exists),
            done => done,
        }
    }

    fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        self.hash.delete(key)
    }

    fn next_key(&self, key: Option<&[u8]>, out: &mut [u8]) -> Result<(), MapError> {
        self.hash.next_key(key, out)
    }
}

impl WalkOps for DevmapHash {
    fn step(&self, at: &mut Position, key: &mut [u8], value: &mut [u8]) -> Result<bool, MapError> {
        self.hash.step(at, key, value)
    }
}

impl ProgOps for DevmapHash {
    unsafe fn prog_lookup(&self, key: *const u8) -> *mut u8 {
        // SAFETY: the caller's duty.
        unsafe { self.hash.prog_lookup(key) }
    }
}
