//! Looks at a program as `skep_proc::launch` does, without memory, locks or the C library.

use std::ffi::CStr;

use skep_sys::syscall::{
    CLOSE, FGETXATTR, FSTAT, FSTATAT, GETGID, GETUID, OPENAT, PREAD64, READLINK, call4,
};

/// How much of a file the kernel reads to find its interpreter.
const HEAD: usize = 256;
/// How many interpreters of interpreters the kernel follows.
const MAX_DEPTH: usize = 5;
/// Longest path that is kept.
const PATH: usize = 1024;
/// Entries of a dynamic section that are looked at; far more than there are libraries.
const MAX_DYNAMIC: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const ET_DYN: u16 = 3;
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;

/// What the agent can do in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// There is no such file: nothing will run.
    Missing,
    /// It cannot be read, or is no ELF file: whatever is done with it is not known.
    Unknown,
    Traceable,
    Static,
    /// Gains rights when run: the dynamic linker ignores the agent.
    Secure,
    Bits32,
    OtherMachine,
    OtherLibc,
    NoLibrary,
    AddressSanitizer,
}

impl Kind {
    /// Why not, as a predicate.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Missing | Self::Unknown | Self::Traceable => "",
            Self::Static => "is statically linked",
            Self::Secure => {
                "is set-user-id, set-group-id or has capabilities, so the dynamic linker ignores `LD_PRELOAD`"
            }
            Self::Bits32 => "is a 32-bit x86 program",
            Self::OtherMachine => "is a program for another machine",
            Self::OtherLibc => "uses another C library",
            Self::NoLibrary => "has no C library",
            Self::AddressSanitizer => {
                "has an address sanitizer, which must be loaded before all other libraries"
            }
        }
    }
}

/// A program that is looked at: the file that will run in the end, behind scripts.
pub(super) struct Program {
    path: [u8; PATH],
    len: usize,
}

/// An open file, closed when dropped.
struct File(u64);

impl File {
    fn open(at: i32, path: &CStr) -> Option<Self> {
        const CLOEXEC_NONBLOCK_NOCTTY: u64 = 0o2_000_000 | 0o4000 | 0o400;
        // SAFETY: reads the string.
        let fd =
            unsafe { call4(OPENAT, at as u64, path.as_ptr() as u64, CLOEXEC_NONBLOCK_NOCTTY, 0) };
        (fd < u64::MAX - 4096).then_some(Self(fd))
    }

    /// Reads at an offset; how many bytes there were.
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        // SAFETY: writes into `into` only.
        let got =
            unsafe { call4(PREAD64, self.0, into.as_mut_ptr() as u64, into.len() as u64, at) };
        if got > into.len() as u64 { 0 } else { got as usize }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { call4(CLOSE, self.0, 0, 0, 0) };
    }
}

/// The name of a descriptor in /proc, in `text`.
fn descriptor(fd: u32, text: &mut [u8; 32]) -> &CStr {
    let mut scale = 1_000_000_000;
    let digits = std::iter::from_fn(|| {
        while scale > 1 && fd < scale {
            scale /= 10;
        }
        let digit = (scale > 0).then(|| b'0' + (fd / scale.max(1) % 10) as u8);
        scale = if scale > 1 { scale / 10 } else { 0 };
        digit
    });
    for (to, from) in
        text.iter_mut().zip(b"/proc/self/fd/".iter().copied().chain(digits).chain([0]))
    {
        *to = from;
    }
    CStr::from_bytes_until_nul(text).unwrap_or_default()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
}

impl Program {
    pub(super) const fn new() -> Self {
        Self { path: [0; PATH], len: 0 }
    }

    /// The program behind scripts; cut off when very long.
    pub(super) fn path(&self) -> &[u8] {
        self.path.get(..self.len).unwrap_or_default()
    }

    fn set(&mut self, path: &[u8]) {
        let len = path.len().min(PATH - 1);
        for (to, from) in self.path.iter_mut().zip(path.iter().take(len).chain([&0])) {
            *to = *from;
        }
        self.len = len;
    }

    /// Looks at what executing `path` in the directory `at` will run; an empty path is the
    /// descriptor `at` itself.
    pub(super) fn inspect(&mut self, at: i32, path: &CStr) -> Kind {
        const ENOENT: u64 = -2_i64 as u64;
        self.set(path.to_bytes());
        let file = match u32::try_from(at) {
            // Opened anew: it may be one that cannot be read from (`O_PATH`).
            Ok(fd) if path.is_empty() => File::open(-100, descriptor(fd, &mut [0; 32])),
            _ => File::open(at, path),
        };
        let Some(mut file) = file else {
            let mut stat = [0_u64; 18];
            // SAFETY: `struct stat` has 144 bytes.
            let there = unsafe {
                call4(FSTATAT, at as u64, path.as_ptr() as u64, stat.as_mut_ptr() as u64, 0)
            };
            return if there == ENOENT && !path.is_empty() { Kind::Missing } else { Kind::Unknown };
        };
        let mut depth = 0;
        loop {
            self.set_to_name(&file);
            let mut head = [0; HEAD];
            let len = file.read(0, &mut head);
            let head = head.get(..len).unwrap_or_default();
            if head.starts_with(b"\x7fELF") {
                return self.elf(&file, head);
            }
            let Some(name) = interpreter(head) else { return Kind::Unknown };
            depth += 1;
            self.set(name);
            let next =
                CStr::from_bytes_until_nul(&self.path).ok().and_then(|path| File::open(-100, path));
            match next {
                Some(next) if depth <= MAX_DEPTH => file = next,
                _ => return Kind::Unknown,
            }
        }
    }

    /// The absolute path of an open file, if the kernel knows one.
    fn set_to_name(&mut self, file: &File) {
        let mut name = [0; PATH];
        let mut link = [0; 32];
        let link = descriptor(file.0 as u32, &mut link);
        // SAFETY: reads the string, and writes into `name`.
        let got = unsafe {
            call4(READLINK, link.as_ptr() as u64, name.as_mut_ptr() as u64, PATH as u64, 0)
        };
        if got > 0 && got < PATH as u64 {
            self.set(name.get(..got as usize).unwrap_or_default());
        }
    }

    fn elf(&self, file: &File, head: &[u8]) -> Kind {
        let machine = u16_at(head, 18);
        if head.get(5) != Some(&1) {
            return Kind::OtherMachine;
        }
        if head.get(4) != Some(&2) || machine != EM_X86_64 {
            return if matches!(machine, EM_386 | EM_X86_64) {
                Kind::Bits32
            } else {
                Kind::OtherMachine
            };
        }
        let (table, size, count) =
            (u64_at(head, 32), u64::from(u16_at(head, 54)), u64::from(u16_at(head, 56)));
        if size < 56 {
            return Kind::Unknown;
        }
        let mut dynamic = None;
        let mut linker = None;
        for i in 0..count {
            let mut header = [0; 56];
            if file.read(table.wrapping_add(i * size), &mut header) < 56 {
                return Kind::Unknown;
            }
            let place = (u64_at(&header, 8), u64_at(&header, 32));
            match u32_at(&header, 0) {
                PT_INTERP => linker = Some(place),
                PT_DYNAMIC => dynamic = Some(place),
                _ => {}
            }
        }
        let Some((at, len)) = linker else {
            // A dynamic linker that is run by its name loads another program.
            let named = self.path().rsplit(|b| *b == b'/').next().unwrap_or_default();
            let is_linker =
                u16_at(head, 16) == ET_DYN && (is_glibc(named) || named.starts_with(b"ld-musl"));
            return if is_linker { by_linker(named) } else { Kind::Static };
        };
        let mut name = [0; 256];
        let got = file.read(at, name.get_mut(..(len as usize).min(HEAD)).unwrap_or_default());
        let name =
            name.get(..got).unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
        match by_linker(name) {
            Kind::Traceable if is_secure(file) => Kind::Secure,
            Kind::Traceable => {
                let (at, len) = dynamic.unwrap_or_default();
                Dynamic { at, len }.kind(file, table, size, count)
            }
            kind => kind,
        }
    }
}

/// Tells whether a dynamic linker of this name is glibc's.
fn is_glibc(name: &[u8]) -> bool {
    name.starts_with(b"ld-linux")
        || name.starts_with(b"ld-2")
        || name == b"ld.so.1"
        || name == b"ld.so"
}

fn by_linker(path: &[u8]) -> Kind {
    if is_glibc(path.rsplit(|b| *b == b'/').next().unwrap_or_default()) {
        Kind::Traceable
    } else {
        Kind::OtherLibc
    }
}

/// A dynamic section in a file.
struct Dynamic {
    at: u64,
    len: u64,
}

impl Dynamic {
    /// Tells whether `test` holds for an entry: tag and value.
    fn any(&self, file: &File, mut test: impl FnMut(u64, u64) -> bool) -> bool {
        let mut part = [0; 1024];
        let mut done = 0;
        let len = self.len.min(MAX_DYNAMIC * 16);
        while done < len {
            let got = file.read(self.at.wrapping_add(done), &mut part);
            let (entries, _) = part.get(..got).unwrap_or_default().as_chunks::<16>();
            for entry in entries.iter().take(((len - done) / 16) as usize) {
                match u64_at(entry, 0) {
                    DT_NULL => return false,
                    tag if test(tag, u64_at(entry, 8)) => return true,
                    _ => {}
                }
            }
            if entries.is_empty() {
                return false;
            }
            done += entries.len() as u64 * 16;
        }
        false
    }

    /// What the libraries of a program say of it. `table`: the program headers.
    fn kind(&self, file: &File, table: u64, size: u64, count: u64) -> Kind {
        if !self.any(file, |tag, _| tag == DT_NEEDED) {
            Kind::NoLibrary
        } else if self.needs_first(file, table, size, count) {
            Kind::AddressSanitizer
        } else {
            Kind::Traceable
        }
    }

    /// Tells whether one of them must be loaded first.
    fn needs_first(&self, file: &File, table: u64, size: u64, count: u64) -> bool {
        let mut strings = 0;
        self.any(file, |tag, value| {
            strings = if tag == DT_STRTAB { value } else { strings };
            false
        });
        let Some(strings) = offset_of(file, strings, table, size, count) else { return false };
        let mut name = [0; 32];
        self.any(file, |tag, value| {
            tag == DT_NEEDED && {
                let got = file.read(strings.wrapping_add(value), &mut name);
                let name = name.get(..got).unwrap_or_default();
                name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
            }
        })
    }
}

/// Finds where an address of a program lies in its file.
fn offset_of(file: &File, address: u64, table: u64, size: u64, count: u64) -> Option<u64> {
    let mut header = [0; 56];
    for i in 0..count {
        if file.read(table.wrapping_add(i * size), &mut header) < 56 {
            return None;
        }
        let (offset, start, len) = (u64_at(&header, 8), u64_at(&header, 16), u64_at(&header, 32));
        if u32_at(&header, 0) == PT_LOAD && address >= start && address - start < len {
            return Some(offset.wrapping_add(address - start));
        }
    }
    None
}

/// Tells whether the program gains rights when it is run.
fn is_secure(file: &File) -> bool {
    const SET_UID: u32 = 0o4000;
    const SET_GID: u32 = 0o2000;
    const GROUP_EXECUTES: u32 = 0o0010;
    let mut stat = [0_u64; 18];
    // SAFETY: `struct stat` has 144 bytes; the others take nothing.
    let (uid, gid) = unsafe {
        if call4(FSTAT, file.0, stat.as_mut_ptr() as u64, 0, 0) != 0 {
            return false;
        }
        (call4(GETUID, 0, 0, 0, 0) as u32, call4(GETGID, 0, 0, 0, 0) as u32)
    };
    // st_mode and st_uid share a word, st_gid is in the next.
    let (mode, owner, group) = (stat[3] as u32, (stat[3] >> 32) as u32, stat[4] as u32);
    if mode & SET_UID != 0 && owner != uid {
        return true;
    }
    // Without the group's execute bit, set-group-id means mandatory locking.
    if mode & (SET_GID | GROUP_EXECUTES) == SET_GID | GROUP_EXECUTES && group != gid {
        return true;
    }
    // Root gains nothing by file capabilities.
    // SAFETY: reads the name; asks for a length only.
    uid != 0
        && unsafe {
            (call4(FGETXATTR, file.0, c"security.capability".as_ptr() as u64, 0, 0) as i64) >= 0
        }
}

/// The interpreter that a first line names, as the kernel reads it: blanks, name, blank.
fn interpreter(head: &[u8]) -> Option<&[u8]> {
    let blank = |b: &u8| *b == b' ' || *b == b'\t';
    let line = head.strip_prefix(b"#!")?;
    let ends = line.contains(&b'\n');
    let line = line.split(|b| *b == b'\n').next()?;
    let line = line.get(line.iter().position(|b| !blank(b))?..)?;
    // The name may go on beyond what the kernel reads.
    if !ends && head.len() == HEAD && !line.iter().any(blank) {
        return None;
    }
    let name = line.split(|b| blank(b) || *b == 0).next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_proc::launch::{self, LaunchError, Obstacle};
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn theirs(path: &Path) -> Kind {
        match launch::inspect(path) {
            Err(LaunchError::NotFound { .. }) => Kind::Missing,
            Err(_) => Kind::Unknown,
            // A text without a first line: only shells know what to do with it.
            Ok(l)
                if l.scripts
                    .iter()
                    .any(|s| std::fs::read(&s.path).is_ok_and(|text| !text.starts_with(b"#!"))) =>
            {
                Kind::Unknown
            }
            Ok(l) => match l.preload_obstacle() {
                None => Kind::Traceable,
                Some(Obstacle::Static) => Kind::Static,
                Some(Obstacle::Secure(_)) => Kind::Secure,
                Some(Obstacle::Foreign { machine: 3 | 62, .. }) => Kind::Bits32,
                Some(Obstacle::Foreign { .. }) => Kind::OtherMachine,
                Some(Obstacle::OtherLibc { .. }) => Kind::OtherLibc,
                Some(Obstacle::NoLibrary) => Kind::NoLibrary,
                Some(_) => Kind::AddressSanitizer,
            },
        }
    }

    fn ours(path: &Path) -> (Kind, Vec<u8>) {
        let mut program = Program::new();
        let kind =
            program.inspect(-100, &CString::new(path.as_os_str().as_bytes()).expect("no zeros"));
        (kind, program.path().to_vec())
    }

    /// All programs of the machine are what the reader with all its comforts says.
    #[test]
    fn programs_of_the_machine_are_seen_as_the_other_reader_sees_them() {
        let mut kinds = std::collections::BTreeMap::<String, usize>::new();
        for dir in ["/usr/bin", "/usr/sbin", "/lib64", "/usr/lib/x86_64-linux-gnu"] {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                use std::os::unix::fs::PermissionsExt;
                let runs = std::fs::metadata(&path)
                    .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
                if !runs {
                    continue;
                }
                let (kind, _) = ours(&path);
                let theirs = theirs(&path);
                assert_eq!(kind, theirs, "{}", path.display());
                *kinds.entry(format!("{kind:?}")).or_default() += 1;
            }
        }
        assert!(kinds.contains_key("Traceable"), "{kinds:?}");
    }

    /// Headers that another machine, word size or C library has; damaged ones; scripts of scripts.
    #[test]
    fn made_up_files_are_seen_alike() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("skep-inspect-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let own = std::fs::read(std::env::current_exe().expect("this test")).expect("readable");
        let head = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = own.clone();
            change(&mut bytes);
            bytes
        };
        let (phoff, count) = (u64_at(&own, 32) as usize, usize::from(u16_at(&own, 56)));
        let of_kind = |kind: u32| {
            (0..count)
                .map(|i| phoff + i * 56)
                .find(|at| u32_at(&own, *at) == kind)
                .expect("there is one")
        };
        let interp = u64_at(&own, of_kind(PT_INTERP) + 8) as usize;
        let dynamic = u64_at(&own, of_kind(PT_DYNAMIC) + 8) as usize;
        let cases: Vec<(&str, Vec<u8>, Kind)> = vec![
            ("plain", own.clone(), Kind::Traceable),
            ("arm", head(&|b| b[18] = 183), Kind::OtherMachine),
            (
                "bits32",
                head(&|b| {
                    b[4] = 1;
                    b[18] = 3
                }),
                Kind::Bits32,
            ),
            (
                "musl",
                head(&|b| b[interp..interp + 25].copy_from_slice(b"/lib/ld-musl-x86_64.so.1\0")),
                Kind::OtherLibc,
            ),
            ("static", head(&|b| b[of_kind(PT_INTERP)] = 0), Kind::Static),
            // An end in place of the first entry.
            ("alone", head(&|b| b[dynamic..dynamic + 8].fill(0)), Kind::NoLibrary),
            (
                "script",
                format!("#! {} -x\n", dir.join("musl").display()).into_bytes(),
                Kind::OtherLibc,
            ),
            (
                "chain",
                format!("#!{}\n", dir.join("script").display()).into_bytes(),
                Kind::OtherLibc,
            ),
            ("text", b"echo hello\n".to_vec(), Kind::Unknown),
            ("nowhere", b"#!/no/such/file\n".to_vec(), Kind::Unknown),
            ("circle", format!("#!{}\n", dir.join("circle").display()).into_bytes(), Kind::Unknown),
        ];
        for (name, bytes, kind) in &cases {
            let path = dir.join(name);
            std::fs::write(&path, bytes).expect("ours");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("ours");
            let (ours, _) = ours(&path);
            assert_eq!(ours, *kind, "{name}");
            assert_eq!(theirs(&path), *kind, "{name}");
        }
        assert_eq!(ours(&dir.join("none")).0, Kind::Missing);
        assert_eq!(ours(&dir.join("chain")).1, dir.join("musl").as_os_str().as_bytes());
        for fd in [0, 7, 10, 305, 1_000_000] {
            assert_eq!(
                descriptor(fd, &mut [0; 32]).to_string_lossy(),
                format!("/proc/self/fd/{fd}")
            );
        }
        // By a descriptor, which stays open, and need not be readable.
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::OpenOptionsExt;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(0o10_000_000)
            .open(dir.join("musl"))
            .expect("there");
        let mut program = Program::new();
        assert_eq!(program.inspect(file.as_raw_fd(), c""), Kind::OtherLibc);
        assert_eq!(program.path(), dir.join("musl").as_os_str().as_bytes());
        assert!(file.metadata().is_ok());
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}
