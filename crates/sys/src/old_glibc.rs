//! Functions that newer versions of glibc have, for libraries and programs that are to run with an
//! older one too.
//!
//! A program needs the versions of symbols that the machine had on which it was linked. Most symbols
//! of newer versions are there in older ones under an older version, so leaving the version out is
//! enough (`crates/cli/build/versions.rs`). These functions are not: glibc 2.33 made functions of what
//! were inline calls of others before (`__xstat64`), and `gettid` came with 2.30. The standard library
//! calls them.

/// Defines `stat64`, `lstat64`, `fstat64`, `fstatat64` and `gettid` in the library or program that
/// uses this, visible inside of it only. Does nothing without glibc. Invoke it once.
#[macro_export]
macro_rules! define_for_old_glibc {
    () => {
        // Each is a system call with glibc's way to fail. The kernel's `struct stat` is glibc's
        // `struct stat64` on x86-64.
        #[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
        ::std::arch::global_asm!(
            ".pushsection .text.skep_old_glibc, \"ax\", @progbits",
            ".macro skep_call name, number, binding=globl",
            ".\\binding \\name",
            ".hidden \\name",
            ".type \\name, @function",
            "\\name:",
            ".cfi_startproc",
            // Where the kernel has the fourth argument; the others have less.
            "mov r10, rcx",
            "mov eax, \\number",
            "syscall",
            "cmp rax, -4095",
            "jae 1f",
            "ret",
            "1: neg eax",
            "push rax",
            ".cfi_adjust_cfa_offset 8",
            "call __errno_location@PLT",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "mov dword ptr [rax], ecx",
            "mov eax, -1",
            "ret",
            ".cfi_endproc",
            ".size \\name, . - \\name",
            ".endm",
            "skep_call stat64, 4",
            "skep_call fstat64, 5",
            "skep_call lstat64, 6",
            // The standard library asks for it as a weak symbol, in whose place only one may come.
            "skep_call gettid, 186, weak",
            "skep_call fstatat64, 262",
            ".purgem skep_call",
            ".popsection",
        );
    };
}
