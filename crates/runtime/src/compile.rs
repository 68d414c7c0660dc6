//! Verified programs made ready for an engine: machine code, or what the interpreter runs.

use std::sync::Arc;

use skep_helpers::Lookup;
use skep_isa::ProgramType;
use skep_isa::ctx::packet as word;
use skep_maps::Map;
use skep_store::prog::WithMaps;
use skep_vm::chain::{ChainError, Count, Options, PacketSize, Part, Plan, Unit};
use skep_vm::{Code, CompileError, Env, MapRef, interp};

use crate::prepare::{map_ref, open_inner_maps};
use crate::tail::TailCalls;

/// Compiles a program for the maps it was verified with, with helpers from a table. The caller has
/// called [`expect_bad_loads`](crate::prepare::expect_bad_loads) before it runs the code.
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

/// Compiles the part of a program that finds its first lookups in maps that may be far away, for
/// helpers that have [`LOOK_AHEAD`](skep_isa::helper::LOOK_AHEAD). `None` when there is no such part.
#[must_use]
pub fn lookahead(
    verified: WithMaps<'_>,
    is_far: fn(&Map) -> bool,
    helpers: Lookup,
) -> Option<Code> {
    let program = verified.program();
    let far = |map: Option<u32>| {
        map.and_then(|n| verified.maps().get(n as usize)).is_none_or(|map| is_far(map))
    };
    let insns = skep_vm::lookahead::program(program.insns(), &far)?;
    let refs = references(verified.maps(), None);
    let helper = |id| helpers(program.prog_type(), id);
    let env = Env { maps: &refs, helper: &helper };
    // SAFETY: the verifier accepted the instructions of a `Program`, and each run of this part of them
    // is the beginning of a run of the program (`skep_vm::lookahead` says why); the maps are as in
    // `compile`.
    unsafe { Code::compile(&insns, &env) }.ok()
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

/// Returns what is counted of chains of this type: packet programs have their packet's bounds below
/// the context.
#[must_use]
pub fn chain_options(prog_type: ProgramType, count: Count) -> Options {
    let size = PacketSize { start: word::DATA, end: word::DATA_END, more: word::FRAGMENTS };
    let has_packet = matches!(prog_type, ProgramType::Xdp | ProgramType::SchedCls);
    Options { count, bytes: has_packet.then_some(size) }
}

/// Compiles a chain: a verified program for each step of the plan, with what it may come by through
/// tail calls. Otherwise as [`compile`].
///
/// # Errors
/// When the programs are not of one type, or as [`compile`].
pub fn chain(
    plan: &Plan,
    parts: &[(WithMaps<'_>, Option<&TailCalls>)],
    helpers: Lookup,
    count: Count,
) -> Result<Unit, ChainError> {
    let kind = |v: &WithMaps<'_>| (v.program().prog_type(), v.program().attach_type());
    let Some((first, _)) = parts.first() else {
        return Err(ChainError::Parts { parts: 0, steps: plan.steps.len() });
    };
    if let Some(step) = parts.iter().position(|(v, _)| kind(v) != kind(first)) {
        return Err(ChainError::Kind { step });
    }
    let prog_type = first.program().prog_type();
    let helper = |id| helpers(prog_type, id);
    let refs: Vec<_> = parts.iter().map(|(v, calls)| references(v.maps(), *calls)).collect();
    let envs: Vec<_> = refs.iter().map(|maps| Env { maps, helper: &helper }).collect();
    let programs = parts.iter().map(|(v, _)| v.program().insns());
    let parts: Vec<_> = programs.zip(&envs).map(|(insns, env)| Part { insns, env }).collect();
    // SAFETY: as in `compile`; the programs are for the same context, and those that have packets
    // have the words of `chain_options`.
    unsafe { Unit::compile(plan, &parts, &chain_options(prog_type, count)) }
}

/// Tells the engines where maps are in this process.
fn references(maps: &[Arc<Map>], calls: Option<&TailCalls>) -> Vec<MapRef> {
    open_inner_maps();
    maps.iter().map(|map| calls.map_or_else(|| map_ref(map), |calls| calls.map_ref(map))).collect()
}
