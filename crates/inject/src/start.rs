//! How a process that executes a program comes to where a library can be put into it: its threads have
//! an id that hooks can read, and its libraries are there.
//!
//! A program with a dynamic linker is there when that is done, at its entry point. It gets that
//! address from a word on the stack (`AT_ENTRY`, getauxval(3)), which is changed to that of these
//! instructions, in unused bytes at the end of the vDSO's code:
//!
//! ```text
//! offset 0   mov eax, 39
//!        5   syscall                      getpid(2): the tracer sees it, and sends the thread
//!        7   jmp [rip + 0]                to the entry point
//!       13   the entry point: 8 bytes
//! ```
//!
//! If the tracer is killed before, the thread makes the call for nothing and goes on. No breakpoint
//! does that.
//!
//! A Go program without C has its runtime still before it then, which gives the thread another thread
//! pointer: it is waited for, like that of a static program.
//!
//! A static program is there when its C library has told the kernel where the thread's id lies, which
//! it does before `main`: it is looked at whenever it makes a system call. musl stores the id right
//! after it has told, and need not make another call before `main` ends: that store is done for it.

use std::path::Path;

use rustix::io::Errno;
use skep_proc::elf::Elf;

use crate::error::{Error, Refusal};
use crate::memory::Memory;
use crate::registers::{NO_CALL, Registers};
use crate::stop::not_opened;
use crate::stub::LEN;
use crate::sys;
use crate::target::Target;

/// Keys of the auxiliary vector.
const AT_NULL: u64 = 0;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

/// Where the system call ends.
const AFTER_CALL: u64 = 7;

/// So far from the thread pointer an id may lie.
const REACH: u64 = 2048;

/// More system calls than any runtime makes before its threads can be told apart.
const CALLS: u32 = 2000;

/// What a new program is expected to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// To come to the instructions that its dynamic linker takes for the entry point.
    Linker {
        /// Where they are.
        stub: u64,
        /// Its entry point.
        entry: u64,
        /// The word with the address of the instructions.
        word: u64,
        /// Its runtime gives threads thread pointers of its own after that.
        sets_pointers: bool,
    },
    /// To make system calls, so many more.
    Runtime {
        /// How many.
        left: u32,
        /// The thread pointer that it does not have for long: none, or the dynamic linker's.
        not: u64,
    },
}

impl Start {
    /// Looks at a process that stands before the first instruction of a program.
    pub(crate) fn prepare(target: &mut Target) -> Result<Self, Error> {
        let pid = target.pid();
        let vector = vector(pid)?;
        let value = |key| vector.iter().find(|pair| pair.0 == key).map(|pair| pair.1);
        let Some(entry) = value(AT_ENTRY) else { return Err(Error::NoProcess { pid }) };
        if value(AT_BASE).is_none_or(|base| base == 0) {
            return Ok(Self::runtime(0));
        }
        let stack = target.registers(pid)?.rsp;
        let word = place_of_entry(target, stack, entry)?
            .ok_or(Error::Refused { pid, reason: Refusal::Other })?;
        let stub = target.place_of_stub()?;
        target.write(stub, &instructions(entry))?;
        target.write(word, &stub.to_le_bytes())?;
        Ok(Self::Linker { stub, entry, word, sets_pointers: sets_pointers(pid) })
    }

    /// A program that has its runtime still before it, and this thread pointer.
    pub(crate) fn runtime(not: u64) -> Self {
        Self::Runtime { left: CALLS, not }
    }

    /// The registers with which a thread goes on that has come to the entry point, if that is so.
    pub(crate) fn arrived(self, registers: &Registers) -> Option<Registers> {
        match self {
            Self::Linker { stub, entry, .. } if registers.rip == stub + AFTER_CALL => {
                Some(Registers { rip: entry, orig_rax: NO_CALL, ..*registers })
            }
            _ => None,
        }
    }

    /// Takes out what was written, once no thread needs it any more.
    pub(crate) fn clear(self, pid: u32, tid: u32) {
        if let Self::Linker { stub, entry, word, .. } = self
            && let Ok(memory) = Memory::open(pid, tid)
        {
            memory.write(tid, word, &entry.to_le_bytes()).ok();
            memory.write(tid, stub, &[0; LEN]).ok();
        }
    }
}

/// Tells whether a process executes a Go program without C that has a dynamic linker, as position-independent
/// ones do. Another one without libraries keeps what the dynamic linker has made for its thread.
fn sets_pointers(pid: u32) -> bool {
    let elf = Elf::open(Path::new(&format!("/proc/{pid}/exe")));
    elf.is_ok_and(|elf| {
        elf.section(".go.buildinfo").is_some() && elf.names_libraries().is_ok_and(|names| !names)
    })
}

/// Tells whether a thread is about to tell the kernel where its id lies. What it does next depends on
/// the end of that call.
pub(crate) fn tells_id(registers: &Registers) -> bool {
    const ENOSYS: i64 = 38;
    registers.orig_rax == libc::SYS_set_tid_address as u64 && registers.rax as i64 == -ENOSYS
}

/// Does for a thread that has just told the kernel where its id lies what its next instruction does, if
/// that stores the id at its thread pointer.
pub(crate) fn store_id(pid: u32, tid: u32, registers: &Registers) {
    let known = registers.orig_rax == libc::SYS_set_tid_address as u64 && registers.rax as i64 > 0;
    let Some(memory) = Memory::open(pid, tid).ok().filter(|_| known) else { return };
    let Ok(code) = memory.read(registers.rip, 4) else { return };
    let Some((at, len)) = store(registers, &code) else { return };
    let id = (registers.rax as u32).to_le_bytes();
    // Whoever does it twice changes nothing.
    if at.wrapping_sub(registers.fs_base) < REACH && memory.write(tid, at, &id).is_ok() {
        let rip = registers.rip.wrapping_add(len);
        sys::set_registers(tid, &Registers { rip, ..*registers }).ok();
    }
}

/// Where an instruction `mov [REGISTER + NUMBER], eax` stores, and how long it is.
fn store(registers: &Registers, code: &[u8]) -> Option<(u64, u64)> {
    let r = registers;
    let low = [r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi];
    let high = [r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
    let (bases, code, prefix) = match code {
        [0x41, code @ ..] => (high, code, 1),
        code => (low, code, 0),
    };
    match *code {
        // One byte of displacement, `eax`, a base without an index.
        [0x89, modrm @ (0x40..=0x43 | 0x45..=0x47), displacement, ..] => {
            let base = bases[usize::from(modrm & 7)];
            Some((base.wrapping_add_signed((displacement as i8).into()), prefix + 3))
        }
        _ => None,
    }
}

/// The instructions, as long as those of a [stub](crate::stub::stub) since they take its place.
fn instructions(entry: u64) -> [u8; LEN] {
    let mut code = [0xcc; LEN];
    code[..13].copy_from_slice(&[0xb8, 39, 0, 0, 0, 0x0f, 0x05, 0xff, 0x25, 0, 0, 0, 0]);
    code[13..21].copy_from_slice(&entry.to_le_bytes());
    code
}

/// Tells whether bytes are these instructions, for any entry point.
pub(crate) fn is_start(bytes: &[u8]) -> bool {
    let any = instructions(0);
    bytes.len() == LEN && bytes[..13] == any[..13] && bytes[21..] == any[21..]
}

/// The auxiliary vector, as the kernel made it.
fn vector(pid: u32) -> Result<Vec<(u64, u64)>, Error> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv"))
        .map_err(|e| not_opened(pid, Errno::from_io_error(&e)))?;
    Ok(pairs(&bytes))
}

fn pairs(bytes: &[u8]) -> Vec<(u64, u64)> {
    let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|n| bytes[n]));
    let pairs = bytes.as_chunks::<16>().0.iter().map(|pair| (word(pair), word(&pair[8..])));
    pairs.take_while(|pair| pair.0 != AT_NULL).collect()
}

/// Where the word with the entry point lies on the stack of a new program: behind the numbers and
/// addresses of arguments and environment, which end with zeros.
fn place_of_entry(target: &Target, stack: u64, entry: u64) -> Result<Option<u64>, Error> {
    const PIECE: usize = 4096;
    let (mut zeros, mut key) = (0, None);
    let first = u64::from_le_bytes(target.read(stack, 8)?.try_into().unwrap_or_default());
    // The arguments' addresses are no zeros, but the number of them may be.
    let mut at = stack.saturating_add(8).saturating_add(first.saturating_mul(8));
    loop {
        // Up to the end of a page: the next may not be there.
        let len = PIECE - (at as usize & (PIECE - 1));
        for word in target.read(at, len)?.as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            match key.take() {
                Some(AT_NULL) if zeros == 2 => return Ok(None),
                Some(AT_ENTRY) if zeros == 2 => return Ok((word == entry).then_some(at)),
                Some(_) => {}
                None if zeros == 2 => key = Some(word),
                None => zeros += u32::from(word == 0),
            }
            at += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub::{is_stub, stub};

    #[test]
    fn the_instructions_of_both_kinds_are_told_apart() {
        let code = instructions(0x1234_5678_9abc_def0);
        assert!(is_start(&code) && !is_stub(&code) && !is_start(&[0; LEN]));
        assert!(!is_start(&stub(&Registers::default(), 0)));
    }

    #[test]
    fn only_a_store_of_the_id_is_done() {
        let registers = Registers { rbx: 0x1000, r9: 0x2000, ..<_>::default() };
        let store = |code: &[u8]| store(&registers, code);
        assert_eq!(store(&[0x89, 0x43, 0x30, 0x48]), Some((0x1030, 3)));
        assert_eq!(store(&[0x41, 0x89, 0x41, 0xf8]), Some((0x1ff8, 4)));
        // Of 64 bits, of another register, with an index, without a displacement, cut off.
        for code in [[0x48, 0x89, 0x43, 0x30], [0x89, 0x4b, 0x30, 0], [0x89, 0x44, 0x24, 0x30]] {
            assert_eq!(store(&code), None);
        }
        assert_eq!((store(&[0x89, 0x03, 0, 0]), store(&[0x89, 0x43])), (None, None));
    }

    #[test]
    fn a_vector_ends_with_its_zero() {
        let words: [u64; 8] = [9, 7, 7, 1, 0, 0, 9, 8];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(pairs(&bytes), [(9, 7), (7, 1)]);
        assert_eq!(pairs(&bytes[..17]), [(9, 7)]);
    }
}
