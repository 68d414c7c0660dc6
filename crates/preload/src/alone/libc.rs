//! The functions of the C library that the library's code calls, for a process without one that we
//! may call: raw system calls, and what is simple.
//!
//! Whoever maps the library resolves each import to the function here of that name. They run on the
//! agent's own thread; few on threads of the program, inside an event that opens an inner map:
//! these have an area (`skep_attach`), which has a word for `errno`.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use skep_sys::of_proc;
use skep_sys::thread_words;

use super::give_up;

/// Makes a system call as the C library does: -1 and `errno` on failure. Once for all, with the
/// number behind the arguments: those stay in their registers.
#[inline(never)]
extern "C" fn call(a: u64, b: u64, c: u64, d: u64, e: u64, number: u64) -> i64 {
    call_with_six(number, a, b, c, d, e, 0)
}

/// The thread's `errno`: the lowest word of its area, or of the agent's before there are areas.
fn errno() -> *mut c_int {
    static EARLY: AtomicU32 = AtomicU32::new(0);
    if !thread_words::by_gs() {
        return EARLY.as_ptr().cast();
    }
    (area_end() - skep_runtime::live::AREA_END) as *mut c_int
}

/// The end of the running thread's area.
fn area_end() -> u64 {
    let end;
    // SAFETY: words are reached by `gs`, and this is the one that holds its own address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) end, options(nostack, readonly, preserves_flags)) };
    end
}

/// Makes the functions that only make a system call. All have five arguments: what a caller does not
/// give, the kernel does not look at.
macro_rules! calls {
    ($($name:literal $function:ident = $number:literal;)*) => {$(
        #[unsafe(export_name = concat!("skep_alone_libc_", $name))]
        extern "C" fn $function(a: u64, b: u64, c: u64, d: u64, e: u64) -> i64 {
            call(a, b, c, d, e, $number)
        }
    )*};
}

calls! {
    "read" read = 0;
    "write" write = 1;
    "close" close = 3;
    "fstat64" fstat64 = 5;
    "lseek64" lseek64 = 8;
    "munmap" munmap = 11;
    "pread64" pread64 = 17;
    "pwrite64" pwrite64 = 18;
    "sched_yield" sched_yield = 24;
    "getpid" getpid = 39;
    "ftruncate64" ftruncate64 = 77;
    "gettid" gettid = 186;
    "getrandom" getrandom = 318;
    "clock_gettime" clock_gettime = 228;
}

/// Makes a function that looks a path up: its number, with a directory in front.
macro_rules! lookups {
    ($($name:literal $function:ident = $number:literal($($after:ident),* $(; $flags:literal)?);)*) => {$(
        #[unsafe(export_name = concat!("skep_alone_libc_", $name))]
        extern "C" fn $function(path: u64, $($after: u64),*) -> i64 {
            // SAFETY: the caller's text ends with a nul byte.
            let [dir, path] = unsafe { of_proc::place(path) };
            call_with_six($number, dir, path, $($after,)* $($flags,)? 0, 0)
        }
    )*};
}

lookups! {
    "open64" open64 = 257(flags, mode);
    "stat64" stat64 = 262(stat; 0);
    "readlink" readlink = 267(to, len);
}

#[unsafe(export_name = "skep_alone_libc_statx")]
extern "C" fn statx(dir: u64, path: u64, flags: u64, mask: u64, to: u64) -> i64 {
    // SAFETY: the caller's text ends with a nul byte.
    let [seen_by, rest] = unsafe { of_proc::place(path) };
    let dir = if rest == path { dir } else { seen_by };
    call_with_six(332, dir, rest, flags, mask, to, 0)
}

/// The number comes first, and the sixth argument lies on the stack, as for any function.
#[unsafe(export_name = "skep_alone_libc_syscall")]
extern "C" fn call_with_six(number: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    // SAFETY: the arguments are those of a caller of the C library's function.
    let result = unsafe { skep_sys::syscall::call6(number, a, b, c, d, e, f) } as i64;
    if (-4095..0).contains(&result) {
        // SAFETY: the thread's own word.
        unsafe { *errno() = -result as c_int };
        return -1;
    }
    result
}

#[unsafe(export_name = "skep_alone_libc_mmap")]
extern "C" fn mmap(at: u64, len: u64, prot: u64, flags: u64, fd: u64, offset: u64) -> i64 {
    call_with_six(9, at, len, prot, flags, fd, offset)
}

/// Returns the error's number itself.
#[unsafe(export_name = "skep_alone_libc_clock_nanosleep")]
extern "C" fn clock_nanosleep(clock: u64, flags: u64, time: u64, left: u64) -> i64 {
    match call(clock, flags, time, left, 0, 230) {
        // SAFETY: the thread's own word.
        -1 => i64::from(unsafe { *errno() }),
        done => done,
    }
}

#[unsafe(export_name = "skep_alone_libc_getcwd")]
extern "C" fn getcwd(buffer: *mut c_char, len: u64) -> *mut c_char {
    if call(buffer as u64, len, 0, 0, 0, 79) < 0 { ptr::null_mut() } else { buffer }
}

/// The name of an open file is what `/proc` says it is. Only the agent's thread asks for one, and
/// uses it before the next.
#[unsafe(export_name = "skep_alone_libc_realpath")]
unsafe extern "C" fn realpath(path: u64, _resolved: u64) -> *mut c_char {
    const O_PATH_CLOEXEC: u64 = 0x28_0000;
    static NAME: [AtomicU8; 4096] = [const { AtomicU8::new(0) }; 4096];
    // SAFETY: the caller's text ends with 0.
    let text = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes_with_nul();
    if of_proc::is_handed_over(text) && text.len() <= NAME.len() {
        // In another mount namespace the name of such a file leads elsewhere, and this one does not.
        // SAFETY: the name has room for it.
        unsafe { memcpy(NAME.as_ptr() as *mut c_void, text.as_ptr().cast(), text.len()) };
        return NAME.as_ptr() as *mut c_char;
    }
    let fd = open64(path, O_PATH_CLOEXEC, 0);
    if fd < 0 {
        return ptr::null_mut();
    }
    let link = open_file(fd as u32);
    let name = NAME.as_ptr() as *mut c_char;
    let len = readlink(link.as_c_str().as_ptr() as u64, name as u64, NAME.len() as u64 - 1);
    close(fd as u64, 0, 0, 0, 0);
    if len < 0 {
        return ptr::null_mut();
    }
    NAME[len as usize].store(0, Ordering::Relaxed);
    name
}

/// The path of an open file of the running thread, which ends with 0.
pub(super) fn open_file(fd: u32) -> OpenFile {
    // `self` has none where the main thread has exited.
    OpenFile::new(b"thread-self", fd)
}

/// The path of an open file of a thread, which ends with 0.
pub(super) struct OpenFile([u8; OpenFile::LEN]);

impl OpenFile {
    const LEN: usize = 64;
    /// Bytes of a thread's name in `/proc`, at most.
    pub(super) const NAME: usize = Self::LEN - "/proc//fd/4294967295".len() - 1;

    /// Of a thread with a name in `/proc`.
    pub(super) fn new(thread: &[u8], fd: u32) -> Self {
        let mut digits = *b"0000000000";
        let (mut left, mut first) = (fd, digits.len() - 1);
        loop {
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
            first -= 1;
        }
        let mut path = [0; Self::LEN];
        let parts = [b"/proc/", thread, b"/fd/", &digits[first..]];
        path.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        Self(path)
    }

    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Of what [`realpath`] returned.
#[unsafe(export_name = "skep_alone_libc_free")]
extern "C" fn free(_: *mut c_void) {}

/// Nothing of the process's environment is for the agent.
#[unsafe(export_name = "skep_alone_libc_getenv")]
extern "C" fn getenv(_: *const c_char) -> *mut c_char {
    ptr::null_mut()
}

/// The process's C library does not know our handlers.
#[unsafe(export_name = "skep_alone_libc___register_atfork")]
extern "C" fn register_atfork(_: u64, _: u64, _: u64, _: u64) -> c_int {
    0
}

#[unsafe(export_name = "skep_alone_libc___errno_location")]
extern "C" fn errno_location() -> *mut c_int {
    errno()
}

/// The texts are the controller's.
#[unsafe(export_name = "skep_alone_libc___xpg_strerror_r")]
unsafe extern "C" fn strerror_r(_: c_int, buffer: *mut c_char, len: usize) -> c_int {
    const TEXT: &[u8] = b"system error\0";
    if len < TEXT.len() {
        return 34;
    }
    // SAFETY: the caller's buffer has that length.
    unsafe { memcpy(buffer.cast(), TEXT.as_ptr().cast(), TEXT.len()) };
    0
}

/// `tls_index` (elf/dl-tls.h): the module, which is this library, and the offset in its part. That
/// lies in the thread's area as it would lie below a thread pointer.
#[unsafe(export_name = "skep_alone_libc___tls_get_addr")]
unsafe extern "C" fn tls_get_addr(index: *const [u64; 2]) -> *mut c_void {
    // SAFETY: the linker's index, in this library's global offset table.
    let offset = unsafe { (*index)[1] };
    (area_end() - super::storage_len() + offset) as *mut c_void
}

#[unsafe(export_name = "skep_alone_libc_memcpy")]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's promise; the direction flag is clear in every function.
    unsafe {
        asm!("rep movsb", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") len => _,
                        options(nostack, preserves_flags));
    }
    to
}

#[unsafe(export_name = "skep_alone_libc_memmove")]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: the caller's promise; going up, each byte is read before it is written over.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the caller's promise; going down, likewise. The flag is clear again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rdi") to as usize + len - 1 => _, inout("rsi") from as usize + len - 1 => _,
                        inout("rcx") len => _, options(nostack));
    }
    to
}

#[unsafe(export_name = "skep_alone_libc_memset")]
unsafe extern "C" fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rdi") to => _, inout("rcx") len => _, in("al") byte as u8, options(nostack, preserves_flags));
    }
    to
}

#[unsafe(export_name = "skep_alone_libc_memcmp")]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: the caller's promise.
        let words =
            unsafe { [a, b].map(|p| p.add(at).cast::<u64>().read_unaligned().swap_bytes()) };
        if words[0] != words[1] {
            return if words[0] < words[1] { -1 } else { 1 };
        }
        at += 8;
    }
    while at < len {
        // SAFETY: the caller's promise.
        let bytes = unsafe { [a, b].map(|p| p.add(at).read_volatile()) };
        if bytes[0] != bytes[1] {
            return c_int::from(bytes[0]) - c_int::from(bytes[1]);
        }
        at += 1;
    }
    0
}

#[unsafe(export_name = "skep_alone_libc_bcmp")]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, len) }
}

#[unsafe(export_name = "skep_alone_libc_strlen")]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller's text ends with 0.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

/// A panic is the end of the agent: nobody knows how to unwind its stack. The error code lets the
/// standard library abort.
#[unsafe(export_name = "skep_alone_libc__Unwind_RaiseException")]
extern "C" fn unwind_raise(_: *mut c_void) -> c_int {
    const END_OF_STACK: c_int = 5;
    END_OF_STACK
}

/// Whoever loads us resolves the unwinder's other functions to this too: nobody calls them when no
/// panic is thrown.
#[unsafe(export_name = "skep_alone_libc_abort")]
extern "C" fn abort() -> ! {
    give_up()
}
