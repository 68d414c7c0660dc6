//! Tail calls: from a slot of a program array to code of this process.
//!
//! A program array holds *ids*, in memory that other processes change at any time. Every process
//! compiles for itself, so it keeps a [`Table`] beside each array: for each slot, the [`Target`] it
//! was last seen to name. Generated code reads the id in the slot, and when the target in the table
//! has that id, it jumps there. Otherwise it calls the `bpf_tail_call` helper
//! ([`HelperCall::TailCall`](crate::HelperCall::TailCall)), which finds or makes the target and may
//! put it into the table.
//!
//! An empty slot, an index out of range and the 34th tail call of a run fall through to the next
//! instruction.

use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use crate::interp;
use crate::jit::Code;

/// A program that tail calls may continue with: its id, and the engines' forms of it.
///
/// Every program that makes or receives tail calls in one run must have been verified for the same
/// kind of context.
#[derive(Debug)]
#[repr(C)]
pub struct Target {
    id: u32,
    /// Where compiled programs jump to; 0 without code.
    entry: u64,
    /// The kind of frame that the program makes, and where it goes on when its caller has made one
    /// of that kind; 0 without such.
    frame: u64,
    inner: u64,
    code: Option<Code>,
    program: Option<interp::Program>,
}

impl Target {
    pub(crate) const ID: i32 = offset_of!(Self, id) as i32;
    pub(crate) const ENTRY: i32 = offset_of!(Self, entry) as i32;
    pub(crate) const FRAME: i32 = offset_of!(Self, frame) as i32;
    pub(crate) const INNER: i32 = offset_of!(Self, inner) as i32;

    /// Makes the target of the program with this id, which is not 0. Without `code`, tail calls of
    /// compiled programs to it fall through; without `program`, those of interpreted ones are
    /// an error.
    #[must_use]
    pub fn new(id: u32, code: Option<Code>, program: Option<interp::Program>) -> Self {
        let entry = code.as_ref().map_or(0, Code::tail_entry);
        let (frame, inner) = code.as_ref().and_then(Code::inner_entry).unwrap_or_default();
        Self { id, entry, frame, inner, code, program }
    }

    /// Returns the program's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the compiled program.
    #[must_use]
    pub fn code(&self) -> Option<&Code> {
        self.code.as_ref()
    }

    /// Returns the program for the interpreter.
    #[must_use]
    pub fn program(&self) -> Option<&interp::Program> {
        self.program.as_ref()
    }

    /// Returns what the `bpf_tail_call` helper answers to continue here.
    #[must_use]
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

/// What generated code sees in a row that was never set: no program has this id.
static NOBODY: Target = Target { id: 0, entry: 0, frame: 0, inner: 0, code: None, program: None };

/// This process's side of one program array.
///
/// It keeps every target that was ever in it: some thread may still be running there. Dropping it
/// frees them, so no program that was compiled with its address may run any more then.
///
/// ```
/// use std::sync::Arc;
/// use skep_isa::helper::id;
/// use skep_isa::{MapShape, ShapeKind, text};
/// use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef, tail};
///
/// // What a `bpf_tail_call` helper does when the table does not tell: here, nothing.
/// unsafe extern "C" fn tail_call(_ctx: u64, _map: u64, _index: u64, _: u64, _: u64) -> u64 {
///     0
/// }
/// let slots = [7_u32, 0];
/// let table = tail::Table::new(2);
/// let kind = ShapeKind::ProgArray { targets: table.address() };
/// let shape = MapShape { base: slots.as_ptr() as u64, stride: 4, entries: 2, kind };
/// let maps = [MapRef { handle: 1, value: shape.base, shape }];
/// let helper = HelperImpl { func: tail_call, how: HelperCall::TailCall };
/// let env = Env { maps: &maps, helper: &|n| (n == id::TAIL_CALL).then_some(helper) };
/// let compile = |asm| {
///     let insns = text::assemble(asm).map_err(|e| e.to_string())?;
///     // SAFETY: these programs touch no memory and end, and what `env` names outlives them.
///     unsafe { Code::compile(&insns, &env) }.map_err(|e| e.to_string())
/// };
/// table.set(0, &Arc::new(tail::Target::new(7, Some(compile("mov r0, 77\nexit")?), None)));
/// let first = compile("lddw r2, map 0\nmov r3, 0\ncall 12\nmov r0, 1\nexit")?;
/// // SAFETY: as above.
/// assert_eq!(unsafe { first.entry()(std::ptr::null_mut()) }, 77);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
pub struct Table {
    rows: Box<[AtomicPtr<Target>]>,
    kept: Mutex<Vec<Arc<Target>>>,
}

impl Table {
    /// Makes a table for an array of this many slots.
    #[must_use]
    pub fn new(entries: u32) -> Self {
        let nobody = std::ptr::from_ref(&NOBODY).cast_mut();
        Self {
            rows: (0..entries).map(|_| AtomicPtr::new(nobody)).collect(),
            kept: Mutex::default(),
        }
    }

    /// Returns the address for [`ShapeKind::ProgArray`](skep_isa::ShapeKind::ProgArray).
    #[must_use]
    pub fn address(&self) -> u64 {
        self.rows.as_ptr() as u64
    }

    /// Puts a target into a row, to be taken while the slot in the map has the target's id. Any
    /// thread may do so at any time; an index out of range does nothing.
    pub fn set(&self, index: u32, target: &Arc<Target>) {
        let Some(row) = self.rows.get(index as usize) else { return };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|k| Arc::ptr_eq(k, target)) {
            kept.push(Arc::clone(target));
        }
        // Pairs with the plain load of generated code, which on this machine is an acquire.
        row.store(Arc::as_ptr(target).cast_mut(), Release);
    }

    /// Finds a target that was put into the table before, by its program's id.
    #[must_use]
    pub fn find(&self, id: u32) -> Option<Arc<Target>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|t| t.id == id).map(Arc::clone)
    }
}
