//! Error numbers (include/uapi/asm-generic/errno-base.h, errno.h): what helpers, map operations and
//! system calls answer, with the C library's texts.
//!
//! The constants are positive; whoever answers one negates it.

/// One error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno {
    /// The number.
    pub number: i32,
    /// The name, `ENOENT`.
    pub name: &'static str,
    /// What the C library says of it.
    pub text: &'static str,
}

macro_rules! errnos {
    ($($number:literal $name:ident $text:literal;)*) => {
        $(
            #[doc = $text]
            pub const $name: i32 = $number;
        )*

        /// Every error number that has a name here, in order of number.
        pub const ERRNOS: &[Errno] =
            &[$(Errno { number: $name, name: stringify!($name), text: $text },)*];
    };
}

errnos! {
    1 EPERM "operation not permitted";
    2 ENOENT "no such file or directory";
    3 ESRCH "no such process";
    4 EINTR "interrupted system call";
    5 EIO "input/output error";
    7 E2BIG "argument list too long";
    8 ENOEXEC "exec format error";
    9 EBADF "bad file descriptor";
    11 EAGAIN "resource temporarily unavailable";
    12 ENOMEM "cannot allocate memory";
    13 EACCES "permission denied";
    14 EFAULT "bad address";
    16 EBUSY "device or resource busy";
    17 EEXIST "file exists";
    18 EXDEV "invalid cross-device link";
    19 ENODEV "no such device";
    20 ENOTDIR "not a directory";
    21 EISDIR "is a directory";
    22 EINVAL "invalid argument";
    24 EMFILE "too many open files";
    27 EFBIG "file too large";
    28 ENOSPC "no space left on device";
    30 EROFS "read-only file system";
    34 ERANGE "numerical result out of range";
    35 EDEADLK "resource deadlock avoided";
    36 ENAMETOOLONG "file name too long";
    38 ENOSYS "function not implemented";
    40 ELOOP "too many levels of symbolic links";
    61 ENODATA "no data available";
    67 ENOLINK "link has been severed";
    75 EOVERFLOW "value too large for defined data type";
    90 EMSGSIZE "message too long";
    95 EOPNOTSUPP "operation not supported";
    97 EAFNOSUPPORT "address family not supported by protocol";
    110 ETIMEDOUT "connection timed out";
    114 EALREADY "operation already in progress";
    116 ESTALE "stale file handle";
    117 EUCLEAN "structure needs cleaning";
    524 ENOTSUPP "operation not supported by the kernel";
}

/// Finds the row of a number, positive or negated.
///
/// ```
/// use skep_isa::errno;
/// assert_eq!(errno::find(-errno::ENOENT).map(|e| e.name), Some("ENOENT"));
/// ```
#[must_use]
pub fn find(number: i32) -> Option<&'static Errno> {
    let at = ERRNOS.binary_search_by_key(&number.unsigned_abs(), |e| e.number.unsigned_abs());
    ERRNOS.get(at.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_found() {
        assert!(ERRNOS.is_sorted_by(|a, b| a.number < b.number));
        for row in ERRNOS {
            assert_eq!(find(row.number), Some(row));
        }
        assert_eq!((find(0), find(i32::MIN)), (None, None));
    }

    #[test]
    fn texts_are_those_of_the_c_library() {
        for row in ERRNOS.iter().filter(|e| e.number < 133) {
            let theirs = std::io::Error::from_raw_os_error(row.number).to_string().to_lowercase();
            assert!(theirs.starts_with(row.text), "{}: {theirs}", row.name);
        }
    }
}
