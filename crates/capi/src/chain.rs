//! Making and changing chains. They are known by their names, so there are no handles.

use std::ffi::{c_char, c_int};

use skep::chain::{Edge, Edit, NodeId, Place, To, Verdicts};
use skep::{Chain, Error};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle};
use crate::memory;
use crate::object::OwnedProgram;
use crate::session::OpenSession;

/// Finds a chain of a session.
///
/// # Safety
/// `name` is null or a text.
unsafe fn chain(session: Handle, name: *const c_char) -> Answer<Chain> {
    let session = handle::get::<OpenSession>(session)?;
    // SAFETY: the caller's promise.
    let name = unsafe { memory::text(name, "name of the chain") }?;
    Ok(Chain::open(&session, name).map_err(Error::Chain)?)
}

/// Reads a list of verdicts.
///
/// # Safety
/// `on` is null or a text.
unsafe fn verdicts(on: *const c_char) -> Answer<Verdicts> {
    // SAFETY: the caller's promise.
    let text = unsafe { memory::text(on, "list of verdicts") }?;
    text.parse().map_err(|e| Failure::new(errno::EINVAL, format!("{e}")))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_create(
    session: Handle,
    name: *const c_char,
    program_type: u32,
) -> c_int {
    call(|| {
        let session = handle::get::<OpenSession>(session)?;
        // SAFETY: `name` is null or a text: the caller's promise.
        let name = unsafe { memory::text(name, "name of the chain") }?;
        let program_type = errno::program_type(program_type)?;
        let chain = Chain::create(&session, name, program_type).map_err(Error::Chain)?;
        chain.pin().map_err(Error::Chain)?;
        Ok(0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_add(
    session: Handle,
    name: *const c_char,
    program: Handle,
    after: u32,
    on: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: both are null or texts: the caller's promise.
        let (chain, on) = unsafe { (chain(session, name)?, verdicts(on)?) };
        let program = handle::get::<OwnedProgram>(program)?;
        let place = match after {
            0 => Place::First { on },
            node => Place::After { node: NodeId(node), on },
        };
        let node = chain.add(program.program()?, place).map_err(Error::Chain)?;
        Ok(c_int::try_from(node.0).unwrap_or(c_int::MAX))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_connect(
    session: Handle,
    name: *const c_char,
    from: u32,
    on: *const c_char,
    to: u32,
    times: u32,
) -> c_int {
    call(|| {
        // SAFETY: both are null or texts: the caller's promise.
        let (chain, on) = unsafe { (chain(session, name)?, verdicts(on)?) };
        let to = if to == 0 { To::Keep } else { To::Node(NodeId(to)) };
        let edge = Edge { to, bound: (times != 0).then_some(times) };
        let edit = Edit::Connect { from: NodeId(from), on, edge, expected: None };
        chain.transaction(0, &[edit]).map_err(Error::Chain)?;
        Ok(0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_remove(
    session: Handle,
    name: *const c_char,
    node: u32,
) -> c_int {
    call(|| {
        // SAFETY: `name` is null or a text: the caller's promise.
        unsafe { chain(session, name) }?.remove(NodeId(node)).map_err(Error::Chain)?;
        Ok(0)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_delete(session: Handle, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: `name` is null or a text: the caller's promise.
        unsafe { chain(session, name) }?.delete().map_err(Error::Chain)?;
        Ok(0)
    })
}
