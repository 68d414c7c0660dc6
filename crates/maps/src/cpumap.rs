//! `BPF_MAP_TYPE_CPUMAP`: processors that packets may be redirected to, as queue sizes, each
//! perhaps with the id of a program.

use skep_isa::map::update;

use crate::def::MapDef;
use crate::error::{E2BIG, ENODEV, EOVERFLOW, MapError};
use crate::id_table::{self, IdTable, Rows, number};
use crate::layout::Layout;
use crate::map_file::MapFile;
use crate::ops::MapOps;
use crate::slots::possible_cpus;

/// Most processors (the kernel: `NR_CPUS`, 8192 where it is configured for very large machines).
const MAX_CPUS: u32 = 8192;
/// Longest queue (kernel/bpf/cpumap.c).
const MAX_QUEUE: u32 = 16384;

pub(crate) fn layout(def: &MapDef) -> Result<Layout, MapError> {
    let layout = id_table::layout(def)?;
    if def.max_entries > MAX_CPUS {
        Err(def.refused("no machine has so many processors", E2BIG))
    } else {
        Ok(layout)
    }
}

pub(crate) fn open(file: MapFile) -> Result<Box<dyn MapOps>, MapError> {
    Ok(Box::new(IdTable::new(file, Cpumap)))
}

struct Cpumap;

impl Rows for Cpumap {
    fn word(&self, index: u32, value: &[u8], flags: u64, _taken: bool) -> Result<u64, MapError> {
        if flags == update::NOEXIST {
            return Err(MapError::Exists);
        }
        let (queue, program) = (number(value, 0), number(value, 1));
        if queue > MAX_QUEUE {
            return Err(MapError::Value {
                value: u64::from(queue),
                why: "the queue is too long",
                errno: EOVERFLOW,
            });
        }
        if index >= possible_cpus() {
            return Err(MapError::Value {
                value: u64::from(index),
                why: "there is no such processor",
                errno: ENODEV,
            });
        }
        if queue == 0 {
            return Ok(0);
        }
        Ok(u64::from(if program as i32 > 0 { program } else { 0 }) << 32 | u64::from(queue))
    }
}
