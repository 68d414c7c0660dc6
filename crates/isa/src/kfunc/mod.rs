//! Kernel functions (kfuncs): what goes in and out, one row each, so that the verifier can judge
//! programs that call them.
//!
//! Those that run here are [`Kfunc::offered`]; a few simple ones are rows of
//! [`crate::helper::KFUNCS`] instead. The number of a row is [`BASE`] and its place: numbers that
//! no instruction of an object has, as the kernel's are BTF ids of the running kernel. Prototypes
//! and flags are those of Linux 6.12, of 6.18 where 6.12 has no such function (`__bpf_kfunc` and
//! `BTF_ID_FLAGS` in kernel/bpf and net/core/filter.c).

mod table;

pub use table::{KFUNCS, id};

use crate::helper::{AttachRule, DynptrKind, HelperId, KFUNC_BASE};
use crate::prog::{AttachType, ProgramType as P};
use Set::{Common, Cpumask, Crypto, CryptoInit, Generic, Skb, SockIter, Xdp};

/// Number of the first row.
pub const BASE: HelperId = KFUNC_BASE + 0x1000;

/// What the verifier must see in an argument register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KArg {
    /// A number.
    Number,
    /// A number known at verification time (`__k`).
    Const,
    /// Anything; the loader or the verifier fills it in (`__ign`).
    Ignored,
    /// The context.
    Ctx,
    /// An iterator's place on the stack: empty for its `new`, set up for the rest.
    Iter {
        /// The type's name after `bpf_`.
        name: &'static str,
        /// How many stack slots it takes.
        slots: i32,
    },
    /// A dynptr that is set up.
    Dynptr,
    /// As [`KArg::Dynptr`], or NULL.
    DynptrOrNull,
    /// Two stack slots that become a dynptr, of this kind or of that of the dynptr before it.
    UninitDynptr(Option<DynptrKind>),
    /// Memory that is read; its size is the next argument.
    Mem,
    /// Memory that is read or written, or NULL (`__opt`); its size is the next argument.
    MemOrNull,
    /// Memory that is written; its size is the next argument.
    MemWrite,
    /// Size of the memory before it (`__sz`).
    Size,
    /// Size of the memory before it, and of the result, known at verification time (`__szk`).
    ConstSize,
    /// Memory of so many bytes.
    Fixed(u32),
    /// A kernel object of that type: trusted, or alive in a read-side section.
    Object(&'static str),
    /// A kernel object of that type, or NULL.
    ObjectOrNull(&'static str),
    /// A kernel object of that type that is trusted: a section is not enough.
    Trusted(&'static str),
    /// A kernel object whose reference this call takes.
    Release(&'static str),
    /// An object of the program's own that this call takes.
    LocalRelease,
    /// An object of the program's own with a reference count, owned or not.
    Refcounted,
    /// The head of a list.
    ListHead,
    /// The node of an object that goes into the list.
    ListNode,
    /// The root of a tree that is changed.
    RbRoot,
    /// The root of a tree that is only read.
    RbRootRead,
    /// The node of an object that goes into the tree.
    RbNode,
    /// The node of an object that is in the tree.
    RbNodeInside,
    /// A function of the program that compares two nodes.
    Less,
    /// A map.
    Map,
    /// A work queue in a map value.
    Wq,
    /// A function of the program that runs later.
    Later,
    /// A place on the stack for the state of interrupts: empty for saving, filled for restoring.
    IrqFlag,
}

/// What the verifier knows of r0 after the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KRet {
    /// Nothing.
    Void,
    /// A number.
    Number,
    /// A kernel object of that type, or NULL.
    ObjectOrNull(&'static str),
    /// A kernel object of that type.
    Object(&'static str),
    /// Read-only memory of so many bytes, or NULL.
    MemOrNull(u32),
    /// Memory of the size in the [`KArg::ConstSize`] argument, or NULL; read-only unless `true`.
    SliceOrNull(bool),
    /// An object of the type in the [`KArg::Const`] argument, or NULL.
    NewOrNull,
    /// Another reference to the object in the [`KArg::Refcounted`] argument, or NULL.
    SameOrNull,
    /// The node of an object that was in the list, or NULL.
    ListNodeOrNull,
    /// The node of an object that was, or with `true` still is, in the tree; or NULL.
    RbNodeOrNull(bool),
    /// The context as the kernel sees it.
    KernelContext,
    /// The argument as an object of the type in the [`KArg::Const`] argument, read-only.
    Cast,
    /// It does not return.
    Never,
}

/// What else there is to a kernel function.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KFlags(pub u32);

#[allow(missing_docs, reason = "the names are the kernel's own")]
impl KFlags {
    pub const NONE: u32 = 0;
    pub const ACQUIRE: u32 = 1;
    pub const SLEEPABLE: u32 = 2;
    pub const ITER_NEW: u32 = 4;
    pub const ITER_NEXT: u32 = 8;
    pub const ITER_DESTROY: u32 = 16;
    /// Only in a read-side section.
    pub const RCU_PROTECTED: u32 = 32;
    /// The object is one for each CPU.
    pub const PERCPU: u32 = 64;
    /// Also while a spin lock is held.
    pub const UNDER_LOCK: u32 = 128;

    /// Tells whether all of `bits` are set.
    #[must_use]
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}

/// Which programs may call it: the sets that the kernel registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Set {
    /// All.
    Common,
    /// Those that handle objects.
    Generic,
    /// Tracing and system calls.
    Cpumask,
    /// Packets as socket buffers.
    Skb,
    /// Packets before that.
    Xdp,
    /// Encryption.
    Crypto,
    /// Encryption, setting up.
    CryptoInit,
    /// Sockets under an iterator.
    SockIter,
}

/// A part of a program that begins with one kernel function and ends with another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// Objects protected by RCU stay alive in it.
    Rcu,
    /// The program is not preempted in it.
    Preemption,
}

/// Why functions that throw are not supported.
pub const NO_UNWINDING: &str = "compiled programs keep no record of their frames to unwind by: \
    return an error from function to function instead";
/// Why functions that disable interrupts are not supported.
pub const NO_INTERRUPTS: &str = "interrupts are the processor's, a process cannot disable them; \
    use atomics or `bpf_spin_lock`";

/// A kernel function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kfunc {
    /// Its name.
    pub name: &'static str,
    /// Its arguments, at most five.
    pub args: &'static [KArg],
    /// Its result.
    pub ret: KRet,
    /// The rest.
    pub flags: KFlags,
    /// The section that a call begins.
    pub begins: Option<Section>,
    /// The section that a call ends.
    pub ends: Option<Section>,
    /// Why no program that calls it can be verified, with what to do instead.
    pub unsupported: Option<&'static str>,
    /// Whether programs that call it run here.
    pub offered: bool,
    set: Set,
}

impl Kfunc {
    /// Tells whether programs of type `p` may call it.
    #[must_use]
    pub fn allows(&self, p: P) -> bool {
        // Programs of these types share their sets with tracing programs.
        let tracing = matches!(p, P::Tracing | P::Tracepoint | P::PerfEvent | P::Lsm);
        let skb = matches!(
            p,
            P::SchedCls
                | P::SchedAct
                | P::SkSkb
                | P::SocketFilter
                | P::CgroupSkb
                | P::LwtIn
                | P::LwtOut
                | P::LwtXmit
                | P::LwtSeg6local
                | P::Netfilter
        );
        match self.set {
            Common => true,
            Generic => {
                tracing
                    || matches!(p, P::SchedCls | P::Xdp | P::StructOps | P::Syscall | P::CgroupSkb)
            }
            Cpumask => tracing || matches!(p, P::StructOps | P::Syscall),
            Skb => skb || tracing,
            Xdp => p == P::Xdp,
            Crypto => matches!(p, P::SchedCls | P::SchedAct | P::Xdp | P::Syscall),
            CryptoInit => p == P::Syscall,
            SockIter => p == P::Tracing,
        }
    }

    /// Tells whether a program of type `p` that is attached as `attach` to `target` may call it.
    #[must_use]
    pub fn allows_attached(&self, p: P, attach: Option<AttachType>, target: Option<&str>) -> bool {
        let rule = if self.set == SockIter { AttachRule::Iterator } else { AttachRule::Any };
        self.allows(p) && rule.allows(p, attach, target)
    }

    /// Returns the iterator it works on: the type's name and how many stack slots it takes.
    #[must_use]
    pub fn iterator(&self) -> Option<(&'static str, i32)> {
        match self.args.first() {
            Some(KArg::Iter { name, slots }) => Some((name, *slots)),
            _ => None,
        }
    }
}

/// Finds a row and its number by name.
#[must_use]
pub fn by_name(name: &str) -> Option<(HelperId, &'static Kfunc)> {
    let at = KFUNCS.iter().position(|f| f.name == name)?;
    Some((BASE + at as HelperId, &KFUNCS[at]))
}

/// Finds the row of a number.
#[must_use]
pub fn by_id(id: HelperId) -> Option<&'static Kfunc> {
    KFUNCS.get(id.checked_sub(BASE)? as usize)
}

#[cfg(test)]
mod tests {
    use super::KArg::{ConstSize, Mem, MemOrNull, MemWrite, Size};
    use super::table::IDS;
    use super::*;

    #[test]
    fn constants_are_named_after_their_functions() {
        assert_eq!(IDS.len(), KFUNCS.len());
        for (name, n) in IDS {
            assert_eq!(by_id(*n).map(|k| k.name.to_uppercase()), Some((*name).to_owned()));
        }
    }

    #[test]
    fn names_are_found_once_and_sizes_follow_memory() {
        for (n, f) in (BASE..).zip(KFUNCS) {
            assert_eq!(by_name(f.name), Some((n, f)));
            assert_eq!(by_id(n), Some(f));
            assert!(f.args.len() <= 5);
            assert!(
                crate::helper::kfunc(f.name).is_none(),
                "{} is offered: it has a row there",
                f.name
            );
            for (i, a) in f.args.iter().enumerate() {
                if matches!(a, Size | ConstSize) {
                    assert!(
                        matches!(f.args.get(i.wrapping_sub(1)), Some(Mem | MemOrNull | MemWrite)),
                        "{}",
                        f.name
                    );
                }
            }
        }
        assert_eq!(by_id(BASE - 1), None);
    }
}
