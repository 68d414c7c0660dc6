//! Kernel functions (kfuncs): what goes in and out, one row each, so that the verifier can judge
//! programs that call them.
//!
//! Those that run here are [`Kfunc::offered`]; a few simple ones are rows of
//! [`crate::helper::KFUNCS`] instead. The number of a row is [`BASE`] and its place: numbers that
//! no instruction of an object has, as the kernel's are BTF ids of the running kernel. Prototypes
//! and flags are those of Linux 6.12, of 6.18 where 6.12 has no such function (`__bpf_kfunc` and
//! `BTF_ID_FLAGS` in kernel/bpf and net/core/filter.c).

use crate::helper::{HelperId, KFUNC_BASE};
use crate::prog::ProgramType as P;

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
    Iter,
    /// A dynptr that is set up.
    Dynptr,
    /// As [`KArg::Dynptr`], or NULL.
    DynptrOrNull,
    /// Two stack slots that become a dynptr.
    UninitDynptr,
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
    /// The root of a tree.
    RbRoot,
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
}

use KArg::{
    Const, ConstSize, Ctx, Dynptr, DynptrOrNull, Fixed, Ignored, IrqFlag, Iter, Later, Less,
    ListHead, ListNode, LocalRelease, Map, Mem, MemOrNull, MemWrite, Number, Object, ObjectOrNull,
    RbNode, RbNodeInside, RbRoot, Refcounted, Release, Size, Trusted, UninitDynptr, Wq,
};
use KRet as R;
use Set::{Common, Cpumask, Crypto, CryptoInit, Generic, Skb, SockIter, Xdp};

const fn k(name: &'static str, args: &'static [KArg], ret: KRet, flags: u32, set: Set) -> Kfunc {
    Kfunc { name, args, ret, flags: KFlags(flags), offered: false, set }
}

/// A row of a function that skep offers.
const fn here(name: &'static str, args: &'static [KArg], ret: KRet, flags: u32, set: Set) -> Kfunc {
    Kfunc { offered: true, ..k(name, args, ret, flags, set) }
}

const NONE: u32 = KFlags::NONE;
const ACQUIRE: u32 = KFlags::ACQUIRE;
const NEW: u32 = KFlags::ITER_NEW;
const NEXT: u32 = KFlags::ITER_NEXT;
const DESTROY: u32 = KFlags::ITER_DESTROY;
const RCU: u32 = KFlags::RCU_PROTECTED;
const SLEEPABLE: u32 = KFlags::SLEEPABLE;
const PERCPU: u32 = KFlags::PERCPU;

const MASK: KArg = Object("cpumask");
const BPF_MASK: KArg = Object("bpf_cpumask");

/// The rows.
pub const KFUNCS: &[Kfunc] = &[
    k("bpf_obj_new_impl", &[Const, Ignored], R::NewOrNull, ACQUIRE, Generic),
    k("bpf_percpu_obj_new_impl", &[Const, Ignored], R::NewOrNull, ACQUIRE | PERCPU, Generic),
    k("bpf_obj_drop_impl", &[LocalRelease, Ignored], R::Void, NONE, Generic),
    k("bpf_percpu_obj_drop_impl", &[LocalRelease, Ignored], R::Void, PERCPU, Generic),
    k("bpf_refcount_acquire_impl", &[Refcounted, Ignored], R::SameOrNull, ACQUIRE, Generic),
    k(
        "bpf_list_push_front_impl",
        &[ListHead, ListNode, Ignored, Ignored],
        R::Number,
        NONE,
        Generic,
    ),
    k("bpf_list_push_back_impl", &[ListHead, ListNode, Ignored, Ignored], R::Number, NONE, Generic),
    k("bpf_list_pop_front", &[ListHead], R::ListNodeOrNull, ACQUIRE, Generic),
    k("bpf_list_pop_back", &[ListHead], R::ListNodeOrNull, ACQUIRE, Generic),
    k("bpf_rbtree_remove", &[RbRoot, RbNodeInside], R::RbNodeOrNull(false), ACQUIRE, Generic),
    k("bpf_rbtree_add_impl", &[RbRoot, RbNode, Less, Ignored, Ignored], R::Number, NONE, Generic),
    k("bpf_rbtree_first", &[RbRoot], R::RbNodeOrNull(true), NONE, Generic),
    k(
        "bpf_task_acquire",
        &[Object("task_struct")],
        R::ObjectOrNull("task_struct"),
        ACQUIRE,
        Generic,
    ),
    k("bpf_task_release", &[Release("task_struct")], R::Void, NONE, Generic),
    k("bpf_task_from_pid", &[Number], R::ObjectOrNull("task_struct"), ACQUIRE, Generic),
    k("bpf_task_from_vpid", &[Number], R::ObjectOrNull("task_struct"), ACQUIRE, Generic),
    k(
        "bpf_task_under_cgroup",
        &[Object("task_struct"), Object("cgroup")],
        R::Number,
        NONE,
        Generic,
    ),
    k(
        "bpf_task_get_cgroup1",
        &[Object("task_struct"), Number],
        R::ObjectOrNull("cgroup"),
        ACQUIRE,
        Generic,
    ),
    k("bpf_cgroup_acquire", &[Object("cgroup")], R::ObjectOrNull("cgroup"), ACQUIRE, Generic),
    k("bpf_cgroup_release", &[Release("cgroup")], R::Void, NONE, Generic),
    k(
        "bpf_cgroup_ancestor",
        &[Object("cgroup"), Number],
        R::ObjectOrNull("cgroup"),
        ACQUIRE,
        Generic,
    ),
    k("bpf_cgroup_from_id", &[Number], R::ObjectOrNull("cgroup"), ACQUIRE, Generic),
    k("bpf_throw", &[Number], R::Never, NONE, Generic),
    k("bpf_cast_to_kern_ctx", &[Ctx], R::KernelContext, NONE, Common),
    here("bpf_rdonly_cast", &[Ignored, Const], R::Cast, NONE, Common),
    here("bpf_rcu_read_lock", &[], R::Void, NONE, Common),
    here("bpf_rcu_read_unlock", &[], R::Void, NONE, Common),
    here("bpf_preempt_disable", &[], R::Void, NONE, Common),
    here("bpf_preempt_enable", &[], R::Void, NONE, Common),
    here("bpf_local_irq_save", &[IrqFlag], R::Void, NONE, Common),
    here("bpf_local_irq_restore", &[IrqFlag], R::Void, NONE, Common),
    here("bpf_dynptr_from_skb", &[Ctx, Number, UninitDynptr], R::Number, NONE, Skb),
    here("bpf_dynptr_from_xdp", &[Ctx, Number, UninitDynptr], R::Number, NONE, Xdp),
    here(
        "bpf_dynptr_slice",
        &[Dynptr, Number, MemOrNull, ConstSize],
        R::SliceOrNull(false),
        NONE,
        Common,
    ),
    here(
        "bpf_dynptr_slice_rdwr",
        &[Dynptr, Number, MemOrNull, ConstSize],
        R::SliceOrNull(true),
        NONE,
        Common,
    ),
    here("bpf_dynptr_adjust", &[Dynptr, Number, Number], R::Number, NONE, Common),
    here("bpf_dynptr_is_null", &[Dynptr], R::Number, NONE, Common),
    here("bpf_dynptr_is_rdonly", &[Dynptr], R::Number, NONE, Common),
    here("bpf_dynptr_size", &[Dynptr], R::Number, NONE, Common),
    here("bpf_dynptr_clone", &[Dynptr, UninitDynptr], R::Number, NONE, Common),
    here("bpf_dynptr_copy", &[Dynptr, Number, Dynptr, Number, Number], R::Number, NONE, Common),
    here("bpf_dynptr_memset", &[Dynptr, Number, Number, Number], R::Number, NONE, Common),
    here("bpf_iter_num_new", &[Iter, Number, Number], R::Number, NEW, Common),
    here("bpf_iter_num_next", &[Iter], R::MemOrNull(4), NEXT, Common),
    here("bpf_iter_num_destroy", &[Iter], R::Void, DESTROY, Common),
    here("bpf_iter_bits_new", &[Iter, Ignored, Number], R::Number, NEW, Common),
    here("bpf_iter_bits_next", &[Iter], R::MemOrNull(4), NEXT, Common),
    here("bpf_iter_bits_destroy", &[Iter], R::Void, DESTROY, Common),
    k("bpf_iter_task_vma_new", &[Iter, Object("task_struct"), Number], R::Number, NEW, Common),
    k("bpf_iter_task_vma_next", &[Iter], R::ObjectOrNull("vm_area_struct"), NEXT, Common),
    k("bpf_iter_task_vma_destroy", &[Iter], R::Void, DESTROY, Common),
    k(
        "bpf_iter_css_task_new",
        &[Iter, Trusted("cgroup_subsys_state"), Number],
        R::Number,
        NEW,
        Common,
    ),
    k("bpf_iter_css_task_next", &[Iter], R::ObjectOrNull("task_struct"), NEXT, Common),
    k("bpf_iter_css_task_destroy", &[Iter], R::Void, DESTROY, Common),
    k(
        "bpf_iter_css_new",
        &[Iter, Trusted("cgroup_subsys_state"), Number],
        R::Number,
        NEW | RCU,
        Common,
    ),
    k("bpf_iter_css_next", &[Iter], R::ObjectOrNull("cgroup_subsys_state"), NEXT, Common),
    k("bpf_iter_css_destroy", &[Iter], R::Void, DESTROY, Common),
    k(
        "bpf_iter_task_new",
        &[Iter, ObjectOrNull("task_struct"), Number],
        R::Number,
        NEW | RCU,
        Common,
    ),
    k("bpf_iter_task_next", &[Iter], R::ObjectOrNull("task_struct"), NEXT, Common),
    k("bpf_iter_task_destroy", &[Iter], R::Void, DESTROY, Common),
    k("bpf_wq_init", &[Wq, Map, Number], R::Number, NONE, Common),
    k("bpf_wq_set_callback_impl", &[Wq, Later, Number, Ignored], R::Number, NONE, Common),
    k("bpf_wq_start", &[Wq, Number], R::Number, NONE, Common),
    here(
        "bpf_copy_from_user_str",
        &[MemWrite, Size, Ignored, Number],
        R::Number,
        SLEEPABLE,
        Common,
    ),
    k("bpf_map_sum_elem_count", &[Map], R::Number, NONE, Common),
    k("bpf_get_kmem_cache", &[Number], R::ObjectOrNull("kmem_cache"), NONE, Common),
    here("bpf_strcmp", &[Ignored, Ignored], R::Number, NONE, Common),
    here("bpf_strcasecmp", &[Ignored, Ignored], R::Number, NONE, Common),
    here("bpf_strlen", &[Ignored], R::Number, NONE, Common),
    here("bpf_strnlen", &[Ignored, Number], R::Number, NONE, Common),
    here("bpf_strchr", &[Ignored, Number], R::Number, NONE, Common),
    here("bpf_strchrnul", &[Ignored, Number], R::Number, NONE, Common),
    here("bpf_strnchr", &[Ignored, Number, Number], R::Number, NONE, Common),
    here("bpf_strrchr", &[Ignored, Number], R::Number, NONE, Common),
    here("bpf_strspn", &[Ignored, Ignored], R::Number, NONE, Common),
    here("bpf_strcspn", &[Ignored, Ignored], R::Number, NONE, Common),
    here("bpf_strstr", &[Ignored, Ignored], R::Number, NONE, Common),
    here("bpf_strnstr", &[Ignored, Ignored, Number], R::Number, NONE, Common),
    k("bpf_cpumask_create", &[], R::ObjectOrNull("bpf_cpumask"), ACQUIRE, Cpumask),
    k("bpf_cpumask_release", &[Release("bpf_cpumask")], R::Void, NONE, Cpumask),
    k("bpf_cpumask_acquire", &[Trusted("bpf_cpumask")], R::Object("bpf_cpumask"), ACQUIRE, Cpumask),
    k("bpf_cpumask_first", &[MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_first_zero", &[MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_first_and", &[MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_set_cpu", &[Number, BPF_MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_clear_cpu", &[Number, BPF_MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_test_cpu", &[Number, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_test_and_set_cpu", &[Number, BPF_MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_test_and_clear_cpu", &[Number, BPF_MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_setall", &[BPF_MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_clear", &[BPF_MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_and", &[BPF_MASK, MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_or", &[BPF_MASK, MASK, MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_xor", &[BPF_MASK, MASK, MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_equal", &[MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_intersects", &[MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_subset", &[MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_empty", &[MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_full", &[MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_copy", &[BPF_MASK, MASK], R::Void, NONE, Cpumask),
    k("bpf_cpumask_any_distribute", &[MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_any_and_distribute", &[MASK, MASK], R::Number, NONE, Cpumask),
    k("bpf_cpumask_weight", &[MASK], R::Number, NONE, Cpumask),
    k(
        "bpf_crypto_ctx_create",
        &[Mem, Size, Fixed(4)],
        R::ObjectOrNull("bpf_crypto_ctx"),
        ACQUIRE | SLEEPABLE,
        CryptoInit,
    ),
    k("bpf_crypto_ctx_release", &[Release("bpf_crypto_ctx")], R::Void, NONE, CryptoInit),
    k(
        "bpf_crypto_ctx_acquire",
        &[Object("bpf_crypto_ctx")],
        R::ObjectOrNull("bpf_crypto_ctx"),
        ACQUIRE,
        CryptoInit,
    ),
    k(
        "bpf_crypto_decrypt",
        &[Object("bpf_crypto_ctx"), Dynptr, Dynptr, DynptrOrNull],
        R::Number,
        NONE,
        Crypto,
    ),
    k(
        "bpf_crypto_encrypt",
        &[Object("bpf_crypto_ctx"), Dynptr, Dynptr, DynptrOrNull],
        R::Number,
        NONE,
        Crypto,
    ),
    k("bpf_sock_destroy", &[Trusted("sock_common")], R::Number, NONE, SockIter),
];

/// Finds a row and its number by name.
#[must_use]
pub fn by_name(name: &str) -> Option<(HelperId, &'static Kfunc)> {
    let at = KFUNCS.iter().position(|f| f.name == name)?;
    Some((BASE + at as HelperId, &KFUNCS[at]))
}

/// Number of the row with this name; there must be one.
///
/// # Panics
/// There is none: for tables that are made when they are compiled.
#[must_use]
pub const fn id(name: &str) -> HelperId {
    let mut n = 0;
    while n < KFUNCS.len() {
        if same(KFUNCS[n].name.as_bytes(), name.as_bytes()) {
            return BASE + n as HelperId;
        }
        n += 1;
    }
    panic!("no kernel function has this name")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut n = 0;
    while n < a.len() && n < b.len() && a[n] == b[n] {
        n += 1;
    }
    n == a.len() && n == b.len()
}

/// Finds the row of a number.
#[must_use]
pub fn by_id(id: HelperId) -> Option<&'static Kfunc> {
    KFUNCS.get(id.checked_sub(BASE)? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_once_and_sizes_follow_memory() {
        for (n, f) in (BASE..).zip(KFUNCS) {
            assert_eq!(by_name(f.name), Some((n, f)));
            assert_eq!((by_id(n), id(f.name)), (Some(f), n));
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
