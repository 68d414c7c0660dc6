//! What a program needs from outside: maps as addresses, helpers as functions.

use skep_isa::{HelperId, MapShape};

/// One map of the program's list, as generated code sees it.
#[derive(Clone, Copy, Debug)]
pub struct MapRef {
    /// What a register holds after `ld_imm64` of the map: the first argument of map helpers.
    pub handle: u64,
    /// Address of the first value, for `ld_imm64` of a value's address.
    pub value: u64,
    /// Where values lie, so that lookups need no call.
    pub shape: MapShape,
}

/// A helper: five arguments, r1 to r5, to the new r0.
pub type HelperFn = unsafe extern "C" fn(u64, u64, u64, u64, u64) -> u64;

/// A helper and how to reach it.
#[derive(Clone, Copy, Debug)]
pub struct HelperImpl {
    /// The function.
    pub func: HelperFn,
    /// How generated code calls it.
    pub how: HelperCall,
}

impl HelperImpl {
    /// Describes a helper that keeps vector registers.
    #[must_use]
    pub const fn plain(func: HelperFn) -> Self {
        Self { func, how: HelperCall::Plain }
    }
}

/// Tells how generated code calls a helper.
///
/// Programs run between two instructions of a function that may hold values in vector registers,
/// and generated code saves none of them. So either the helper touches none, or the call is
/// wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HelperCall {
    /// The function keeps all vector registers: a bare call.
    Plain,
    /// The call saves xmm0 to xmm15. The upper halves of ymm registers survive only as far as the
    /// function leaves them.
    SaveVectors,
    /// No call: r0 is the 64-bit word at this offset from r1.
    LoadCtx(i32),
    /// `bpf_map_lookup_elem`: inlined when r1 is a map whose [`MapShape`] says where values lie, a
    /// call of the map's own function where it names one, else as `Plain`.
    MapLookup,
    /// `bpf_tail_call`: r1 to r3 are context, map and index, and the function returns the address
    /// of the [`Target`](crate::tail::Target) to continue with, or 0 to fall through. It is
    /// called as with `SaveVectors`, and only when the map's table
    /// ([`skep_isa::ShapeKind::ProgArray`]) does not tell, so it may do what is slow. The engines
    /// count, compare and leave the function.
    TailCall,
}

/// The surroundings of a program.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The program's maps in the order of its list (`PSEUDO_MAP_IDX`).
    pub maps: &'a [MapRef],
    /// Finds a helper by number. A helper with a row in [`skep_isa::helper`] reads the arguments
    /// of that row and no others: registers beyond them may hold anything.
    pub helper: &'a dyn Fn(HelperId) -> Option<HelperImpl>,
}

impl Env<'_> {
    /// Returns surroundings without maps and helpers.
    #[must_use]
    pub fn empty() -> Env<'static> {
        Env { maps: &[], helper: &|_| None }
    }
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env").field("maps", &self.maps).finish_non_exhaustive()
    }
}
