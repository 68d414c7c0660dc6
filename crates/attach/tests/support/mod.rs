//! What the tests share: targets built by the C compiler, and hooks that count.
#![allow(dead_code, reason = "every test file uses a part")]

use skep_attach::sites::{self, Function, Module};
use skep_attach::{DirectCall, Hook, Missed, Position, RunFn};
use skep_testkit::cc::Cc;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dlclose(library: *mut c_void) -> c_int;
}

/// A directory that is removed at the end.
#[derive(Debug)]
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        // Tests of several files may be in one program, and have libraries of the same name.
        static FILE: u8 = 0;
        let (process, file) = (std::process::id(), &raw const FILE);
        let path = std::env::temp_dir().join(format!("skep-attach-{name}-{process}-{file:p}"));
        std::fs::create_dir_all(&path).expect("temporary directory");
        Self(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A shared object made of C, C++ or assembly text, loaded into the test.
#[derive(Debug)]
pub struct Library {
    handle: *mut c_void,
    pub module: Arc<Module>,
    pub path: PathBuf,
    _dir: Dir,
}

/// Compiles `source` (`kind`: `c`, `cc` or `S`).
pub fn compile(source: &str, kind: &str, flags: &[&str], out: &Path) {
    let text = out.with_extension(kind);
    std::fs::write(&text, source).expect("source file");
    let compiler = Cc::named(if kind == "cc" { "c++" } else { "cc" });
    compiler.args(flags).compile_with(&[&text], &[], out);
}

impl Library {
    pub fn new(name: &str, source: &str, kind: &str, flags: &[&str]) -> Self {
        let dir = Dir::new(name);
        let path = dir.0.join(format!("lib{name}.so"));
        let mut all = vec!["-shared", "-fPIC", "-g0"];
        all.extend(flags);
        compile(source, kind, &all, &path);
        Self::load(dir, path)
    }

    /// Loads a copy of its file.
    pub fn copy(&self, name: &str) -> Self {
        let dir = Dir::new(name);
        let path = dir.0.join(format!("lib{name}.so"));
        std::fs::copy(&self.path, &path).expect("copy");
        Self::load(dir, path)
    }

    fn load(dir: Dir, path: PathBuf) -> Self {
        let c = CString::new(path.to_str().expect("utf-8 path")).expect("no nul");
        // SAFETY: loads a library that was just made for this.
        let handle = unsafe { dlopen(c.as_ptr(), 2) };
        // SAFETY: dlerror gives a C string after a failed dlopen.
        assert!(!handle.is_null(), "{:?}", unsafe { std::ffi::CStr::from_ptr(dlerror()) });
        let modules = sites::scan().expect("modules");
        let module =
            modules.into_iter().find(|m| m.path() == path).expect("the library is a module");
        Self { handle, module, path, _dir: dir }
    }

    /// Address of a symbol, as a function pointer type.
    ///
    /// # Safety
    ///
    /// `F` is the type of that function.
    pub unsafe fn get<F: Copy>(&self, name: &str) -> F {
        let c = CString::new(name).expect("no nul");
        // SAFETY: looks a symbol up.
        let p = unsafe { dlsym(self.handle, c.as_ptr()) };
        assert!(!p.is_null(), "no symbol {name}");
        assert_eq!(size_of::<F>(), size_of::<usize>());
        // SAFETY: by the caller's promise `F` is a function pointer of the right type.
        unsafe { std::mem::transmute_copy(&p) }
    }

    /// Unloads the library.
    pub fn close(self) {
        // SAFETY: tests keep no pointer into it.
        assert_eq!(unsafe { dlclose(self.handle) }, 0);
    }

    pub fn function(&self, name: &str) -> Function {
        self.module
            .function_named(name)
            .expect("symbols")
            .unwrap_or_else(|| panic!("no function {name}"))
    }
}

/// A function of the test program itself.
pub fn own_function(address: usize) -> Function {
    let modules = sites::scan().expect("modules");
    let main = modules.iter().find(|m| m.is_main()).expect("main module");
    main.functions()
        .expect("symbols")
        .into_iter()
        .find(|f| f.addr() == address as u64)
        .expect("function with a symbol")
}

/// What a test hook saw last, and how often it ran.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Seen {
    pub runs: AtomicU64,
    pub missed: [AtomicU64; Missed::REASONS],
    pub give: AtomicU64,
    pub words: [AtomicU64; 24],
}

impl Seen {
    pub fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    pub fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }

    pub fn missed(&self) -> u64 {
        self.missed.iter().map(|m| m.load(Ordering::SeqCst)).sum()
    }

    /// ctx[n], n from -5 to 18.
    pub fn word(&self, n: i32) -> u64 {
        self.words[(n + 5) as usize].load(Ordering::SeqCst)
    }

    /// A hook of another function that takes a `Seen`.
    pub fn hook_of(&'static self, position: Position, run: RunFn) -> Hook {
        // SAFETY: the hooks of the tests take a `Seen`, which is never freed, and keep to the
        // rules.
        unsafe { Hook::new(position, run, ptr::from_ref(self).cast()) }.counts_missed(&self.missed)
    }

    pub fn hook(&'static self, position: Position) -> Hook {
        let hook = self.hook_of(position, record);
        if DIRECT {
            self.called_directly(hook.wants_args(6), recorders, ALL_CHANGE)
        } else {
            hook.wants_args(12)
        }
    }

    /// Lets the code of hook lists call a function that knows its data. Where tests attach for as long as
    /// they run, there may be none left, and the hook is as it was; the tests of that code alone have some
    /// for themselves.
    fn called_directly(
        &'static self,
        hook: Hook,
        first: unsafe extern "C" fn(*mut u8) -> u64,
        changes: u16,
    ) -> Hook {
        static ON: AtomicU64 = AtomicU64::new(7);
        // SAFETY: words that are only used so.
        let [used, data @ ..] = unsafe { &FUNCTION_DATA };
        static OWN: AtomicU64 = AtomicU64::new(0);
        let n = if OWN_FUNCTIONS {
            FUNCTIONS - 1 - OWN.fetch_add(1, Ordering::Relaxed) as usize
        } else {
            used.fetch_add(1, Ordering::Relaxed) as usize
        };
        if !OWN_FUNCTIONS && n >= FUNCTIONS - RESERVED {
            return hook;
        }
        data[n].store(ptr::from_ref(self) as u64, Ordering::Relaxed);
        let run = (first as *const ()).wrapping_byte_add(n * 16);
        // SAFETY: the functions are 16 bytes apart, do what the hook's code does, read nothing of the frame
        // that counts but these words, and change no other registers.
        unsafe {
            let run = std::mem::transmute::<*const (), unsafe extern "C" fn(*mut u8) -> u64>(run);
            let word: (*const AtomicU64, u8) = (&raw const ON, 7);
            hook.calls_directly(DirectCall { run, changes, reads: READ, word, thread_word: None })
        }
    }
}

/// Whether hook lists get code of their own where they can: in the tests of that.
pub const DIRECT: bool =
    matches!(module_path!().as_bytes(), [b'h', b'o', b'o', b'k', b'_', b'c', b'o', b'd', b'e', ..]);
/// What stands below the arguments, these and the result, and the stack pointer.
const READ: u64 = ((1 << 18) - 1) | 1 << 27;
/// rcx rdx rsi rdi r8 r9 r10 r11
const ALL_CHANGE: u16 = 0b1111_1100_0110;
const RSI_CHANGES: u16 = 1 << 6;
const FUNCTIONS: usize = 1024;
const RESERVED: usize = 128;
/// This is the part of those tests.
const OWN_FUNCTIONS: bool = matches!(module_path!().as_bytes(), b"hook_code::support");

std::arch::global_asm!(
    // Several test files may be in one program, and this with each of them.
    ".ifndef skep_test_data",
    ".pushsection .bss.skep_test_data, \"aw\", @nobits",
    ".weak skep_test_data",
    ".hidden skep_test_data",
    ".p2align 3",
    "skep_test_data: .zero 8*(1+{FUNCTIONS})",
    ".popsection",
    ".p2align 4",
    ".weak skep_test_recorders",
    ".hidden skep_test_recorders",
    "skep_test_recorders:",
    ".set skep_test_i, 1",
    ".rept {FUNCTIONS}",
    ".p2align 4",
    "mov rsi, [rip + skep_test_data + 8*skep_test_i]",
    "jmp skep_test_record",
    ".set skep_test_i, skep_test_i+1",
    ".endr",
    ".p2align 4",
    ".weak skep_test_counters",
    ".hidden skep_test_counters",
    "skep_test_counters:",
    ".set skep_test_i, 1",
    ".rept {FUNCTIONS}",
    ".p2align 4",
    "mov rsi, [rip + skep_test_data + 8*skep_test_i]",
    "lock inc qword ptr [rsi]",
    "xor eax, eax",
    "ret",
    ".set skep_test_i, skep_test_i+1",
    ".endr",
    ".endif",
    FUNCTIONS = const FUNCTIONS,
);

unsafe extern "C" {
    #[link_name = "skep_test_data"]
    static FUNCTION_DATA: [AtomicU64; 1 + FUNCTIONS];
    #[link_name = "skep_test_recorders"]
    fn recorders(ctx: *mut u8) -> u64;
    #[link_name = "skep_test_counters"]
    fn counters(ctx: *mut u8) -> u64;
}

std::arch::global_asm!(
    ".ifndef skep_test_record",
    // Copies the frame and counts; uses no vector register whatever the build.
    ".weak skep_test_record",
    ".hidden skep_test_record",
    ".type skep_test_record,@function",
    "skep_test_record:",
    "lock inc qword ptr [rsi]",
    "mov rax, [rsi+32]",
    "lea r8, [rdi-40]",
    "lea r9, [rsi+40]",
    "mov ecx, 24",
    "2: mov r10, [r8]",
    "mov [r9], r10",
    "add r8, 8",
    "add r9, 8",
    "dec ecx",
    "jnz 2b",
    // Leave nothing as it was found that a hook may change.
    "mov r11, -1",
    "mov rdx, -1",
    "mov rsi, -1",
    "mov rdi, -1",
    "ret",
    ".size skep_test_record, . - skep_test_record",
    ".weak skep_test_count",
    ".hidden skep_test_count",
    ".type skep_test_count,@function",
    "skep_test_count:",
    "lock inc qword ptr [rsi]",
    "xor eax, eax",
    "ret",
    ".size skep_test_count, . - skep_test_count",
    ".endif",
);

unsafe extern "C" {
    #[link_name = "skep_test_record"]
    pub fn record(ctx: *mut u64, data: *const ()) -> u64;
    #[link_name = "skep_test_count"]
    pub fn count(ctx: *mut u64, data: *const ()) -> u64;
}

/// A hook that only counts.
pub fn counter(position: Position) -> (Hook, &'static Seen) {
    let seen = Seen::leaked();
    let run: RunFn = count;
    let hook = seen.hook_of(position, run).wants_args(6);
    (if DIRECT { seen.called_directly(hook, counters, RSI_CHANGES) } else { hook }, seen)
}
