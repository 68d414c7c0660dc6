//! `bpf_trace_printk`, `bpf_trace_vprintk` and `bpf_snprintf`.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use skep_maps::Map;

use super::format::{self, Args, Values};
use super::{errno, fail};

/// Longest line `bpf_trace_printk` prints (include/linux/bpf.h `MAX_BPRINTF_BUF`).
const LINE: usize = 1024;

/// Where printed lines go: a ring buffer the loader reads, or nowhere.
static LOG: AtomicPtr<Map> = AtomicPtr::new(ptr::null_mut());

/// Sends printed lines to a ring buffer from now on.
pub fn set_log(map: &'static Map) {
    LOG.store(ptr::from_ref(map).cast_mut(), Relaxed);
}

/// Formats a line and puts it into the log; returns the length of the whole text.
///
/// # Safety
/// `text` is readable for `size` bytes, and the values are.
unsafe fn print(text: u64, size: u64, values: Values) -> u64 {
    let mut args = Args::new();
    let len = (size & 0xffff_ffff) as usize;
    // SAFETY: as the caller promises.
    if let Err(e) = unsafe { args.prepare(text as *const u8, len, values) } {
        return fail(e);
    }
    // SAFETY: null, or a map that lives as long as the process.
    let log = unsafe { LOG.load(Relaxed).as_ref() };
    let mut line = MaybeUninit::<[u8; LINE]>::uninit();
    let line = line.as_mut_ptr().cast::<u8>();
    // SAFETY: `line` is writable for LINE bytes, and what is printed of it was written.
    unsafe {
        let len = format::print(line, LINE, &args);
        if let Some(log) = log {
            // Without room the line is lost, as in the kernel's trace buffer.
            log.ringbuf_output(line, len.min(LINE - 1) as u64, 0);
        }
        len as u64
    }
}

pub(super) unsafe extern "C" fn trace_printk(text: u64, size: u64, a: u64, b: u64, c: u64) -> u64 {
    let values = [a, b, c];
    // SAFETY: the verifier proved `text` readable for `size` bytes.
    unsafe { print(text, size, Values { first: values.as_ptr(), count: 3 }) }
}

/// Most values of a format (include/linux/bpf.h `MAX_BPRINTF_VARARGS`).
const VALUES: usize = 12;

/// The values of `snprintf` and `trace_vprintk`.
fn values(data: u64, len: u64) -> Option<Values> {
    let len = (len & 0xffff_ffff) as usize;
    let fits = len.is_multiple_of(8) && len / 8 <= VALUES && (len == 0 || data != 0);
    fits.then_some(Values { first: data as *const u64, count: len / 8 })
}

pub(super) unsafe extern "C" fn trace_vprintk(
    text: u64,
    size: u64,
    data: u64,
    len: u64,
    _: u64,
) -> u64 {
    match values(data, len) {
        // SAFETY: the verifier proved both ranges readable.
        Some(values) => unsafe { print(text, size, values) },
        None => fail(errno::EINVAL),
    }
}

/// Writes the text with its zero; returns its whole length with the zero, even when it was cut.
pub(super) unsafe extern "C" fn snprintf(
    to: u64,
    size: u64,
    text: u64,
    data: u64,
    len: u64,
) -> u64 {
    let Some(values) = values(data, len) else { return fail(errno::EINVAL) };
    let mut args = Args::new();
    // SAFETY: the verifier proved `to` writable for `size`, `text` a terminated constant, `data`
    // readable for `len`.
    unsafe {
        match args.prepare(text as *const u8, usize::MAX, values) {
            Ok(()) => format::print(to as *mut u8, (size & 0xffff_ffff) as usize, &args) as u64 + 1,
            Err(e) => fail(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn ours(fmt: &str, args: &[u64], room: usize) -> (Vec<u8>, u64) {
        let mut buf = vec![0xaa_u8; room.max(1)];
        let text = CString::new(fmt).expect("formats here have no zero");
        // SAFETY: buffer, format and arguments are live and as long as said.
        let n = unsafe {
            snprintf(
                buf.as_mut_ptr() as u64,
                room as u64,
                text.as_ptr() as u64,
                args.as_ptr() as u64,
                (args.len() * 8) as u64,
            )
        };
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
        for fmt in
            ["%d|%u|%x", "%5d|%-6u|%08x", "%lld|%llu|%llX", "%ld|%%|%lx|%i", "plain", "%3c|%d|%02x"]
        {
            for v in [0_u64, 1, 7, 255, u64::MAX, 1 << 31, i64::MIN as u64] {
                let fmt = fmt.replace("%3c", "%c");
                let text = CString::new(fmt.clone()).expect("no zero");
                for room in [1, 4, 64] {
                    let mut want = vec![0_u8; 64];
                    // SAFETY: the buffer is 64 bytes; the formats take at most three integers.
                    let n =
                        unsafe { libc_snprintf(want.as_mut_ptr(), room, text.as_ptr(), v, v, v) };
                    want.truncate(want.iter().position(|b| *b == 0).unwrap_or(64));
                    if fmt.contains("%c") && v as u8 == 0 {
                        continue;
                    }
                    assert_eq!(
                        ours(&fmt, &[v, v, v], room),
                        (want, n as u64 + 1),
                        "{fmt} {v} {room}"
                    );
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
