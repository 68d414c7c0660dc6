//! Code of the tracer's in a stopped process: a library that is loaded without the process's
//! dynamic linker, and a thread of its own that runs it.
//!
//! ```text
//! start      the library's segments
//! code       the instructions that make the thread
//!            a page without access, below the stack
//! stack      the thread's stack; at its very end, which it does not reach, a mark of the caller's
//! storage    its thread-local storage, which ends in the middle of a page; there the thread
//!            pointer points to a word with its own address
//! ```
//!
//! Other versions of the caller rely on this layout, and on the length of the stack.
//!
//! The thread has what `clone` of a thread gives and nothing of a C library: none of the process's
//! functions may be called on it. All signals are blocked in it, so that no handler of the program
//! runs there.

use skep_proc::maps::Perms;

use crate::error::Error;
use crate::image::{Image, ImageError, PAGE};
use crate::target::Target;

/// As much as other programs give a thread; memory is taken when it is used.
const STACK: u64 = 2 << 20;
/// `CLONE_VM`, `FS`, `FILES`, `SIGHAND`, `THREAD`, `SYSVSEM`, `SETTLS`.
const CLONE_FLAGS: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000;

/// A library in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Where it begins: addresses in it are this and what [`Image::symbol`] says.
    pub start: u64,
    /// How many bytes are mapped, with the thread's stack.
    pub len: u64,
    /// Of the library alone.
    image: u64,
}

impl Loaded {
    /// A library that somebody has loaded at an address before.
    #[must_use]
    pub fn at(start: u64, image: &Image) -> Self {
        Self { start, len: image.len() + 2 * PAGE + STACK + PAGE, image: image.len() }
    }

    /// Where the mark is, of a library that [`Target::load`] has loaded.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.stack()
    }

    /// The library whose mark is at an address; `None` where that cannot be.
    #[must_use]
    pub fn of_mark(mark: u64, image: &Image) -> Option<Self> {
        let Self { len, image, .. } = Self::at(0, image);
        Self::of_other(mark, image, len)
    }

    /// A library of another version, whose mark is at an address: as long as that says, in bytes of the
    /// library alone and of all that is mapped. `None` where that cannot be.
    #[must_use]
    pub fn of_other(mark: u64, image: u64, len: u64) -> Option<Self> {
        let start = mark.checked_sub(image.checked_add(2 * PAGE)?)?;
        let end = start.checked_add(len)?;
        let fits = start.is_multiple_of(PAGE) && mark.checked_add(STACK)? <= end;
        fits.then_some(Self { start, len, image })
    }

    /// Where the mark may be in a private mapping that can be written to: anywhere between two steps
    /// of loading, the mapping begins with the library, with `code`, or with the stack.
    pub fn places_of_mark(mapping: u64, image: &Image) -> [u64; 3] {
        [0, 2 * PAGE, image.len() + 2 * PAGE].map(|offset| mapping.wrapping_add(offset))
    }

    fn code(&self) -> u64 {
        self.start + self.image
    }

    fn stack(&self) -> u64 {
        self.code() + 2 * PAGE
    }

    fn thread_pointer(&self) -> u64 {
        self.stack() + STACK + PAGE / 2
    }
}

impl Target {
    /// Maps a library into the process, near an address if one is given, and relocates it. `import`
    /// says for a symbol that the library imports which address of the library is to be used, as
    /// [`Image::symbol`] says it. No code of the library is run, also no constructor.
    ///
    /// The `mark` is written before all else: should the tracer be killed, the next one can find the
    /// library, or what there is of it ([`Loaded::places_of_mark`]).
    ///
    /// # Errors
    /// When a symbol or relocation cannot be resolved, there is no room, or no thread can make the
    /// calls. Nothing is left mapped then.
    pub fn load(
        &mut self,
        image: &Image,
        near: Option<u64>,
        mark: &[u8],
        import: impl Fn(&str) -> Option<u64>,
    ) -> Result<Loaded, Error> {
        let len = Loaded::at(0, image).len;
        let start = self.map(near, len, Perms::READ | Perms::WRITE)?;
        let loaded = Loaded::at(start, image);
        let filled =
            self.write(loaded.mark(), mark).and_then(|()| self.fill(image, &loaded, import));
        match filled {
            Ok(()) => Ok(loaded),
            Err(error) => {
                self.unmap(start, len)?;
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        image: &Image,
        loaded: &Loaded,
        import: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Error> {
        let pid = self.pid;
        let failed = |error: ImageError| Error::Image { pid, error };
        let bytes = image.relocated(loaded.start, import).map_err(failed)?;
        self.write(loaded.start, &bytes)?;
        let pointer = loaded.thread_pointer();
        self.write(pointer - image.tls_len(), image.tls_start())?;
        self.write(pointer, &pointer.to_le_bytes())?;
        // What lies between segments gets no access.
        self.protect(loaded.start, loaded.image, 0)?;
        for (from, to, bits) in image.protections() {
            self.protect(loaded.start + from, to - from, bits)?;
        }
        self.protect(loaded.code(), PAGE, 5)?;
        self.protect(loaded.code() + PAGE, PAGE, 0)
    }

    fn protect(&mut self, address: u64, len: u64, bits: u32) -> Result<(), Error> {
        let mprotect = libc::SYS_mprotect as u64;
        self.call("mprotect", mprotect, [address, len, u64::from(bits), 0, 0, 0]).map(drop)
    }

    /// Starts a thread of the process that calls a function of the library with one argument, once
    /// the process goes on; returns its id. The function must end the thread by the system call
    /// `exit`, and must not return. There may be one such thread at a time.
    ///
    /// A tracer that is killed meanwhile leaves a process with that thread or without it.
    ///
    /// # Errors
    /// When there is such a thread: [`Error::InUse`]. When no thread can make the call, or the process
    /// may have no more threads.
    pub fn start_thread(
        &mut self,
        loaded: &Loaded,
        function: u64,
        argument: u64,
    ) -> Result<u32, Error> {
        self.check_free(loaded)?;
        // Where the function starts, the stack is as after a call.
        let top = loaded.stack() + STACK - 24;
        for (at, value) in [(top, argument), (top + 8, function), (top + 16, 0)] {
            self.write(at, &value.to_le_bytes())?;
        }
        let back = self.ready_caller()?;
        self.write(loaded.code(), &starter(back))?;
        let before = self.threads();
        let arguments = [CLONE_FLAGS, top, 0, 0, loaded.thread_pointer(), 0];
        self.call_at(Some(loaded.code()), "clone", libc::SYS_clone as u64, arguments)?;
        let new = self.threads().into_iter().find(|tid| !before.contains(tid));
        new.ok_or(Error::NoProcess { pid: self.pid })
    }

    /// Fails when a thread runs that [`Target::start_thread`] has started. A tracer that was killed
    /// need not have known it.
    ///
    /// # Errors
    /// When there is such a thread: [`Error::InUse`]. When a thread was killed.
    pub fn check_free(&self, loaded: &Loaded) -> Result<(), Error> {
        let stack = loaded.stack()..loaded.stack() + STACK;
        for tid in self.threads() {
            if stack.contains(&self.registers(tid)?.rsp) {
                return Err(Error::InUse { pid: self.pid, tid });
            }
        }
        Ok(())
    }

    /// Unmaps a library, whose thread must have ended.
    ///
    /// # Errors
    /// When a thread is in the library: [`Error::InUse`]. Nothing has changed then.
    pub fn unload(&mut self, loaded: &Loaded) -> Result<(), Error> {
        let pid = self.pid;
        let range = loaded.start..loaded.start + loaded.len;
        for tid in self.threads() {
            let registers = self.registers(tid)?;
            if range.contains(&registers.rip) || range.contains(&registers.rsp) {
                return Err(Error::InUse { pid, tid });
            }
        }
        self.unmap(loaded.start, loaded.len)
    }
}

/// The instructions that make the thread. Who makes it goes on at `back` without its tracer, with
/// the flags that it had; the new one takes its function and argument from its stack.
fn starter(back: u64) -> [u8; 24] {
    let mut code = [0; 24];
    code[..16].copy_from_slice(&[
        0x0f, 0x05, // syscall
        0x48, 0x91, // xchg rcx, rax
        0xe3, 6, // jrcxz new
        0xff, 0x25, 4, 0, 0, 0, // jmp [rip + 4]
        0x5f, 0x58, 0xff, 0xe0, // new: pop rdi; pop rax; jmp rax
    ]);
    code[16..].copy_from_slice(&back.to_le_bytes());
    code
}
