//! `BPF_MAP_TYPE_CGROUP_ARRAY`: numbers of control groups. What they stand for is the affair of the
//! helpers that take such a map.

use skep_isa::map::update;

use crate::error::{E2BIG, EBADF, ENOENT, ENOTSUPP, MapError};
use crate::id_table::{IdTable, Rows, number};
use crate::map_file::MapFile;
use crate::ops::MapOps;

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(IdTable::new(file, CgroupArray)))
}

struct CgroupArray;

impl Rows for CgroupArray {
    const NO_LOOKUP: Option<i32> = Some(ENOTSUPP);
    const OUT_OF_RANGE: i32 = E2BIG;
    const EMPTY: i32 = ENOENT;

    fn check_flags(&self, flags: u64) -> Result<(), MapError> {
        if flags == update::ANY { Ok(()) } else { Err(MapError::Flags { flags }) }
    }

    fn word(&self, _index: u32, value: &[u8], _flags: u64, _taken: bool) -> Result<u64, MapError> {
        match number(value, 0) {
            0 => Err(MapError::Value {
                value: 0,
                why: "control groups are numbered from 1",
                errno: EBADF,
            }),
            id => Ok(u64::from(id)),
        }
    }
}
