//! Contexts that signal handlers will return to, as they lie on the stacks of stopped threads.

use crate::sys;
use std::cell::Cell;
use std::ops::Range;

/// How far up a stack saved contexts are looked for, in pages.
const PAGES: usize = 64;

/// How many stacks are looked at for one thread: its own, that of signals, those of coroutines.
const STACKS: usize = 8;

const PAGE: u64 = 4096;

/// Room for a part of a stack.
#[derive(Debug)]
pub(crate) struct Copy {
    words: Vec<u64>,
    remote: Vec<[u64; 2]>,
    /// What is looked for among all words, and whether one was seen, or not all words were.
    wanted: Range<u64>,
    seen: bool,
    /// A stack whose end is known.
    known: Range<u64>,
}

impl Copy {
    pub(crate) fn new() -> Self {
        Self {
            words: vec![0; PAGES * PAGE as usize / 8],
            remote: vec![[0; 2]; PAGES],
            wanted: 0..0,
            seen: false,
            known: 0..0,
        }
    }

    /// Tells whether a word on a stack, from `stack` upwards, or on those that its contexts interrupted,
    /// is an address in `range`; also when not all could be looked at. `known`: where the stack is,
    /// as far as anybody knows.
    pub(crate) fn mentions(&mut self, stack: u64, known: Range<u64>, range: &Range<u64>) -> bool {
        (self.wanted, self.known, self.seen) = (range.clone(), known, false);
        self.redirect(stack, |_| None, |_, _| {});
        (self.wanted, self.known) = (0..0, 0..0);
        self.seen
    }

    /// Tells whether a signal handler on a stack will return to an address in `range`; also when not all
    /// of it could be looked at.
    pub(crate) fn returns_to(&mut self, stack: u64, known: Range<u64>, range: &Range<u64>) -> bool {
        let found = Cell::new(false);
        let look = |at| {
            found.set(found.get() || range.contains(&at));
            None
        };
        (self.known, self.seen) = (known, false);
        self.redirect(stack, look, |_, _| {});
        self.known = 0..0;
        found.get() || self.seen
    }

    /// Changes saved contexts on a stack, from `stack` upwards: a thread that is in a signal
    /// handler goes back to where `relocated` says. A context is known by its instruction pointer
    /// being one that `relocated` knows, with the code segment two words above it.
    ///
    /// A handler may run on a stack of its own, above all our own one: contexts say which stack
    /// they interrupted, so that one is looked at next.
    ///
    /// Memory is read by the kernel, as nothing is known about how far the stack goes, or whether
    /// it still is there. `put` writes a word to an address of the stack.
    pub(crate) fn redirect(
        &mut self,
        stack: u64,
        relocated: impl Fn(u64) -> Option<u64>,
        put: impl Fn(u64, u64),
    ) {
        let mut seen = [(0, 0); STACKS];
        let mut next = [stack; STACKS];
        let mut found = 1;
        let mut done = 0;
        let mut too_many = false;
        while let (Some(&stack), Some(range)) =
            (next.get(done).filter(|_| done < found), seen.get_mut(done))
        {
            *range = self.redirect_on(stack, &relocated, &put, &mut |other| {
                if let Some(place) = next.get_mut(found) {
                    *place = other;
                    found += 1;
                } else {
                    too_many = true;
                }
            });
            done += 1;
            // What lies on a stack that was looked at needs no second look.
            while next
                .get(done)
                .filter(|_| done < found)
                .is_some_and(|n| seen.iter().any(|(from, to)| from <= n && n < to))
            {
                next.copy_within(done + 1.., done);
                found -= 1;
            }
        }
        self.seen |= too_many;
    }

    /// The same for one stack. Tells where it began and ended, and calls `other` with the stacks
    /// that contexts on it belong to.
    fn redirect_on(
        &mut self,
        stack: u64,
        relocated: &impl Fn(u64) -> Option<u64>,
        put: &impl Fn(u64, u64),
        other: &mut impl FnMut(u64),
    ) -> (u64, u64) {
        const CODE_SEGMENT: u64 = 0x33;
        // Bits of the flags register: one is always set, and there are none so high.
        const FLAGS_SET: u64 = 2;
        const FLAGS_END: u64 = 1 << 22;
        let start = stack & !7;
        let mut at = start;
        for r in &mut self.remote {
            // A page each: what is copied ends where a page is missing.
            let end = (at & !(PAGE - 1)).wrapping_add(PAGE);
            *r = [at, end.wrapping_sub(at)];
            at = end;
        }
        let got = sys::copy_in(&mut self.words, &self.remote);
        let mut count = usize::try_from(got).unwrap_or(0) / 8;
        if self.known.contains(&start) {
            count = count.min((self.known.end - start) as usize / 8);
        }
        let words = self.words.get(..count).unwrap_or_default();
        let end = start.wrapping_add(8 * words.len() as u64);
        let cut_off = words.is_empty() || end == at;
        let seen = cut_off || words.iter().any(|word| self.wanted.contains(word));
        for (i, context) in words.windows(3).enumerate() {
            let [rip, flags, cs] = *context else { continue };
            if cs & 0xffff != CODE_SEGMENT {
                continue;
            }
            if let Some(to) = relocated(rip) {
                put(start + 8 * i as u64, to);
            }
            let rsp = i.checked_sub(1).and_then(|i| words.get(i)).copied().unwrap_or(start);
            if flags & FLAGS_SET != 0 && flags < FLAGS_END && !(start..end).contains(&rsp) {
                other(rsp);
            }
        }
        self.seen |= seen;
        (start, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes into the vectors that the tests take for stacks.
    fn write(at: u64, word: u64) {
        // SAFETY: the tests have words there that nobody else uses.
        unsafe { sys::copy_out(at, &word) };
    }

    #[test]
    fn saved_contexts_are_redirected() {
        let mut stack = vec![0u64; 20_000];
        for (n, cs) in [(10, 0x33), (600, 0x002b_0000_0000_0033), (700, 0), (19_990, 0x33)] {
            stack[n] = 0x1234_5678;
            stack[n + 2] = cs;
        }
        let relocated = |at: u64| (at == 0x1234_5678).then_some(77);
        Copy::new().redirect(stack.as_ptr() as u64 + 8, relocated, write);
        assert_eq!((stack[10], stack[600], stack[700], stack[19_990]), (77, 77, 0x1234_5678, 77));
        // Not mapped: nothing happens.
        Copy::new().redirect(4096, relocated, write);
    }

    /// Our own handler runs on the alternate stack if there is one, and interrupts handlers that do
    /// not.
    #[test]
    fn contexts_on_the_stack_that_was_interrupted_are_redirected_too() {
        let mut own = vec![0u64; 2000];
        let mut alternate = vec![0u64; 2000];
        let mut third = vec![0u64; 2000];
        let put = |stack: &mut [u64], n: usize, rsp: u64, rip: u64| {
            stack[n..n + 4].copy_from_slice(&[rsp, rip, 0x202, 0x33])
        };
        let (own_at, alternate_at, third_at) =
            (own.as_ptr() as u64, alternate.as_ptr() as u64, third.as_ptr() as u64);
        put(&mut alternate, 50, own_at + 800, 1);
        // Back and forth must come to an end.
        put(&mut own, 200, alternate_at + 8, 0x1234_5678);
        put(&mut own, 300, third_at, 1);
        put(&mut third, 20, own_at, 0x1234_5678);
        Copy::new().redirect(alternate_at + 16, |at| (at == 0x1234_5678).then_some(77), write);
        assert_eq!((alternate[51], own[201], own[301], third[21]), (1, 77, 1, 77));
    }
}
