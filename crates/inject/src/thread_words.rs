//! What code of the tracer's needs to keep words for each thread of a process that gives it no
//! thread-local storage: the GS base, which programs leave alone, and the place where the program's
//! runtime keeps a thread's id, so that a thread can be told from the one that made it and whose GS
//! base it inherited.

use crate::error::{Error, Refusal};
use crate::sys;
use crate::target::Target;
use crate::task::Status;

/// So far from the thread pointer an id is looked for.
const REACH: u64 = 2048;

/// Places of the id in known runtimes: glibc's `struct pthread`, musl's.
const KNOWN: [i32; 2] = [0x2d0, 0x30];

impl Target {
    /// Finds where each thread's id lies, from its thread pointer; `None` when there is no such
    /// place, as in a program without a runtime.
    ///
    /// # Errors
    /// When a thread was killed.
    pub fn place_of_thread_ids(&self) -> Result<Option<i32>, Error> {
        let mut places: Option<Vec<i32>> = None;
        for tid in self.threads() {
            let registers = self.registers(tid)?;
            let Some(id) = Status::of(self.pid, tid).and_then(|s| s.last_number("NSpid")) else {
                continue;
            };
            if registers.fs_base == 0 {
                return Ok(None);
            }
            let here = self.matches(registers.fs_base, id);
            places = Some(match places {
                None => here,
                Some(all) => all.into_iter().filter(|place| here.contains(place)).collect(),
            });
        }
        let places = places.unwrap_or_default();
        let known = KNOWN.into_iter().find(|place| places.contains(place));
        // What lies above the pointer is the runtime's; below are the program's variables too.
        Ok(known.or_else(|| places.into_iter().min_by_key(|place| (*place < 0, place.abs()))))
    }

    /// The places around a thread pointer with this number.
    fn matches(&self, pointer: u64, id: u32) -> Vec<i32> {
        const PAGE: u64 = 4096;
        let mut out = Vec::new();
        let (start, end) = (pointer.saturating_sub(REACH), pointer.saturating_add(REACH));
        let mut at = start & !3;
        while at < end {
            // A page at a time: the next may not be there.
            let next = ((at | (PAGE - 1)) + 1).min(end);
            if let Ok(bytes) = self.read(at, (next - at) as usize) {
                let words = bytes.chunks_exact(4).enumerate();
                let found = words.filter(|(_, word)| *word == id.to_le_bytes());
                out.extend(found.map(|(n, _)| (at + 4 * n as u64).wrapping_sub(pointer) as i32));
            }
            at = next;
        }
        out
    }

    /// Gives all threads without a GS base this one, which threads that they make inherit.
    ///
    /// # Errors
    /// When a thread has one, unless that is `known` to be the tracer's: [`Refusal::UsesGs`]. Nothing
    /// has changed then. When a thread was killed.
    pub fn set_gs_bases(&mut self, base: u64, known: bool) -> Result<(), Error> {
        let pid = self.pid;
        // The one that makes calls gets its own registers back.
        self.end_calls();
        let mut without = Vec::new();
        for tid in self.threads() {
            let registers = self.registers(tid)?;
            match registers.gs_base {
                0 => without.push((tid, registers)),
                _ if known => {}
                _ => return Err(Error::Refused { pid, reason: Refusal::UsesGs { tid } }),
            }
        }
        for (tid, mut registers) in without {
            registers.gs_base = base;
            sys::set_registers(tid, &registers).map_err(|_| Error::NoProcess { pid })?;
        }
        Ok(())
    }

    /// Gives all threads this GS base, also those that have an `other` of another version of the tracer.
    ///
    /// # Errors
    /// When a thread has one that is not: [`Refusal::UsesGs`]. Nothing has changed then. When a thread was
    /// killed.
    pub fn replace_gs_bases(
        &mut self,
        base: u64,
        other: impl Fn(&Self, u64) -> bool,
    ) -> Result<(), Error> {
        let pid = self.pid;
        // The one that makes calls gets its own registers back.
        self.end_calls();
        let mut all = Vec::new();
        for tid in self.threads() {
            let registers = self.registers(tid)?;
            if registers.gs_base != 0 && !other(self, registers.gs_base) {
                return Err(Error::Refused { pid, reason: Refusal::UsesGs { tid } });
            }
            all.push((tid, registers));
        }
        for (tid, mut registers) in all {
            registers.gs_base = base;
            sys::set_registers(tid, &registers).map_err(|_| Error::NoProcess { pid })?;
        }
        Ok(())
    }

    /// Gives threads in a sandbox another GS base than the others have: those under a seccomp filter that is not
    /// known to be harmless ([`judge_filters`](Self::judge_filters)).
    ///
    /// # Errors
    /// When a thread was killed.
    pub fn set_apart_filtered(&mut self, base: u64, filtered: u64) -> Result<(), Error> {
        let pid = self.pid;
        self.end_calls();
        for tid in self.threads() {
            let mut registers = self.registers(tid)?;
            let is_apart =
                || Status::of(pid, tid).is_some_and(|s| self.filters.check(tid, &s).is_err());
            if registers.gs_base == base && is_apart() {
                registers.gs_base = filtered;
                sys::set_registers(tid, &registers).map_err(|_| Error::NoProcess { pid })?;
            }
        }
        Ok(())
    }

    /// Takes a GS base from all threads that have it.
    ///
    /// # Errors
    /// When a thread was killed.
    pub fn clear_gs_bases(&mut self, base: u64) -> Result<(), Error> {
        let pid = self.pid;
        self.end_calls();
        for tid in self.threads() {
            let mut registers = self.registers(tid)?;
            if registers.gs_base == base {
                registers.gs_base = 0;
                sys::set_registers(tid, &registers).map_err(|_| Error::NoProcess { pid })?;
            }
        }
        Ok(())
    }
}
