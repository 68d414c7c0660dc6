//! Goroutines that are suspended in the middle of a function.
//!
//! A goroutine that runs for too long is interrupted by a signal. Go's handler puts the address of the
//! next instruction on the goroutine's stack, as a call would, and has the thread go on in
//! `runtime.asyncPreempt`, which suspends the goroutine: no thread runs it until it goes on at that
//! instruction (runtime/preempt.go, since Go 1.14). So while a goroutine is suspended in the middle of
//! bytes, or a thread is on the way there, these are not changed. Nor is it sent to the instruction's copy:
//! Go looks the address up in its own tables when it walks that stack.
//!
//! What is read of a goroutine has been at the same place since Go 1.4: the bounds of its stack, and its
//! stack pointer while it is suspended (`g` in runtime/runtime2.go).

use crate::goroutines::Goroutines;
use crate::patch::change::Change;
use crate::sys;
use std::ptr;

/// Words of a goroutine that are read: its stack's bounds are the first two.
const HEAD: usize = 8;
/// Of these the stack pointer (`sched.sp`).
const STACK_POINTER: usize = 7;
/// Words of a stack that are looked at, from the stack pointer on: `asyncPreempt` keeps all registers there.
const WINDOW: usize = 256;
/// Goroutines that are read together.
const TOGETHER: usize = 32;
/// Stacks that are looked at for a thread: its own, and those that signals have interrupted.
const STACKS: usize = 8;
const PAGE: u64 = 4096;

/// A look at all goroutines and threads while they stand. Nothing is allocated then.
#[derive(Debug)]
pub(super) struct Look {
    /// Instructions in the middle of what is to be changed, sorted, each with the number of the change.
    places: Vec<[u64; 2]>,
    runtimes: Vec<&'static Goroutines>,
    /// By the number of the change: somebody is in its middle, or nobody knows.
    blocked: Vec<bool>,
    pointers: Vec<u64>,
    heads: Vec<u64>,
    windows: Vec<u64>,
    remote: Vec<[u64; 2]>,
}

impl Look {
    /// Prepares one; `None`: no goroutine can be in the middle of these.
    #[inline(never)]
    pub(super) fn new(changes: &[Change]) -> Option<Self> {
        let mut places: Vec<[u64; 2]> = Vec::new();
        let mut runtimes: Vec<&'static Goroutines> = Vec::new();
        for (change, number) in changes.iter().zip(0..) {
            let Some(runtime) = change.goroutines else { continue };
            let inner = change.inner.iter().zip(change.at..).filter(|(to, _)| **to != 0);
            let before = places.len();
            places.extend(inner.map(|(_, at)| [at, number]));
            if places.len() > before && !runtimes.iter().any(|r| ptr::eq(*r, runtime)) {
                runtimes.push(runtime);
            }
        }
        places.sort_by_cached_key(|[at, _]| *at);
        (!places.is_empty()).then(|| Self {
            places,
            runtimes,
            blocked: vec![false; changes.len()],
            pointers: vec![0; TOGETHER],
            heads: vec![0; TOGETHER * HEAD],
            windows: vec![0; TOGETHER * WINDOW],
            remote: vec![[0; 2]; TOGETHER],
        })
    }

    /// Tells whether a change must not be made now.
    pub(super) fn is_blocked(&self, number: usize) -> bool {
        self.blocked.get(number).copied().unwrap_or_default()
    }

    /// Tells whether it is so for the change around an instruction.
    pub(super) fn is_blocked_at(&self, addr: u64) -> bool {
        number_at(&self.places, addr).is_some_and(|number| self.is_blocked(number))
    }

    /// Tells whether any must not.
    pub(super) fn is_any_blocked(&self) -> bool {
        self.blocked.contains(&true)
    }

    /// Looks who is where. `stacks`: the stack pointers of all threads but the calling one, which stand.
    #[inline(never)]
    pub(super) fn search(&mut self, stacks: &[u64]) {
        self.blocked.fill(false);
        let runtimes = std::mem::take(&mut self.runtimes);
        let known = runtimes.iter().all(|runtime| self.search_goroutines(runtime).is_some());
        self.runtimes = runtimes;
        stacks.iter().for_each(|stack| self.search_thread(*stack));
        if !known {
            for [_, number] in &self.places {
                if let Some(blocked) = self.blocked.get_mut(*number as usize) {
                    *blocked = true;
                }
            }
        }
    }

    /// `None`: not all could be read.
    fn search_goroutines(&mut self, runtime: &Goroutines) -> Option<()> {
        let mut list = [0; 3];
        read(&mut list, &[[runtime.list?, 24]])?;
        let [at, count, capacity] = list;
        (count <= capacity && count < 1 << 32).then_some(())?;
        for first in (0..count).step_by(TOGETHER) {
            let some = (count - first).min(TOGETHER as u64) as usize;
            let from = at.checked_add(first.checked_mul(8)?)?;
            read(self.pointers.get_mut(..some)?, &[[from, 8 * some as u64]])?;
            for (remote, pointer) in self.remote.iter_mut().zip(&self.pointers).take(some) {
                *remote = [*pointer, 8 * HEAD as u64];
            }
            let heads = self.heads.get_mut(..some * HEAD)?;
            read(heads, self.remote.get(..some)?)?;
            let mut windows = 0;
            for head in heads.chunks_exact(HEAD) {
                let (low, high, stack) = (*head.first()?, *head.get(1)?, *head.get(STACK_POINTER)?);
                // One that has ended has no stack.
                if low < stack && stack < high {
                    let size = (high - stack).min(8 * WINDOW as u64) & !7;
                    *self.remote.get_mut(windows)? = [stack, size];
                    windows += 1;
                }
            }
            let remote = self.remote.get(..windows)?;
            let words = remote.iter().map(|[_, size]| *size as usize / 8).sum();
            read(self.windows.get_mut(..words)?, remote)?;
            let mut rest = self.windows.get(..words)?;
            for [_, size] in remote {
                let (window, behind) = rest.split_at_checked(*size as usize / 8)?;
                rest = behind;
                let preempted = window.iter().position(|word| runtime.preempt.contains(word));
                let above = preempted.and_then(|at| window.get(at..)).unwrap_or_default();
                above.iter().for_each(|word| mark(&self.places, &mut self.blocked, *word));
            }
        }
        Some(())
    }

    /// Looks at the stack of a thread, which may be about to suspend a goroutine or to go on with one, in
    /// the signal handler or in `asyncPreempt`.
    fn search_thread(&mut self, stack: u64) {
        const CODE_SEGMENT: u64 = 0x33;
        let (mut stacks, mut count, mut done) = ([stack; STACKS], 1, 0);
        while let Some(at) = stacks.get(done).filter(|_| done < count).map(|at| at & !7) {
            done += 1;
            // A page each: what is copied ends where one is missing.
            let end = (at & !(PAGE - 1)).wrapping_add(PAGE);
            let remote = [[at, end.wrapping_sub(at)], [end, PAGE]];
            let got = sys::copy_in(&mut self.windows, &remote);
            // Without a stack, as one that is about to end, it is on the way to nowhere.
            let read = usize::try_from(got).unwrap_or(0) / 8;
            let words = self.windows.get(..read).unwrap_or_default();
            words.iter().for_each(|word| mark(&self.places, &mut self.blocked, *word));
            for context in words.windows(4) {
                let [rsp, _, _, cs] = *context else { continue };
                let is_new =
                    |rsp: u64| stacks.iter().take(count).all(|known| known.abs_diff(rsp) >= 8);
                if cs & 0xffff == CODE_SEGMENT && is_new(rsp) {
                    let Some(next) = stacks.get_mut(count) else { break };
                    *next = rsp;
                    count += 1;
                }
            }
        }
    }
}

/// The number of the change that an instruction is in the middle of.
fn number_at(places: &[[u64; 2]], addr: u64) -> Option<usize> {
    let ([first, _], [last, _]) = (places.first()?, places.last()?);
    // As nearly all words are.
    if addr < *first || addr > *last {
        return None;
    }
    let found = places.binary_search_by_key(&addr, |[at, _]| *at).ok()?;
    places.get(found).map(|[_, number]| *number as usize)
}

/// Notes that somebody goes on there.
fn mark(places: &[[u64; 2]], blocked: &mut [bool], word: u64) {
    if let Some(blocked) = number_at(places, word).and_then(|number| blocked.get_mut(number)) {
        *blocked = true;
    }
}

/// Reads all of some memory; `None`: it is not all there.
fn read(into: &mut [u64], from: &[[u64; 2]]) -> Option<()> {
    let size: u64 = from.iter().map(|[_, size]| *size).sum();
    (size == 0 || sys::copy_in(into, from) == size as i64).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::change::{Detour, Hooked};
    use std::ops::Range;

    const PREEMPT: Range<u64> = 0x5000..0x5100;

    fn change(at: u64, inner: [u64; 5], goroutines: Option<&'static Goroutines>) -> Change {
        let hooked = Hooked { entry: [0; 5], meta: 0 };
        let (old, new, head) = ([0; 5], [1; 5], Detour::Jump(0));
        Change { at, old, new, text: 0..u64::MAX, head, inner, hooked, goroutines }
    }

    /// A runtime with goroutines that have these words on their stacks, each from the stack pointer on.
    fn runtime(stacks: &[&[u64]]) -> &'static Goroutines {
        let mut heads = Vec::new();
        for words in stacks {
            // What has been on the stack before is below.
            let mut stack = vec![PREEMPT.start, 0x1003, 0x1003];
            stack.extend_from_slice(words);
            let stack: &'static [u64] = stack.leak();
            let low = stack.as_ptr() as u64;
            let high = low + 8 * stack.len() as u64;
            heads.push([low, high, 0, 0, 0, 0, 0, low + 24]);
        }
        // One that has ended.
        heads.push([0; HEAD]);
        let heads: &'static [[u64; HEAD]] = heads.leak();
        let pointers: &'static [u64] =
            heads.iter().map(|head| head.as_ptr() as u64).collect::<Vec<_>>().leak();
        let list = vec![pointers.as_ptr() as u64, pointers.len() as u64, pointers.len() as u64];
        let list = Some(list.leak().as_ptr() as u64);
        Box::leak(Box::new(Goroutines { preempt: PREEMPT, list }))
    }

    fn changes(runtime: &'static Goroutines) -> [Change; 4] {
        [
            change(0x1000, [0, 0, 0, 0x9003, 0], Some(runtime)),
            change(0x2000, [0, 0x9101, 0, 0, 0x9104], Some(runtime)),
            // No instruction begins in its middle.
            change(0x3000, [0; 5], Some(runtime)),
            change(0x4000, [0, 0x9201, 0, 0, 0], None),
        ]
    }

    fn blocked(runtime: &'static Goroutines, threads: &[u64]) -> Vec<usize> {
        let mut look = Look::new(&changes(runtime)).unwrap();
        look.search(threads);
        assert_eq!(look.is_any_blocked(), (0..4).any(|n| look.is_blocked(n)));
        (0..4).filter(|n| look.is_blocked(*n)).collect()
    }

    #[test]
    fn where_goroutines_are_suspended_nothing_is_changed() {
        let saved = PREEMPT.start + 0x40;
        assert!(Look::new(&changes(runtime(&[]))[2..]).is_none(), "nobody can be in their middle");
        let nobody: &[u64] = &[1, 2, saved, 7, 0x1000, 0x1002, 0x2005, 0x4001, 9];
        // What looks like a place is none where `asyncPreempt` was not called.
        let elsewhere: &[u64] = &[0x1003, 0x2001, 5];
        assert_eq!(blocked(runtime(&[nobody, elsewhere]), &[]), []);
        let inside: &[u64] = &[1, saved, 0, 0, 0x2004, 3];
        assert_eq!(blocked(runtime(&[nobody, inside, elsewhere]), &[]), [1]);
        // More than are read at once.
        let mut many = vec![nobody; 3 * TOGETHER];
        let last: &[u64] = &[saved, 0x1003];
        many.push(last);
        assert_eq!(blocked(runtime(&many), &[]), [0]);
    }

    #[test]
    fn threads_on_the_way_count_too() {
        let mut stack = vec![0_u64; 2000];
        stack[100] = 0x2001;
        let at = stack.as_ptr() as u64;
        assert_eq!(blocked(runtime(&[]), &[at]), [1]);
        // Of a signal handler's stack the one that it has interrupted.
        let mut handler = vec![0_u64; 2000];
        handler[50..54].copy_from_slice(&[at, 0x7777, 0x202, 0x33]);
        assert_eq!(blocked(runtime(&[]), &[handler.as_ptr() as u64]), [1]);
        handler[51] = 0x1003;
        assert_eq!(blocked(runtime(&[]), &[handler.as_ptr() as u64]), [0, 1]);
    }

    #[test]
    fn what_cannot_be_told_is_not_changed() {
        let unknown = Box::leak(Box::new(Goroutines { preempt: PREEMPT, list: None }));
        assert_eq!(blocked(unknown, &[]), [0, 1]);
        for list in [[8, 1, 1], [8, 2, 1], [u64::MAX, 1 << 40, 1 << 40]] {
            let list = Some(list.to_vec().leak().as_ptr() as u64);
            let bad = Box::leak(Box::new(Goroutines { preempt: PREEMPT, list }));
            assert_eq!(blocked(bad, &[]), [0, 1]);
        }
    }
}
