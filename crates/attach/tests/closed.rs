//! A library that another thread closes while its functions are looked at and hooked: the process
//! goes on, and functions that are not there any more are skipped.

mod support;

use skep_attach::{Engine, Position, sites};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::mpsc::channel;
use std::time::Duration;
use support::{Dir, compile, counter};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int;
}

/// Functions enough that looking at them takes longer than a library is there.
const FUNCTIONS: usize = 10_000;
const ROUNDS: u64 = 64;

#[test]
fn a_library_that_is_closed_meanwhile() {
    let dir = Dir::new("closed");
    // Two files, so that one is looked at anew after the other.
    let paths = ["libclosed.so", "libother.so"].map(|name| dir.0.join(name));
    let source = format!(
        ".text\n.set n, 0\n.altmacro\n.macro function k\n.globl f\\k\n.type f\\k,@function\nf\\k:\n\
         push %rbx\nmov %rdi, %rbx\nlea 1(%rbx,%rbx), %rax\n.rept 40\nadd $1000, %rax\n.endr\n\
         pop %rbx\nret\n.size f\\k, . - f\\k\n.endm\n.rept {FUNCTIONS}\nfunction %n\n.set n, n + 1\n\
         .endr\n.section .note.GNU-stack,\"\",@progbits\n"
    );
    compile(&source, "S", &["-shared", "-fPIC", "-nostdlib"], &paths[0]);
    std::fs::copy(&paths[0], &paths[1]).expect("copy");
    let names = [0, 1].map(|n| CString::new(paths[n].to_str().expect("UTF-8")).expect("no NUL"));
    let open = |n: u64| {
        // SAFETY: a library without constructors.
        let library = unsafe { dlopen(names[(n % 2) as usize].as_ptr(), 2) };
        assert!(!library.is_null());
        library
    };
    // SAFETY: nobody keeps an address of it.
    let close = |library| assert_eq!(unsafe { dlclose(library) }, 0);
    let engine = Engine::get().expect("engine");
    let (opened, is_open) = channel();
    let (may_close, go_on) = channel::<()>();
    // Sometimes it is closed before functions are hooked: how many are, meanwhile, is a matter of luck.
    let is_first = |round: u64| round.is_multiple_of(4);
    let (closed, is_closed) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=ROUNDS {
                let mut library = open(round);
                opened.send(()).expect("waited for");
                // Else the test has failed.
                let Ok(()) = go_on.recv() else { return };
                // A little later each time.
                std::thread::sleep(Duration::from_micros(round % 16 * 100));
                if round % 3 == 0 {
                    // The other one comes to lie at the same place.
                    close(library);
                    library = open(round + 1);
                }
                close(library);
                if is_first(round) {
                    closed.send(()).expect("waited for");
                    let Ok(()) = go_on.recv() else { return };
                }
            }
        });
        for round in 1..=ROUNDS {
            // Half of them in a thread that holds back what tells of memory that is gone.
            const SIGSEGV: u64 = 1 << 10;
            let (how, set) = (c_int::from(round.is_multiple_of(2)), [SIGSEGV; 16]);
            // SAFETY: this thread's mask: `SIG_BLOCK` and `SIG_UNBLOCK`.
            unsafe { pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
            is_open.recv().expect("it is opened");
            let modules = {
                let _muted = skep_attach::mute();
                sites::scan().expect("modules")
            };
            engine.forget(&modules);
            let path = &paths[(round % 2) as usize];
            let module = modules.iter().find(|m| m.path() == path).expect("it is open");
            let functions = module.functions().expect("symbols");
            let (hook, _) = counter(Position::Entry);
            let targets: Vec<_> = functions.iter().map(|f| (f, 0)).collect();
            may_close.send(()).expect("waited for");
            if is_first(round) {
                is_closed.recv().expect("it is closed");
            }
            let done = engine.attach(&targets, &[hook]);
            if is_first(round) {
                let hooked = done.results.iter().filter(|r| r.is_ok()).count();
                assert_eq!(hooked, 0, "round {round}: functions that are not there");
                may_close.send(()).expect("waited for");
            }
            engine.detach(done.id).expect("attached");
        }
        drop(may_close);
    });
}
