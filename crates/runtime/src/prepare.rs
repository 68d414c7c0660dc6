//! What every program needs before it runs here, by whatever engine: where its maps are, and a
//! handler for loads from addresses without memory.

use std::sync::Arc;

use skep_isa::op;
use skep_maps::Map;
use skep_store::prog::Program;
use skep_vm::MapRef;

use crate::vectors::keep_vectors;

/// Says that the kernel refuses the handler without which a load that finds nothing would end the
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("loads that may find nothing need a handler for SIGSEGV: {}", std::io::Error::from_raw_os_error(self.errno))]
pub struct NoHandler {
    /// Why.
    pub errno: i32,
}

/// Gets ready for loads of a program that may find nothing, by whatever engine it runs.
///
/// # Errors
/// When there can be no handler for them.
pub fn expect_bad_loads(program: &Program) -> Result<(), NoHandler> {
    if !program
        .insns()
        .iter()
        .any(|i| i.class() == op::LDX && matches!(i.code & 0xe0, op::PROBE_MEM | op::PROBE_MEMSX))
    {
        return Ok(());
    }
    // SAFETY: `fixup` is made to be asked by a handler, and leads a failed load to where its code
    // goes on.
    unsafe { skep_attach::signals::on_bad_load(skep_vm::fault::fixup) }
        .map_err(|errno| NoHandler { errno })
}

/// Tells the code generator where a map is in this process.
pub fn map_ref(map: &Arc<Map>) -> MapRef {
    MapRef { handle: Arc::as_ptr(map) as u64, value: map.value_base(), shape: map.shape() }
}

/// Lets lookups open the inner maps that other processes put into maps of maps.
pub fn open_inner_maps() {
    // SAFETY: it saves the vector registers, calls nothing of the traced program's, and has a heap
    // of its own in a target.
    unsafe { skep_maps::set_inner_opener(open_inner) };
}

/// Opens an inner map that another process put into a map of maps, when a program first looks it
/// up: once for each, and the agent has a heap of its own.
unsafe extern "C" fn open_inner(maps: *const skep_maps::InnerMaps, id: u32) {
    unsafe extern "C" fn open(arg: *const (*const skep_maps::InnerMaps, u32)) {
        // SAFETY: the pair below, and the table that the lookup is in.
        unsafe { (*(*arg).0).open((*arg).1) };
    }
    let arg = (maps, id);
    // SAFETY: saves what the traced function has in its vector registers around code that may use
    // them.
    unsafe { keep_vectors(open, &raw const arg) };
}
