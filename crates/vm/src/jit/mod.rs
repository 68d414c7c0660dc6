//! The code generator: one BPF register is one machine register, one instruction a few machine
//! instructions.
//!
//! clang has already optimized the program, so there is little left for a second compiler to find,
//! and a great deal of time to lose. What pays is small: rotates, address arithmetic, arithmetic on
//! memory, array lookups without a call.

mod live;
#[cfg(target_arch = "x86_64")]
mod narrow;

cfg_select! {
    // The only machine there is a generator for; elsewhere compiling is an error and the
    // interpreter runs programs.
    target_arch = "x86_64" => {
        mod x64;
        use x64 as arch;
    }
    _ => {
        mod none;
        use none as arch;
    }
}

use rustix::io::Errno;
use skep_isa::Insn;

use crate::chain::Counting;
use crate::check::{Flow, Malformed};
use crate::env::Env;
use crate::exec::Exec;
use crate::gdb::Registered;

pub use arch::Cpu;
pub(crate) use arch::compile_chain;

/// Says why a program was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The instructions are no program.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The machine code would be too large for its own jumps.
    #[error("the program needs `{bytes}` bytes of machine code")]
    TooLarge {
        /// How many bytes.
        bytes: usize,
    },
    /// The system gave no executable memory.
    #[error("mmap of executable memory: {errno}")]
    Memory {
        /// The system's reason.
        errno: Errno,
    },
    /// There is no code generator for this machine.
    #[error("no code generator for this machine")]
    Machine,
}

/// A compiled program.
///
/// It may be shared and sent between threads; dropping it frees the code, so nobody may be running
/// it then. After `fork` parent and child each have their own.
///
/// ```
/// use skep_isa::text;
/// use skep_vm::{Code, Env};
/// let insns = text::assemble("mov %r0, 42\nexit").map_err(|e| e.to_string())?;
/// // SAFETY: the program touches no memory and ends.
/// let code = unsafe { Code::compile(&insns, &Env::empty()) }.map_err(|e| e.to_string())?;
/// // SAFETY: as above.
/// assert_eq!(unsafe { code.entry()(std::ptr::null_mut()) }, 42);
/// # Ok::<(), String>(())
/// ```
pub struct Code {
    /// Goes before the memory it tells of.
    registered: Option<Registered>,
    exec: Exec,
    offsets: Vec<u32>,
    functions: Vec<(usize, usize)>,
    vector_saver: Option<usize>,
    inner: Option<(u64, usize)>,
    changes: u16,
}

/// What a generator makes of a program.
struct Generated {
    exec: Exec,
    /// Where each slot's code starts.
    offsets: Vec<u32>,
    /// The first slot of each function, and where its code starts. Tail calls enter the first.
    functions: Vec<(usize, usize)>,
    /// Where the code that saves vector registers starts.
    vector_saver: Option<usize>,
    /// The kind of the main function's frame, not 0, and where its code goes on once that is made:
    /// for tail calls from such a frame.
    inner: Option<(u64, usize)>,
    /// Registers that it changes and that calls do not keep, by number.
    changes: u16,
}

impl Code {
    /// Compiles a program for this machine.
    ///
    /// # Errors
    /// The instructions are no program, a map or helper is missing, or there is no memory.
    ///
    /// # Safety
    /// Running the result does what the program says: the caller vouches (by a verifier's proof)
    /// that every address it computes is good, that it ends, and that `env`'s addresses and
    /// helpers outlive it and are what they claim.
    pub unsafe fn compile(insns: &[Insn], env: &Env<'_>) -> Result<Self, CompileError> {
        // SAFETY: the caller's duties are the same; the detected features are this machine's.
        unsafe { Self::compile_for(insns, env, Cpu::detect()) }
    }

    /// Compiles a program for a machine with the given features.
    ///
    /// # Errors
    /// As [`Code::compile`].
    ///
    /// # Safety
    /// As [`Code::compile`], and the machine must have the features.
    pub unsafe fn compile_for(
        insns: &[Insn],
        env: &Env<'_>,
        cpu: Cpu,
    ) -> Result<Self, CompileError> {
        let flow = Flow::of(insns, env)?;
        let Generated { exec, offsets, functions, vector_saver, inner, changes } =
            arch::compile(insns, env, &flow, cpu)?;
        Ok(Self { registered: None, exec, offsets, functions, vector_saver, inner, changes })
    }

    /// Returns the program as a function of its context.
    ///
    /// The pointer is good while `self` lives. Registers r2 to r5 are the further arguments of the
    /// C calling convention, for callers that pass more than a context.
    #[must_use]
    pub fn entry(&self) -> unsafe extern "C" fn(ctx: *mut u8) -> u64 {
        // SAFETY: the memory holds a whole function of this type from its first byte on, and is
        // executable.
        unsafe { std::mem::transmute(self.exec.bytes().as_ptr()) }
    }

    /// Returns the program as a chain of one that counts nothing: what runs chains runs it alike.
    #[must_use]
    pub fn as_chain(&self) -> Counting<'_> {
        // SAFETY: as in `entry`; the memory lives as long as `self`.
        unsafe { Counting::of_program(self.exec.bytes()) }
    }

    /// Returns which of the registers that calls do not keep the program may change, as bits: the
    /// machine's numbers of registers.
    #[must_use]
    pub fn changes(&self) -> u16 {
        self.changes
    }

    /// Returns where tail calls enter; only for generated code.
    pub(crate) fn tail_entry(&self) -> u64 {
        self.exec.bytes().as_ptr() as u64 + self.functions.first().map_or(0, |(_, at)| *at as u64)
    }

    /// Returns the kind of the frame that the program makes, and where tail calls enter that come
    /// from a frame of the same kind.
    pub(crate) fn inner_entry(&self) -> Option<(u64, u64)> {
        self.inner.map(|(frame, at)| (frame, self.exec.bytes().as_ptr() as u64 + at as u64))
    }

    /// Returns where in the machine code the function with this first slot starts; `None` when none
    /// does.
    #[must_use]
    pub fn function_offset(&self, insn: usize) -> Option<usize> {
        let n = self.functions.binary_search_by_key(&insn, |(start, _)| *start).ok()?;
        self.functions.get(n).map(|(_, at)| *at)
    }

    /// Returns first slot and place of each function.
    pub(crate) fn functions(&self) -> &[(usize, usize)] {
        &self.functions
    }

    /// Returns where the code that saves vector registers starts.
    pub(crate) fn vector_saver(&self) -> Option<usize> {
        self.vector_saver
    }

    /// Keeps what a debugger was told of this program until the program is dropped.
    pub fn keep(&mut self, registered: Registered) {
        self.registered = Some(registered);
    }

    /// Returns the machine code.
    #[must_use]
    pub fn machine_code(&self) -> &[u8] {
        self.exec.bytes()
    }

    /// Returns where in the machine code each instruction slot starts; instructions that were
    /// merged into one before them, or left out as dead, start where the next one does.
    #[must_use]
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code")
            .field("bytes", &self.exec.bytes().len())
            .field("slots", &self.offsets.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_programs_may_cross_threads() {
        fn crosses<T: Send + Sync>() {}
        crosses::<Code>();
    }
}
