//! What a map type is given when a map's file was mapped.

use std::sync::Arc;

use crate::def::MapDef;
use crate::shm::ObjectFile;
use crate::shm::epoch::InsertionEpochs;
use crate::slots::SlotTable;

/// A mapped file, and what was read from its header.
#[derive(Debug)]
pub(crate) struct MapFile {
    pub(crate) def: MapDef,
    pub(crate) seed: u64,
    pub(crate) object: Arc<ObjectFile>,
    /// The directory's slots, for types that say so in their row.
    pub(crate) slots: Option<Arc<SlotTable>>,
    pub(crate) epochs: InsertionEpochs,
    /// How many elements this process will use, for types of which a part can be mapped.
    pub(crate) entries: u32,
}
