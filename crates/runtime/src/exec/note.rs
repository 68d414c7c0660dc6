//! Naming an untraced program in a link file, from where nothing can be allocated or locked.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use skep_store::link::TAG_UNTRACED;
use skep_store::record;
use skep_sys::syscall::{CLOSE, FLOCK, OPENAT, SCHED_YIELD, WRITE, call4};

/// Longest record.
const ROOM: usize = 2048;
/// How often the lock is tried: in vain, if the thread that this process was forked from holds it.
const TRIES: u32 = 200;

/// A link file by name, ready for system calls.
pub(super) struct Link {
    file: CString,
    /// Writers lock it.
    directory: CString,
}

impl Link {
    pub(super) fn new(path: &Path) -> Option<Self> {
        let text = |p: &Path| CString::new(p.as_os_str().as_bytes()).ok();
        Some(Self { file: text(path)?, directory: text(path.parent()?)? })
    }

    /// Appends a record. Best effort: where the file cannot be reached any more, nobody is told.
    pub(super) fn note(&self, path: &[u8], reason: &str) {
        const CLOEXEC: u64 = 0o2_000_000;
        const WRITE_APPEND: u64 = 1 | 0o2000;
        const EXCLUSIVE_NOW: u64 = 2 | 4;
        let mut record = Record { bytes: [0; ROOM], len: record::HEAD_LEN };
        record.text(path, 1024);
        record.text(reason.as_bytes(), 512);
        let record = record.finish();
        let open = |path: &CString, flags: u64| {
            // SAFETY: reads the string.
            let fd =
                unsafe { call4(OPENAT, -100_i64 as u64, path.as_ptr() as u64, flags | CLOEXEC, 0) };
            (fd < u64::MAX - 4096).then_some(fd)
        };
        let Some(lock) = open(&self.directory, 0) else { return };
        // SAFETY: descriptors of our own, and bytes that live; locks of our own.
        unsafe {
            let mut locked = false;
            for _ in 0..TRIES {
                locked = call4(FLOCK, lock, EXCLUSIVE_NOW, 0, 0) == 0;
                if locked {
                    break;
                }
                call4(SCHED_YIELD, 0, 0, 0, 0);
            }
            if locked && let Some(file) = open(&self.file, WRITE_APPEND) {
                call4(WRITE, file, record.as_ptr() as u64, record.len() as u64, 0);
                call4(CLOSE, file, 0, 0, 0);
            }
            call4(CLOSE, lock, 0, 0, 0);
        }
    }
}

/// A record on the stack.
struct Record {
    bytes: [u8; ROOM],
    len: usize,
}

impl Record {
    fn put(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(bytes) {
            *to = *from;
        }
        self.len = (self.len + bytes.len()).min(ROOM);
    }

    /// Appends as [`skep_store::wire::Writer::str`] does; what is too long is cut off.
    fn text(&mut self, text: &[u8], most: usize) {
        let text = text.get(..text.len().min(most)).unwrap_or_default();
        // Readers want whole characters.
        let text = match str::from_utf8(text) {
            Ok(_) => text,
            Err(e) => text.get(..e.valid_up_to()).unwrap_or_default(),
        };
        self.put(&(text.len() as u32).to_le_bytes());
        self.put(text);
    }

    fn finish(&mut self) -> &[u8] {
        let (head, payload) = self.bytes.split_at_mut(record::HEAD_LEN);
        let payload = payload.get(..self.len - record::HEAD_LEN).unwrap_or_default();
        let words = [payload.len() as u32, record::check(TAG_UNTRACED, payload), TAG_UNTRACED];
        for (to, word) in head.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_store::Dir;
    use skep_store::dir::Kind;
    use skep_store::link::{Cookie, LinkFile, LinkSpec};

    #[test]
    fn what_is_noted_is_read_like_any_other_record() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-note-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let spec = LinkSpec {
            programs: vec![],
            control: 1,
            cookie: Cookie::Target,
            entry_only: false,
            max_functions: 1,
            by_function: Vec::new(),
            include: vec![],
            exclude: vec![],
        };
        let file = LinkFile::create(&dir, &spec)?;
        let link = Link::new(&dir.object(Kind::Link, file.id)).ok_or("no path")?;
        link.note(b"/bin/busybox", "is statically linked");
        let long = "x".repeat(3000);
        link.note(long.as_bytes(), &long);
        link.note(b"/bin/\xff", "is odd");
        link.note(b"/bin/busybox", "is statically linked");
        let untraced: Vec<_> =
            file.read()?.untraced.into_iter().map(|u| (u.path, u.reason)).collect();
        assert_eq!(untraced[0], ("/bin/busybox".to_owned(), "is statically linked".to_owned()));
        assert_eq!(untraced[1], ("x".repeat(1024), "x".repeat(512)));
        assert_eq!(untraced[2], ("/bin/".to_owned(), "is odd".to_owned()));
        assert_eq!(untraced.len(), 3, "one a program and reason");
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }
}
