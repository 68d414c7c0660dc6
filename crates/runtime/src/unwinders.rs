//! The unwinders of a process that was entered while it ran: they find no library that the dynamic
//! linker does not know, and an exception would end the program at the first frame that returns
//! through the tracer's code.
//!
//! They ask one of two functions for a table of the code at an address, or for all tables
//! (`_dl_find_object` of glibc 2.35, `dl_iterate_phdr` of all C libraries). Calls of both are sent
//! here, where the tracer's own library is added to what they answer. That stays for as long as a
//! call is in progress that returns through it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use skep_attach::Engine;
use skep_attach::sites::Module;
use skep_proc::module::Role;

/// The tracer's library as it lies in memory.
#[derive(Clone, Debug)]
pub struct OwnImage {
    /// Where it begins.
    pub base: u64,
    /// Its code.
    pub code: Range<u64>,
    /// Its unwind table, `.eh_frame_hdr`.
    pub table: u64,
    /// Where its program headers are.
    pub headers: u64,
    /// How many.
    pub header_count: u16,
}

/// [`OwnImage`] for the code below: code, its end, base, table, headers, how many.
static OWN: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// Where the functions themselves go on.
static FIND: AtomicUsize = AtomicUsize::new(0);
static ITERATE: AtomicUsize = AtomicUsize::new(0);

/// The attachments.
static DIVERSIONS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Says where the tracer's own library is.
pub(crate) fn know(own: &OwnImage) {
    let count = u64::from(own.header_count);
    let words = [own.code.start, own.code.end, own.base, own.table, own.headers, count];
    OWN.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
}

/// Sends what unwinders ask to the functions below. Nothing of the process is hooked yet that
/// returns through the tracer's code.
pub(crate) fn divert(modules: &[Arc<Module>]) {
    let mut diversions = DIVERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(engine) = Engine::get() else { return };
    if !diversions.is_empty() || OWN.iter().any(|word| word.load(Ordering::Relaxed) == 0) {
        return;
    }
    let places = [
        ("_dl_find_object", find_object as *const () as usize, &FIND),
        ("dl_iterate_phdr", iterate_phdr as *const () as usize, &ITERATE),
    ];
    for (name, to, itself) in places {
        // Others ask the C library; it may ask the dynamic linker.
        let find = |wanted| {
            let mut may_have = modules.iter().filter(|module| rank(module) == Some(wanted));
            may_have.find_map(|module| module.function_named(name).ok()?)
        };
        if let Some(function) = RANKS.into_iter().find_map(find) {
            // SAFETY: each does what the function does that it stands for, and never goes away.
            match unsafe { engine.divert(&function, to, itself) } {
                Ok(id) => diversions.push(id),
                Err(_) => engine.refuse_exits("exceptions would not find their way past it"),
            }
        }
    }
    let main = modules.iter().find(|module| module.is_main());
    if diversions.is_empty() && main.is_none_or(may_unwind) {
        engine.refuse_exits(
            "the program has no symbols: exceptions would not find their way past it",
        );
    }
}

/// Tells whether a program may have an unwinder in it: the compiler has made tables of what unwinding
/// has to do, or nobody knows.
fn may_unwind(main: &Arc<Module>) -> bool {
    let Ok(elf) = main.file().elf() else { return true };
    elf.sections().is_empty() || elf.section(".gcc_except_table").is_some()
}

/// Gives the functions back, if no call returns through the tracer's code any more after so long, and
/// all hooks are out. Else they stay as they are.
pub(crate) fn give_back(patience: Duration) {
    const PAUSE: Duration = Duration::from_millis(1);
    let mut diversions = DIVERSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(engine) = Engine::get() else { return };
    let begin = Instant::now();
    while !diversions.is_empty() {
        if !engine.has_calls_in_progress() {
            diversions.drain(..).for_each(|id| drop(engine.detach(id)));
        } else if begin.elapsed() > patience {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Which modules may have the functions, the likeliest first.
#[derive(Clone, Copy, PartialEq)]
enum Rank {
    /// The C library.
    Library,
    /// A program that has it in it.
    Program,
    /// The dynamic linker, which may be both.
    Linker,
}

const RANKS: [Rank; 3] = [Rank::Library, Rank::Program, Rank::Linker];

fn rank(module: &Module) -> Option<Rank> {
    let file = module.path().file_name().unwrap_or_default().as_encoded_bytes();
    match module.role() {
        _ if file.starts_with(b"libc.so") || file.starts_with(b"libc-2") => Some(Rank::Library),
        Role::Main => Some(Rank::Program),
        Role::Interpreter => Some(Rank::Linker),
        _ => None,
    }
}

unsafe extern "C" {
    #[link_name = "skep_unwinders_find_object"]
    fn find_object();
    #[link_name = "skep_unwinders_iterate_phdr"]
    fn iterate_phdr();
}

// No register but those that a call may change, no memory but the caller's: these run wherever the
// functions are called.
std::arch::global_asm!(
    ".text",
    // int _dl_find_object(void *pc, struct dl_find_object *result)
    ".p2align 4",
    ".globl skep_unwinders_find_object",
    ".hidden skep_unwinders_find_object",
    ".type skep_unwinders_find_object,@function",
    "skep_unwinders_find_object:",
    ".cfi_startproc",
    "cmp rdi, qword ptr [rip + {own}]",
    "jb 2f",
    "cmp rdi, qword ptr [rip + {own} + 8]",
    "jae 2f",
    // Flags, where it is mapped, no `struct link_map`, the table (glibc dlfcn/dlfcn.h).
    "xor eax, eax",
    "mov qword ptr [rsi], rax",
    "mov qword ptr [rsi + 24], rax",
    "mov rcx, qword ptr [rip + {own} + 16]",
    "mov qword ptr [rsi + 8], rcx",
    "mov rcx, qword ptr [rip + {own} + 8]",
    "mov qword ptr [rsi + 16], rcx",
    "mov rcx, qword ptr [rip + {own} + 24]",
    "mov qword ptr [rsi + 32], rcx",
    "ret",
    "2: jmp qword ptr [rip + {find}]",
    ".cfi_endproc",
    ".size skep_unwinders_find_object, . - skep_unwinders_find_object",
    // int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data)
    ".p2align 4",
    ".globl skep_unwinders_iterate_phdr",
    ".hidden skep_unwinders_iterate_phdr",
    ".type skep_unwinders_iterate_phdr,@function",
    "skep_unwinders_iterate_phdr:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -16",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r12, -24",
    "sub rsp, 72",
    ".cfi_adjust_cfa_offset 72",
    "mov rbx, rdi",
    "mov r12, rsi",
    "call qword ptr [rip + {iterate}]",
    "test eax, eax",
    "jne 3f",
    // Address, name, headers, how many; the rest is not said to be there, and is 0 (glibc
    // elf/link.h).
    "mov rax, qword ptr [rip + {own} + 16]",
    "mov qword ptr [rsp], rax",
    "lea rax, [rip + 4f]",
    "mov qword ptr [rsp + 8], rax",
    "mov rax, qword ptr [rip + {own} + 32]",
    "mov qword ptr [rsp + 16], rax",
    "mov rax, qword ptr [rip + {own} + 40]",
    "mov qword ptr [rsp + 24], rax",
    "xor eax, eax",
    "mov qword ptr [rsp + 32], rax",
    "mov qword ptr [rsp + 40], rax",
    "mov qword ptr [rsp + 48], rax",
    "mov qword ptr [rsp + 56], rax",
    "mov rdi, rsp",
    "mov esi, 32",
    "mov rdx, r12",
    "call rbx",
    "3: add rsp, 72",
    ".cfi_adjust_cfa_offset -72",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size skep_unwinders_iterate_phdr, . - skep_unwinders_iterate_phdr",
    "4: .asciz \"skep-agent\"",
    own = sym OWN,
    find = sym FIND,
    iterate = sym ITERATE,
);
