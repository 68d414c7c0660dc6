//! The rows of kernel functions.

use super::KArg::{
    Const, ConstSize, Ctx, Dynptr, DynptrOrNull, Fixed, Ignored, IrqFlag, Iter, Later, Less,
    ListHead, ListNode, LocalRelease, Map, Mem, MemOrNull, MemWrite, Number, Object, ObjectOrNull,
    RbNode, RbNodeInside, RbRoot, RbRootRead, Refcounted, Release, Size, Trusted, UninitDynptr, Wq,
};
use super::Set::{Common, Cpumask, Crypto, CryptoInit, Generic, Skb, SockIter, Xdp};
use super::{
    BASE, KArg, KFlags, KRet, KRet as R, Kfunc, NO_INTERRUPTS, NO_UNWINDING, Section, Set,
};
use crate::helper::DynptrKind;

const fn k(args: &'static [KArg], ret: KRet, flags: u32, set: Set) -> Kfunc {
    Kfunc {
        name: "",
        args,
        ret,
        flags: KFlags(flags),
        begins: None,
        ends: None,
        unsupported: None,
        offered: false,
        set,
    }
}

/// A row of a function that skep offers.
const fn here(args: &'static [KArg], ret: KRet, flags: u32, set: Set) -> Kfunc {
    Kfunc { offered: true, ..k(args, ret, flags, set) }
}

impl Kfunc {
    const fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    const fn begins(mut self, section: Section) -> Self {
        self.begins = Some(section);
        self
    }

    const fn ends(mut self, section: Section) -> Self {
        self.ends = Some(section);
        self
    }

    const fn unsupported(mut self, why: &'static str) -> Self {
        self.unsupported = Some(why);
        self
    }
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
const UNDER_LOCK: u32 = KFlags::UNDER_LOCK;

const ITER_NUM: KArg = Iter { name: "iter_num", slots: 1 };
const ITER_BITS: KArg = Iter { name: "iter_bits", slots: 2 };
const ITER_TASK_VMA: KArg = Iter { name: "iter_task_vma", slots: 1 };
const ITER_CSS_TASK: KArg = Iter { name: "iter_css_task", slots: 1 };
const ITER_CSS: KArg = Iter { name: "iter_css", slots: 3 };
const ITER_TASK: KArg = Iter { name: "iter_task", slots: 3 };

/// Makes the rows, and the constants of their numbers: a row's number is [`BASE`] and its place.
macro_rules! kfuncs {
    ($($id:ident $name:literal => $row:expr;)*) => {
        /// The numbers of kernel functions, by name.
        pub mod id {
            /// The places of the rows.
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "kernel names")]
            enum Place { $($id,)* }

            $(
                #[doc = concat!("Number of `", $name, "`.")]
                #[doc(alias = $name)]
                pub const $id: $crate::HelperId = super::BASE + Place::$id as u32;
            )*
        }

        /// The rows.
        pub const KFUNCS: &[Kfunc] = &[$($row.named($name),)*];

        /// The names of the constants beside their numbers.
        #[cfg(test)]
        pub(super) const IDS: &[(&str, crate::HelperId)] = &[$((stringify!($id), id::$id),)*];
    };
}

kfuncs! {
    BPF_OBJ_NEW_IMPL "bpf_obj_new_impl" => k(&[Const, Ignored], R::NewOrNull, ACQUIRE, Generic);
    BPF_PERCPU_OBJ_NEW_IMPL "bpf_percpu_obj_new_impl" =>
        k(&[Const, Ignored], R::NewOrNull, ACQUIRE | PERCPU, Generic);
    BPF_OBJ_DROP_IMPL "bpf_obj_drop_impl" => k(&[LocalRelease, Ignored], R::Void, NONE, Generic);
    BPF_PERCPU_OBJ_DROP_IMPL "bpf_percpu_obj_drop_impl" =>
        k(&[LocalRelease, Ignored], R::Void, PERCPU, Generic);
    BPF_REFCOUNT_ACQUIRE_IMPL "bpf_refcount_acquire_impl" =>
        k(&[Refcounted, Ignored], R::SameOrNull, ACQUIRE | UNDER_LOCK, Generic);
    BPF_LIST_PUSH_FRONT_IMPL "bpf_list_push_front_impl" =>
        k(&[ListHead, ListNode, Ignored, Ignored], R::Number, UNDER_LOCK, Generic);
    BPF_LIST_PUSH_BACK_IMPL "bpf_list_push_back_impl" =>
        k(&[ListHead, ListNode, Ignored, Ignored], R::Number, UNDER_LOCK, Generic);
    BPF_LIST_POP_FRONT "bpf_list_pop_front" =>
        k(&[ListHead], R::ListNodeOrNull, ACQUIRE | UNDER_LOCK, Generic);
    BPF_LIST_POP_BACK "bpf_list_pop_back" =>
        k(&[ListHead], R::ListNodeOrNull, ACQUIRE | UNDER_LOCK, Generic);
    BPF_RBTREE_REMOVE "bpf_rbtree_remove" =>
        k(&[RbRoot, RbNodeInside], R::RbNodeOrNull(false), ACQUIRE | UNDER_LOCK, Generic);
    BPF_RBTREE_ADD_IMPL "bpf_rbtree_add_impl" =>
        k(&[RbRoot, RbNode, Less, Ignored, Ignored], R::Number, UNDER_LOCK, Generic);
    BPF_RBTREE_FIRST "bpf_rbtree_first" =>
        k(&[RbRootRead], R::RbNodeOrNull(true), UNDER_LOCK, Generic);
    BPF_TASK_ACQUIRE "bpf_task_acquire" =>
        k(&[Object("task_struct")], R::ObjectOrNull("task_struct"), ACQUIRE, Generic);
    BPF_TASK_RELEASE "bpf_task_release" => k(&[Release("task_struct")], R::Void, NONE, Generic);
    BPF_TASK_FROM_PID "bpf_task_from_pid" =>
        k(&[Number], R::ObjectOrNull("task_struct"), ACQUIRE, Generic);
    BPF_TASK_FROM_VPID "bpf_task_from_vpid" =>
        k(&[Number], R::ObjectOrNull("task_struct"), ACQUIRE, Generic);
    BPF_TASK_UNDER_CGROUP "bpf_task_under_cgroup" =>
        k(&[Object("task_struct"), Object("cgroup")], R::Number, NONE, Generic);
    BPF_TASK_GET_CGROUP1 "bpf_task_get_cgroup1" =>
        k(&[Object("task_struct"), Number], R::ObjectOrNull("cgroup"), ACQUIRE, Generic);
    BPF_CGROUP_ACQUIRE "bpf_cgroup_acquire" =>
        k(&[Object("cgroup")], R::ObjectOrNull("cgroup"), ACQUIRE, Generic);
    BPF_CGROUP_RELEASE "bpf_cgroup_release" => k(&[Release("cgroup")], R::Void, NONE, Generic);
    BPF_CGROUP_ANCESTOR "bpf_cgroup_ancestor" =>
        k(&[Object("cgroup"), Number], R::ObjectOrNull("cgroup"), ACQUIRE, Generic);
    BPF_CGROUP_FROM_ID "bpf_cgroup_from_id" =>
        k(&[Number], R::ObjectOrNull("cgroup"), ACQUIRE, Generic);
    BPF_THROW "bpf_throw" => k(&[Number], R::Never, NONE, Generic).unsupported(NO_UNWINDING);
    BPF_CAST_TO_KERN_CTX "bpf_cast_to_kern_ctx" => k(&[Ctx], R::KernelContext, NONE, Common);
    BPF_RDONLY_CAST "bpf_rdonly_cast" => here(&[Ignored, Const], R::Cast, NONE, Common);
    BPF_RCU_READ_LOCK "bpf_rcu_read_lock" => here(&[], R::Void, NONE, Common).begins(Section::Rcu);
    BPF_RCU_READ_UNLOCK "bpf_rcu_read_unlock" =>
        here(&[], R::Void, NONE, Common).ends(Section::Rcu);
    BPF_PREEMPT_DISABLE "bpf_preempt_disable" =>
        here(&[], R::Void, NONE, Common).begins(Section::Preemption);
    BPF_PREEMPT_ENABLE "bpf_preempt_enable" =>
        here(&[], R::Void, NONE, Common).ends(Section::Preemption);
    BPF_LOCAL_IRQ_SAVE "bpf_local_irq_save" =>
        here(&[IrqFlag], R::Void, NONE, Common).unsupported(NO_INTERRUPTS);
    BPF_LOCAL_IRQ_RESTORE "bpf_local_irq_restore" =>
        here(&[IrqFlag], R::Void, NONE, Common).unsupported(NO_INTERRUPTS);
    BPF_DYNPTR_FROM_SKB "bpf_dynptr_from_skb" =>
        here(&[Ctx, Number, UninitDynptr(Some(DynptrKind::Skb))], R::Number, NONE, Skb);
    BPF_DYNPTR_FROM_XDP "bpf_dynptr_from_xdp" =>
        here(&[Ctx, Number, UninitDynptr(Some(DynptrKind::Xdp))], R::Number, NONE, Xdp);
    BPF_DYNPTR_SLICE "bpf_dynptr_slice" =>
        here(&[Dynptr, Number, MemOrNull, ConstSize], R::SliceOrNull(false), NONE, Common);
    BPF_DYNPTR_SLICE_RDWR "bpf_dynptr_slice_rdwr" =>
        here(&[Dynptr, Number, MemOrNull, ConstSize], R::SliceOrNull(true), NONE, Common);
    BPF_DYNPTR_ADJUST "bpf_dynptr_adjust" =>
        here(&[Dynptr, Number, Number], R::Number, NONE, Common);
    BPF_DYNPTR_IS_NULL "bpf_dynptr_is_null" => here(&[Dynptr], R::Number, NONE, Common);
    BPF_DYNPTR_IS_RDONLY "bpf_dynptr_is_rdonly" => here(&[Dynptr], R::Number, NONE, Common);
    BPF_DYNPTR_SIZE "bpf_dynptr_size" => here(&[Dynptr], R::Number, NONE, Common);
    BPF_DYNPTR_CLONE "bpf_dynptr_clone" =>
        here(&[Dynptr, UninitDynptr(None)], R::Number, NONE, Common);
    BPF_DYNPTR_COPY "bpf_dynptr_copy" =>
        here(&[Dynptr, Number, Dynptr, Number, Number], R::Number, NONE, Common);
    BPF_DYNPTR_MEMSET "bpf_dynptr_memset" =>
        here(&[Dynptr, Number, Number, Number], R::Number, NONE, Common);
    BPF_ITER_NUM_NEW "bpf_iter_num_new" =>
        here(&[ITER_NUM, Number, Number], R::Number, NEW | UNDER_LOCK, Common);
    BPF_ITER_NUM_NEXT "bpf_iter_num_next" =>
        here(&[ITER_NUM], R::MemOrNull(4), NEXT | UNDER_LOCK, Common);
    BPF_ITER_NUM_DESTROY "bpf_iter_num_destroy" =>
        here(&[ITER_NUM], R::Void, DESTROY | UNDER_LOCK, Common);
    BPF_ITER_BITS_NEW "bpf_iter_bits_new" =>
        here(&[ITER_BITS, Ignored, Number], R::Number, NEW, Common);
    BPF_ITER_BITS_NEXT "bpf_iter_bits_next" => here(&[ITER_BITS], R::MemOrNull(4), NEXT, Common);
    BPF_ITER_BITS_DESTROY "bpf_iter_bits_destroy" => here(&[ITER_BITS], R::Void, DESTROY, Common);
    BPF_ITER_TASK_VMA_NEW "bpf_iter_task_vma_new" =>
        k(&[ITER_TASK_VMA, Object("task_struct"), Number], R::Number, NEW, Common);
    BPF_ITER_TASK_VMA_NEXT "bpf_iter_task_vma_next" =>
        k(&[ITER_TASK_VMA], R::ObjectOrNull("vm_area_struct"), NEXT, Common);
    BPF_ITER_TASK_VMA_DESTROY "bpf_iter_task_vma_destroy" =>
        k(&[ITER_TASK_VMA], R::Void, DESTROY, Common);
    BPF_ITER_CSS_TASK_NEW "bpf_iter_css_task_new" =>
        k(&[ITER_CSS_TASK, Trusted("cgroup_subsys_state"), Number], R::Number, NEW, Common);
    BPF_ITER_CSS_TASK_NEXT "bpf_iter_css_task_next" =>
        k(&[ITER_CSS_TASK], R::ObjectOrNull("task_struct"), NEXT, Common);
    BPF_ITER_CSS_TASK_DESTROY "bpf_iter_css_task_destroy" =>
        k(&[ITER_CSS_TASK], R::Void, DESTROY, Common);
    BPF_ITER_CSS_NEW "bpf_iter_css_new" =>
        k(&[ITER_CSS, Trusted("cgroup_subsys_state"), Number], R::Number, NEW | RCU, Common);
    BPF_ITER_CSS_NEXT "bpf_iter_css_next" =>
        k(&[ITER_CSS], R::ObjectOrNull("cgroup_subsys_state"), NEXT, Common);
    BPF_ITER_CSS_DESTROY "bpf_iter_css_destroy" => k(&[ITER_CSS], R::Void, DESTROY, Common);
    BPF_ITER_TASK_NEW "bpf_iter_task_new" =>
        k(&[ITER_TASK, ObjectOrNull("task_struct"), Number], R::Number, NEW | RCU, Common);
    BPF_ITER_TASK_NEXT "bpf_iter_task_next" =>
        k(&[ITER_TASK], R::ObjectOrNull("task_struct"), NEXT, Common);
    BPF_ITER_TASK_DESTROY "bpf_iter_task_destroy" => k(&[ITER_TASK], R::Void, DESTROY, Common);
    BPF_WQ_INIT "bpf_wq_init" => k(&[Wq, Map, Number], R::Number, NONE, Common);
    BPF_WQ_SET_CALLBACK_IMPL "bpf_wq_set_callback_impl" =>
        k(&[Wq, Later, Number, Ignored], R::Number, NONE, Common);
    BPF_WQ_START "bpf_wq_start" => k(&[Wq, Number], R::Number, NONE, Common);
    BPF_COPY_FROM_USER_STR "bpf_copy_from_user_str" =>
        here(&[MemWrite, Size, Ignored, Number], R::Number, SLEEPABLE, Common);
    BPF_MAP_SUM_ELEM_COUNT "bpf_map_sum_elem_count" => k(&[Map], R::Number, NONE, Common);
    BPF_GET_KMEM_CACHE "bpf_get_kmem_cache" =>
        k(&[Number], R::ObjectOrNull("kmem_cache"), NONE, Common);
    BPF_STRCMP "bpf_strcmp" => here(&[Ignored, Ignored], R::Number, NONE, Common);
    BPF_STRCASECMP "bpf_strcasecmp" => here(&[Ignored, Ignored], R::Number, NONE, Common);
    BPF_STRLEN "bpf_strlen" => here(&[Ignored], R::Number, NONE, Common);
    BPF_STRNLEN "bpf_strnlen" => here(&[Ignored, Number], R::Number, NONE, Common);
    BPF_STRCHR "bpf_strchr" => here(&[Ignored, Number], R::Number, NONE, Common);
    BPF_STRCHRNUL "bpf_strchrnul" => here(&[Ignored, Number], R::Number, NONE, Common);
    BPF_STRNCHR "bpf_strnchr" => here(&[Ignored, Number, Number], R::Number, NONE, Common);
    BPF_STRRCHR "bpf_strrchr" => here(&[Ignored, Number], R::Number, NONE, Common);
    BPF_STRSPN "bpf_strspn" => here(&[Ignored, Ignored], R::Number, NONE, Common);
    BPF_STRCSPN "bpf_strcspn" => here(&[Ignored, Ignored], R::Number, NONE, Common);
    BPF_STRSTR "bpf_strstr" => here(&[Ignored, Ignored], R::Number, NONE, Common);
    BPF_STRNSTR "bpf_strnstr" => here(&[Ignored, Ignored, Number], R::Number, NONE, Common);
    BPF_CPUMASK_CREATE "bpf_cpumask_create" =>
        k(&[], R::ObjectOrNull("bpf_cpumask"), ACQUIRE, Cpumask);
    BPF_CPUMASK_RELEASE "bpf_cpumask_release" =>
        k(&[Release("bpf_cpumask")], R::Void, NONE, Cpumask);
    BPF_CPUMASK_ACQUIRE "bpf_cpumask_acquire" =>
        k(&[Trusted("bpf_cpumask")], R::Object("bpf_cpumask"), ACQUIRE, Cpumask);
    BPF_CPUMASK_FIRST "bpf_cpumask_first" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_FIRST_ZERO "bpf_cpumask_first_zero" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_FIRST_AND "bpf_cpumask_first_and" => k(&[MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_SET_CPU "bpf_cpumask_set_cpu" => k(&[Number, BPF_MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_CLEAR_CPU "bpf_cpumask_clear_cpu" => k(&[Number, BPF_MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_TEST_CPU "bpf_cpumask_test_cpu" => k(&[Number, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_TEST_AND_SET_CPU "bpf_cpumask_test_and_set_cpu" =>
        k(&[Number, BPF_MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_TEST_AND_CLEAR_CPU "bpf_cpumask_test_and_clear_cpu" =>
        k(&[Number, BPF_MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_SETALL "bpf_cpumask_setall" => k(&[BPF_MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_CLEAR "bpf_cpumask_clear" => k(&[BPF_MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_AND "bpf_cpumask_and" => k(&[BPF_MASK, MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_OR "bpf_cpumask_or" => k(&[BPF_MASK, MASK, MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_XOR "bpf_cpumask_xor" => k(&[BPF_MASK, MASK, MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_EQUAL "bpf_cpumask_equal" => k(&[MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_INTERSECTS "bpf_cpumask_intersects" => k(&[MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_SUBSET "bpf_cpumask_subset" => k(&[MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_EMPTY "bpf_cpumask_empty" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_FULL "bpf_cpumask_full" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_COPY "bpf_cpumask_copy" => k(&[BPF_MASK, MASK], R::Void, NONE, Cpumask);
    BPF_CPUMASK_ANY_DISTRIBUTE "bpf_cpumask_any_distribute" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_ANY_AND_DISTRIBUTE "bpf_cpumask_any_and_distribute" =>
        k(&[MASK, MASK], R::Number, NONE, Cpumask);
    BPF_CPUMASK_WEIGHT "bpf_cpumask_weight" => k(&[MASK], R::Number, NONE, Cpumask);
    BPF_CRYPTO_CTX_CREATE "bpf_crypto_ctx_create" =>
        k(
            &[Mem, Size, Fixed(4)],
            R::ObjectOrNull("bpf_crypto_ctx"),
            ACQUIRE | SLEEPABLE,
            CryptoInit,
        );
    BPF_CRYPTO_CTX_RELEASE "bpf_crypto_ctx_release" =>
        k(&[Release("bpf_crypto_ctx")], R::Void, NONE, CryptoInit);
    BPF_CRYPTO_CTX_ACQUIRE "bpf_crypto_ctx_acquire" =>
        k(&[Object("bpf_crypto_ctx")], R::ObjectOrNull("bpf_crypto_ctx"), ACQUIRE, CryptoInit);
    BPF_CRYPTO_DECRYPT "bpf_crypto_decrypt" =>
        k(&[Object("bpf_crypto_ctx"), Dynptr, Dynptr, DynptrOrNull], R::Number, NONE, Crypto);
    BPF_CRYPTO_ENCRYPT "bpf_crypto_encrypt" =>
        k(&[Object("bpf_crypto_ctx"), Dynptr, Dynptr, DynptrOrNull], R::Number, NONE, Crypto);
    BPF_SOCK_DESTROY "bpf_sock_destroy" => k(&[Trusted("sock_common")], R::Number, NONE, SockIter);
}
