//! Build ids of files, kept on disk for all processes of a user.
//!
//! ```text
//! 0           72          72 + 72·n
//! | magic …0  | entry 0   | entry n        16,384 entries
//!
//! entry: checksum 8 | device 8 | inode 8 | ctime: seconds 8, nanoseconds 4 | size 8 | length 4 | id 24
//! ```
//!
//! An entry lies in one of eight places that its hash leads to, and is written by one `pwrite`. Nobody
//! locks: of two writers one wins, and what is torn or damaged has a wrong checksum and counts as not
//! there. Where nothing can be written (a full disk, another user's directory) nothing is kept. The
//! file is made of holes at first, and never grows beyond 1.2 MB.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::NoBuildId;
use super::build_ids::Key;

const ENTRY: usize = 72;
const ENTRIES: u64 = 16 << 10;
/// How many entries are looked at for one file.
const PLACES: usize = 8;
const LONGEST: usize = 24;
/// In place of a length.
const NOT_ELF: u32 = u32::MAX;
const MAGIC: &[u8; 16] = b"skep build ids 1";
/// A file that was changed since then may be changed again without getting another time.
const SETTLED: i64 = 3;

/// The opened file.
#[derive(Debug)]
pub(super) struct BuildIdFile {
    fd: OwnedFd,
}

impl BuildIdFile {
    /// Opens the file, or makes it; `None` if that cannot be, or it is not this user's own.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let directory = path.parent()?;
        // Its parents are not made: where there is no home, nothing is kept.
        match rustix::fs::mkdir(directory, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || rustix::fs::open(path, flags, Mode::empty()).ok();
        let file = Self { fd: open().or_else(|| Self::create(path).and_then(|()| open()))? };
        match file.is_sound()? {
            true => Some(file),
            false => {
                // Damaged, or of another version: another one takes its place, as a whole.
                Self::create(path)?;
                let file = Self { fd: open()? };
                file.is_sound()?.then_some(file)
            }
        }
    }

    /// `None`: it is not ours, and stays as it is.
    fn is_sound(&self) -> Option<bool> {
        let stat = crate::own_file::is_own(&self.fd)?;
        let mut head = [0; ENTRY];
        let read = rustix::io::pread(&self.fd, &mut head, 0).unwrap_or(0);
        let size = ENTRY as u64 * (1 + ENTRIES);
        Some(read == ENTRY && head.starts_with(MAGIC) && stat.st_size as u64 == size)
    }

    /// Makes an empty one beside the place, and moves it there.
    fn create(path: &Path) -> Option<()> {
        // Several threads of a process may be here.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.{number}", rustix::process::getpid().as_raw_nonzero()));
        let new = PathBuf::from(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // One that a process of the same id left.
        let _ = rustix::fs::unlink(&new);
        let fd = rustix::fs::open(&new, flags, Mode::RUSR | Mode::WUSR).ok()?;
        let mut head = [0; ENTRY];
        for (byte, magic) in head.iter_mut().zip(MAGIC) {
            *byte = *magic;
        }
        let made = rustix::io::pwrite(&fd, &head, 0) == Ok(ENTRY)
            && rustix::fs::ftruncate(&fd, ENTRY as u64 * (1 + ENTRIES)).is_ok()
            && rustix::fs::rename(&new, path).is_ok();
        if !made {
            let _ = rustix::fs::unlink(&new);
        }
        made.then_some(())
    }

    /// The build id of a file, or why it has none, if that is known.
    pub(super) fn get(&self, key: &Key) -> Option<Result<Vec<u8>, NoBuildId>> {
        let (_, places) = self.places(key)?;
        let wanted = fields(key);
        let entry =
            places.as_chunks::<ENTRY>().0.iter().find(|entry| {
                entry.get(8..8 + wanted.len()) == Some(&wanted[..]) && is_whole(entry)
            })?;
        let length = match crate::elf::u32_at(entry, ENTRY - LONGEST - 4) {
            0 => return Some(Err(NoBuildId::NoNote)),
            NOT_ELF => return Some(Err(NoBuildId::NotElf)),
            length => length as usize,
        };
        Some(Ok(entry.get(ENTRY - LONGEST..)?.get(..length)?.to_vec()))
    }

    /// Keeps the build id of a file, or that it has none.
    pub(super) fn put(&self, key: &Key, found: &Result<Vec<u8>, NoBuildId>) {
        let (id, length) = match found {
            Ok(id) => (id.as_slice(), id.len() as u32),
            Err(NoBuildId::NoNote) => (&[][..], 0),
            Err(NoBuildId::NotElf) => (&[][..], NOT_ELF),
            // It may be otherwise the next time.
            Err(_) => return,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        if id.len() > LONGEST || key.changed.0.saturating_add(SETTLED) > now.cast_signed() {
            return;
        }
        let Some((first, places)) = self.places(key) else { return };
        let entries = places.as_chunks::<ENTRY>().0;
        let free = entries.iter().position(|entry| !is_whole(entry));
        // If all are taken, one that the time chooses makes room.
        let at = free.unwrap_or(now as usize % PLACES) as u64;
        let mut entry = Vec::with_capacity(ENTRY);
        entry.extend_from_slice(&[0; 8]);
        entry.extend_from_slice(&fields(key));
        entry.extend_from_slice(&length.to_le_bytes());
        entry.extend_from_slice(id);
        entry.resize(ENTRY, 0);
        let check = checksum(entry.get(8..).unwrap_or_default()).to_le_bytes();
        for (byte, check) in entry.iter_mut().zip(check) {
            *byte = check;
        }
        // What cannot be kept is read again.
        let _ = rustix::io::pwrite(&self.fd, &entry, (1 + first + at) * ENTRY as u64);
    }

    /// The entries where a file may be, and the number of the first.
    fn places(&self, key: &Key) -> Option<(u64, Vec<u8>)> {
        let first = checksum(&fields(key)) % (ENTRIES - PLACES as u64);
        let mut places = vec![0; PLACES * ENTRY];
        let read = rustix::io::pread(&self.fd, &mut *places, (1 + first) * ENTRY as u64);
        (read == Ok(places.len())).then_some((first, places))
    }
}

/// What a file is known by, as it stands in an entry.
fn fields(key: &Key) -> [u8; 36] {
    let mut out = [0; 36];
    let words = [key.dev, key.inode, key.changed.0.cast_unsigned()];
    let numbers = words.iter().flat_map(|word| word.to_le_bytes());
    let all = numbers.chain((key.changed.1 as u32).to_le_bytes()).chain(key.size.to_le_bytes());
    for (byte, value) in out.iter_mut().zip(all) {
        *byte = value;
    }
    out
}

fn is_whole(entry: &[u8; ENTRY]) -> bool {
    let (check, rest) = entry.split_at(8);
    rest.iter().any(|byte| *byte != 0) && check == checksum(rest).to_le_bytes()
}

/// FNV-1a, and its bits mixed: a place is chosen by it too.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    const NOTHING: Result<Vec<u8>, NoBuildId> = Err(NoBuildId::NotElf);

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("skep-ids-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("cache/build-ids")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn key(inode: u64) -> Key {
        Key { dev: 7, inode, changed: (1_700_000_000, 5), size: 100 }
    }

    #[test]
    fn what_one_process_kept_another_finds() {
        let directory = Directory::new("kept");
        let file = BuildIdFile::open(&directory.file()).unwrap();
        file.put(&key(1), &Ok(vec![1; 20]));
        file.put(&key(2), &NOTHING);
        file.put(&key(3), &Ok(vec![3; 25]));
        file.put(&key(6), &Err(NoBuildId::NoNote));
        file.put(&key(7), &Err(NoBuildId::Unreadable));
        let again = BuildIdFile::open(&directory.file()).unwrap();
        assert_eq!(again.get(&key(1)), Some(Ok(vec![1; 20])));
        assert_eq!(again.get(&key(2)), Some(NOTHING));
        assert_eq!(again.get(&key(6)), Some(Err(NoBuildId::NoNote)));
        assert_eq!(again.get(&key(7)), None);
        // Too long to be kept; never seen; changed since.
        assert_eq!(again.get(&key(3)), None);
        assert_eq!(again.get(&key(4)), None);
        for other in [
            Key { dev: 8, ..key(1) },
            Key { changed: (1_700_000_000, 6), ..key(1) },
            Key { changed: (1_700_000_001, 5), ..key(1) },
            Key { size: 101, ..key(1) },
        ] {
            assert_eq!(again.get(&other), None);
        }
        // One that was just changed may change once more within a tick of the clock.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let fresh = Key { changed: (now, 5), ..key(5) };
        again.put(&fresh, &Ok(vec![5; 20]));
        assert_eq!(again.get(&fresh), None);
    }

    #[test]
    fn more_files_than_entries_push_others_out_and_are_never_mixed_up() {
        let directory = Directory::new("many");
        let file = BuildIdFile::open(&directory.file()).unwrap();
        let count = 20_000;
        for inode in 0..count {
            file.put(&key(inode), &Ok(inode.to_le_bytes().to_vec()));
        }
        let mut found = 0;
        for inode in 0..count {
            if let Some(id) = file.get(&key(inode)) {
                assert_eq!(id, Ok(inode.to_le_bytes().to_vec()));
                found += 1;
            }
        }
        assert!(found > 12_000, "{found}");
    }

    #[test]
    fn damage_of_any_kind_is_nothing_known() {
        let directory = Directory::new("damage");
        let path = directory.file();
        let file = BuildIdFile::open(&path).unwrap();
        file.put(&key(1), &Ok(vec![1; 20]));
        let raw = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let at = (ENTRY..bytes.len()).find(|at| bytes[*at] != 0).unwrap();
        let at = at / ENTRY * ENTRY;
        for (place, byte) in bytes.iter().enumerate().skip(at).take(ENTRY) {
            raw.write_all_at(&[byte ^ 0x40], place as u64).unwrap();
            assert_eq!(file.get(&key(1)), None, "byte {}", place - at);
            raw.write_all_at(&[*byte], place as u64).unwrap();
        }
        assert_eq!(file.get(&key(1)), Some(Ok(vec![1; 20])));
        // Shorter, of another version, empty: a new one takes its place.
        for content in [&bytes[..bytes.len() - 1], b"skep build ids 2", b""] {
            std::fs::write(&path, content).unwrap();
            let new = BuildIdFile::open(&path).unwrap();
            assert_eq!(new.get(&key(1)), None);
            new.put(&key(1), &NOTHING);
            assert_eq!(new.get(&key(1)), Some(NOTHING));
        }
        // Cut while it is open.
        let file = BuildIdFile::open(&path).unwrap();
        raw.set_len(0).unwrap();
        std::fs::write(&path, b"").unwrap();
        assert_eq!(file.get(&key(1)), None);
        file.put(&key(1), &NOTHING);
        bytes.clear();
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let directory = Directory::new("others");
        let path = directory.file();
        BuildIdFile::open(&path).unwrap().put(&key(1), &NOTHING);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(BuildIdFile::open(&path).is_none());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        // The link is replaced, not followed.
        assert!(BuildIdFile::open(&path).is_some());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(BuildIdFile::open(&path).is_none());
        assert!(BuildIdFile::open(Path::new("/nonexistent/skep/build-ids")).is_none());
        assert!(BuildIdFile::open(Path::new("/dev/full")).is_none());
        let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the directory is there");
    }

    #[test]
    fn several_writers_at_once_leave_whole_entries() {
        let directory = Directory::new("writers");
        let path = directory.file();
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let path = &path;
                scope.spawn(move || {
                    let file = BuildIdFile::open(path).unwrap();
                    for round in 0..2000_u64 {
                        let inode = (round + writer) % 50;
                        file.put(&key(inode), &Ok(vec![inode as u8; 20]));
                        if let Some(found) = file.get(&key(inode)) {
                            assert_eq!(found, Ok(vec![inode as u8; 20]));
                        }
                    }
                });
            }
        });
    }
}
