//! Strings at any address: `bpf_strcmp` and its like (kernel/bpf/helpers.c). What cannot be read is
//! `-EFAULT`, `-ERANGE` when it is so from the first byte on and no address of the kernel's; what
//! has no end is `-E2BIG`.

use super::{errno, int, probe};

/// Longest string that is looked at (`XATTR_SIZE_MAX`).
const LONGEST: u64 = 65_536;

/// Reads bytes, a piece of memory at a time.
struct Text {
    from: u64,
    piece: [u8; 64],
    at: u64,
    len: u64,
}

impl Text {
    /// Begins a string.
    fn new(from: u64) -> Result<Self, i32> {
        let mut text = Self { from, piece: [0; 64], at: 0, len: 0 };
        text.byte(0).map_err(|e| if from < probe::TASK_SIZE { errno::ERANGE } else { e })?;
        Ok(text)
    }

    fn byte(&mut self, n: u64) -> Result<u8, i32> {
        if n.wrapping_sub(self.at) >= self.len {
            let from = self.from.wrapping_add(n);
            // Not beyond a page: what is behind it may be nobody's.
            let len = (4096 - from % 4096).min(64);
            // SAFETY: the piece has 64 bytes.
            let got = unsafe { probe::copy(self.piece.as_mut_ptr() as u64, from, len) };
            (self.at, self.len) = (n, got);
            if got == 0 {
                return Err(errno::EFAULT);
            }
        }
        Ok(self.piece.get(n.wrapping_sub(self.at) as usize).copied().unwrap_or(0))
    }
}

/// An `int`, or a negated errno, as a function returns it.
fn answer(r: Result<i64, i32>) -> u64 {
    int(r.unwrap_or_else(|e| -i64::from(e)) as u64)
}

fn compare(a: u64, b: u64, fold: fn(u8) -> u8) -> Result<i64, i32> {
    let (mut a, mut b) = (Text::new(a)?, Text::new(b)?);
    for n in 0..LONGEST {
        let (x, y) = (fold(a.byte(n)?), fold(b.byte(n)?));
        if x != y {
            return Ok(if x < y { -1 } else { 1 });
        }
        if x == 0 {
            return Ok(0);
        }
    }
    Err(errno::E2BIG)
}

pub(super) unsafe extern "C" fn strcmp(a: u64, b: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(compare(a, b, |c| c))
}

/// Letters are those of Latin-1, as in the kernel (lib/ctype.c).
pub(super) unsafe extern "C" fn strcasecmp(a: u64, b: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(compare(a, b, |c| match c {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => c + 32,
        _ => c,
    }))
}

fn length(text: u64, count: u64) -> Result<i64, i32> {
    let mut text = Text::new(text)?;
    for n in 0..count.min(LONGEST) {
        if text.byte(n)? == 0 {
            return Ok(n as i64);
        }
    }
    if count >= LONGEST { Err(errno::E2BIG) } else { Ok(count as i64) }
}

pub(super) unsafe extern "C" fn strlen(text: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(length(text, LONGEST))
}

pub(super) unsafe extern "C" fn strnlen(text: u64, count: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(length(text, count))
}

fn find(text: u64, count: u64, byte: u8) -> Result<i64, i32> {
    let mut text = Text::new(text)?;
    for n in 0..count.min(LONGEST) {
        match text.byte(n)? {
            c if c == byte => return Ok(n as i64),
            0 => return Err(errno::ENOENT),
            _ => {}
        }
    }
    Err(if count >= LONGEST { errno::E2BIG } else { errno::ENOENT })
}

pub(super) unsafe extern "C" fn strchr(text: u64, byte: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(find(text, LONGEST, byte as u8))
}

pub(super) unsafe extern "C" fn strnchr(text: u64, count: u64, byte: u64, _: u64, _: u64) -> u64 {
    answer(find(text, count, byte as u8))
}

/// As [`strchr`]; where there is none, the end.
pub(super) unsafe extern "C" fn strchrnul(text: u64, byte: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(Text::new(text).and_then(|text| prefix(text, |c| Ok(c != byte as u8))))
}

/// Counts the bytes up to the end, or the first that is not wanted.
fn prefix(mut text: Text, mut wanted: impl FnMut(u8) -> Result<bool, i32>) -> Result<i64, i32> {
    for n in 0..LONGEST {
        let c = text.byte(n)?;
        if c == 0 || !wanted(c)? {
            return Ok(n as i64);
        }
    }
    Err(errno::E2BIG)
}

pub(super) unsafe extern "C" fn strrchr(text: u64, byte: u64, _: u64, _: u64, _: u64) -> u64 {
    let last = |mut text: Text| {
        let mut last = Err(errno::ENOENT);
        for n in 0..LONGEST {
            let c = text.byte(n)?;
            if u64::from(c) == byte & 0xffff_ffff {
                last = Ok(n as i64);
            }
            if c == 0 {
                return last;
            }
        }
        Err(errno::E2BIG)
    };
    answer(Text::new(text).and_then(last))
}

fn span(text: u64, set: u64, inside: bool) -> Result<i64, i32> {
    let (text, mut set) = (Text::new(text)?, Text::new(set)?);
    prefix(text, |c| {
        for n in 0..LONGEST {
            match set.byte(n)? {
                0 => return Ok(!inside),
                s if s == c => return Ok(inside),
                _ => {}
            }
        }
        Err(errno::E2BIG)
    })
}

pub(super) unsafe extern "C" fn strspn(text: u64, accept: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(span(text, accept, true))
}

pub(super) unsafe extern "C" fn strcspn(text: u64, reject: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(span(text, reject, false))
}

/// Where in the first `len` bytes the string `what` begins.
fn search(text: u64, what: u64, len: u64) -> Result<i64, i32> {
    let (mut text, mut what) = (Text::new(text)?, Text::new(what)?);
    for at in 0..LONGEST {
        let mut n = 0;
        while at + n <= len && n < LONGEST {
            let wanted = what.byte(n)?;
            if wanted == 0 {
                return Ok(at as i64);
            }
            // The end of `what` may be asked for behind the last byte, the text not.
            if at + n == len {
                break;
            }
            match text.byte(at + n)? {
                0 => return Err(errno::ENOENT),
                c if c != wanted => break,
                _ => n += 1,
            }
        }
        if n == LONGEST {
            return Err(errno::E2BIG);
        }
        if at + n == len {
            return Err(errno::ENOENT);
        }
    }
    Err(errno::E2BIG)
}

pub(super) unsafe extern "C" fn strstr(text: u64, what: u64, _: u64, _: u64, _: u64) -> u64 {
    answer(search(text, what, LONGEST))
}

pub(super) unsafe extern "C" fn strnstr(text: u64, what: u64, len: u64, _: u64, _: u64) -> u64 {
    answer(search(text, what, len))
}

#[cfg(test)]
mod tests {
    use crate::oracle::{Numbers, Pair, call, words};

    const AT: usize = 64;
    const AGAIN: usize = 320;

    #[test]
    fn strings_are_what_the_kernel_takes_them_for() {
        let cases: &[(&str, &[&str])] = &[
            ("bpf_strcmp", &["at 64", "at 320"]),
            ("bpf_strcasecmp", &["at 64", "at 320"]),
            ("bpf_strlen", &["at 64"]),
            ("bpf_strnlen", &["at 64", "word 8"]),
            ("bpf_strchr", &["at 64", "word 16"]),
            ("bpf_strchrnul", &["at 64", "word 16"]),
            ("bpf_strnchr", &["at 64", "word 8", "word 16"]),
            ("bpf_strrchr", &["at 64", "word 16"]),
            ("bpf_strspn", &["at 64", "at 320"]),
            ("bpf_strcspn", &["at 64", "at 320"]),
            ("bpf_strstr", &["at 64", "at 320"]),
            ("bpf_strnstr", &["at 64", "at 320", "word 8"]),
        ];
        for (name, args) in cases {
            let asm = call(name, args).replace("stxdw [%r6+0]", "stxw [%r6+0]");
            let Some(pair) = Pair::new(&asm, b"", 512) else { return };
            let mut n = Numbers(4);
            for _ in 0..1500 {
                let letters = n.pick(&[&b"ab"[..], b"abcABC", b"aA\xc4\xe4\xd7\xf7\xdf\xff"]);
                let mut text = |most: usize| -> Vec<u8> {
                    (0..n.below(most)).map(|_| n.pick(letters)).collect()
                };
                let long = text(150);
                let short = if long.is_empty() {
                    text(4)
                } else {
                    long[long.len() / 2..].iter().copied().take(text(8).len()).collect()
                };
                let mut memory = words(&[
                    0,
                    n.pick(&[0, 1, 2, 5, 70, 149, 65_536, 65_537, u64::MAX - 1]) + n.next() % 2,
                ]);
                memory.extend(words(&[n.pick(&[0, 97, 98, 65, 0xc4, 0x161, u64::MAX])]));
                memory.resize(512, 0);
                memory[AT..AT + long.len()].copy_from_slice(&long);
                memory[AGAIN..AGAIN + short.len()].copy_from_slice(&short);
                pair.same(
                    &memory,
                    &format!("{name} {} {}", long.escape_ascii(), short.escape_ascii()),
                );
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let text = c"text";
        // SAFETY: strings at any address are what these take.
        unsafe {
            assert_eq!(super::strlen(8, 0, 0, 0, 0) as i32, -34);
            assert_eq!(super::strlen(1 << 63, 0, 0, 0, 0) as i32, -14);
            assert_eq!(super::strcmp(text.as_ptr() as u64, 0, 0, 0, 0) as i32, -34);
            assert_eq!(super::strlen(text.as_ptr() as u64, 0, 0, 0, 0), 4);
        }
    }
}
