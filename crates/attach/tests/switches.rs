//! What interrupts an event and what runs beside it: a profiler that unwinds at any instruction, a
//! scheduler that switches coroutines in a signal handler, children that run in their parent's
//! memory at the same time.

mod support;

use skep_attach::{Engine, Missed, Position};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Library, Seen, counter};

type F = extern "C" fn(i64) -> i64;
/// An attach test changes what other tests of the process run.
static ALONE: Mutex<()> = Mutex::new(());

const POSITIONS: [Position; 4] =
    [Position::Entry, Position::Exit, Position::Session, Position::ModifyReturn];

fn library(name: &str, source: &str) -> Library {
    Library::new(
        name,
        &source.replace('\'', "\""),
        "c",
        &[
            "-O1",
            "-fno-optimize-sibling-calls",
            "-fno-toplevel-reorder",
            "-fexceptions",
            "-pthread",
        ],
    )
}

/// Single steps through calls of hooked functions; at each instruction a handler unwinds up to
/// `anchor` and compares the registers that functions keep with what `anchor` has in them. The
/// first time each kind of stack is met, threads without a block are, too.
const STEPS: &str = r"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>
#define N __attribute__((noinline))
static long steps, bad;
static unsigned long low, high, first_bad, want[6], got[6];
static volatile int on;
static const int KEPT[6] = {3, 6, 12, 13, 14, 15};
struct walk { int depth, found; };
static _Unwind_Reason_Code frame(struct _Unwind_Context *c, void *p) {
    struct walk *w = p;
    unsigned long ip = _Unwind_GetIP(c);
    if (ip >= low && ip < high) {
        w->found = 1;
        for (int i = 0; i < 6; i++) got[i] = _Unwind_GetGR(c, KEPT[i]);
        return _URC_END_OF_STACK;
    }
    return ++w->depth > 60 ? _URC_END_OF_STACK : _URC_NO_REASON;
}
static sigjmp_buf out;
static void fault(int s) { siglongjmp(out, 1); }
static void trap(int s, siginfo_t *i, void *context) {
    ucontext_t *c = context;
    unsigned long pc = c->uc_mcontext.gregs[REG_RIP];
    struct walk w = {0, 0};
    Dl_info in;
    if (!on) c->uc_mcontext.gregs[REG_EFL] &= ~0x100;
    // Code that no module has, the hooks' islands, says nothing about itself.
    if (!dladdr((void *)pc, &in)) return;
    steps++;
    if (!sigsetjmp(out, 1)) _Unwind_Backtrace(frame, &w); else w.found = 0;
    if (pc >= low && pc < high) memcpy(want, got, sizeof want);
    else if (!w.found || memcmp(want, got, sizeof want)) { bad++; if (!first_bad) first_bad = pc - (unsigned long)in.dli_fbase; }
}
N long eight(long a, long b, long c, long d, long e, long f, long g, long h) { __asm__ volatile(''); return a + b + c + d + e + f + g * h; }
N long two(long a, long b) { __asm__ volatile(''); return a * b; }
#define STEP(flags) __asm__ volatile('pushfq; ' flags '; popfq' ::: 'memory', 'cc')
N long anchor(int step) {
    long r;
    on = step;
    if (step) STEP('orq $0x100,(%%rsp)');
    r = eight(1, 2, 3, 4, 5, 6, 7, 8) + two(3, 4);
    on = 0;
    if (step) STEP('andq $~0x100,(%%rsp)');
    __asm__ volatile('');
    return r == 77 + 12;
}
N void anchor_end(void) { __asm__ volatile('nop'); }
static ucontext_t back, there;
static long right;
static void both(void) { right = anchor(1) & anchor(1); }
N void deep(int n) { volatile char b[200000]; b[0] = 1; if (n) deep(n - 1); else both(); b[1] = 2; }
static char alt[1 << 18];
static void *thread(void *how) {
    stack_t s = {.ss_sp = alt, .ss_size = sizeof alt};
    sigaltstack(&s, 0);
    if ((long)how == 0) both();
    if ((long)how == 1) {
        getcontext(&there);
        there.uc_stack.ss_sp = malloc(1 << 17), there.uc_stack.ss_size = 1 << 17, there.uc_link = &back;
        makecontext(&there, both, 0);
        swapcontext(&back, &there);
    }
    // A second quarter, and the lower half of eight megabytes.
    if ((long)how == 2) deep(12);
    if ((long)how == 3) deep(25);
    return 0;
}
// The instruction that is wrong, counted from the start of its module; 0: none; -1: wrong results, or nothing was stepped through.
long wrong(long how) {
    low = (unsigned long)anchor, high = (unsigned long)anchor_end;
    steps = bad = first_bad = right = 0;
    struct walk w = {0, 0};
    _Unwind_Backtrace(frame, &w);
    struct sigaction t = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_ONSTACK}, f = {.sa_handler = fault, .sa_flags = SA_ONSTACK | SA_NODEFER}, old[2];
    sigaction(SIGTRAP, &t, &old[0]), sigaction(SIGSEGV, &f, &old[1]);
    pthread_attr_t a;
    pthread_attr_init(&a), pthread_attr_setstacksize(&a, 8 << 20);
    pthread_t id;
    pthread_create(&id, &a, thread, (void *)how), pthread_join(id, 0);
    sigaction(SIGTRAP, &old[0], 0), sigaction(SIGSEGV, &old[1], 0);
    return steps < 500 || !right ? -1 : first_bad;
}
";

#[test]
fn every_instruction_can_be_unwound() {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    /// In Rust, which has unwind information.
    unsafe extern "C" fn count(_: *mut u64, _: *const ()) -> u64 {
        RUNS.fetch_add(1, Ordering::Relaxed);
        0
    }
    let _alone = ALONE.lock();
    let lib = library("steps", STEPS);
    // SAFETY: the type is that of the C source.
    let wrong: F = unsafe { lib.get("wrong") };
    let engine = Engine::get().expect("engine");
    for position in POSITIONS {
        let hook = Seen::leaked().hook_of(position, count);
        let done = engine.attach(
            &[(&lib.function("eight"), 0), (&lib.function("two"), 0)],
            &[hook.wants_args(8)],
        );
        assert_eq!(done.results, [Ok(()), Ok(())]);
        for how in 0..4 {
            let at = wrong(how);
            assert_eq!(at, 0, "{position:?}, stack {how}: instruction at {at:#x} of its module");
        }
        assert!(RUNS.swap(0, Ordering::Relaxed) > 0);
        assert!(engine.detach(done.id).expect("attached").drained);
    }
}

const COROUTINES: &str = r"
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <ucontext.h>
#define N __attribute__((noinline))
#define MANY 8
static ucontext_t all[MANY + 1];
static volatile int now = MANY, done[MANY];
static volatile long bad, switches;
static long calls, least;
N long work(long a, long b) { __asm__ volatile('' ::: 'memory'); return a * 3 + b; }
N long long_work(long a, long b, long c, long d, long e, long f, long g) { __asm__ volatile('' ::: 'memory'); return a * 3 + g; }
static void pick(void) {
    int old = now;
    for (int k = 1; k <= MANY; k++) {
        int n = (old + k) % MANY;
        if (!done[n]) { if (n != old) { now = n, switches++; swapcontext(&all[old], &all[n]); } return; }
    }
}
static void on(int s) { if (now != MANY) pick(); }
// Begins with the signal held back: swapcontext lets it through before it is done with the context, which a handler would overwrite.
static void one(int id) {
    long i;
    sigset_t alarm;
    sigemptyset(&alarm), sigaddset(&alarm, SIGALRM), sigprocmask(SIG_UNBLOCK, &alarm, 0);
    for (i = 0; switches < least; i++) {
        if (work(i, id) != i * 3 + id) bad++;
        if (long_work(i, 0, 0, 0, 0, 0, id) != i * 3 + id) bad++;
    }
    sigset_t m;
    sigemptyset(&m), sigaddset(&m, SIGALRM), sigprocmask(SIG_BLOCK, &m, 0);
    done[id] = 1, calls += 2 * i;
    int left = 0;
    for (int i = 0; i < MANY; i++) left |= !done[i];
    if (!left) { now = MANY; setcontext(&all[MANY]); }
    pick();
}
long preempted(long n) {
    least = n, bad = switches = calls = 0;
    sigset_t m, before;
    sigemptyset(&m), sigaddset(&m, SIGALRM), pthread_sigmask(SIG_BLOCK, &m, &before);
    for (int i = 0; i < MANY; i++) {
        done[i] = 0;
        getcontext(&all[i]);
        all[i].uc_stack.ss_sp = malloc(65536), all[i].uc_stack.ss_size = 65536, all[i].uc_link = &all[MANY];
        makecontext(&all[i], (void (*)())one, 1, i);
    }
    struct sigaction a = {.sa_handler = on, .sa_flags = SA_RESTART}, old;
    sigaction(SIGALRM, &a, &old);
    // Only this thread gets the signal.
    timer_t t;
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    e._sigev_un._tid = gettid();
    timer_create(CLOCK_MONOTONIC, &e, &t);
    struct itimerspec i = {{0, 50000}, {0, 50000}};
    timer_settime(t, 0, &i, 0);
    now = 0;
    swapcontext(&all[MANY], &all[0]);
    timer_delete(t);
    sigaction(SIGALRM, &old, 0), pthread_sigmask(SIG_SETMASK, &before, 0);
    return bad ? -bad : calls;
}
";

/// A coroutine that a signal handler puts aside in the middle of an event keeps its registers and
/// its place in the count.
#[test]
fn coroutines_that_a_signal_handler_switches() {
    let _alone = ALONE.lock();
    let includes =
        "#define _GNU_SOURCE\n#include <pthread.h>\n#include <time.h>\n#include <unistd.h>\n";
    let lib = library(
        "preempted",
        &format!("{includes}{}", COROUTINES.replace("#define _GNU_SOURCE\n", "")),
    );
    // SAFETY: the type is that of the C source.
    let preempted: F = unsafe { lib.get("preempted") };
    let engine = Engine::get().expect("engine");
    for position in POSITIONS {
        let (hook, seen) = counter(position);
        let done =
            engine.attach(&[(&lib.function("work"), 0), (&lib.function("long_work"), 0)], &[hook]);
        assert_eq!(done.results, [Ok(()), Ok(())]);
        // So many times a coroutine is put aside, by a handler that interrupts it anywhere.
        let calls = preempted(10_000);
        assert!(calls > 0, "{position:?}: {} wrong results", -calls);
        assert_eq!(
            (seen.runs() / runs(position), seen.missed()),
            (calls as u64, 0),
            "{position:?}"
        );
        assert!(engine.detach(done.id).expect("attached").drained);
    }
}

const CHILDREN: &str = r"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline))
#define MANY 4
N long work(long a, long b) { __asm__ volatile('' ::: 'memory'); return a * 3 + b; }
static long rounds;
static long calls(long id) { for (long i = 0; i < rounds; i++) if (work(i, id) != i * 3 + id) return 7; return 0; }
static int child(void *id) { _exit(calls((long)id)); }
long beside(long n) {
    int pid[MANY], status, bad = 0;
    rounds = n;
    work(1, 1);
    for (long i = 0; i < MANY; i++) {
        char *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pid[i] = clone(child, stack + 65536, CLONE_VM | SIGCHLD, (void *)i);
    }
    bad = calls(MANY);
    for (int i = 0; i < MANY; i++) { waitpid(pid[i], &status, 0); if (status) bad = status; }
    return bad;
}
static volatile int go, ready;
static int waiting(void *id) { ready = 1; while (!go) sched_yield(); _exit(calls(1)); }
static int pid;
void start(void) {
    char *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    go = ready = 0, rounds = 1000;
    pid = clone(waiting, stack + 65536, CLONE_VM | SIGCHLD, 0);
    while (!ready) sched_yield();
}
long stop(void) { int status; go = 1; waitpid(pid, &status, 0); return status; }
";

/// Children of `clone(CLONE_VM)` have their parent's thread-local storage, and do not wait for each
/// other.
#[test]
fn children_that_run_beside_their_parent() {
    let _alone = ALONE.lock();
    let lib = library("beside", CHILDREN);
    // SAFETY: the types are those of the C source.
    let (beside, start, stop): (F, extern "C" fn(), extern "C" fn() -> i64) =
        unsafe { (lib.get("beside"), lib.get("start"), lib.get("stop")) };
    let engine = Engine::get().expect("engine");
    let rounds = if cfg!(debug_assertions) { 20_000 } else { 100_000 };
    for position in POSITIONS {
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&lib.function("work"), 0)], &[hook]);
        assert_eq!((&done.results[..], beside(rounds)), (&[Ok(())][..], 0), "{position:?}");
        let thread = seen.missed[Missed::Thread as usize].load(Ordering::SeqCst);
        assert_eq!(
            (seen.runs() / runs(position), thread, seen.missed()),
            (rounds as u64 + 1, 4 * rounds as u64, thread),
            "{position:?}"
        );
        assert!(engine.detach(done.id).expect("attached").drained);
        // Hooks come and go while such a child is there.
        start();
        let done = engine.attach(&[(&lib.function("work"), 0)], &[counter(position).0]);
        assert_eq!(stop(), 0, "{position:?}");
        engine.detach(done.id).expect("attached");
    }
}

/// A maker that looks suspended while it waits for memory, which its child provides after `n` calls.
const WAITS_OTHERWISE: &str = r"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define N __attribute__((noinline))
enum { PAGE = 4096, NO_USERFAULTFD = -1, NEVER_WAITS = 3, WRONG = 4 };
N long work(long a, long b) { __asm__ volatile('' ::: 'memory'); return a * 3 + b; }
static int userfault, maker;
static long rounds;
static char *page;
static int file_of_maker(const char *name, char *text, int room) {
    sprintf(text, '/proc/%d/%s', maker, name);
    int file = open(text, O_RDONLY), n = read(file, text, room - 1);
    close(file);
    text[n < 0 ? 0 : n] = 0;
    return n;
}
static int is_suspended(void) {
    char text[512];
    return file_of_maker('stat', text, sizeof text) > 0 && strstr(text, ') D ');
}
static int child(void *unused) {
    int result = NEVER_WAITS;
    for (int i = 0; i < 1000 && result; i++) {
        usleep(10000);
        if (is_suspended()) result = 0;
    }
    for (long i = 0; i < rounds; i++) if (work(i, 5) != i * 3 + 5) result = WRONG;
    if (!is_suspended()) result = NEVER_WAITS;
    struct uffdio_zeropage zero = {{(unsigned long)page, PAGE}};
    ioctl(userfault, UFFDIO_ZEROPAGE, &zero);
    _exit(result);
}
long while_its_maker_waits(long n) {
    char text[512], got, *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_api api = {.api = UFFD_API};
    userfault = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api)) return NO_USERFAULTFD;
    page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register in = {{(unsigned long)page, PAGE}, UFFDIO_REGISTER_MODE_MISSING};
    if (ioctl(userfault, UFFDIO_REGISTER, &in)) return NO_USERFAULTFD;
    maker = gettid(), rounds = n;
    work(1, 1);
    int status, pid = clone(child, stack + 65536, CLONE_VM | SIGCHLD, 0);
    struct iovec local = {&got, 1}, remote = {page, 1};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) got = 1;
    waitpid(pid, &status, 0);
    close(userfault), munmap(page, PAGE), munmap(stack, 65536);
    return got ? WRONG : WEXITSTATUS(status);
}
// Whether a child of vfork is told what its maker waits in.
long is_told(void) {
    static volatile int told;
    maker = gettid(), told = 0;
    int status, pid = vfork();
    if (!pid) { char text[512]; told = file_of_maker('syscall', text, sizeof text) > 0; _exit(0); }
    waitpid(pid, &status, 0);
    return told;
}
";

/// A maker that waits for anything else than its child is not taken for suspended.
#[test]
fn a_child_whose_maker_waits_for_something_else() {
    let _alone = ALONE.lock();
    let lib = library("otherwise", WAITS_OTHERWISE);
    // SAFETY: the types are those of the C source.
    let (waits, is_told): (F, extern "C" fn() -> i64) =
        unsafe { (lib.get("while_its_maker_waits"), lib.get("is_told")) };
    if is_told() == 0 {
        return skep_testkit::skip("a parent's /proc/PID/syscall");
    }
    let engine = Engine::get().expect("engine");
    for position in POSITIONS {
        let (hook, seen) = counter(position);
        let done = engine.attach(&[(&lib.function("work"), 0)], &[hook]);
        assert_eq!(done.results, [Ok(())]);
        let result = waits(100);
        if result < 0 {
            return skep_testkit::skip("userfaultfd for memory that the kernel uses");
        }
        let thread = seen.missed[Missed::Thread as usize].load(Ordering::SeqCst);
        assert_eq!(
            (result, seen.runs() / runs(position), thread, seen.missed()),
            (0, 1, 100, 100),
            "{position:?}"
        );
        assert!(engine.detach(done.id).expect("attached").drained);
    }
}

const fn runs(position: Position) -> u64 {
    if matches!(position, Position::Session) { 2 } else { 1 }
}
