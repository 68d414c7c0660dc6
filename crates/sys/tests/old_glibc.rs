//! The functions that old versions of glibc lack, beside the kernel's own answers.
#![cfg(all(target_env = "gnu", target_arch = "x86_64"))]

use std::ffi::{CStr, c_char, c_int};
use std::os::unix::fs::MetadataExt;

skep_sys::define_for_old_glibc!();

/// `struct stat` of x86-64: device, inode, links, mode and owner, group, device, size…
type Stat = [u64; 18];

unsafe extern "C" {
    fn stat64(path: *const c_char, to: *mut Stat) -> c_int;
    fn lstat64(path: *const c_char, to: *mut Stat) -> c_int;
    fn fstat64(file: c_int, to: *mut Stat) -> c_int;
    fn fstatat64(dir: c_int, path: *const c_char, to: *mut Stat, flags: c_int) -> c_int;
    fn gettid() -> c_int;
}

const AT_FDCWD: c_int = -100;
const AT_SYMLINK_NOFOLLOW: c_int = 0x100;

/// Device, inode, links, mode and size.
fn parts(stat: Stat) -> [u64; 5] {
    [stat[0], stat[1], stat[2], stat[3] & 0xffff_ffff, stat[6]]
}

/// As the standard library has them, by `statx`.
fn known(of: &std::fs::Metadata) -> [u64; 5] {
    [of.dev(), of.ino(), of.nlink(), u64::from(of.mode()), of.size()]
}

fn fails(done: c_int) -> Option<i32> {
    (done == -1).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

#[test]
fn files_are_described_and_errors_are_in_errno() {
    const EXE: &CStr = c"/proc/self/exe";
    let (mut stat, file) = ([0; 18], std::fs::File::open("/proc/self/exe").unwrap());
    let (whole, link) = (
        std::fs::metadata("/proc/self/exe").unwrap(),
        std::fs::symlink_metadata("/proc/self/exe").unwrap(),
    );
    // SAFETY: the path is terminated, and there is room for a `struct stat`.
    unsafe {
        assert_eq!((stat64(EXE.as_ptr(), &mut stat), parts(stat)), (0, known(&whole)));
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!((fstat64(fd, &mut stat), parts(stat)), (0, known(&whole)));
        assert_eq!((lstat64(EXE.as_ptr(), &mut stat), parts(stat)), (0, known(&link)));
        let done = fstatat64(AT_FDCWD, EXE.as_ptr(), &mut stat, AT_SYMLINK_NOFOLLOW);
        assert_eq!((done, parts(stat)), (0, known(&link)));
        assert_eq!(fails(stat64(c"/no/such".as_ptr(), &mut stat)), Some(2));
        assert_eq!(fails(fstat64(-1, &mut stat)), Some(9));
        assert_eq!(fails(fstatat64(AT_FDCWD, c"/no".as_ptr(), &mut stat, 0)), Some(2));
    }
    let task = format!("/proc/self/task/{}", {
        // SAFETY: it takes nothing.
        unsafe { gettid() }
    });
    assert!(std::path::Path::new(&task).is_dir(), "{task}");
}
