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
