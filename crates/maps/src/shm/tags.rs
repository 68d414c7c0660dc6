//! Finding a byte among the first twelve of sixteen, in memory that others may write to.

use super::copy;

/// The registers that may be used: programs in the middle of an event must keep those for vectors.
pub(crate) trait Registers {
    /// Tells which of twelve bytes are a byte, and rarely of one too many: bit 0 is for the first.
    ///
    /// # Safety
    /// `p..p+16` is readable.
    unsafe fn equal(p: *const u8, byte: u8) -> u32;
}

/// General registers.
pub(crate) struct General;

/// Vector registers, too: for users' calls.
#[cfg(feature = "users")]
pub(crate) struct Vector;

/// What users' calls use.
#[cfg(feature = "users")]
pub(crate) type OfUsers = Vector;
#[cfg(not(feature = "users"))]
pub(crate) type OfUsers = General;

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;
/// Multiplied with this, the lowest bits of eight bytes come to be the highest byte.
const GATHER: u64 = 0x0102_0408_1020_4080;

impl Registers for General {
    #[inline(always)]
    unsafe fn equal(p: *const u8, byte: u8) -> u32 {
        let want = u64::from(byte).wrapping_mul(ONES);
        // SAFETY: the caller's duty.
        let (low, high) = unsafe { (copy::load8(p), copy::load4_at::<8>(p)) };
        // The lowest mark is right; of those above it, one may be too many.
        let low = low ^ want;
        let low = (low.wrapping_sub(ONES) & !low & TOPS) >> 7;
        let high = high ^ want as u32;
        let high = (high.wrapping_sub(ONES as u32) & !high & TOPS as u32) >> 7;
        let low = low.wrapping_mul(GATHER) >> 56;
        // Four bytes: their lowest bits come to be the lowest of the fourth.
        let high = high.wrapping_mul(0x0020_4081) >> 21 & 0xf;
        low as u32 | high << 8
    }
}

#[cfg(feature = "users")]
impl Registers for Vector {
    #[inline(always)]
    unsafe fn equal(p: *const u8, byte: u8) -> u32 {
        let want = u32::from(byte).wrapping_mul(ONES as u32);
        let found: u32;
        // SAFETY: the caller vouches for the sixteen bytes; SSE2 is part of x86-64.
        unsafe {
            std::arch::asm!(
                "movd {want}, {word:e}",
                "pshufd {want}, {want}, 0",
                "movdqu {bytes}, xmmword ptr [{p}]",
                "pcmpeqb {want}, {bytes}",
                "pmovmskb {found:e}, {want}",
                word = in(reg) want, p = in(reg) p,
                want = out(xmm_reg) _, bytes = out(xmm_reg) _, found = lateout(reg) found,
                options(nostack, readonly, preserves_flags)
            );
        }
        found & 0xfff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found() {
        let mut random = 7u64;
        for round in 0..20_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bytes = [0u8; 16];
            for (i, byte) in bytes.iter_mut().enumerate() {
                // Few different ones, and neighbors of each other.
                *byte = (random >> (i * 4)) as u8 & 3;
            }
            let byte = round as u8 & 3;
            let want: u32 = (0..12).filter(|i| bytes[*i] == byte).map(|i| 1 << i).sum();
            // SAFETY: there are sixteen.
            let (general, vector) = unsafe {
                (General::equal(bytes.as_ptr(), byte), Vector::equal(bytes.as_ptr(), byte))
            };
            assert_eq!(vector, want, "{bytes:?} {byte}");
            assert_eq!(general & want, want, "{bytes:?} {byte}");
            assert_eq!(general.trailing_zeros(), want.trailing_zeros(), "{bytes:?} {byte}");
        }
    }
}
