//! Hooks inside functions: they run before each execution of the instruction, see the registers and
//! flags that it finds, and change none of them, nor the 128 bytes below the stack pointer.

mod support;

use skep_attach::sites::Function;
use skep_attach::{Engine, Hook, Position, Skip};
use std::arch::global_asm;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{Library, Seen, counter, own_function};

/// What is seen before and after a place: 15 general registers and the flags in the order of
/// pushes, 16 words below the stack pointer, that pointer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct State {
    /// flags r15 … r8, rbp rdi rsi rdx rcx rbx rax
    words: [u64; 16],
    red_zone: [u64; 16],
    sp: u64,
}

const NONE: State = State { words: [0; 16], red_zone: [0; 16], sp: 0 };

/// The flags that the next round begins with, and by how much its stack is not aligned.
#[unsafe(no_mangle)]
static SKEP_INSIDE_FLAGS: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static SKEP_INSIDE_SHIFT: AtomicU64 = AtomicU64::new(0);
#[unsafe(no_mangle)]
static mut SKEP_INSIDE_AFTER: State = NONE;
/// What a hook saw: the words of its frame from `ctx[-5]` on.
#[unsafe(no_mangle)]
static mut SKEP_INSIDE_FRAME: [u64; 29] = [0; 29];

global_asm!(
    ".text",
    ".globl skep_inside_round",
    ".hidden skep_inside_round",
    ".type skep_inside_round,@function",
    "skep_inside_round:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "mov rbp, rsp",
    "sub rsp, 1024",
    "and rsp, -16",
    "sub rsp, [rip + SKEP_INSIDE_SHIFT]",
    "mov [rip + 7f], rbp",
    // The red zone, then registers and flags.
    "mov ecx, 16",
    "2: lea rax, [rcx + 0x7ed20000]",
    "mov rdx, rcx",
    "neg rdx",
    "mov [rsp + 8*rdx], rax",
    "dec ecx",
    "jnz 2b",
    "pushfq",
    "pop rax",
    "lea rsp, [rsp]",
    "and rax, -3286", // without CF PF AF ZF SF DF OF
    "or rax, [rip + SKEP_INSIDE_FLAGS]",
    "lea rsp, [rsp - 256]",
    "push rax",
    ".irp r,rbx,rcx,rdx,rsi,rdi,r8,r9,r10,r11,r12,r13,r14,r15,rax",
    "movabs \\r, 0x0123456789abcdef",
    "add \\r, [rip + 9f]",
    "add qword ptr [rip + 9f], 0x1111111",
    ".endr",
    "movabs rbp, 0x5555666677778888",
    "mov qword ptr [rip + 9f], 0",
    "popfq",
    "lea rsp, [rsp + 256]",
    // What `pop` and `push` changed of the red zone.
    "mov qword ptr [rsp - 8], 0x11112222",
    ".globl skep_inside_place",
    "skep_inside_place:",
    "nop dword ptr [rax + rax]",
    // Everything as it is now.
    "mov [rip + SKEP_INSIDE_AFTER + 256], rsp",
    "mov [rip + SKEP_INSIDE_AFTER + 120], rax",
    "mov [rip + SKEP_INSIDE_AFTER + 112], rbx",
    "mov [rip + SKEP_INSIDE_AFTER + 104], rcx",
    "mov [rip + SKEP_INSIDE_AFTER + 96], rdx",
    "mov [rip + SKEP_INSIDE_AFTER + 88], rsi",
    "mov [rip + SKEP_INSIDE_AFTER + 80], rdi",
    "mov [rip + SKEP_INSIDE_AFTER + 72], rbp",
    "mov [rip + SKEP_INSIDE_AFTER + 64], r8",
    "mov [rip + SKEP_INSIDE_AFTER + 56], r9",
    "mov [rip + SKEP_INSIDE_AFTER + 48], r10",
    "mov [rip + SKEP_INSIDE_AFTER + 40], r11",
    "mov [rip + SKEP_INSIDE_AFTER + 32], r12",
    "mov [rip + SKEP_INSIDE_AFTER + 24], r13",
    "mov [rip + SKEP_INSIDE_AFTER + 16], r14",
    "mov [rip + SKEP_INSIDE_AFTER + 8], r15",
    ".set i, 1",
    ".rept 16",
    "mov rax, [rsp - 8*i]",
    "mov [rip + SKEP_INSIDE_AFTER + 120 + 8*i], rax",
    ".set i, i + 1",
    ".endr",
    "pushfq",
    "pop rax",
    "cld",
    "mov [rip + SKEP_INSIDE_AFTER], rax",
    "mov rsp, [rip + 7f]",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
    ".size skep_inside_round, . - skep_inside_round",
    // A hook that copies its frame.
    ".globl skep_inside_copy",
    ".hidden skep_inside_copy",
    ".type skep_inside_copy,@function",
    "skep_inside_copy:",
    "lea rsi, [rdi - 40]",
    "lea rdi, [rip + SKEP_INSIDE_FRAME]",
    "mov ecx, 29",
    "rep movsq",
    ".irp r,rax,rcx,rdx,rsi,rdi,r8,r9,r10,r11",
    "mov \\r, -1",
    ".endr",
    "cmp rax, rsp",
    "ret",
    ".size skep_inside_copy, . - skep_inside_copy",
    ".data",
    "7: .quad 0",
    "9: .quad 0",
    ".text",
);

unsafe extern "C" {
    fn skep_inside_round();
    fn skep_inside_place();
    fn skep_inside_copy(ctx: *mut u64, data: *const ()) -> u64;
}

fn place() -> Function {
    let (start, at) =
        (skep_inside_round as *const () as usize, skep_inside_place as *const () as u64);
    own_function(start).at(at - start as u64)
}

fn round(flags: u64, shift: u64) -> (State, [u64; 29]) {
    SKEP_INSIDE_FLAGS.store(flags, Ordering::SeqCst);
    SKEP_INSIDE_SHIFT.store(shift, Ordering::SeqCst);
    // SAFETY: one test uses these, on one thread; the assembly fills them.
    unsafe {
        skep_inside_round();
        let mut after = (&raw const SKEP_INSIDE_AFTER).read();
        let frame = (&raw const SKEP_INSIDE_FRAME).read();
        // Where the stack is, is not the same for each caller.
        if frame[3] != 0 {
            assert_eq!(frame[27], after.sp);
            (&raw mut SKEP_INSIDE_FRAME).write([0; 29]);
        }
        assert_eq!(after.sp % 16, (16 - shift % 16) % 16);
        after.sp = 0;
        (after, frame)
    }
}

/// One at a time: a test steps through code, with a handler of its own for the signal that code is
/// changed with.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All combinations of the status flags and the direction flag, on aligned and other stacks: with the
/// hook as without, and the hook sees all of it.
#[test]
fn nothing_changes_and_everything_is_seen() {
    const BITS: [u64; 7] = [1 << 0, 1 << 2, 1 << 4, 1 << 6, 1 << 7, 1 << 10, 1 << 11];
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let place = place();
    let cases = || {
        let flags = (0..1_u64 << BITS.len()).map(|n| {
            BITS.iter().enumerate().filter(|(b, _)| n >> b & 1 == 1).map(|(_, bit)| bit).sum()
        });
        flags.flat_map(|flags: u64| [0, 8, 24, 3].map(|shift| (flags, shift)))
    };
    let plain: Vec<State> = cases().map(|(flags, shift)| round(flags, shift).0).collect();
    assert_eq!(plain[0].red_zone[1], 0x7ed2_0002, "the red zone is looked at");
    // SAFETY: it copies the frame of a place inside a function, and keeps to the rules.
    let copy = unsafe { Hook::new(Position::Entry, skep_inside_copy, ptr::null()) };
    let (count, seen) = counter(Position::Entry);
    let done = engine.attach(&[(&place, 77)], &[copy, count]);
    assert_eq!(done.results, [Ok(())]);
    let mut rounds = 0;
    for ((flags, shift), plain) in cases().zip(&plain) {
        let (after, frame) = round(flags, shift);
        assert_eq!(after, *plain, "flags {flags:#x}, stack {shift}");
        rounds += 1;
        assert_eq!(seen.runs(), rounds);
        // ctx[-3]: cookie, address; then the registers as the instruction found them.
        assert_eq!(frame[2..4], [77, place.addr()]);
        let w = &plain.words;
        let of_frame =
            [frame[28], frame[26], frame[25], frame[24], frame[23], frame[20], frame[19]];
        // flags, r15 … r12 (behind rbp), r11, r10
        assert_eq!(of_frame[0] & 0xfff, w[0] & 0xfff, "flags");
        assert_eq!(of_frame[1..5], [w[1], w[2], w[3], w[4]]);
        assert_eq!([frame[20], frame[19]], [w[5], w[6]]);
        assert_eq!([frame[22], frame[21], frame[18]], [w[9], w[14], w[15]], "rbp rbx rax");
        let [rdi, rsi, rdx, rcx, r8, r9] =
            [frame[5], frame[6], frame[7], frame[8], frame[9], frame[10]];
        assert_eq!([r9, r8, rdi, rsi, rdx, rcx], [w[7], w[8], w[10], w[11], w[12], w[13]]);
    }
    {
        let _muted = skep_attach::mute();
        for ((flags, shift), plain) in cases().zip(&plain) {
            assert_eq!(round(flags, shift).0, *plain, "muted, flags {flags:#x}");
        }
    }
    assert_eq!(seen.runs(), rounds, "muted");
    engine.detach(done.id).expect("attached");
    for ((flags, shift), plain) in cases().zip(&plain) {
        assert_eq!(round(flags, shift).0, *plain, "detached");
    }
    assert_eq!((seen.runs(), seen.missed()), (rounds, 0));
}

/// Loops, a table of jumps, computed jumps, calls, recursion, stack arguments, floats, short branches.
const SOURCE: &str = r#"
#define N __attribute__((noinline, noclone))
#include <string.h>
static long table[4] = {1, 2, 3, 4};
N long leaf(long a, long b) { return a * 3 + b + table[(a ^ b) & 3]; }
N long loops(long a, long b) { long s = 0; for (long i = 0; i < (a & 15); i++) { if (i & 1) s += b ^ i; else s -= leaf(i, s); } return s; }
N long cases(long a, long b) {
    switch (a & 15) {
    case 0: return b + 1; case 1: b ^= 3; case 2: b += leaf(a, b); break; case 3: return -b;
    case 4: b *= 5; break; case 5: b -= 7; case 6: return loops(b, a); case 7: b <<= 1; break;
    case 9: b = ~b; break; case 11: return 11; case 12: b += 12; case 13: b ^= 0x55; break;
    }
    return b;
}
N long computed(long a, long b) {
    static const void *const to[] = {&&one, &&two, &&three, &&end};
    long n = 0;
    goto *to[a & 3];
one: b += 1;
two: b ^= 0x33; if (n++ < 3) goto *to[b & 3];
three: b -= leaf(n, a); if (n++ < 6) goto *to[(b ^ a) & 3];
end: return b + n;
}
N long deep(long a, long b) { return a <= 0 ? b : deep(a - 1, b ^ a) + 1; }
N static long many(long a, long b, long c, long d, long e, long f, long g, long h) { return a+b*2+c*3+d*4+e*5+f*6+g*7+h*8; }
N long stacked(long a, long b) { return many(a, b, a ^ b, 1, 2, 3, b, a) + many(b, a, 0, 0, 0, 0, 1, 1); }
N long floats(long a, long b) { double x = a, y = b; for (int i = 0; i < 5; i++) x = x * 0.5 + y; return (long)x; }
N long bytes(long a, long b) { char s[40]; memset(s, (int)a, sizeof s); s[b & 31] = 0; return strlen(s) + (a > b); }
"#;

const NAMES: [&str; 8] =
    ["leaf", "loops", "cases", "computed", "deep", "stacked", "floats", "bytes"];

type Long = unsafe extern "C" fn(i64, i64) -> i64;

/// The calls of a function that every test makes; what they returned.
fn calls(f: Long) -> Vec<i64> {
    // SAFETY: functions of the library, which take any numbers.
    (0..40).map(|n| unsafe { f(n, 7 * n - 3) }).collect()
}

static FROM: AtomicU64 = AtomicU64::new(0);
static STEPS: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
    fn sigaction(signal: i32, new: *const [u64; 19], old: *mut [u64; 19]) -> i32;
}

/// Counts the instruction that is about to run.
extern "C" fn step(_: i32, _: *const (), context: *const u64) {
    // SAFETY: `ucontext_t`: five words, then r8 … rsp, rip.
    let ip = unsafe { context.add(5 + 16).read() };
    if let Some(n) = STEPS.get(ip.wrapping_sub(FROM.load(Ordering::Relaxed)) as usize) {
        n.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often each instruction of a function runs in these calls, by stepping through them.
fn stepped(f: Long, function: &Function) -> (Vec<i64>, BTreeMap<u64, u64>) {
    const TRAP: i32 = 5;
    FROM.store(function.addr(), Ordering::Relaxed);
    STEPS.iter().for_each(|n| n.store(0, Ordering::Relaxed));
    let mut new = [0_u64; 19];
    // SA_SIGINFO
    (new[0], new[17]) = (step as *const () as u64, 4);
    let mut old = [0_u64; 19];
    // SAFETY: a handler for the trap flag, which is set for the calls alone.
    let results = unsafe {
        assert_eq!(sigaction(TRAP, &raw const new, &raw mut old), 0);
        std::arch::asm!("pushfq", "or qword ptr [rsp], 256", "popfq");
        let results = calls(f);
        std::arch::asm!("pushfq", "and qword ptr [rsp], -257", "popfq");
        assert_eq!(sigaction(TRAP, &raw const old, ptr::null_mut()), 0);
        results
    };
    let hit = STEPS.iter().enumerate().map(|(n, count)| (n as u64, count.load(Ordering::Relaxed)));
    (results, hit.filter(|(_, count)| *count > 0).collect())
}

const ATTACHED: c_int = 0;
const REFUSED: c_int = 1 << 8;

/// Attaches at one place in a child, which nothing is left of: status of it.
fn alone_in_a_child(f: Long, place: &Function, plain: &[i64], hits: u64) -> c_int {
    let engine = Engine::get().expect("engine");
    let (hook, seen) = counter(Position::Entry);
    // SAFETY: the place is in a function of the library.
    let first = unsafe { (place.addr() as *const u8).read() };
    // A repeated instruction, each round of which is a step for the processor.
    let is_right = |runs| runs == hits || (matches!(first, 0xf2 | 0xf3) && 0 < runs && runs < hits);
    // SAFETY: the child calls the engine and the library, and ends.
    let child = unsafe { fork() };
    assert!(child >= 0);
    if child == 0 {
        let done = engine.attach(&[(place, 0)], &[hook]);
        let status = match &done.results[0] {
            Ok(()) if calls(f) != plain => 2,
            Ok(()) if !is_right(seen.runs()) => 3,
            Ok(()) => match engine.detach(done.id) {
                Ok(gone) if gone.restored == 1 && calls(f) == plain && is_right(seen.runs()) => 0,
                _ => 4,
            },
            Err(Skip::Undecodable { .. }) => 5,
            Err(Skip::Overlap { .. }) => 6,
            Err(Skip::Occupied { .. }) => 7,
            Err(_) => 1,
        };
        // SAFETY: ends the child.
        unsafe { _exit(status) };
    }
    let mut status = 0;
    // SAFETY: waits for the child.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Each instruction of every function alone, and then as many together as fit: the results stay, and
/// hooks run as often as the processor says that the instruction ran.
#[test]
fn every_instruction_counts_what_ran() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let builds = [&["-O2"][..], &["-O0"], &["-O3", "-fcf-protection"], &["-Os"]];
    for (round, flags) in builds.into_iter().enumerate() {
        let library = Library::new("inside", SOURCE, "c", flags);
        let (mut attached, mut all) = (0, 0);
        for name in NAMES {
            // SAFETY: all of them are of this type.
            let f: Long = unsafe { library.get(name) };
            let function = library.function(name);
            let plain = calls(f);
            let (results, hits) = stepped(f, &function);
            assert_eq!(results, plain);
            assert!(hits.len() > 3 && hits[&0] >= 40, "{name}: {hits:?}");
            let offsets: Vec<u64> = hits.keys().copied().filter(|offset| *offset > 0).collect();
            // A child each takes its time: a quarter of them with each of the flags.
            let (from, step) = if stress { (0, 1) } else { (round, 4) };
            for &offset in offsets.iter().skip(from).step_by(step) {
                all += 1;
                match alone_in_a_child(f, &function.at(offset), &plain, hits[&offset]) {
                    ATTACHED => attached += 1,
                    REFUSED => {}
                    wrong => panic!("{flags:?} {name}+{offset:#x}: status {wrong:#x}"),
                }
            }
            let places: Vec<Function> = offsets.iter().map(|n| function.at(*n)).collect();
            let counters: Vec<(Hook, &Seen)> =
                places.iter().map(|_| counter(Position::Entry)).collect();
            let ids: Vec<u64> = places
                .iter()
                .zip(&counters)
                .map(|(place, (hook, _))| engine.attach(&[(place, 0)], &[*hook]))
                .map(|done| done.id)
                .collect();
            let entry = counter(Position::Exit);
            let exit = engine.attach(&[(&function, 0)], &[entry.0]);
            assert_eq!(calls(f), plain, "{flags:?} {name}, all");
            for (offset, (_, seen)) in offsets.iter().zip(&counters) {
                assert!([0, hits[offset]].contains(&seen.runs()), "{flags:?} {name}+{offset:#x}");
            }
            let some = counters.iter().filter(|(_, seen)| seen.runs() > 0).count();
            assert!(some * 8 > offsets.len(), "{flags:?} {name}: {some} of {}", offsets.len());
            ids.into_iter().chain([exit.id]).for_each(|id| {
                engine.detach(id).expect("attached");
            });
            assert_eq!(calls(f), plain, "{flags:?} {name}, afterwards");
            let past_it = function.at(function.size());
            let past_it = engine.attach(&[(&past_it, 0)], &[counter(Position::Entry).0]);
            assert!(matches!(past_it.results[..], [Err(Skip::NotCode { .. })]), "{past_it:?}");
            engine.detach(past_it.id).expect("attached");
        }
        assert!(attached * 2 > all, "{flags:?}: {attached} of {all}");
        library.close();
    }
}

struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Hooks come and go inside functions that threads run.
#[test]
fn places_change_under_running_threads() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let library = Library::new("storm_inside", SOURCE, "c", &["-O2"]);
    // SAFETY: all of them are of this type.
    let all = NAMES.map(|name| unsafe { library.get::<Long>(name) });
    let plain: Vec<Vec<i64>> = all.iter().map(|f| calls(*f)).collect();
    let places: Vec<Function> = NAMES
        .iter()
        .map(|name| library.function(name))
        .flat_map(|f| (1..f.size()).map(move |n| f.at(n)))
        .collect();
    let end = AtomicBool::new(false);
    let seconds = if std::env::var_os("SKEP_STRESS").is_some() { 300 } else { 3 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    for (f, plain) in all.iter().zip(&plain) {
                        assert_eq!(&calls(*f), plain);
                    }
                }
            });
        }
        // Also when this thread panics.
        let _end = EndOf(&end);
        let began = std::time::Instant::now();
        let (hook, seen) = counter(Position::Entry);
        let mut rounds = 0;
        let targets: Vec<(&Function, u64)> = places.iter().map(|place| (place, 0)).collect();
        // Some rounds there are also where one takes long.
        while began.elapsed().as_secs() < seconds || rounds < 6 {
            // Another part of them each time.
            let part: Vec<_> = targets.iter().skip(rounds % 7).step_by(3).copied().collect();
            let done = engine.attach(&part, &[hook]);
            let before = seen.runs();
            while seen.runs() < before + 100 {
                std::hint::spin_loop();
            }
            engine.detach(done.id).expect("attached");
            rounds += 1;
        }
    });
}

/// 1: a hook waits. 2: it may go on.
static HELD: AtomicU64 = AtomicU64::new(0);

extern "C" fn waits(_: *mut u64, _: *const ()) -> u64 {
    HELD.store(1, Ordering::SeqCst);
    while HELD.load(Ordering::SeqCst) < 2 {
        std::hint::spin_loop();
    }
    0
}

/// An instruction that begins where moved ones end stays whole while a thread is among those: it goes
/// on there, though the hook that they were moved for is gone.
#[test]
fn a_thread_among_moved_instructions_comes_back_to_whole_ones() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let source = ".intel_syntax noprefix\n.p2align 4\n.globl f\n.type f,@function\nf:\n.cfi_startproc\n\
        mov rax, rdi\nadd rax, 1\nadd rax, 2\nadd rax, 3\nret\n\
        .cfi_endproc\n.size f, . - f\n.section .note.GNU-stack,\"\",@progbits\n";
    let library = Library::new("among", source, "S", &["-nostdlib"]);
    // SAFETY: the type is that of the assembly.
    let f: extern "C" fn(i64) -> i64 = unsafe { library.get("f") };
    let function = library.function("f");
    let attach = |offset, hook| {
        let done = engine.attach(&[(&function.at(offset), 0)], &[hook]);
        (done.id, done.results[0].clone())
    };
    // The two instructions at +3 are moved, the next one is at +11, among the five bytes of +7.
    let (first, result) = attach(3, Seen::leaked().hook_of(Position::Entry, waits));
    assert_eq!(result, Ok(()));
    let (hook, seen) = counter(Position::Entry);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| f(1));
        while HELD.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let gone = engine.detach(first);
        let (second, result) = attach(7, hook);
        HELD.store(2, Ordering::SeqCst);
        assert_eq!(thread.join().expect("thread"), 7);
        assert!(gone.is_ok_and(|gone| gone.restored == 1 && !gone.drained));
        assert!(matches!(result, Err(Skip::Occupied { .. })), "{result:?}");
        engine.detach(second).expect("attached");
    });
    let (third, result) = attach(7, hook);
    // Other tests' threads may be anywhere, as far as the engine can tell.
    assert!(matches!(result, Ok(()) | Err(Skip::Occupied { .. })), "{result:?}");
    assert_eq!((f(1), seen.runs()), (7, u64::from(result.is_ok())));
    engine.detach(third).expect("attached");
    // Both at once cannot be.
    let places = [function.at(3), function.at(7)];
    let both = engine.attach(&[(&places[0], 0), (&places[1], 0)], &[hook]);
    assert!(matches!(&both.results[..], [Err(_), _] | [_, Err(_)]), "{both:?}");
    assert_eq!(f(1), 7);
    engine.detach(both.id).expect("attached");
}

/// What cannot be: no instruction, hooks at return, bytes that another hook has changed.
#[test]
fn refusals() {
    let _alone = alone();
    let engine = Engine::get().expect("engine");
    let library = Library::new("refused_inside", SOURCE, "c", &["-O2"]);
    let function = library.function("leaf");
    let attach = |place: &Function, position| {
        let (hook, _) = counter(position);
        let done = engine.attach(&[(place, 0)], &[hook]);
        (done.id, done.results[0].clone())
    };
    let reasons: Vec<Result<(), Skip>> = (1..6)
        .map(|n| {
            let (id, result) = attach(&function.at(n), Position::Entry);
            engine.detach(id).expect("attached");
            result
        })
        .collect();
    assert!(reasons.iter().any(|r| matches!(r, Err(Skip::Undecodable { .. }))), "{reasons:?}");
    let good = (1..function.size()).find(|n| {
        let (id, result) = attach(&function.at(*n), Position::Entry);
        engine.detach(id).expect("attached");
        result.is_ok()
    });
    let good = function.at(good.expect("a place"));
    for position in [Position::Exit, Position::Session, Position::ModifyReturn] {
        let (_, result) = attach(&good, position);
        assert!(matches!(result, Err(Skip::NoExit { .. })), "{position:?} {result:?}");
    }
    let (entry, result) = attach(&function, Position::Entry);
    assert_eq!(result, Ok(()));
    let near = (1..5).map(|n| attach(&function.at(n), Position::Entry).1);
    assert!(near.clone().all(|r| r.is_err()));
    assert!(
        near.clone().any(|r| matches!(r, Err(Skip::Overlap { .. }))),
        "{:?}",
        near.collect::<Vec<_>>()
    );
    engine.detach(entry).expect("attached");
}
