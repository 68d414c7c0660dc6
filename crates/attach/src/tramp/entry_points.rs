//! Where the trampolines begin: the names that `tramp/x64.s` defines.

unsafe extern "C" {
    fn skep_attach_entry_island();
    fn skep_attach_entry_site();
    fn skep_attach_exit_0();
    fn skep_attach_exit_8();
    fn skep_attach_exit_32();
    fn skep_attach_exit_128();
    fn skep_attach_exit_512();
    fn skep_attach_inside();
    fn skep_attach_event_end();
    fn skep_attach_entry_walk();
    fn skep_attach_entry_end();
    fn skep_attach_exit_0_walk();
    fn skep_attach_exit_0_call();
    fn skep_attach_exit_0_jump();
    fn skep_attach_exit_0_skip();
    fn skep_attach_exit_0_end();
    fn skep_attach_exit_0_walk_back();
    fn skep_attach_exit_8_walk();
    fn skep_attach_exit_8_call();
    fn skep_attach_exit_8_jump();
    fn skep_attach_exit_8_skip();
    fn skep_attach_exit_8_end();
    fn skep_attach_exit_8_walk_back();
}

/// The trampolines, in the order in which islands keep their addresses.
pub(crate) const TRAMPOLINES: [unsafe extern "C" fn(); 8] = [
    skep_attach_entry_island,
    skep_attach_entry_site,
    skep_attach_exit_0,
    skep_attach_exit_8,
    skep_attach_exit_32,
    skep_attach_exit_128,
    skep_attach_exit_512,
    skep_attach_inside,
];

/// Index in [`TRAMPOLINES`] of the one that islands call for entry hooks.
pub(crate) const ENTRY_ISLAND: usize = 0;

/// Index of the one that compiled-in sites call for entry hooks.
pub(crate) const ENTRY_SITE: usize = 1;

/// Index of the one that islands call for places inside functions.
pub(crate) const INSIDE: usize = 7;

/// Words of arguments on the stack that the exit trampolines copy, and their indices.
pub(crate) const EXITS: [(u32, usize); 5] = [(0, 2), (8, 3), (32, 4), (128, 5), (512, 6)];

/// Tells whether an address is in an exit trampoline: whoever returns there was called by one.
#[inline(always)]
pub(crate) fn is_exit(address: u64) -> bool {
    address >= skep_attach_exit_0 as *const () as u64
        && address < skep_attach_event_end as *const () as u64
}

/// Where an exit trampoline goes on behind a hook list's code.
#[derive(Debug)]
pub(crate) struct ExitLabels {
    /// Instead of the code before the function.
    pub(crate) walk: unsafe extern "C" fn(),
    /// With the body, whose frame waits for it.
    pub(crate) call: unsafe extern "C" fn(),
    /// With the body, without a frame.
    pub(crate) jump: unsafe extern "C" fn(),
    /// In the caller, whose result is in rax.
    pub(crate) skip: unsafe extern "C" fn(),
    /// In the caller, behind the code after the function.
    pub(crate) end: unsafe extern "C" fn(),
    /// Instead of that.
    pub(crate) walk_back: unsafe extern "C" fn(),
}

/// Those of the trampolines that copy no words of arguments, and eight.
pub(crate) const EXIT_LABELS: [ExitLabels; 2] = [
    ExitLabels {
        walk: skep_attach_exit_0_walk,
        call: skep_attach_exit_0_call,
        jump: skep_attach_exit_0_jump,
        skip: skep_attach_exit_0_skip,
        end: skep_attach_exit_0_end,
        walk_back: skep_attach_exit_0_walk_back,
    },
    ExitLabels {
        walk: skep_attach_exit_8_walk,
        call: skep_attach_exit_8_call,
        jump: skep_attach_exit_8_jump,
        skip: skep_attach_exit_8_skip,
        end: skep_attach_exit_8_end,
        walk_back: skep_attach_exit_8_walk_back,
    },
];

/// Where entry trampolines go that have no code of the hook list's.
pub(crate) fn entry_walk() -> u64 {
    skep_attach_entry_walk as *const () as u64
}

/// Where entry trampolines go on behind a hook list's code.
pub(crate) fn entry_end() -> u64 {
    skep_attach_entry_end as *const () as u64
}
