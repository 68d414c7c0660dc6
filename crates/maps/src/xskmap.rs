//! `BPF_MAP_TYPE_XSKMAP`: sockets that packets may be redirected to, as numbers that mean something
//! to whoever made the map.

use skep_isa::map::update;

use crate::error::{EBADF, EOPNOTSUPP, MapError};
use crate::id_table::{IdTable, Rows, number};
use crate::map_file::MapFile;
use crate::ops::MapOps;

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(IdTable::new(file, Xskmap)))
}

struct Xskmap;

impl Rows for Xskmap {
    const NO_LOOKUP: Option<i32> = Some(EOPNOTSUPP);

    fn word(&self, _index: u32, value: &[u8], flags: u64, taken: bool) -> Result<u64, MapError> {
        let socket = number(value, 0);
        if socket == 0 {
            return Err(MapError::Value {
                value: 0,
                why: "sockets are numbered from 1",
                errno: EBADF,
            });
        }
        match flags {
            update::NOEXIST if taken => Err(MapError::Exists),
            update::EXIST if !taken => Err(MapError::NoElement),
            _ => Ok(u64::from(socket)),
        }
    }
}
