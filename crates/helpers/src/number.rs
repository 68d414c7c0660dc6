//! Text and numbers: `bpf_strtol`, `bpf_strtoul`, `bpf_strncmp`.

use super::{errno, fail};

/// A number as text: what it is, and how many bytes it took.
struct Parsed {
    value: u64,
    negative: bool,
    consumed: u64,
}

/// Reads a number as the kernel does (kernel/bpf/helpers.c `__bpf_strtoull`): spaces, a minus sign,
/// a prefix that tells the base when `flags` do not, and digits, of which the first 63 characters
/// count.
///
/// # Safety
/// `text` is readable for `len` bytes.
#[inline(always)]
unsafe fn parse(text: u64, len: u64, flags: u64) -> Result<Parsed, i32> {
    const LONGEST: u64 = 63;
    let byte = |i: u64| {
        // SAFETY: a position below `len`.
        if i < len { unsafe { ((text + i) as *const u8).read_volatile() } } else { 0 }
    };
    if !matches!(flags, 0 | 8 | 10 | 16) || len == 0 {
        return Err(errno::EINVAL);
    }
    let mut at = 0;
    while at < len && matches!(byte(at), b' ' | 9..=13 | 0xa0) {
        at += 1;
    }
    let negative = byte(at) == b'-';
    at += u64::from(negative);
    if at >= len {
        return Err(errno::EINVAL);
    }
    let end = len.min(at + LONGEST);
    let byte = |i: u64| if i < end { byte(i) } else { 0 };
    let hex = byte(at) == b'0' && byte(at + 1) | 0x20 == b'x';
    let base = match flags {
        0 if hex && byte(at + 2).is_ascii_hexdigit() => 16,
        0 if byte(at) == b'0' => 8,
        0 => 10,
        base => base,
    };
    if base == 16 && hex {
        at += 2;
    }
    let (first, mut value, mut overflow) = (at, 0_u64, false);
    loop {
        let c = byte(at);
        let d = match c {
            b'0'..=b'9' => u64::from(c - b'0'),
            b'a'..=b'f' | b'A'..=b'F' => u64::from((c | 0x20) - b'a') + 10,
            _ => break,
        };
        if d >= base {
            break;
        }
        overflow |= value > (u64::MAX - d) / base;
        value = value.wrapping_mul(base).wrapping_add(d);
        at += 1;
    }
    match (overflow, at == first) {
        (true, _) => Err(errno::ERANGE),
        (_, true) => Err(errno::EINVAL),
        _ => Ok(Parsed { value, negative, consumed: at }),
    }
}

/// Stores the number, or 0 when there is none; returns how many bytes it took.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn strtol(text: u64, len: u64, flags: u64, to: u64, _: u64) -> u64 {
    // SAFETY: the verifier proved `text` readable for `len` bytes and `to` writable for eight.
    unsafe {
        (to as *mut u64).write_volatile(0);
        let n = match parse(text, len, flags) {
            Ok(n) => n,
            Err(e) => return fail(e),
        };
        let value = if n.negative { n.value.wrapping_neg() } else { n.value } as i64;
        if if n.negative { value > 0 } else { value < 0 } {
            return fail(errno::ERANGE);
        }
        (to as *mut i64).write_volatile(value);
        n.consumed
    }
}

/// As [`strtol`]; a negative number is no number.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn strtoul(text: u64, len: u64, flags: u64, to: u64, _: u64) -> u64 {
    // SAFETY: as above.
    unsafe {
        (to as *mut u64).write_volatile(0);
        match parse(text, len, flags) {
            Ok(n) if n.negative => fail(errno::EINVAL),
            Ok(n) => {
                (to as *mut u64).write_volatile(n.value);
                n.consumed
            }
            Err(e) => fail(e),
        }
    }
}

/// Compares at most `size` bytes with a constant string: -1, 0 or 1, as the kernel's `strncmp`.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn strncmp(a: u64, size: u64, b: u64, _: u64, _: u64) -> u64 {
    for i in 0..(size & 0xffff_ffff) as usize {
        // SAFETY: the verifier proved `a` readable for `size` bytes and `b` a terminated constant,
        // and both are equal so far.
        let (x, y) = unsafe {
            ((a as *const u8).add(i).read_volatile(), (b as *const u8).add(i).read_volatile())
        };
        if x != y {
            return if x < y { u64::MAX } else { 1 };
        }
        if x == 0 {
            break;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Numbers, Pair, call, words};

    /// Texts that look like numbers, most of them.
    fn text(n: &mut Numbers) -> Vec<u8> {
        let pieces: &[&[u8]] = &[
            b" ",
            b"\t",
            b"\x0b",
            b"\xa0",
            b"-",
            b"+",
            b"0",
            b"0x",
            b"0X",
            b"1",
            b"7",
            b"8",
            b"9",
            b"a",
            b"F",
            b"g",
            b"\0",
            b"18446744073709551615",
            b"9223372036854775808",
            b"ffffffffffffffff",
            b"1777777777777777777777",
            b"000000000000000000000000000000000000000000000000000000000000",
        ];
        (0..n.below(6)).flat_map(|_| n.pick(pieces).iter().copied()).take(120).collect()
    }

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        for helper in ["strtol", "strtoul"] {
            // Result, number, length, flags, text.
            let Some(pair) =
                Pair::new(&call(helper, &["at 32", "some 16 127", "word 24", "at 8"]), b"", 160)
            else {
                return;
            };
            let mut n = Numbers(1);
            for _ in 0..3000 {
                let text = text(&mut n);
                let len = if n.below(4) == 0 { n.below(127) } else { text.len() };
                let mut ctx = words(&[
                    0,
                    0x55,
                    len as u64,
                    n.pick(&[0, 0, 8, 10, 16, 16, 10, 7, 36, 32, 1 << 40]),
                ]);
                ctx.extend(&text);
                ctx.resize(32 + 128, b'5');
                pair.same(&ctx, &format!("{helper} {} {len}", text.escape_ascii()));
            }
        }
    }

    #[test]
    fn strings_compare_as_in_the_kernel() {
        for constant in [&b"skep\0"[..], b"\0", b"s\0kep\0", b"\xff\x01\0"] {
            let Some(pair) =
                Pair::new(&call("strncmp", &["at 16", "some 8 15", "value 0"]), constant, 32)
            else {
                return;
            };
            for len in 1..16 {
                for text in [
                    &b"skep\0\0\0\0"[..],
                    b"skeq\0\0\0\0",
                    b"ske\0\0\0\0\0",
                    b"skepskep",
                    b"\0\0\0\0\0\0\0\0",
                    b"\xff\x02\x80aaaaa",
                ] {
                    let mut ctx = words(&[0, len]);
                    ctx.extend(text);
                    ctx.extend(text);
                    pair.same(
                        &ctx,
                        &format!("{} {len} {}", text.escape_ascii(), constant.escape_ascii()),
                    );
                }
            }
        }
    }
}
