//! Helper functions: number, name, and what goes in and out, one row each.
//!
//! [`HELPERS`] has every helper of the kernel, so that any can be named; a helper whose row says
//! [`refused`](field@Helper::refused) cannot be called here, and that is why. Whoever means one
//! helper names it by its constant in [`id`]. What a call does to a packet, a lock, a reference or
//! a map are columns of the row, and so is who may call it. Kernel functions (kfuncs) that skep
//! offers are [`KFUNCS`], with numbers from [`KFUNC_BASE`] on: the object reader finds them by
//! name, since their kernel numbers are BTF ids of the running kernel.

mod arguments;
mod kfuncs;
mod rules;
mod table;
mod types;

pub use arguments::{Arguments, arguments};
pub use rules::{AttachRule, Callback, LockRule, PacketEffect, Progs, Reference};
pub use types::{ArgType, DynptrKind, RetType};

use crate::prog::{AttachType, ProgramType as P};

/// A helper's number.
pub type HelperId = u32;

/// First number of kernel functions that skep offers under its own numbers.
pub const KFUNC_BASE: HelperId = 0x1_0000;

/// What loads from packets call (`ld_abs`, `ld_ind`): context, offset, and size in bytes to a
/// number, or -1. No program can name it.
pub const LOAD_PACKET: HelperId = 0x2_0000;

/// What lookups become in the part of a program that runs ahead of it: map and key to 1, when the key
/// was noted, else to what the map has. No program can name it.
pub const LOOK_AHEAD: HelperId = 0x2_0001;

/// The kernel's helpers, in order of number.
pub const HELPERS: &[Helper] = table::ROWS;

/// The kernel functions skep knows, in order of number.
pub const KFUNCS: &[Helper] = kfuncs::ROWS;

/// The numbers of helpers and of [`KFUNCS`], by name: `BPF_FUNC_map_lookup_elem` is
/// [`MAP_LOOKUP_ELEM`](id::MAP_LOOKUP_ELEM).
pub mod id {
    pub use super::kfuncs::id::*;
    pub use super::table::id::*;
}

/// Makes a table of rows, numbered from a base on, and the constants of their numbers.
macro_rules! helpers {
    (
        from $base:expr;
        $($number:literal $id:ident $name:literal => $row:expr;)*
    ) => {
        pub mod id {
            $(
                #[doc = concat!("Number of `", $name, "`.")]
                #[doc(alias = $name)]
                pub const $id: $crate::HelperId = $base + $number;
            )*
        }

        pub(super) const ROWS: &[super::Helper] = &[$($row.named(id::$id, $name),)*];

        /// The names of the constants beside their numbers.
        #[cfg(test)]
        pub(super) const IDS: &[(&str, $crate::HelperId)] =
            &[$((stringify!($id), id::$id),)*];
    };
}
use helpers;

/// One helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Helper {
    /// The kernel's number, or one from [`KFUNC_BASE`] on.
    pub id: HelperId,
    /// The name without the `bpf_` prefix for helpers, the whole name for kernel functions.
    pub name: &'static str,
    /// The five arguments.
    pub args: [ArgType; 5],
    /// The result.
    pub ret: RetType,
    /// Who may call it.
    pub progs: Progs,
    /// Only programs under a GPL-compatible license may call it.
    pub gpl_only: bool,
    /// What the program must be attached to.
    pub attach: AttachRule,
    /// Its memory arguments may lie in the packet of a packet program.
    pub packet: bool,
    /// Whether pointers into the packet are void afterwards.
    pub packet_effect: PacketEffect,
    /// Only programs that may sleep may call it.
    pub sleeps: bool,
    /// It changes the map in its first argument, which must not be read-only.
    pub changes_map: bool,
    /// What it does with the spin lock.
    pub lock: LockRule,
    /// Nothing that must be released may be held: the program does not go on after the call.
    pub holds_nothing: bool,
    /// What the pointer in r0 means for references.
    pub reference: Reference,
    /// The function of the program that it calls.
    pub callback: Option<Callback>,
    /// Why it cannot be called outside the kernel; `None` when it can.
    pub refused: Option<&'static str>,
    /// What it does other than in the kernel; empty when nothing.
    pub differs: &'static str,
}

impl Helper {
    /// Returns how many argument registers a call may read: those of the prototype, and all five
    /// for `trace_printk`, whose format tells how many more.
    #[must_use]
    pub const fn registers(&self) -> usize {
        if self.id == id::TRACE_PRINTK {
            return self.args.len();
        }
        let mut count = 0;
        while count < self.args.len() && !matches!(self.args[count], ArgType::None) {
            count += 1;
        }
        count
    }

    /// Tells whether programs of type `p` may call this helper.
    #[must_use]
    pub fn allows(&self, p: P) -> bool {
        self.progs.allow(p)
    }

    /// Tells whether a program of type `p` that is attached as `attach` to `target` may call this
    /// helper.
    #[must_use]
    pub fn allows_attached(&self, p: P, attach: Option<AttachType>, target: Option<&str>) -> bool {
        self.allows(p) && self.attach.allows(p, attach, target)
    }

    /// Returns the name as C programs write it: with `bpf_`.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.id >= KFUNC_BASE { self.name.to_owned() } else { format!("bpf_{}", self.name) }
    }

    const fn named(mut self, id: HelperId, name: &'static str) -> Self {
        self.id = id;
        self.name = name;
        self
    }

    const fn gpl(mut self) -> Self {
        self.gpl_only = true;
        self
    }

    const fn packet(mut self) -> Self {
        self.packet = true;
        self
    }

    const fn moves_packet(mut self) -> Self {
        self.packet_effect = PacketEffect::Moves;
        self
    }

    const fn moves_packet_of_dynptr(mut self) -> Self {
        self.packet_effect = PacketEffect::MovesThroughDynptr;
        self
    }

    const fn changes_map(mut self) -> Self {
        self.changes_map = true;
        self
    }

    const fn lock(mut self, rule: LockRule) -> Self {
        self.lock = rule;
        self
    }

    const fn holds_nothing(mut self) -> Self {
        self.holds_nothing = true;
        self
    }

    const fn result(mut self, reference: Reference) -> Self {
        self.reference = reference;
        self
    }

    const fn calls(mut self, callback: Callback) -> Self {
        self.callback = Some(callback);
        self
    }

    const fn attach(mut self, rule: AttachRule) -> Self {
        self.attach = rule;
        self
    }

    const fn sleeps(mut self) -> Self {
        self.sleeps = true;
        self
    }

    const fn differs(mut self, how: &'static str) -> Self {
        self.differs = how;
        self
    }

    const fn refused(mut self, why: &'static str) -> Self {
        self.refused = Some(why);
        self
    }
}

/// A row without its number and name.
const fn row(args: &[ArgType], ret: RetType, progs: Progs) -> Helper {
    let mut all = [ArgType::None; 5];
    let mut i = 0;
    while i < args.len() {
        all[i] = args[i];
        i += 1;
    }
    Helper {
        id: 0,
        name: "",
        args: all,
        ret,
        progs,
        gpl_only: false,
        attach: AttachRule::Any,
        packet: false,
        packet_effect: PacketEffect::None,
        sleeps: false,
        changes_map: false,
        lock: LockRule::Unlocked,
        holds_nothing: false,
        reference: Reference::None,
        callback: None,
        refused: None,
        differs: "",
    }
}

/// Finds the row of a helper number.
#[must_use]
pub fn by_id(id: HelperId) -> Option<&'static Helper> {
    let (table, first) = if id >= KFUNC_BASE { (KFUNCS, KFUNC_BASE) } else { (HELPERS, 1) };
    table.get(id.checked_sub(first)? as usize)
}

/// Finds the row of a helper by its name, with or without `bpf_`, or of a kernel function by its
/// whole name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Helper> {
    let short = name.strip_prefix("bpf_").unwrap_or(name);
    HELPERS.iter().find(|h| h.name == short).or_else(|| kfunc(name))
}

/// Finds the row of a kernel function by its whole name.
#[must_use]
pub fn kfunc(name: &str) -> Option<&'static Helper> {
    KFUNCS.iter().find(|h| h.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_where_their_numbers_say() {
        for (first, table) in [(1, HELPERS), (KFUNC_BASE, KFUNCS)] {
            for (n, h) in (first..).zip(table) {
                assert_eq!(h.id, n, "{}", h.name);
                assert_eq!((by_id(n), by_name(h.name)), (Some(h), Some(h)));
                assert_eq!(
                    table.iter().filter(|other| other.name == h.name).count(),
                    1,
                    "{}",
                    h.name
                );
            }
        }
        assert_eq!(HELPERS.len(), 211);
        assert_eq!(by_id(131).map(|h| h.name), Some("ringbuf_reserve"));
        assert_eq!((by_id(0), by_id(212)), (None, None));
        assert_eq!((id::MAP_LOOKUP_ELEM, id::CGRP_STORAGE_DELETE), (1, 211));
        for (name, n) in table::IDS.iter().chain(kfuncs::IDS) {
            assert_eq!(by_id(*n).map(|h| h.name.to_uppercase()), Some((*name).to_owned()));
        }
    }

    #[test]
    fn a_helper_with_a_callback_takes_a_function() {
        for h in HELPERS {
            let takes = h.args.contains(&ArgType::Func);
            assert_eq!(takes, h.callback.is_some(), "{}", h.name);
        }
    }

    #[test]
    fn every_size_follows_the_memory_it_measures() {
        for h in HELPERS.iter().chain(KFUNCS) {
            for (i, arg) in h.args.iter().enumerate() {
                let size = matches!(arg, ArgType::Size | ArgType::SizeOrZero);
                let before = i.checked_sub(1).map_or(ArgType::None, |i| h.args[i]);
                let memory = matches!(
                    before,
                    ArgType::Mem
                        | ArgType::MemOrNull
                        | ArgType::MemWrite
                        | ArgType::UninitMem
                        | ArgType::UninitMemOrNull
                );
                assert_eq!(size, memory, "argument {} of {}", i + 1, h.name);
            }
        }
    }
}
