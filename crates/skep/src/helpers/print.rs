//! Formatted text: `bpf_trace_printk`, `bpf_trace_vprintk`, `bpf_snprintf`, and `bpf_strncmp`.
//!
//! Formats are the kernel's (kernel/trace/bpf_trace.c, `bpf_bprintf_prepare`): `%d %i %u %x %X %o %p %c %s %%` with `l`,
//! `ll`, a width and `0` or `-`. Anything else ends the call with `-EINVAL`, and nothing is printed.
//!
//! No buffer is zeroed and no array copied: both would be calls of the C library, whose string functions use wide vector
//! registers that nobody has saved.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use skep_maps::Map;

use super::{errno, fail};

/// Longest line `bpf_trace_printk` prints (include/linux/bpf.h `MAX_BPRINTF_BUF`).
const LINE: usize = 512;

/// Where printed lines go: a ring buffer the loader reads, or nowhere.
static LOG: AtomicPtr<Map> = AtomicPtr::new(ptr::null_mut());

/// Sends printed lines to a ring buffer from now on.
pub(crate) fn set_log(map: &'static Map) {
    LOG.store(ptr::from_ref(map).cast_mut(), Relaxed);
}

/// Bytes written so far, and how many there would have been.
struct Out {
    at: *mut u8,
    room: usize,
    len: usize,
}

impl Out {
    /// # Safety
    /// `at` is writable for `room` bytes.
    #[inline(always)]
    unsafe fn push(&mut self, byte: u8) {
        if self.len < self.room {
            // SAFETY: len < room.
            unsafe { self.at.add(self.len).write_volatile(byte) };
        }
        self.len = self.len.wrapping_add(1);
    }

    /// Ends the text with a zero; returns its length with the zero, as if there had been room.
    ///
    /// # Safety
    /// As for `push`.
    unsafe fn finish(&mut self) -> usize {
        if self.room > 0 {
            let end = if self.len < self.room { self.len } else { self.room - 1 };
            // SAFETY: end < room.
            unsafe { self.at.add(end).write_volatile(0) };
        }
        self.len.wrapping_add(1)
    }
}

#[derive(Clone, Copy)]
struct Spec {
    width: usize,
    zero: bool,
    left: bool,
    longs: u8,
}

/// Writes `n` in `base`, padded.
///
/// # Safety
/// As for `Out::push`.
unsafe fn number(out: &mut Out, spec: Spec, n: u64, negative: bool, base: u64, upper: bool) {
    let mut digits = [const { MaybeUninit::<u8>::uninit() }; 24];
    let mut count = 0;
    let mut rest = n;
    loop {
        let d = (rest % base) as u8;
        let letter = if upper { b'A' } else { b'a' };
        if let Some(slot) = digits.get_mut(count) {
            slot.write(if d < 10 { b'0'.wrapping_add(d) } else { letter.wrapping_add(d.wrapping_sub(10)) });
        }
        count += 1;
        rest /= base;
        if rest == 0 {
            break;
        }
    }
    let shown = count + usize::from(negative);
    let pad = spec.width.saturating_sub(shown);
    // SAFETY: passed on.
    unsafe {
        if !spec.left && !spec.zero {
            (0..pad).for_each(|_| out.push(b' '));
        }
        if negative {
            out.push(b'-');
        }
        if !spec.left && spec.zero {
            (0..pad).for_each(|_| out.push(b'0'));
        }
        for i in (0..count).rev() {
            // Written above: 64 bits have at most 22 digits in base 8.
            out.push(digits.get(i).map_or(b'?', |d| d.assume_init()));
        }
        if spec.left {
            (0..pad).for_each(|_| out.push(b' '));
        }
    }
}

/// Writes the string of the traced program at `from`, padded; nothing readable there prints nothing.
///
/// # Safety
/// As for `Out::push`.
unsafe fn string(out: &mut Out, spec: Spec, from: u64) {
    let mut text = MaybeUninit::<[u8; LINE]>::uninit();
    let text = text.as_mut_ptr().cast::<u8>();
    // SAFETY: `text` is writable for its length.
    let n = unsafe { super::probe::read_str(text as u64, LINE as u64, from, 0, 0) };
    let n = if n > LINE as u64 { 0 } else { (n as usize).saturating_sub(1) };
    let pad = spec.width.saturating_sub(n);
    // SAFETY: passed on; `read_str` wrote n bytes and a zero.
    unsafe {
        if !spec.left {
            (0..pad).for_each(|_| out.push(b' '));
        }
        (0..n).for_each(|i| out.push(text.add(i).read_volatile()));
        if spec.left {
            (0..pad).for_each(|_| out.push(b' '));
        }
    }
}

/// The values of a format, where the program has them.
#[derive(Clone, Copy)]
struct Args {
    first: *const u64,
    count: usize,
}

/// Formats; `Err` for a format the kernel would refuse.
///
/// # Safety
/// As for `Out::push`; `format` is readable up to its zero or for `size` bytes, and so are the arguments.
unsafe fn format(out: &mut Out, format: *const u8, size: usize, args: Args) -> Result<(), ()> {
    let mut i = 0;
    let mut arg = 0;
    // SAFETY: `at` is asked for positions below `size` only.
    let byte = |i: usize| if i < size { unsafe { format.add(i).read_volatile() } } else { 0 };
    loop {
        let c = byte(i);
        if c == 0 {
            return Ok(());
        }
        i += 1;
        if c != b'%' {
            // SAFETY: passed on.
            unsafe { out.push(c) };
            continue;
        }
        let mut spec = Spec { width: 0, zero: false, left: false, longs: 0 };
        while matches!(byte(i), b'0' | b'-') {
            spec.zero |= byte(i) == b'0';
            spec.left |= byte(i) == b'-';
            i += 1;
        }
        while byte(i).is_ascii_digit() {
            spec.width = (spec.width * 10 + usize::from(byte(i) - b'0')).min(LINE);
            i += 1;
        }
        while byte(i) == b'l' {
            spec.longs = spec.longs.saturating_add(1);
            i += 1;
        }
        let kind = byte(i);
        i += 1;
        if kind == b'%' {
            // SAFETY: passed on.
            unsafe { out.push(b'%') };
            continue;
        }
        if arg >= args.count {
            return Err(());
        }
        // SAFETY: arg < count.
        let value = unsafe { args.first.add(arg).read_unaligned() };
        arg += 1;
        let unsigned = if spec.longs == 0 { value & 0xffff_ffff } else { value };
        // SAFETY: passed on.
        unsafe {
            match kind {
                b'd' | b'i' => {
                    let v = if spec.longs == 0 { i64::from(value as i32) } else { value as i64 };
                    number(out, spec, v.unsigned_abs(), v < 0, 10, false);
                }
                b'u' => number(out, spec, unsigned, false, 10, false),
                b'x' => number(out, spec, unsigned, false, 16, false),
                b'X' => number(out, spec, unsigned, false, 16, true),
                b'o' => number(out, spec, unsigned, false, 8, false),
                b'p' => {
                    // `%p` and its `x`, `K`, `k`, `s`, `S` forms: the address itself.
                    if matches!(byte(i), b'x' | b'K' | b'k' | b's' | b'S') {
                        i += 1;
                    }
                    number(out, Spec { width: spec.width.max(16), zero: true, ..spec }, value, false, 16, false);
                }
                b'c' => out.push(value as u8),
                b's' => string(out, spec, value),
                _ => return Err(()),
            }
        }
    }
}

/// Formats a line and puts it into the log.
///
/// # Safety
/// `text` is readable for `size` bytes, and the arguments are.
unsafe fn print(text: u64, size: u64, args: Args) -> u64 {
    let mut line = MaybeUninit::<[u8; LINE]>::uninit();
    let line = line.as_mut_ptr().cast::<u8>();
    let mut out = Out { at: line, room: LINE, len: 0 };
    // SAFETY: `line` is writable for LINE bytes; the format as the caller promises.
    unsafe {
        if format(&mut out, text as *const u8, size as usize, args).is_err() {
            return fail(errno::EINVAL);
        }
        out.finish();
        let len = out.len.min(LINE - 1);
        if let Some(log) = LOG.load(Relaxed).as_ref() {
            let full = log.ringbuf_output(line, len as u64, 0);
            if full < 0 {
                return full as u64;
            }
        }
        len as u64
    }
}

pub(super) unsafe extern "C" fn trace_printk(text: u64, size: u64, a: u64, b: u64, c: u64) -> u64 {
    // SAFETY: the verifier proved the format readable for `size` bytes.
    unsafe { print(text, size, Args { first: [a, b, c].as_ptr(), count: 3 }) }
}

/// Most arguments of a format (include/linux/bpf.h `MAX_BPRINTF_VARARGS`).
const ARGS: usize = 12;

/// The argument array of `snprintf` and `trace_vprintk`.
fn arguments(data: u64, len: u64) -> Option<Args> {
    let count = (len / 8) as usize;
    (len.is_multiple_of(8) && count <= ARGS).then_some(Args { first: data as *const u64, count })
}

pub(super) unsafe extern "C" fn trace_vprintk(text: u64, size: u64, data: u64, len: u64, _: u64) -> u64 {
    match arguments(data, len) {
        // SAFETY: the verifier proved both ranges readable.
        Some(args) => unsafe { print(text, size, args) },
        None => fail(errno::EINVAL),
    }
}

/// Writes the text with its zero; returns its whole length with the zero, even when it was cut.
pub(super) unsafe extern "C" fn snprintf(to: u64, size: u64, text: u64, data: u64, len: u64) -> u64 {
    let mut out = Out { at: to as *mut u8, room: size as usize, len: 0 };
    let Some(args) = arguments(data, len) else { return fail(errno::EINVAL) };
    // SAFETY: the verifier proved `to` writable for `size`, `text` a terminated constant, `data` readable for `len`.
    unsafe {
        if format(&mut out, text as *const u8, usize::MAX, args).is_err() {
            return fail(errno::EINVAL);
        }
        out.finish() as u64
    }
}

/// Compares at most `size` bytes with a constant string, as `strncmp` does.
#[unsafe(link_section = ".text.skep_event")]
pub(super) unsafe extern "C" fn strncmp(a: u64, size: u64, b: u64, _: u64, _: u64) -> u64 {
    for i in 0..(size & 0xffff_ffff) as usize {
        // SAFETY: the verifier proved `a` readable for `size` bytes and `b` a terminated constant, and both are equal so far.
        let (x, y) = unsafe { ((a as *const u8).add(i).read_volatile(), (b as *const u8).add(i).read_volatile()) };
        if x != y {
            return (i64::from(x) - i64::from(y)) as u64;
        }
        if x == 0 {
            break;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn ours(fmt: &str, args: &[u64], room: usize) -> (Vec<u8>, u64) {
        let mut buf = vec![0xaa_u8; room.max(1)];
        let text = CString::new(fmt).expect("formats here have no zero");
        // SAFETY: buffer, format and arguments are live and as long as said.
        let n =
            unsafe { snprintf(buf.as_mut_ptr() as u64, room as u64, text.as_ptr() as u64, args.as_ptr() as u64, (args.len() * 8) as u64) };
        let end = buf.iter().position(|b| *b == 0).unwrap_or(0);
        (buf[..end].to_vec(), n)
    }

    unsafe extern "C" {
        #[link_name = "snprintf"]
        fn libc_snprintf(to: *mut u8, size: usize, text: *const std::ffi::c_char, ...) -> i32;
    }

    #[test]
    fn text_is_what_libc_prints() {
        let s = CString::new("skep").expect("no zero");
        for fmt in ["%d|%u|%x", "%5d|%-6u|%08x", "%lld|%llu|%llX", "%ld|%%|%lo|%i", "plain", "%3c|%d|%02x"] {
            for v in [0_u64, 1, 7, 255, u64::MAX, 1 << 31, i64::MIN as u64] {
                let fmt = fmt.replace("%3c", "%c");
                let text = CString::new(fmt.clone()).expect("no zero");
                for room in [1, 4, 64] {
                    let mut want = vec![0_u8; 64];
                    // SAFETY: the buffer is 64 bytes; the formats take at most three integers.
                    let n = unsafe { libc_snprintf(want.as_mut_ptr(), room, text.as_ptr(), v, v, v) };
                    want.truncate(want.iter().position(|b| *b == 0).unwrap_or(64));
                    if fmt.contains("%c") && v as u8 == 0 {
                        continue;
                    }
                    assert_eq!(ours(&fmt, &[v, v, v], room), (want, n as u64 + 1), "{fmt} {v} {room}");
                }
            }
        }
        assert_eq!(ours("<%s|%6s|%-6s>", &[s.as_ptr() as u64; 3], 64).0, b"<skep|  skep|skep  >");
        assert_eq!(ours("%s", &[8], 64).0, b"");
    }

    #[test]
    fn formats_the_kernel_refuses_are_refused() {
        for fmt in ["%f", "%n", "%d %d", "%"] {
            assert_eq!(ours(fmt, &[1], 64).1, fail(errno::EINVAL), "{fmt}");
        }
    }
}
