//! The kernel's formatted text for programs: which formats are allowed (kernel/bpf/helpers.c
//! `bpf_bprintf_prepare`) and what they print (lib/vsprintf.c `bstr_printf`).
//!
//! Two passes, as there: [`Args::prepare`] checks the whole format and copies what the arguments
//! point to, so that a format that is refused writes nothing; [`print`] then cannot fail. What
//! differs: `%p` and `%pK` print the address, where the kernel prints a hash of it, and `%ps`,
//! `%pS` and `%pB` print `0x…`, as the kernel does for an address that is not its own.
//!
//! No buffer is zeroed and no array copied: both would be calls of the C library, whose string
//! functions use wide vector registers that nobody has saved.

use std::mem::MaybeUninit;

use super::errno;

/// Bytes that copied arguments may take together (`MAX_BPRINTF_BIN_ARGS`).
const ROOM: usize = 512;

/// Values as the program has them.
#[derive(Clone, Copy)]
pub(super) struct Values {
    pub(super) first: *const u64,
    pub(super) count: usize,
}

impl Values {
    /// # Safety
    /// `first` is readable for `count` words.
    #[inline(always)]
    unsafe fn get(self, i: usize) -> u64 {
        // SAFETY: i < count, which every caller has checked.
        if i < self.count { unsafe { self.first.add(i).read_unaligned() } } else { 0 }
    }
}

/// A format: up to its zero, which lies within `size`.
#[derive(Clone, Copy)]
struct Format {
    at: *const u8,
    len: usize,
}

impl Format {
    /// Finds the zero; `None` without one.
    ///
    /// # Safety
    /// `at` is readable for `size` bytes, or up to its zero.
    unsafe fn new(at: *const u8, size: usize) -> Option<Self> {
        let mut len = 0;
        while len < size {
            // SAFETY: len < size, and no zero before.
            if unsafe { at.add(len).read_volatile() } == 0 {
                return Some(Self { at, len });
            }
            len += 1;
        }
        None
    }

    #[inline(always)]
    fn byte(self, i: usize) -> u8 {
        // SAFETY: inside the format, which the caller of `new` vouched for.
        if i < self.len { unsafe { self.at.add(i).read_volatile() } } else { 0 }
    }
}

fn is_space(c: u8) -> bool {
    matches!(c, b' ' | 0x09..=0x0d | 0xa0)
}

/// Tells whether a conversion may end before this character.
fn ends(c: u8) -> bool {
    c == 0 || is_space(c) || c.is_ascii_punctuation()
}

/// The checked format with copies of its arguments.
pub(super) struct Args {
    format: Format,
    bytes: MaybeUninit<[u8; ROOM]>,
    used: usize,
}

impl Args {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self {
            format: Format { at: std::ptr::null(), len: 0 },
            bytes: MaybeUninit::uninit(),
            used: 0,
        }
    }

    /// Checks a format and copies its arguments; an errno when it is refused.
    ///
    /// # Safety
    /// `format` is readable for `size` bytes or up to its zero, and `values` as long as it says.
    pub(super) unsafe fn prepare(
        &mut self,
        format: *const u8,
        size: usize,
        values: Values,
    ) -> Result<(), i32> {
        // SAFETY: passed on.
        let Some(format) = (unsafe { Format::new(format, size) }) else {
            return Err(errno::EINVAL);
        };
        self.format = format;
        let mut n = 0;
        let mut i = 0;
        while i < format.len {
            let c = format.byte(i);
            if c.is_ascii() && !c.is_ascii_graphic() && !is_space(c) {
                return Err(errno::EINVAL);
            }
            if c != b'%' {
                i += 1;
                continue;
            }
            if format.byte(i + 1) == b'%' {
                i += 2;
                continue;
            }
            if n >= values.count {
                return Err(errno::EINVAL);
            }
            // SAFETY: n < count.
            let value = unsafe { values.get(n) };
            n += 1;
            i += 1;
            while matches!(format.byte(i), b'0' | b'+' | b'-' | b' ') {
                i += 1;
            }
            while format.byte(i).is_ascii_digit() {
                i += 1;
            }
            i = self.convert(i, value)?;
        }
        Ok(())
    }

    /// Copies the argument of the conversion at `i`; returns where the text goes on.
    fn convert(&mut self, i: usize, value: u64) -> Result<usize, i32> {
        let f = self.format;
        let (next, after) = (f.byte(i + 1), f.byte(i + 2));
        match f.byte(i) {
            b'p' if ends(next) => self.word(value, 8).map(|()| i + 1),
            b'p' if matches!(next, b'k' | b'u') && after == b's' => self.string(i + 2, value),
            b'p' if matches!(next, b'K' | b'x' | b's' | b'S') => {
                self.word(value, 8).map(|()| i + 2)
            }
            b'p' if next == b'B' => {
                self.hex(value);
                Ok(i + 2)
            }
            b'p' if matches!(next, b'i' | b'I') && matches!(after, b'4' | b'6') => {
                self.ip(value, next == b'i', if after == b'4' { 4 } else { 16 })?;
                Ok(i + 3)
            }
            b's' => self.string(i, value),
            b'c' => {
                if self.used >= ROOM {
                    return Err(errno::ENOSPC);
                }
                self.push(value as u8);
                Ok(i + 1)
            }
            _ => {
                let longs =
                    usize::from(f.byte(i) == b'l') + usize::from(f.byte(i) == b'l' && next == b'l');
                let kind = i + longs;
                if !matches!(f.byte(kind), b'i' | b'd' | b'u' | b'x' | b'X') {
                    return Err(errno::EINVAL);
                }
                self.word(value, if longs == 0 { 4 } else { 8 }).map(|()| kind + 1)
            }
        }
    }

    #[inline(always)]
    fn push(&mut self, byte: u8) {
        if self.used < ROOM {
            // SAFETY: inside the array.
            unsafe { self.bytes.as_mut_ptr().cast::<u8>().add(self.used).write_volatile(byte) };
            self.used += 1;
        }
    }

    /// Stores the low `size` bytes at the next multiple of four.
    fn word(&mut self, value: u64, size: usize) -> Result<(), i32> {
        self.used = (self.used + 3) & !3;
        if ROOM.saturating_sub(self.used) < size {
            return Err(errno::ENOSPC);
        }
        (0..size).for_each(|i| self.push((value >> (i * 8)) as u8));
        Ok(())
    }

    /// Copies the string at `from`; one that cannot be read is empty.
    fn string(&mut self, i: usize, from: u64) -> Result<usize, i32> {
        if !ends(self.format.byte(i + 1)) {
            return Err(errno::EINVAL);
        }
        let room = ROOM - self.used;
        if room == 0 {
            return Err(errno::ENOSPC);
        }
        // SAFETY: `room` bytes of the array are left.
        let n = unsafe {
            super::probe::read_str(
                self.bytes.as_mut_ptr().cast::<u8>().add(self.used) as u64,
                room as u64,
                from,
                0,
                0,
            )
        };
        if n > room as u64 {
            self.push(0);
        } else {
            self.used += n as usize;
        }
        Ok(i + 1)
    }

    fn hex(&mut self, value: u64) {
        self.push(b'0');
        self.push(b'x');
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(1);
        (0..digits).rev().for_each(|d| self.push(digit(value >> (d * 4) & 15, b'a')));
        self.push(0);
    }

    fn ip(&mut self, from: u64, plain: bool, len: usize) -> Result<(), i32> {
        if ROOM - self.used < len {
            return Err(errno::ENOSPC);
        }
        let mut address = [0_u64; 2];
        // SAFETY: `address` is writable for its sixteen bytes, and what cannot be read stays zero.
        unsafe { super::probe::read(address.as_mut_ptr() as u64, len as u64, from, 0, 0) };
        for i in 0..len {
            let byte = (if i < 8 { address[0] } else { address[1] }) >> (i % 8 * 8) & 0xff;
            if len == 16 {
                self.push(digit(byte >> 4, b'a'));
                self.push(digit(byte & 15, b'a'));
                if !plain && i % 2 == 1 && i < 15 {
                    self.push(b':');
                }
                continue;
            }
            for unit in [100, 10, 1] {
                if plain || byte >= unit || unit == 1 {
                    self.push(digit(byte / unit % 10, b'a'));
                }
            }
            if i < 3 {
                self.push(b'.');
            }
        }
        self.push(0);
        Ok(())
    }

    #[inline(always)]
    fn at(&self, i: usize) -> u8 {
        if i < self.used {
            // SAFETY: below `used`, which was written.
            unsafe { self.bytes.as_ptr().cast::<u8>().add(i).read_volatile() }
        } else {
            0
        }
    }

    fn take_word(&self, pos: &mut usize, size: usize) -> u64 {
        *pos = (*pos + 3) & !3;
        let value = (0..size).fold(0, |v, i| v | u64::from(self.at(*pos + i)) << (i * 8));
        *pos += size;
        value
    }

    /// Length of the string at `pos`.
    fn string_len(&self, pos: usize) -> usize {
        let mut n = 0;
        while self.at(pos + n) != 0 {
            n += 1;
        }
        n
    }
}

#[inline(always)]
fn digit(d: u64, letter: u8) -> u8 {
    let d = d as u8;
    if d < 10 { b'0'.wrapping_add(d) } else { letter.wrapping_add(d.wrapping_sub(10)) }
}

/// Where text goes: the bytes that fit are written, all are counted.
struct Out {
    at: *mut u8,
    room: usize,
    len: usize,
}

impl Out {
    #[inline(always)]
    fn push(&mut self, byte: u8) {
        if self.len < self.room {
            // SAFETY: len < room, and who made this vouched for the room.
            unsafe { self.at.add(self.len).write_volatile(byte) };
        }
        self.len = self.len.wrapping_add(1);
    }

    fn pad(&mut self, with: u8, count: usize) {
        let shown = count.min(self.room.saturating_sub(self.len));
        (0..shown).for_each(|_| self.push(with));
        self.len = self.len.wrapping_add(count - shown);
    }
}

struct Spec {
    width: Option<usize>,
    zero: bool,
    left: bool,
    plus: bool,
    space: bool,
}

impl Spec {
    fn number(&self, out: &mut Out, n: u64, sign: Option<u8>, base: u64, letter: u8) {
        let mut digits = [const { MaybeUninit::<u8>::uninit() }; 24];
        let (mut count, mut rest) = (0, n);
        loop {
            if let Some(slot) = digits.get_mut(count) {
                slot.write(digit(rest % base, letter));
            }
            count += 1;
            rest /= base;
            if rest == 0 {
                break;
            }
        }
        let pad = self.width.unwrap_or(0).saturating_sub(count + usize::from(sign.is_some()));
        if !self.left && !self.zero {
            out.pad(b' ', pad);
        }
        if let Some(s) = sign {
            out.push(s);
        }
        if !self.left && self.zero {
            out.pad(b'0', pad);
        }
        for i in (0..count).rev() {
            // SAFETY: written above; 64 bits have at most 20 digits in the bases used here.
            out.push(digits.get(i).map_or(b'?', |d| unsafe { d.assume_init() }));
        }
        if self.left {
            out.pad(b' ', pad);
        }
    }

    fn signed(&self, out: &mut Out, v: i64) {
        let sign = match (v < 0, self.plus, self.space) {
            (true, ..) => Some(b'-'),
            (_, true, _) => Some(b'+'),
            (_, _, true) => Some(b' '),
            _ => None,
        };
        self.number(out, v.unsigned_abs(), sign, 10, b'a');
    }

    fn pointer(mut self, out: &mut Out, v: u64) {
        if self.width.is_none() {
            self.width = Some(16);
            self.zero = true;
        }
        self.number(out, v, None, 16, b'a');
    }

    fn around(&self, out: &mut Out, len: usize, write: impl FnOnce(&mut Out)) {
        let pad = self.width.unwrap_or(0).saturating_sub(len);
        if !self.left {
            out.pad(b' ', pad);
        }
        write(out);
        if self.left {
            out.pad(b' ', pad);
        }
    }
}

/// Writes a checked format with its zero into `room` bytes; returns the length that the whole text
/// has, without its zero.
///
/// # Safety
/// `to` is writable for `room` bytes, and the format that `args` was prepared from is still there.
pub(super) unsafe fn print(to: *mut u8, room: usize, args: &Args) -> usize {
    /// Widest field, as the kernel has it.
    const WIDEST: usize = (1 << 23) - 1;
    let f = args.format;
    let mut out = Out { at: to, room, len: 0 };
    let (mut i, mut pos) = (0, 0);
    while i < f.len {
        let c = f.byte(i);
        i += 1;
        if c != b'%' {
            out.push(c);
            continue;
        }
        let mut spec = Spec { width: None, zero: false, left: false, plus: false, space: false };
        loop {
            match f.byte(i) {
                b'0' => spec.zero = true,
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                _ => break,
            }
            i += 1;
        }
        while f.byte(i).is_ascii_digit() {
            spec.width =
                Some((spec.width.unwrap_or(0) * 10 + usize::from(f.byte(i) - b'0')).min(WIDEST));
            i += 1;
        }
        let mut size = 4;
        while f.byte(i) == b'l' {
            size = 8;
            i += 1;
        }
        let kind = f.byte(i);
        i += 1;
        match kind {
            b'%' => out.push(b'%'),
            b'c' => {
                let c = args.at(pos);
                pos += 1;
                spec.around(&mut out, 1, |out| out.push(c));
            }
            b's' => {
                let len = args.string_len(pos);
                spec.around(&mut out, len, |out| (0..len).for_each(|k| out.push(args.at(pos + k))));
                pos += len + 1;
            }
            b'p' => {
                let modifier = f.byte(i);
                if matches!(modifier, b's' | b'S') {
                    let v = args.take_word(&mut pos, 8);
                    let digits = (64 - v.leading_zeros()).div_ceil(4).max(1) as usize;
                    spec.around(&mut out, digits + 2, |out| {
                        out.push(b'0');
                        out.push(b'x');
                        (0..digits).rev().for_each(|d| out.push(digit(v >> (d * 4) & 15, b'a')));
                    });
                } else if matches!(modifier, b'x' | b'K') || !modifier.is_ascii_alphanumeric() {
                    let v = args.take_word(&mut pos, 8);
                    spec.pointer(&mut out, v);
                } else {
                    // Made ready before. Without room the kernel does not count it; it also forgets
                    // to step over it, so what it says about the conversions
                    // that follow is chance.
                    let len = args.string_len(pos);
                    if out.len < out.room {
                        (0..len).for_each(|k| out.push(args.at(pos + k)));
                    }
                    pos += len + 1;
                }
                while f.byte(i).is_ascii_alphanumeric() {
                    i += 1;
                }
            }
            b'd' | b'i' => {
                let v = args.take_word(&mut pos, size);
                spec.signed(&mut out, if size == 4 { i64::from(v as i32) } else { v as i64 });
            }
            b'x' | b'X' => {
                let v = args.take_word(&mut pos, size);
                spec.number(&mut out, v, None, 16, if kind == b'x' { b'a' } else { b'A' });
            }
            _ => {
                let v = args.take_word(&mut pos, size);
                spec.number(&mut out, v, None, 10, b'a');
            }
        }
    }
    let len = out.len;
    if room > 0 {
        out.len = len.min(room - 1);
        out.push(0);
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{Numbers, Pair, call, words};

    /// Room for text in the context, behind the result and four values.
    const ROOM: usize = 256;

    /// Prints with the kernel and with ours into `room` bytes.
    fn same(format: &[u8], values: &[u64], room: usize) {
        let mut constants = format.to_vec();
        constants.push(0);
        let len = (values.len() * 8).to_string();
        // The text comes first: the verifier wants to know how long it is.
        let asm = call("snprintf", &["at 64", &room.to_string(), "value 0", "at 8", &len]);
        let Some(pair) = Pair::load(&asm, &constants, 64 + ROOM) else { return };
        let what = format!("{:?} {values:x?} {room}", format.escape_ascii().to_string());
        let mut ctx = words(&[0]);
        ctx.extend(words(values));
        ctx.resize(64, 0);
        ctx.resize(64 + ROOM, 0x55);
        match pair {
            Ok(pair) => pair.same(&ctx, &what),
            Err(why) => {
                assert!(why.contains("Invalid format string"), "{what}: {why}");
                let values = Values { first: values.as_ptr(), count: values.len() };
                // SAFETY: the format ends with a zero, the values are there.
                let refused =
                    unsafe { Args::new().prepare(constants.as_ptr(), usize::MAX, values) };
                assert_eq!(refused, Err(errno::EINVAL), "{what}");
            }
        }
    }

    #[test]
    fn text_is_what_the_kernel_prints() {
        let name = c"skep of bees";
        let v = name.as_ptr() as u64;
        for (format, values) in [
            (&b"plain"[..], &[][..]),
            (b"", &[]),
            (b"100%%", &[]),
            (b"%d %i %u", &[u64::MAX, 1 << 31, u64::MAX]),
            (b"%ld %lld %llu", &[u64::MAX, 1 << 63, u64::MAX]),
            (b"%+d|% d|%+ d", &[5, 5, 5]),
            (b"%5d|%-5d|%05d|%-05d", &[42, 42, 42, 42]),
            (b"%+05d|% 05d|%+05d", &[42, 42, -42_i64 as u64]),
            (b"%x %X %08x", &[0xabc, 0xabc, 0xabc]),
            (b"%c%5c%-5c|", &[b'a'.into(), b'b'.into(), b'c'.into()]),
            (b"%05c", &[b'a'.into()]),
            (b"%pks|%pus", &[8, v]),
            (b"%pus.%10d", &[v, 3]),
            (b"%px %20px %-20px|", &[0x1234, 0x1234, 0x1234]),
            (b"%p|%pK", &[0, 0]),
            (b"%ps|%pS|%30ps|%-30pS|", &[0x1234, 0, 0x1234, 0x1234]),
            (b"%pB|", &[0x1234]),
            (b"%s|%5s|", &[0, 8]),
            (b"%pI4", &[8]),
            (b"tab\tand\nline", &[]),
            (b"%px.%px;%px)", &[1, 2, 3]),
            (b"%99999d", &[1]),
        ] {
            for room in [1, 2, 7, 16, 17, 40, ROOM] {
                same(format, values, room);
            }
        }
    }

    #[test]
    fn text_and_addresses_are_read_from_memory() {
        for format in [
            &b"%pi4|%pI4\0"[..],
            b"%pi6|%pI6\0",
            b"%pI4x|%pI6c.\0",
            b"%s|%10s\0",
            b"%-20s|%pks\0",
            b"%2s,%pks!\0",
            b"%s%%%s\0",
        ] {
            let asm = concat!(
                "lddw %r6, value 1+0\nmov %r1, %r6\nadd %r1, 32\nstxdw [%r6+8], %r1\nadd %r1, 2\nstxdw [%r6+16], %r1\n",
                "mov %r1, %r6\nadd %r1, 64\nmov %r2, 190\nlddw %r3, value 0+0\nmov %r4, %r6\nadd %r4, 8\nmov %r5, 16\n",
                "call snprintf\nstxdw [%r6+0], %r0\nstdw [%r6+8], 0\nstdw [%r6+16], 0\nmov %r0, 0\nexit"
            );
            let Some(pair) = Pair::new(asm, format, 64 + ROOM) else { return };
            for text in [
                &b"192.168.0.1 and more"[..],
                b"",
                b"abc",
                &[1; 31],
                &[0xc0, 0xa8, 0, 1, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0xab],
            ] {
                let mut memory = vec![0; 32];
                memory.extend(text);
                memory.resize(64 + ROOM, 0);
                pair.same(&memory, &format!("{} {}", format.escape_ascii(), text.escape_ascii()));
            }
        }
    }

    #[test]
    fn random_formats_print_what_the_kernel_prints() {
        let mut n =
            Numbers(std::env::var("SKEP_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7));
        let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 400 };
        for _ in 0..rounds {
            let (mut format, mut values) = (Vec::new(), Vec::new());
            for _ in 0..n.below(5) {
                format.extend(n.pick(&[&b"a"[..], b" ", b"%%", b", ", b"-x-"]));
                format.push(b'%');
                (0..n.below(3)).for_each(|_| format.push(n.pick(b"0-+ ")));
                if n.below(2) == 0 {
                    format.extend(n.pick(&[1_u32, 5, 12, 30]).to_string().bytes());
                }
                format.extend(n.pick(&[
                    &b"d"[..],
                    b"i",
                    b"u",
                    b"x",
                    b"X",
                    b"ld",
                    b"lu",
                    b"lx",
                    b"lld",
                    b"llX",
                    b"c",
                    b"px",
                    b"s",
                    b"pks",
                    b"ps",
                ]));
                let number = n.next() >> n.below(64);
                values.push(if format.ends_with(b"s") { number & 0xfff } else { number });
                format.extend(n.pick(&[&b""[..], b" ", b"|", b"."]));
            }
            // See `print` for what the kernel says of text made ready that finds no room.
            let ready = format.windows(3).any(|w| w == b"pks");
            let room = if ready { ROOM } else { n.pick(&[1, 3, 10, 30, ROOM]) };
            if values.len() <= 4 {
                same(&format, &values, room);
            }
        }
    }
}
