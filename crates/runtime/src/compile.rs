//! Verified programs made ready for an engine: machine code, or what the interpreter runs.

use std::sync::Arc;

use skep_helpers::Lookup;
use skep_maps::Map;
use skep_store::prog::WithMaps;
use skep_vm::{Code, CompileError, Env, MapRef, interp};

use crate::prepare::{map_ref, open_inner_maps};
use crate::tail::TailCalls;

/// Compiles a program for the maps it was verified with, with helpers from a table. Who runs it has called
/// [`expect_bad_loads`](crate::prepare::expect_bad_loads) before.
///
/// # Errors
/// When it uses an instruction or helper this process cannot provide.
pub fn compile(
    verified: WithMaps<'_>,
    calls: Option<&TailCalls>,
    helpers: Lookup,
) -> Result<Code, CompileError> {
    let program = verified.program();
    let refs = references(verified.maps(), calls);
    let helper = |id| helpers(program.prog_type(), id);
    let env = Env { maps: &refs, helper: &helper };
    // SAFETY: the verifier accepted the instructions of a `Program`, and with the maps that
    // `WithMaps` has checked. Whoever runs the code keeps them, and `calls`.
    let mut code = unsafe { Code::compile(program.insns(), &env) }?;
    crate::profile::announce(program, &mut code);
    Ok(code)
}

/// Prepares a program for the interpreter against maps opened in this process.
///
/// # Errors
/// As [`compile`].
pub fn interpretable(
    verified: WithMaps<'_>,
    calls: Option<&TailCalls>,
    helpers: Lookup,
) -> Result<interp::Program, interp::RunError> {
    let program = verified.program();
    let refs = references(verified.maps(), calls);
    let helper = |id| helpers(program.prog_type(), id);
    interp::Program::new(program.insns(), &Env { maps: &refs, helper: &helper })
}

/// Tells the engines where maps are in this process.
fn references(maps: &[Arc<Map>], calls: Option<&TailCalls>) -> Vec<MapRef> {
    open_inner_maps();
    maps.iter().map(|map| calls.map_or_else(|| map_ref(map), |calls| calls.map_ref(map))).collect()
}
