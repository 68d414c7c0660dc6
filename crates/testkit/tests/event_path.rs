//! What runs between a hooked function and its program's result, read as machine code of the
//! library that `skep` carries: no vector registers except in helpers that are called with them
//! saved, and no call into the C library anywhere.
//!
//! The trampolines have a test of their own beside them; this one follows everything they call.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpKind, Register,
};
use skep_proc::demangle::demangle;
use skep_proc::elf::Elf;
use skep_testkit::TempDir;
use skep_testkit::trace::{agent_symbols, skep_bin};

/// Where events enter our code, and helpers that are called without saving anything.
const PLAIN: &[&str] = &[
    "skep_runtime::run::tracing",
    "skep_runtime::run::modify_return",
    "skep_runtime::run::registers",
    "skep_runtime::run::registers_override",
    "skep_runtime::run::shown",
    "skep_runtime::run::shown_modify_return",
    "skep_helpers::map::lookup_elem",
    "skep_helpers::map::update_elem",
    "skep_helpers::map::delete_elem",
    "skep_helpers::map::push_elem",
    "skep_helpers::map::pop_elem",
    "skep_helpers::map::peek_elem",
    "skep_helpers::map::lookup_percpu_elem",
    "skep_helpers::map::spin_lock",
    "skep_helpers::map::spin_unlock",
    "skep_helpers::dynptr::from_mem",
    "skep_helpers::perf::output",
    "skep_helpers::ringbuf::output",
    "skep_helpers::ringbuf::reserve",
    "skep_helpers::ringbuf::submit",
    "skep_helpers::ringbuf::discard",
    "skep_helpers::ringbuf::query",
    "skep_helpers::time::ktime_get_ns",
    "skep_helpers::time::get_cpu_time_counter",
    "skep_helpers::time::cpu_time_counter_to_ns",
    "skep_helpers::task::get_prandom_u32",
    "skep_helpers::task::get_smp_processor_id",
    "skep_helpers::task::get_current_pid_tgid",
    "skep_helpers::nothing",
    "skep_helpers::first",
    "skep_helpers::iter::num_new",
    "skep_helpers::iter::num_next",
    "skep_helpers::iter::num_destroy",
    "skep_helpers::number::strncmp",
    "skep_helpers::number::strtol",
    "skep_helpers::number::strtoul",
    "skep_helpers::tracing::get_func_arg",
    "skep_helpers::tracing::get_func_ret",
    "skep_helpers::tracing::override_return",
];

/// What these call through the map's table, by the ends of names.
const BY_TABLE: &[&str] = &[
    "::prog_lookup",
    "::lookup_sized",
    "::prog_lookup_cpu",
    "::prog_update",
    "::prog_delete",
    "::prog_push",
    "::prog_pop",
    "::prog_peek",
];

/// Functions of the helpers' crate that no program calls. All others are called with xmm0 to xmm15
/// saved at least.
const NO_HELPERS: &[&str] = &[
    "skep_helpers::implementation",
    "skep_helpers::has",
    "skep_helpers::table::find",
    "skep_helpers::set_log",
    "skep_helpers::task::set_errno_location",
    "skep_helpers::print::set_log",
    "skep_helpers::stack::modules::set_modules",
    "skep_helpers::stack::modules::set_own_code",
    "skep_helpers::clock::note",
    "skep_helpers::clock::noted",
    "skep_helpers::clock::rate",
    "skep_helpers::clock::sample",
    "skep_helpers::clock::start",
    "skep_helpers::clock::trusted",
];

/// Code that events lead to and that need not keep the rules, and why.
const ELSEWHERE: &[&str] = &[
    // Takes a link's hooks out, once, by the first event after it was detached: saves
    // everything, then runs ordinary code.
    "skep_runtime::run::Running::detach",
    // Never run: what the compiler puts behind calls it cannot prove not to unwind.
    "core::panicking::",
    "_Unwind_Resume",
    // Finds the kernel's clock, at the agent's start.
    "rustix::backend::vdso_wrappers::init",
];

struct Function {
    name: String,
    code: Vec<Instruction>,
}

/// Every function of the library by address.
fn functions(library: &Elf) -> BTreeMap<u64, Function> {
    let list = library.functions().expect("the library has symbols");
    let decode = |vaddr: u64, size: u64| {
        let mut code = Vec::new();
        let bytes = library.read_vaddr(vaddr, size).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, &bytes, vaddr, DecoderOptions::NONE);
        while decoder.can_decode() {
            code.push(decoder.decode());
        }
        code
    };
    list.iter()
        .map(|f| {
            (
                f.vaddr,
                Function {
                    name: demangle(&f.name_lossy()).into_owned(),
                    code: decode(f.vaddr, f.size),
                },
            )
        })
        .collect()
}

/// Words of the library that point into it: what the linker calls its own functions through.
fn own_pointers(library: &Elf) -> BTreeMap<u64, u64> {
    const RELATIVE: u64 = 8;
    let section = library.section(".rela.dyn").expect("a shared library has relocations");
    let data = library.section_data(section).expect("they can be read");
    let word = |e: &[u8], i: usize| {
        u64::from_le_bytes(e[i * 8..i * 8 + 8].try_into().expect("eight bytes"))
    };
    data.chunks_exact(24)
        .filter(|e| word(e, 1) == RELATIVE)
        .map(|e| (word(e, 0), word(e, 2)))
        .collect()
}

/// Follows direct calls and jumps from `roots`; returns what breaks the rules.
fn follow(
    all: &BTreeMap<u64, Function>,
    table: &BTreeMap<u64, u64>,
    roots: &BTreeSet<u64>,
    vectors: bool,
) -> (usize, Vec<String>) {
    let mut info = InstructionInfoFactory::new();
    let (mut todo, mut seen, mut wrong): (Vec<u64>, BTreeSet<u64>, Vec<String>) =
        (roots.iter().copied().collect(), BTreeSet::new(), Vec::new());
    while let Some(at) = todo.pop() {
        let Some(f) = all.get(&at) else {
            wrong.push(format!("code at {at:#x} is no function of the library"));
            continue;
        };
        if ELSEWHERE.iter().any(|e| f.name.starts_with(e)) || !seen.insert(at) {
            continue;
        }
        let end = f.code.last().map_or(at, Instruction::next_ip);
        for i in &f.code {
            let place = || format!("{} at {:#x}", f.name, i.ip());
            for used in info.info(i).used_registers() {
                let r = used.register();
                let upper = r.is_ymm() || r.is_zmm() || r.is_k() || r.is_st() || r.is_mm();
                if upper || (r.is_vector_register() && !vectors) {
                    wrong.push(format!("{}: {r:?}", place()));
                }
            }
            if matches!(i.flow_control(), FlowControl::IndirectCall | FlowControl::IndirectBranch)
                && i.memory_base() == Register::RIP
            {
                match table.get(&i.memory_displacement64()) {
                    Some(to) => todo.push(*to),
                    None => wrong.push(format!("{}: leaves the library", place())),
                }
            }
            if i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64 {
                let to = i.near_branch_target();
                if !(at..end).contains(&to) {
                    todo.push(to);
                }
            }
        }
    }
    (seen.len(), wrong)
}

#[test]
fn events_use_no_vector_registers_and_no_libc() {
    let library = agent_symbols();
    let elf = Elf::open(&library).expect("the symbols are beside the command");
    assert_unpacks(&elf);
    let (all, table) = (functions(&elf), own_pointers(&elf));
    let named = |names: &[&str]| -> BTreeSet<u64> {
        let found: BTreeSet<u64> = all
            .iter()
            .filter(|(_, f)| names.iter().any(|n| is(&f.name, n)))
            .map(|(at, _)| *at)
            .collect();
        for name in names {
            assert!(
                all.values().any(|f| is(&f.name, name)),
                "`{name}` is not in {}",
                library.display()
            );
        }
        found
    };
    let mut plain = named(PLAIN);
    for end in BY_TABLE {
        let found: Vec<u64> = all
            .iter()
            .filter(|(_, f)| without_hash(&f.name).ends_with(end))
            .map(|(at, _)| *at)
            .collect();
        assert!(!found.is_empty(), "nothing in {} ends with `{end}`", library.display());
        plain.extend(found);
    }
    let (count, wrong) = follow(&all, &table, &plain, false);
    assert!(wrong.is_empty(), "of {count} functions:\n{}", wrong.join("\n"));
    let called = |n: &str| n.starts_with("skep_helpers::") && !NO_HELPERS.iter().any(|h| is(n, h));
    let saved: BTreeSet<u64> =
        all.iter().filter(|(_, f)| called(&f.name)).map(|(at, _)| *at).collect();
    let (count, wrong) = follow(&all, &table, &saved, true);
    assert!(wrong.is_empty(), "of {count} functions:\n{}", wrong.join("\n"));
}

/// The agent that the command puts into the skep directory has this library's code: it is read for
/// the one that is used.
fn assert_unpacks(library: &Elf) {
    let dir = TempDir::in_memory();
    let mut command = Command::new(skep_bin());
    command.args(["trace", "*", "--", "true"]).env("SKEP_DIR", dir.path());
    let done = command.env_remove("SKEP_PRELOAD").output().expect("there is a command");
    let files = std::fs::read_dir(dir.join("agents")).expect("the command has put it there");
    let agents: Vec<_> = files.map(|version| version.expect("a folder").path()).collect();
    let [agent] = agents.as_slice() else { panic!("{agents:?} {done:?}") };
    let agent = Elf::open(agent.join("libskep_preload.so")).expect("it is a library");
    let text = |elf: &Elf| {
        let section = elf.section(".text").expect("a library has code");
        elf.section_data(section).expect("it can be read")
    };
    assert!(text(&agent) == text(library), "the symbols beside the command are not its agent's");
}

/// A demangled name without a hash behind it.
fn without_hash(name: &str) -> &str {
    name.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16).map_or(name, |(name, _)| name)
}

/// Tells whether a demangled name, with or without a hash behind it, is this one.
fn is(name: &str, want: &str) -> bool {
    name.strip_prefix(want).is_some_and(|rest| rest.is_empty() || rest.starts_with("::h"))
}
