//! Iterators that stand on a program's stack: `bpf_iter_num` (`bpf_for`, `bpf_repeat`) and
//! `bpf_iter_bits`.
//!
//! ```text
//!                0                8        12      16
//! bpf_iter_num   | current | end  |
//! bpf_iter_bits  | words           | bits  | current |      the address of the words; a single one itself
//! ```
//!
//! The verifier lets nobody but these functions write there. One that is over, or never began,
//! stays so.

use super::{errno, fail, int, probe};

const MAX_LOOPS: i64 = 8 << 20;
const MAX_WORDS: u64 = 511;

/// What stands on the stack for numbers.
#[repr(C, align(8))]
struct Num {
    current: i32,
    end: i32,
}

/// What stands on the stack for bits.
#[repr(C, align(8))]
struct Bits {
    words: u64,
    count: i32,
    current: i32,
}

/// Counts from `start` up to below `end`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn num_new(it: u64, start: u64, end: u64, _: u64, _: u64) -> u64 {
    let (start, end) = (start as i32, end as i32);
    let r = if start > end {
        fail(errno::EINVAL)
    } else if end as i64 - start as i64 > MAX_LOOPS {
        fail(errno::E2BIG)
    } else {
        0
    };
    let it = it as *mut Num;
    // SAFETY: the verifier proved `it` eight bytes of the stack.
    unsafe {
        it.write_volatile(if r == 0 {
            Num { current: start.wrapping_sub(1), end }
        } else {
            Num { current: 0, end: 0 }
        })
    };
    int(r)
}

/// Address of the next number, or 0.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn num_next(it: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let it = it as *mut Num;
    // SAFETY: the verifier proved that an iterator stands there.
    unsafe {
        let next = (*it).current.wrapping_add(1);
        if next >= (*it).end {
            it.write_volatile(Num { current: 0, end: 0 });
            return 0;
        }
        (&raw mut (*it).current).write_volatile(next);
        (&raw mut (*it).current) as u64
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn num_destroy(it: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (it as *mut Num).write_volatile(Num { current: 0, end: 0 }) };
    0
}

/// Walks over the bits that are set in `words` words of eight bytes. Where there are several, they
/// are read when their turn comes.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn bits_new(it: u64, address: u64, words: u64, _: u64, _: u64) -> u64 {
    let words = int(words);
    let nothing = Bits { words: 0, count: 0, current: -1 };
    let (made, r) = if address == 0 || words == 0 {
        (nothing, fail(errno::EINVAL))
    } else if words > MAX_WORDS {
        (nothing, fail(errno::E2BIG))
    } else if words == 1 {
        match probe::word(address) {
            Some(word) => (Bits { words: word, count: 64, current: -1 }, 0),
            None => (nothing, fail(errno::EFAULT)),
        }
    } else if probe::is_readable(address, words * 8) {
        (Bits { words: address, count: words as i32 * 64, current: -1 }, 0)
    } else {
        (nothing, fail(errno::EFAULT))
    };
    // SAFETY: the verifier proved `it` sixteen bytes of the stack.
    unsafe { (it as *mut Bits).write_volatile(made) };
    int(r)
}

/// Address of the next bit's number, or 0.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn bits_next(it: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    let it = it as *mut Bits;
    // SAFETY: the verifier proved that an iterator stands there.
    unsafe {
        let (words, count, mut at) = ((*it).words, (*it).count, (*it).current.wrapping_add(1));
        while at < count {
            // What can no longer be read has no bits.
            let word = if count == 64 {
                words
            } else {
                probe::word(words.wrapping_add(at as u64 / 64 * 8)).unwrap_or(0)
            } >> (at % 64);
            if word != 0 {
                at += word.trailing_zeros() as i32;
                (&raw mut (*it).current).write_volatile(at);
                return (&raw mut (*it).current) as u64;
            }
            at = at / 64 * 64 + 64;
        }
        (&raw mut (*it).count).write_volatile(0);
        0
    }
}

#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn bits_destroy(it: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (it as *mut Bits).write_volatile(Bits { words: 0, count: 0, current: -1 }) };
    0
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Numbers, Pair, words};

    /// Walks to the end, at most 200 steps; keeps what `new` said, how many elements came, their
    /// sum and a mix of their order.
    fn walk(name: &str, new: &str) -> String {
        format!(
            "lddw %r6, value 1+0\n{new}mov %r1, %r10\nadd %r1, -16\ncall bpf_iter_{name}_new\nstxw [%r6+0], %r0\nmov %r7, 0\n\
             more: mov %r1, %r10\nadd %r1, -16\ncall bpf_iter_{name}_next\njeq %r0, 0, over\n\
             ldxw %r1, [%r0+0]\nldxdw %r2, [%r6+16]\nmul %r2, 31\nadd %r2, %r1\nstxdw [%r6+16], %r2\n\
             ldxdw %r2, [%r6+8]\nadd %r2, 1\nstxdw [%r6+8], %r2\njlt %r2, 200, more\n\
             over: mov %r1, %r10\nadd %r1, -16\ncall bpf_iter_{name}_destroy\nmov %r0, 0\nexit"
        )
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let Some(pair) =
            Pair::new(&walk("num", "ldxdw %r2, [%r6+24]\nldxdw %r3, [%r6+32]\n"), b"", 40)
        else {
            return;
        };
        let mut n = Numbers(1);
        let edges = [
            0,
            1,
            u64::MAX,
            i32::MAX as u64,
            i32::MIN as u64,
            0x8000_0000,
            8 << 20,
            (8 << 20) + 1,
            100,
        ];
        for _ in 0..3000 {
            let start = if n.below(2) == 0 { n.pick(&edges) } else { n.next() % 50 };
            let end = if n.below(2) == 0 {
                n.pick(&edges)
            } else {
                start.wrapping_add(n.next() % 250).wrapping_sub(20)
            };
            pair.same(&words(&[0, 0, 0, start, end]), &format!("{start:#x}..{end:#x}"));
        }
    }

    #[test]
    fn bits_are_those_of_the_kernel() {
        let new = "mov %r2, %r6\nadd %r2, 32\nldxdw %r3, [%r6+24]\n";
        let Some(pair) = Pair::new(&walk("bits", new), b"", 32 + 8 * 512) else { return };
        let mut n = Numbers(2);
        for round in 0..600 {
            let count = match round % 4 {
                0 => n.pick(&[0, 1, 511, 512, 513, 1 << 32, u64::MAX]),
                _ => n.next() % 6,
            };
            let mut memory = words(&[0, 0, 0, count]);
            for _ in 0..512 {
                let word = n.pick(&[0, 0, 1, 1 << 63, u64::MAX]) & n.next()
                    | u64::from(n.below(9) == 0) << n.below(64);
                memory.extend(word.to_le_bytes());
            }
            pair.same(&memory, &format!("{count} words"));
        }
    }

    #[test]
    fn words_that_cannot_be_read_are_refused() {
        let mut it = [7_u64; 2];
        // SAFETY: sixteen bytes for the iterator; the address is nobody's.
        let r = unsafe { super::bits_new(it.as_mut_ptr() as u64, 8, 2, 0, 0) };
        assert_eq!(r as i32, -14);
        // SAFETY: an iterator stands there.
        assert_eq!(unsafe { super::bits_next(it.as_mut_ptr() as u64, 0, 0, 0, 0) }, 0);
        assert_eq!(std::hint::black_box(it)[0], 0);
    }
}
