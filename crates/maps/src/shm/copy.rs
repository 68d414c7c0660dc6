//! Copies between private and shared memory, one aligned word at a time.
//!
//! Loads are inline assembly because the source may be shared memory or the stack of a running
//! program, of any alignment: for the compiler they are opaque, so a racing writer is no undefined
//! behavior, and no loop becomes `memcpy` or vector code. Shared destinations are eight-aligned
//! and have room up to the next multiple of eight; padding is written as zero.

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Loads eight bytes from any address.
///
/// # Safety
/// `p..p+8` is readable.
#[inline(always)]
pub(crate) unsafe fn load8(p: *const u8) -> u64 {
    let w: u64;
    // SAFETY: the caller vouches for the eight bytes; the instruction has no other effect.
    unsafe {
        asm!("mov {w}, qword ptr [{p}]", p = in(reg) p, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w
}

/// Loads the eight bytes at `p + i`, from any address.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(crate) unsafe fn load8_at(p: *const u8, i: usize) -> u64 {
    let w: u64;
    // SAFETY: as for `load8`.
    unsafe {
        asm!("mov {w}, qword ptr [{p} + {i}]", p = in(reg) p, i = in(reg) i, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w
}

/// Tells in which bits the eight bytes at `p + i` and `q + i` differ, of any addresses.
///
/// # Safety
/// Both are readable.
#[inline(always)]
pub(crate) unsafe fn differ8_at(p: *const u8, q: *const u8, i: usize) -> u64 {
    let w: u64;
    // SAFETY: as for `load8`, but for the flags.
    unsafe {
        asm!("mov {w}, qword ptr [{p} + {i}]", "xor {w}, qword ptr [{q} + {i}]", p = in(reg) p, q = in(reg) q, i = in(reg) i, w = out(reg) w, options(nostack, readonly))
    };
    w
}

/// Loads four bytes at an offset from any address.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(crate) unsafe fn load4_at<const OFFSET: usize>(p: *const u8) -> u32 {
    let w: u32;
    // SAFETY: as for `load8`.
    unsafe {
        asm!("mov {w:e}, dword ptr [{p} + {o}]", p = in(reg) p, o = const OFFSET, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w
}

/// Loads four bytes from any address.
///
/// # Safety
/// `p..p+4` is readable.
#[inline(always)]
pub(crate) unsafe fn load4(p: *const u8) -> u32 {
    let w: u32;
    // SAFETY: as for `load8`.
    unsafe {
        asm!("mov {w:e}, dword ptr [{p}]", p = in(reg) p, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w
}

/// Loads a byte.
///
/// # Safety
/// It is readable.
#[inline(always)]
pub(crate) unsafe fn load1(p: *const u8) -> u8 {
    let w: u32;
    // SAFETY: as for `load8`.
    unsafe {
        asm!("movzx {w:e}, byte ptr [{p}]", p = in(reg) p, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w as u8
}

/// Loads the byte at `p + i`.
///
/// # Safety
/// It is readable.
#[inline(always)]
pub(crate) unsafe fn load1_at(p: *const u8, i: usize) -> u64 {
    let w: u64;
    // SAFETY: as for `load8`.
    unsafe {
        asm!("movzx {w:e}, byte ptr [{p} + {i}]", p = in(reg) p, i = in(reg) i, w = lateout(reg) w, options(nostack, readonly, preserves_flags))
    };
    w
}

/// Loads `n` (below eight) bytes from any address into the low bytes of a word.
///
/// # Safety
/// `p..p+n` is readable.
#[inline(always)]
pub(crate) unsafe fn load_tail(p: *const u8, n: usize) -> u64 {
    // SAFETY: each load is inside `p..p+n`: of four to seven bytes the first four and the last four,
    // of one to three the first, the middle and the last, which may be the same.
    unsafe {
        if n & 4 != 0 {
            let behind = n.wrapping_sub(4) & 3;
            let (low, high) = (load4(p), load4(p.add(behind)));
            return u64::from(low) | u64::from(high) << (behind << 3);
        }
        if n == 0 {
            return 0;
        }
        let byte = |i: usize| u64::from(load1(p.add(i))) << (i << 3);
        byte(0) | byte(n >> 1 & 1) | byte(n.wrapping_sub(1) & 3)
    }
}

/// Copies `len` bytes into shared memory.
///
/// # Safety
/// `src..src+len` is readable; `dst` is eight-aligned and writable up to `len` rounded up to eight.
#[inline(always)]
pub(crate) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    if len == 8 {
        // What most keys and values are.
        // SAFETY: the caller's duty.
        unsafe { AtomicU64::from_ptr(dst.cast()).store(load8(src), Relaxed) };
        return;
    }
    let mut i = 0usize;
    // SAFETY: `i` stays below `len`, whole words first, then one padded word; see the caller's
    // duties.
    unsafe {
        while len.wrapping_sub(i) >= 8 {
            AtomicU64::from_ptr(dst.add(i).cast()).store(load8(src.add(i)), Relaxed);
            i = i.wrapping_add(8);
        }
        if i < len {
            AtomicU64::from_ptr(dst.add(i).cast())
                .store(load_tail(src.add(i), len.wrapping_sub(i)), Relaxed);
        }
    }
}

/// Stores eight bytes at any address.
///
/// # Safety
/// `p..p+8` is writable.
#[inline(always)]
unsafe fn store8(p: *mut u8, w: u64) {
    // SAFETY: the caller vouches for the eight bytes.
    unsafe {
        asm!("mov qword ptr [{p}], {w}", p = in(reg) p, w = in(reg) w, options(nostack, preserves_flags))
    };
}

/// Stores four bytes at any address.
///
/// # Safety
/// `p..p+4` is writable.
#[inline(always)]
unsafe fn store4(p: *mut u8, w: u32) {
    // SAFETY: the caller vouches for the four bytes.
    unsafe {
        asm!("mov dword ptr [{p}], {w:e}", p = in(reg) p, w = in(reg) w, options(nostack, preserves_flags))
    };
}

/// Stores a byte.
///
/// # Safety
/// It is writable.
#[inline(always)]
unsafe fn store1(p: *mut u8, b: u8) {
    // SAFETY: the caller vouches for the byte.
    unsafe {
        asm!("mov byte ptr [{p}], {b}", p = in(reg) p, b = in(reg_byte) b, options(nostack, preserves_flags))
    };
}

/// Up to here words are faster than `rep movsb`, which takes long to begin.
const SHORT: usize = 128;

/// Copies `len` bytes to any address.
///
/// Where a length is not a multiple of eight, the last word overlaps the one before: lengths of text
/// differ from one to the next, and each branch that depends on them is one that the processor cannot
/// foresee.
///
/// # Safety
/// `src..src+len` is readable, `dst..dst+len` writable, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn store_bytes(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges, and all of it is inside them; `rep movsb` uses no
    // other registers, and the direction flag is clear by the ABI.
    unsafe {
        if len > SHORT {
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _, options(nostack, preserves_flags));
        } else if len >= 8 {
            let last = len.wrapping_sub(8);
            // All of it, when it is no longer than this.
            let (second, third) = (last.min(8), last.min(16));
            store8(dst, load8(src));
            store8(dst.add(second), load8(src.add(second)));
            store8(dst.add(third), load8(src.add(third)));
            let mut i = 24usize;
            while i < last {
                store8(dst.add(i), load8(src.add(i)));
                i = i.wrapping_add(8);
            }
            store8(dst.add(last), load8(src.add(last)));
        } else if len >= 4 {
            let last = len.wrapping_sub(4);
            store4(dst, load4(src));
            store4(dst.add(last), load4(src.add(last)));
        } else if len != 0 {
            let (middle, last) = (len >> 1, len.wrapping_sub(1));
            store1(dst, load1(src));
            store1(dst.add(middle), load1(src.add(middle)));
            store1(dst.add(last), load1(src.add(last)));
        }
    }
}

/// Copies `len` bytes, sixteen at least, by vector registers: for users' calls, as programs in
/// the middle of an event must keep these. As in [`store_bytes`], the last pieces overlap, and up to
/// 64 bytes are one case.
///
/// # Safety
/// `src..src+len` is readable, `dst..dst+len` writable, and they do not overlap.
#[cfg(feature = "users")]
#[inline(always)]
pub(crate) unsafe fn load_pieces(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller vouches for both; SSE2 is part of x86-64. The destination is nobody else's.
    let piece = |i: usize| unsafe {
        let piece: std::arch::x86_64::__m128i;
        asm!("movdqu {w}, xmmword ptr [{src}]", src = in(reg) src.add(i), w = out(xmm_reg) piece, options(nostack, readonly, preserves_flags));
        dst.add(i).cast::<std::arch::x86_64::__m128i>().write_unaligned(piece);
    };
    all_pieces(len.wrapping_sub(16), piece);
}

/// Calls `piece` for pieces of sixteen bytes from 0 to one at `last`, some of them more than once.
#[cfg(feature = "users")]
#[inline(always)]
fn all_pieces(last: usize, piece: impl Fn(usize)) {
    piece(0);
    piece(last.min(16));
    piece(last.min(32));
    piece(last);
    let mut i = 48usize;
    while i < last {
        piece(i);
        piece(last.min(i.wrapping_add(16)));
        piece(last.min(i.wrapping_add(32)));
        piece(last.min(i.wrapping_add(48)));
        i = i.wrapping_add(64);
    }
}

/// Copies `len` bytes to the beginning of `dst`, and clears the rest of it, as [`load_pieces`] does: no
/// branch depends on lengths up to 64.
///
/// # Safety
/// `src..src+len` is readable, and so are sixteen bytes; `dst` has sixteen and `len` at least.
#[cfg(feature = "users")]
#[inline(always)]
pub(crate) unsafe fn load_padded(dst: &mut [u8], src: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_and_si128, _mm_loadu_si128, _mm_setzero_si128};
    /// Sixteen bytes from the sixteenth less a number on are as many that are all ones, and zeros.
    static FIRST: [u8; 32] = {
        let mut bytes = [0; 32];
        let mut i = 0;
        while i < 16 {
            (bytes[i], i) = (0xff, i + 1);
        }
        bytes
    };
    let to = dst.as_mut_ptr();
    let (end, last, mut i) = (dst.len().wrapping_sub(16), len.saturating_sub(16), 0usize);
    // SAFETY: the caller vouches for both, and no piece goes behind the end of either.
    unsafe {
        // Not for the compiler to call `memset`: most rests are short.
        let zero = |i: usize| {
            asm!("movups xmmword ptr [{to}], {w}", to = in(reg) to.add(i), w = in(xmm_reg) _mm_setzero_si128(), options(nostack, preserves_flags));
        };
        let load = |i: usize| {
            let piece: __m128i;
            asm!("movdqu {w}, xmmword ptr [{src}]", src = in(reg) src.add(i), w = out(xmm_reg) piece, options(nostack, readonly, preserves_flags));
            piece
        };
        let copy = |i: usize| to.add(i).cast::<__m128i>().write_unaligned(load(i));
        while i < end {
            zero(i);
            i = i.wrapping_add(16);
        }
        zero(end);
        all_pieces(last, copy);
        // Of a short one all pieces were this one, with what lies behind it.
        let mask = _mm_loadu_si128(FIRST.as_ptr().add(16usize.wrapping_sub(len.min(16))).cast());
        to.cast::<__m128i>().write_unaligned(_mm_and_si128(load(0), mask));
    }
}

/// Copies eight words of 32 bits, with `REVERSED` the last one first; tells which are odd. By vector
/// registers, as [`load_pieces`].
///
/// # Safety
/// `src` has eight readable words.
#[inline(always)]
pub(crate) unsafe fn load_links<const REVERSED: bool>(dst: &mut [u32; 8], src: *const u32) -> u32 {
    use std::arch::x86_64::{__m128i, _mm_shuffle_epi32};
    let marks = |four: __m128i| {
        let odd: u32;
        // SAFETY: SSE2 is part of x86-64. (Of intrinsics, the compiler makes longer ones.)
        unsafe {
            asm!("pslld {w}, 31", "movmskps {odd:e}, {w}", w = inout(xmm_reg) four => _, odd = lateout(reg) odd, options(nomem, nostack, pure, preserves_flags));
        }
        odd
    };
    // SAFETY: the caller vouches for the words; SSE2 is part of x86-64.
    unsafe {
        let (mut low, mut high): (__m128i, __m128i);
        asm!("movdqu {low}, xmmword ptr [{src}]", "movdqu {high}, xmmword ptr [{src} + 16]", src = in(reg) src, low = out(xmm_reg) low, high = out(xmm_reg) high, options(nostack, readonly, preserves_flags));
        if REVERSED {
            (low, high) = (_mm_shuffle_epi32::<0x1b>(high), _mm_shuffle_epi32::<0x1b>(low));
        }
        let to = dst.as_mut_ptr().cast::<__m128i>();
        to.write_unaligned(low);
        to.add(1).write_unaligned(high);
        marks(low) | marks(high) << 4
    }
}

/// Zeroes `len` bytes at any address.
///
/// # Safety
/// `dst..dst+len` is writable.
#[inline(always)]
pub(crate) unsafe fn zero_bytes(dst: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the range, and all of it is inside; `rep stosb` uses no other
    // registers, and the direction flag is clear by the ABI.
    unsafe {
        if len > SHORT {
            asm!("rep stosb", inout("rcx") len => _, inout("rdi") dst => _, in("al") 0u8, options(nostack, preserves_flags));
        } else if len >= 8 {
            let last = len.wrapping_sub(8);
            let mut i = 0usize;
            while i < last {
                store8(dst.add(i), 0);
                i = i.wrapping_add(8);
            }
            store8(dst.add(last), 0);
        } else if len >= 4 {
            store4(dst, 0);
            store4(dst.add(len.wrapping_sub(4)), 0);
        } else if len != 0 {
            store1(dst, 0);
            store1(dst.add(len >> 1), 0);
            store1(dst.add(len.wrapping_sub(1)), 0);
        }
    }
}

/// Zeroes `len` bytes of shared memory.
///
/// # Safety
/// `dst` is eight-aligned and writable up to `len` rounded up to eight.
#[inline(always)]
pub(crate) unsafe fn zero(dst: *mut u8, len: usize) {
    let mut i = 0usize;
    while i < len {
        // SAFETY: `i < len`, a multiple of eight.
        unsafe { AtomicU64::from_ptr(dst.add(i).cast()).store(0, Relaxed) };
        i = i.wrapping_add(8);
    }
}

/// Copies shared memory into a private buffer.
///
/// # Safety
/// `src` is eight-aligned and readable up to `dst.len()` rounded up to eight.
#[inline(always)]
pub(crate) unsafe fn load(dst: &mut [u8], src: *const u8) {
    // SAFETY: word `i` begins inside the source, and the source has whole words.
    let word =
        |i: usize| unsafe { AtomicU64::from_ptr(src.add(i * 8).cast_mut().cast()).load(Relaxed) };
    // What most keys and values are.
    if let Ok(dst) = <&mut [u8; 8]>::try_from(&mut *dst) {
        *dst = word(0).to_ne_bytes();
        return;
    }
    let (whole, tail) = dst.as_chunks_mut::<8>();
    for (i, part) in whole.iter_mut().enumerate() {
        *part = word(i).to_ne_bytes();
    }
    if !tail.is_empty() {
        for (to, from) in tail.iter_mut().zip(word(whole.len()).to_ne_bytes()) {
            *to = from;
        }
    }
}

/// Compares a key in shared memory (zero-padded to eight) with a key elsewhere.
///
/// # Safety
/// `shared` is eight-aligned and readable up to `len` rounded up to eight; `key..key+len` is
/// readable.
#[inline(always)]
pub(crate) unsafe fn same(shared: *const u8, key: *const u8, len: usize) -> bool {
    if len == 8 {
        // SAFETY: the caller's duty.
        return unsafe {
            AtomicU64::from_ptr(shared.cast_mut().cast()).load(Relaxed) == load8(key)
        };
    }
    let mut i = 0usize;
    // SAFETY: as in `store`, with both sides only read.
    unsafe {
        while len.wrapping_sub(i) >= 8 {
            if AtomicU64::from_ptr(shared.add(i).cast_mut().cast()).load(Relaxed)
                != load8(key.add(i))
            {
                return false;
            }
            i = i.wrapping_add(8);
        }
        i >= len
            || AtomicU64::from_ptr(shared.add(i).cast_mut().cast()).load(Relaxed)
                == load_tail(key.add(i), len.wrapping_sub(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_anywhere_and_nowhere_else() {
        let src: Vec<u8> = (0..=255).collect();
        for len in (0..40).chain([127, 128, 129, 200]) {
            for skew in 0..9 {
                let mut out = [0xeeu8; 256];
                // SAFETY: `len + 2 * skew` is below 256.
                unsafe { store_bytes(out.as_mut_ptr().add(2 * skew), src.as_ptr().add(skew), len) };
                assert_eq!(out[2 * skew..][..len], src[skew..][..len]);
                assert!(
                    out[..2 * skew].iter().chain(&out[2 * skew + len..]).all(|b| *b == 0xee),
                    "{len} at {skew}"
                );
            }
        }
    }

    #[test]
    fn pieces_go_where_bytes_do() {
        let src: Vec<u8> = (0..=255).rev().collect();
        for len in (0..100).chain([127, 128, 129, 200]) {
            for skew in 0..9 {
                let from = &src[skew..];
                if len >= 16 {
                    let mut out = [0xeeu8; 256];
                    // SAFETY: `len + 2 * skew` is below 256.
                    unsafe { load_pieces(out.as_mut_ptr().add(2 * skew), from.as_ptr(), len) };
                    assert_eq!(out[2 * skew..][..len], from[..len]);
                    let mut others = out[..2 * skew].iter().chain(&out[2 * skew + len..]);
                    assert!(others.all(|b| *b == 0xee), "{len} at {skew}");
                }
                for room in [len.max(16), len.max(16) + 1, len + 40] {
                    let mut out = vec![0xee; room];
                    // SAFETY: there is as much behind `from`, and room for it.
                    unsafe { load_padded(&mut out, from.as_ptr(), len) };
                    assert_eq!(out[..len], from[..len], "{len} of {room} at {skew}");
                    assert!(out[len..].iter().all(|b| *b == 0), "{len} of {room} at {skew}");
                }
            }
        }
    }

    #[test]
    fn links_are_copied_in_both_orders() {
        let src: [u32; 11] = std::array::from_fn(|i| 0x1234_5600 + (i * i * i / 3) as u32);
        for first in 0..3 {
            let eight: &[u32; 8] = src[first..].first_chunk().expect("there are");
            let odd = |all: &[u32; 8]| (0..8).map(|i| (all[i] & 1) << i).sum::<u32>();
            let mut reversed = *eight;
            reversed.reverse();
            let mut out = [0; 8];
            // SAFETY: there are eight.
            let marks = unsafe { load_links::<false>(&mut out, eight.as_ptr()) };
            assert_eq!((out, marks), (*eight, odd(eight)));
            // SAFETY: as before.
            let marks = unsafe { load_links::<true>(&mut out, eight.as_ptr()) };
            assert_eq!((out, marks), (reversed, odd(&reversed)));
        }
    }

    #[test]
    fn every_length_and_alignment_copies_and_compares() {
        let src: Vec<u8> = (1..=64).collect();
        for len in 0..40 {
            for skew in 0..9 {
                let mut shared = [u64::MAX; 8];
                let p = shared.as_mut_ptr().cast::<u8>();
                let mut out = vec![0; len];
                // SAFETY: `shared` holds 64 bytes, `src` 64, `len + skew` at most 48.
                unsafe {
                    store(p, src.as_ptr().add(skew), len);
                    load(&mut out, p);
                    assert!(same(p, src.as_ptr().add(skew), len));
                    if len > 0 {
                        assert!(!same(p, src.as_ptr().add(skew + 1), len));
                    }
                }
                assert_eq!(out, src[skew..skew + len]);
                let bytes: Vec<u8> = shared.iter().flat_map(|w| w.to_ne_bytes()).collect();
                assert!(
                    bytes[len..len.next_multiple_of(8)].iter().all(|b| *b == 0),
                    "padding is zero"
                );
                assert!(
                    bytes[len.next_multiple_of(8)..].iter().all(|b| *b == 0xff),
                    "nothing behind it is touched"
                );
            }
        }
    }
}
