//! Those tests of the engine that depend on threads, stacks and signals once more, where thread
//! words are reached by `gs`, as in a process whose loader does not know us.

#![expect(clippy::duplicate_mod, reason = "each of the files is a test of its own, too")]

use std::sync::atomic::{AtomicU64, Ordering};

#[path = "hazards.rs"]
mod hazards;
#[path = "life.rs"]
mod life;
#[path = "quiescence.rs"]
mod quiescence;
#[path = "registers.rs"]
mod registers;
#[path = "stacks.rs"]
mod stacks;
#[path = "storm.rs"]
mod storm;
#[path = "switches.rs"]
mod switches;

/// What threads have for a GS base that have had no event.
static NOBODY: AtomicU64 = AtomicU64::new(0);

static AREA: skep_attach::Area = skep_attach::Area::new();

const ARCH_PRCTL: i64 = 158;
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_GET_FS: u64 = 0x1003;
const ARCH_GET_GS: u64 = 0x1004;
const GETTID: i64 = 186;

unsafe extern "C" {
    fn syscall(number: i64, ...) -> i64;
    fn setenv(name: *const std::ffi::c_char, value: *const std::ffi::c_char, replace: i32) -> i32;
}

/// Runs before anything else of the process, so that all its threads inherit the base.
#[used]
#[unsafe(link_section = ".init_array")]
static SWITCH: extern "C" fn() = switch;

extern "C" fn switch() {
    // SAFETY: the process has one thread, which has used no thread word and hooked nothing.
    unsafe {
        // Each file counts on it that no test of another file runs beside its own.
        assert_eq!(setenv(c"RUST_TEST_THREADS".as_ptr(), c"1".as_ptr(), 1), 0);
        let place = place_of_thread_id().expect("glibc keeps it");
        let nobody = skep_attach::reach_words_by_gs(place, 0, &AREA).expect("code can be changed");
        NOBODY.store(nobody, Ordering::Relaxed);
        assert_eq!(syscall(ARCH_PRCTL, ARCH_SET_GS, nobody), 0);
    }
}

/// The distance from the thread pointer of the first word that is the thread's id.
fn place_of_thread_id() -> Option<i32> {
    let mut pointer = 0_u64;
    // SAFETY: the kernel writes the pointer, behind which glibc's record of the thread has 2,300
    // bytes.
    unsafe {
        assert_eq!(syscall(ARCH_PRCTL, ARCH_GET_FS, &raw mut pointer), 0);
        let tid = syscall(GETTID) as u32;
        let words = std::slice::from_raw_parts(pointer as *const u32, 500);
        words.iter().position(|word| *word == tid).map(|n| 4 * n as i32)
    }
}

fn base() -> u64 {
    let mut base = 0_u64;
    // SAFETY: the kernel writes it.
    unsafe { assert_eq!(syscall(ARCH_PRCTL, ARCH_GET_GS, &raw mut base), 0) };
    base
}

/// A thread has nobody's area, or its maker's, until it has one of its own; and the id is where
/// it was found also in other threads.
#[test]
fn threads_inherit_an_area_and_get_their_own() {
    let nobody = NOBODY.load(Ordering::Relaxed);
    let own = move |inherited: u64| {
        assert_eq!(base(), inherited);
        assert!(skep_attach::register_thread());
        let own = base();
        assert_ne!(own, nobody);
        assert_ne!(own, inherited);
        assert!(skep_attach::register_thread());
        assert_eq!(base(), own, "once");
        own
    };
    let mine = if base() == nobody { own(nobody) } else { base() };
    let child = move || {
        let first = own(mine);
        (first, std::thread::spawn(move || own(first)).join().expect("no panic"))
    };
    let (first, second) = std::thread::spawn(child).join().expect("no panic");
    assert_ne!(first, second);
    assert_ne!(first, mine);
    // Areas of threads that are gone are used again, once there are none that nobody had: those come in
    // portions. Threads are gone, for the kernel, some time after they were joined.
    const PORTION: usize = 512;
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..PORTION + 500 {
        let (thread, area) = std::thread::spawn(move || {
            let own = own(mine);
            (std::fs::read_link("/proc/thread-self").expect("a thread"), own)
        })
        .join()
        .expect("no panic");
        while std::path::Path::new("/proc").join(&thread).exists() {
            std::thread::yield_now();
        }
        if n >= PORTION {
            seen.insert(area);
        }
    }
    assert!(seen.len() < 20, "{}", seen.len());
}
