//! Where a program redirected its packet to.
//!
//! The helpers get no context, so what they ask for is noted for the thread, as the kernel does for
//! the processor (`struct bpf_redirect_info`); who runs the program takes it from there.

use std::cell::Cell;

use skep_helpers::map::map;
use skep_isa::MapType;
use skep_maps::Map;

use crate::port::Target;

/// `BPF_F_BROADCAST`: to all devices of the map.
pub(crate) const BROADCAST: u64 = 1 << 3;
/// `BPF_F_EXCLUDE_INGRESS`: but not to the one it came from.
pub(crate) const EXCLUDE_INGRESS: u64 = 1 << 4;

/// What an entry of a map has besides its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The map, as programs know it: another map has this number only when this one is gone.
    pub map: u64,
    /// The id of the program; 0 without.
    pub program: u32,
    /// How many frames wait for a processor at most (`qsize`); of CPU maps only.
    pub queue: u32,
}

/// Where a packet goes, by the last call of `bpf_redirect` or `bpf_redirect_map`.
#[derive(Clone, Copy, Debug)]
pub enum Redirect<'a> {
    /// To one target.
    To(Target),
    /// To every device of a map.
    Broadcast {
        /// The map, of type `devmap` or `devmap_hash`.
        map: &'a Map,
        /// Not to the port that the packet came from.
        exclude_ingress: bool,
    },
}

#[derive(Clone, Copy)]
struct Noted {
    /// The interface, or what the map has under the key.
    target: u32,
    flags: u32,
    /// The map as programs know it; 0 without.
    map: u64,
    /// The program of the map's entry; 0 without.
    program: u32,
    /// What the map has under the key.
    number: u32,
}

const NOTHING: Noted = Noted { target: 0, flags: 0, map: 0, program: 0, number: 0 };

thread_local! {
    static NOTED: Cell<Noted> = const { Cell::new(NOTHING) };
}

/// Notes that the packet goes to an interface.
#[inline(always)]
pub(crate) fn note(ifindex: u32) {
    NOTED.set(Noted { target: ifindex, ..NOTHING });
}

/// Notes that the packet goes where a map's entry leads, of which `map` is the handle. The entry
/// begins with `number`, and may have a program.
#[inline(always)]
pub(crate) fn note_entry(target: u32, (number, program): (u32, u32), flags: u64, map: u64) {
    NOTED.set(Noted { target, flags: flags as u32, map, program, number });
}

/// Returns what the map's entry has that the packet goes to; `None` when it goes to no entry.
#[inline]
pub(crate) fn entry() -> Option<Entry> {
    let Noted { map, program, number, .. } = NOTED.get();
    (map != 0).then_some(Entry { map, program, queue: number })
}

/// Forgets what programs asked for that ran on this thread before.
#[inline]
pub(crate) fn forget() {
    NOTED.set(NOTHING);
}

/// Tells what the program that ran last on this thread asked for; `None` when it asked for nothing.
///
/// # Safety
/// The maps of that program are still there.
#[inline]
pub(crate) unsafe fn asked<'a>() -> Option<Redirect<'a>> {
    let Noted { target, flags, map: handle, .. } = NOTED.get();
    if handle == 0 {
        return (target != 0).then_some(Redirect::To(Target::Port(target)));
    }
    // SAFETY: the caller's promise; `note_entry` was given the map of a helper's argument.
    let map = unsafe { map(handle) };
    let flags = u64::from(flags);
    if flags & BROADCAST != 0 {
        return Some(Redirect::Broadcast { map, exclude_ingress: flags & EXCLUDE_INGRESS != 0 });
    }
    Some(Redirect::To(match map.def().map_type {
        MapType::Cpumap => Target::Cpu(target),
        MapType::Xskmap => Target::Socket(target),
        _ => Target::Port(target),
    }))
}
