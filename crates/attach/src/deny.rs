//! Functions that are not hooked, or not at their return, and why.
//!
//! Most functions that care where they return to are found by following their code
//! ([`crate::stack_arguments`]); the table is for those where that is not enough.

use crate::runtime::Convention;
use crate::sites::{Function, Kind};
use crate::skip::Skip;
use skep_proc::module::Role;
use std::sync::OnceLock;

/// The one function of the dynamic loader that may be hooked, at its entry (glibc elf/dl-debug.c).
const LOADER_EVENT: &str = "_dl_debug_state";

/// Names that are never hooked.
const NEVER_EXACT: &Reasons = &[
    ("_start", "entered without a return address"),
    ("__restore_rt", "unwinders know the end of a signal handler by its bytes"),
    ("__restore", "unwinders know the end of a signal handler by its bytes"),
    ("__tls_get_addr", "called with a convention of its own, also by the loader"),
    ("__errno_location", "its callers rely on registers that other functions may change"),
    ("__fentry__", "called before a function has a frame"),
    ("mcount", "called before a function has its arguments"),
    ("_mcount", "called before a function has its arguments"),
    ("__rust_probestack", "called while the stack is being made"),
    ("__chkstk", "called while the stack is being made"),
    ("__start_context", "entered without a return address"),
    ("_dl_relocate_static_pie", "runs before the program is relocated"),
];

/// Beginnings of names that are never hooked.
const NEVER_PREFIX: &Reasons = &[
    ("__x86_indirect_thunk", "changes its own return address"),
    ("__llvm_retpoline", "changes its own return address"),
    ("__x86_return_thunk", "stands for a return"),
    ("_dl_runtime_", "called with a convention of its own"),
    ("_dl_tlsdesc_", "called with a convention of its own"),
    ("skep_attach_", "part of the tracer"),
    // And what it calls while one stack is left and the other not yet entered.
    ("__morestack", "switches stacks"),
];

/// Names that are not hooked at their return.
const NO_EXIT_EXACT: &Reasons = &[
    ("setjmp", "returns twice"),
    ("_setjmp", "returns twice"),
    ("__setjmp", "returns twice"),
    ("sigsetjmp", "returns twice"),
    ("__sigsetjmp", "returns twice"),
    ("__sigjmp_save", "ends a function that returns twice"),
    ("savectx", "returns twice"),
    ("getcontext", "returns twice"),
    ("__getcontext", "returns twice"),
    ("setcontext", "switches stacks"),
    ("__setcontext", "switches stacks"),
    ("swapcontext", "switches stacks"),
    ("__swapcontext", "switches stacks"),
    ("makecontext", "builds stacks"),
    ("__makecontext", "builds stacks"),
    ("longjmp", "never returns"),
    ("_longjmp", "never returns"),
    ("siglongjmp", "never returns"),
    ("__longjmp", "never returns"),
    ("____longjmp_chk", "never returns"),
    ("__longjmp_chk", "never returns"),
    ("vfork", "returns twice, in the same memory"),
    ("__vfork", "returns twice, in the same memory"),
    ("__libc_vfork", "returns twice, in the same memory"),
    ("clone", "returns on another stack"),
    ("__clone", "returns on another stack"),
    ("clone3", "returns on another stack"),
    ("__clone3", "returns on another stack"),
    ("__clone_internal", "returns on another stack"),
    ("dlsym", "asks who called it"),
    ("__dlsym", "asks who called it"),
    ("dlvsym", "asks who called it"),
    ("__dlvsym", "asks who called it"),
    ("dlopen", "asks who called it"),
    ("__dlopen", "asks who called it"),
    ("dlmopen", "asks who called it"),
    ("__dlmopen", "asks who called it"),
    ("__libc_dlopen_mode", "asks who called it"),
    ("__libc_dlsym", "asks who called it"),
    ("__libc_dlvsym", "asks who called it"),
    ("pthread_exit", "never returns"),
    ("__pthread_exit", "never returns"),
    ("__pthread_unwind", "never returns"),
    ("__pthread_unwind_next", "never returns"),
    ("start_thread", "its stack is gone when it ends"),
    ("__cxa_throw", "never returns"),
    ("__cxa_rethrow", "never returns"),
    ("__builtin_eh_return", "changes its own return address"),
    ("__gcc_personality_v0", "runs in the middle of unwinding"),
    ("__gxx_personality_v0", "runs in the middle of unwinding"),
    ("rust_eh_personality", "runs in the middle of unwinding"),
];

/// Beginnings of names that are not hooked at their return.
const NO_EXIT_PREFIX: &Reasons = &[
    ("_Unwind_", "looks for its caller's frame"),
    ("__libc_start_", "runs for as long as the program"),
    ("_dl_", "part of the dynamic loader, which asks who called it"),
    ("__unw_", "looks for its caller's frame"),
    ("_ULx86_64_", "looks for its caller's frame"),
];

static NEVER: List = List::new(NEVER_EXACT, NEVER_PREFIX);
static NO_EXIT: List = List::new(NO_EXIT_EXACT, NO_EXIT_PREFIX);

/// Refuses functions that are never hooked.
pub(crate) fn entry(f: &Function) -> Result<(), Skip> {
    if f.is_inside() && matches!(f.convention(), Convention::BehindStackCheck { .. }) {
        return Err(Skip::Denied { why: "its stack may have no room in the middle of a function" });
    }
    let why = match f.module.role {
        // Empty, and called when the list of libraries has changed: how a tracer learns of
        // libraries that are opened later.
        Role::Interpreter if f.name() == LOADER_EVENT => None,
        Role::Interpreter => Some("the dynamic loader: runs before there is thread-local storage"),
        Role::Vdso => Some("the kernel's own page"),
        _ if f.module.is_own() && !f.module.is_main() => Some("part of the tracer"),
        _ => find(f, &NEVER).or(match f.convention() {
            // Cold parts and stubs have reasons of their own, but for places inside of them.
            Convention::NoHook(why) if f.kind == Kind::Func || f.is_inside() => Some(why),
            _ => None,
        }),
    };
    why.map_or(Ok(()), |why| Err(Skip::Denied { why }))
}

/// Why no function of this process is hooked at its return.
pub(crate) static NO_EXITS: OnceLock<&str> = OnceLock::new();

/// Refuses functions that are not hooked at their return.
pub(crate) fn exit(f: &Function) -> Result<(), Skip> {
    if let Some(why) = NO_EXITS.get() {
        return Err(Skip::NoExit { why });
    }
    if f.is_inside() {
        return Err(Skip::NoExit { why: "it is inside a function" });
    }
    let convention = match f.convention() {
        Convention::EntryOnly(why) | Convention::BehindStackCheck { why, .. } => Some(why),
        Convention::C | Convention::NoHook(_) => None,
    };
    find(f, &NO_EXIT).or(convention).map_or(Ok(()), |why| Err(Skip::NoExit { why }))
}

fn find(f: &Function, list: &List) -> Option<&'static str> {
    list.find(f.symbol()).or_else(|| f.other_symbols().find_map(|name| list.find(name)))
}

type Reasons = [(&'static str, &'static str)];

/// Names, and beginnings of names, with a reason each.
struct List {
    exact: &'static Reasons,
    prefix: &'static Reasons,
    /// A bit for the first four bytes of each of them.
    begins: [u64; 16],
}

impl List {
    const fn new(exact: &'static Reasons, prefix: &'static Reasons) -> Self {
        let (mut begins, lists, mut n) = ([0; 16], [exact, prefix], 0);
        while n < lists.len() {
            let mut i = 0;
            while i < lists[n].len() {
                let bit = Self::bit(lists[n][i].0.as_bytes());
                begins[bit / 64] |= 1 << (bit % 64);
                i += 1;
            }
            n += 1;
        }
        Self { exact, prefix, begins }
    }

    /// All that are looked for have four bytes.
    const fn bit(name: &[u8]) -> usize {
        const GOLDEN: u32 = 0x9e37_79b9;
        match name {
            [a, b, c, d, ..] => {
                let word = u32::from_le_bytes([*a, *b, *c, *d]);
                (word.wrapping_mul(GOLDEN) >> 22) as usize
            }
            _ => 0,
        }
    }

    fn find(&self, name: &str) -> Option<&'static str> {
        // For nearly all names.
        let bit = Self::bit(name.as_bytes());
        if self.begins.get(bit / 64).is_none_or(|word| word >> (bit % 64) & 1 == 0) {
            return None;
        }
        let exact = self.exact.iter().find(|(n, _)| *n == name);
        let found = exact.or_else(|| self.prefix.iter().find(|(p, _)| name.starts_with(p)));
        found.map(|(_, why)| *why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_on_a_list_is_found_on_it() {
        for list in [&NEVER, &NO_EXIT] {
            for (name, why) in list.exact {
                assert_eq!(list.find(name), Some(*why), "{name}");
            }
            for (prefix, why) in list.prefix {
                assert_eq!(list.find(prefix), Some(*why), "{prefix}");
                assert_eq!(list.find(&format!("{prefix}any")), Some(*why), "{prefix}");
            }
        }
        for other in ["", "x", "main", "_ZN3foo3barEv", "_starts", "setjmpx", "dl", "mcoun"] {
            assert_eq!([NEVER.find(other), NO_EXIT.find(other)], [None; 2], "{other}");
        }
    }
}
