//! `BPF_MAP_TYPE_PROG_ARRAY`: programs to go on with by a tail call, as ids.
//!
//! Each process that runs programs finds or compiles the program of an id for itself
//! (`skep_vm::tail`). A program that is in an array is not garbage: see [`crate::references`].
//!
//! The kernel empties an array when no user has it open or pinned any more, even while programs run
//! that go on to what is in it: they hold the array and it holds them, and nothing else would end
//! that. Here an array keeps its programs as long as its file. A program that runs has the array
//! open, so tail calls go on after its loader ended; when nobody has it open and no pin keeps it,
//! the file goes with all it names, whatever names it, so a circle keeps nothing.

use skep_isa::ShapeKind;
use skep_isa::map::update;

use crate::error::{E2BIG, EBADF, ENOENT, MapError};
use crate::id_table::{IdTable, Rows, Table, number};
use crate::map_file::MapFile;
use crate::ops::MapOps;
use crate::references::{References, Referent};

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    let references = References::of(&file.object, Referent::Program);
    Ok(Box::new(IdTable::new(file, ProgArray { references })))
}

struct ProgArray {
    references: References,
}

impl Rows for ProgArray {
    const SHAPE: ShapeKind = ShapeKind::ProgArray { targets: 0 };
    const OUT_OF_RANGE: i32 = E2BIG;
    const EMPTY: i32 = ENOENT;

    fn check_flags(&self, flags: u64) -> Result<(), MapError> {
        if flags == update::ANY { Ok(()) } else { Err(MapError::Flags { flags }) }
    }

    fn word(&self, _index: u32, value: &[u8], _flags: u64, _taken: bool) -> Result<u64, MapError> {
        match number(value, 0) {
            0 => {
                Err(MapError::Value { value: 0, why: "programs are numbered from 1", errno: EBADF })
            }
            id => Ok(u64::from(id)),
        }
    }

    fn change(&self, table: &Table, index: u32, word: u64) -> Result<u64, MapError> {
        // As the kernel refuses what is no program. Elsewhere programs are known to this process only, and
        // kept by whoever compiled them.
        self.references
            .change(
                word as u32,
                self.references.are_numbered(),
                || table.set(index, word).map(|old| old as u32),
                |id| table.has(u64::from(id)),
            )
            .map(u64::from)
    }
}
