//! The kernel's formatted text for programs: which formats are allowed (kernel/bpf/helpers.c `bpf_bprintf_prepare`) and what they
//! print (lib/vsprintf.c `bstr_printf`).
//!
//! Two passes, as there: [`Args::prepare`] checks the whole format and copies what the arguments point to, so that a format
//! that is refused writes nothing; [`print`] then cannot fail. What differs: `%p` and `%pK` print the address, where the kernel
//! prints a hash of it, and `%ps`, `%pS` and `%pB` print `0x…`, as the kernel does for an address that is not its own.
//!
//! No buffer is zeroed and no array copied: both would be calls of the C library, whose string functions use wide vector
//! registers that nobody has saved.

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
        Self { format: Format { at: std::ptr::null(), len: 0 }, bytes: MaybeUninit::uninit(), used: 0 }
    }

    /// Checks a format and copies its arguments; an errno when it is refused.
    ///
    /// # Safety
    /// `format` is readable for `size` bytes or up to its zero, and `values` as long as it says.
    pub(super) unsafe fn prepare(&mut self, format: *const u8, size: usize, values: Values) -> Result<(), i64> {
        // SAFETY: passed on.
        let Some(format) = (unsafe { Format::new(format, size) }) else { return Err(errno::EINVAL) };
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
    fn convert(&mut self, i: usize, value: u64) -> Result<usize, i64> {
        let f = self.format;
        let (next, after) = (f.byte(i + 1), f.byte(i + 2));
        match f.byte(i) {
            b'p' if ends(next) => self.word(value, 8).map(|()| i + 1),
            b'p' if matches!(next, b'k' | b'u') && after == b's' => self.string(i + 2, value),
            b'p' if matches!(next, b'K' | b'x' | b's' | b'S') => self.word(value, 8).map(|()| i + 2),
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
                let longs = usize::from(f.byte(i) == b'l') + usize::from(f.byte(i) == b'l' && next == b'l');
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
    fn word(&mut self, value: u64, size: usize) -> Result<(), i64> {
        self.used = (self.used + 3) & !3;
        if ROOM.saturating_sub(self.used) < size {
            return Err(errno::ENOSPC);
        }
        (0..size).for_each(|i| self.push((value >> (i * 8)) as u8));
        Ok(())
    }

    /// Copies the string at `from`; one that cannot be read is empty.
    fn string(&mut self, i: usize, from: u64) -> Result<usize, i64> {
        if !ends(self.format.byte(i + 1)) {
            return Err(errno::EINVAL);
        }
        let room = ROOM - self.used;
        if room == 0 {
            return Err(errno::ENOSPC);
        }
        // SAFETY: `room` bytes of the array are left.
        let n = unsafe { super::probe::read_str(self.bytes.as_mut_ptr().cast::<u8>().add(self.used) as u64, room as u64, from, 0, 0) };
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

    fn ip(&mut self, from: u64, plain: bool, len: usize) -> Result<(), i64> {
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
        // SAFETY: below `used`, which was written.
        if i < self.used { unsafe { self.bytes.as_ptr().cast::<u8>().add(i).read_volatile() } } else { 0 }
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

/// Writes a checked format with its zero into `room` bytes; returns the length that the whole text has, without its zero.
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
            spec.width = Some((spec.width.unwrap_or(0) * 10 + usize::from(f.byte(i) - b'0')).min(WIDEST));
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
                } else if out.len < out.room {
                    // Made ready before; without room the kernel does not even count it.
                    let len = args.string_len(pos);
                    (0..len).for_each(|k| out.push(args.at(pos + k)));
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
