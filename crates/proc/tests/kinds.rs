//! Mappings that the kernel names by itself, one of each kind: every source says of each what was
//! asked of the kernel, and what its text and its ioctl say.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_ulong, c_void};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use skep_proc::maps::{
    Filter, Identity, Live, MapSource, NoBuildId, Normalizer, Perms, Place, Process, Reason,
    Snapshot, Vma, Want,
};
use skep_proc::procmap_query::{ProcmapQuery, procmap_query};
use skep_testkit::cc::Cc;
use skep_testkit::run::{Running, start};
use skep_testkit::{TempDir, skip};

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
}

const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;

/// What is expected of a kind: the name's beginning and end, permissions, whether there is a file
/// behind (as the flag `FILE_BACKED_VMA` counts it), and the page size.
struct Kind {
    name: &'static str,
    starts: &'static str,
    ends: &'static str,
    perms: &'static str,
    file: bool,
    page: u64,
    needs: &'static str,
}

const fn kind(name: &'static str, starts: &'static str, perms: &'static str, file: bool) -> Kind {
    Kind { name, starts, ends: "", perms, file, page: 4096, needs: "" }
}

fn kinds() -> Vec<Kind> {
    let deleted = |kind: Kind| Kind { ends: " (deleted)", ..kind };
    vec![
        deleted(kind("memfd", "/memfd:a memfd", "r--s", true)),
        deleted(kind("memfd-private", "/memfd:a memfd", "rw-p", true)),
        Kind {
            needs: "System V shared memory",
            ..deleted(kind("sysv", "/SYSV00000000", "rw-s", true))
        },
        kind("anonymous", "", "rw-p", false),
        deleted(kind("shared", "/dev/zero", "rw-s", true)),
        Kind {
            needs: "names of anonymous memory (CONFIG_ANON_VMA_NAME)",
            ..kind("named", "[anon:a name]", "rw-p", false)
        },
        Kind {
            needs: "names of anonymous memory (CONFIG_ANON_VMA_NAME)",
            ..kind("named-shared", "[anon_shmem:a name]", "rw-s", true)
        },
        kind("device", "/dev/zero", "r--p", true),
        Kind {
            page: 2 << 20,
            needs: "a free huge page (vm.nr_hugepages)",
            ..deleted(kind("hugetlb", "/anon_hugepage", "rw-p", true))
        },
        Kind { needs: "io_uring", ..kind("io_uring", "anon_inode:[io_uring]", "rw-s", true) },
        Kind { needs: "perf_event_open", ..kind("perf", "anon_inode:[perf_event]", "rw-s", true) },
        Kind {
            ends: "]",
            needs: "the right to open packet sockets",
            ..kind("socket", "socket:[", "rw-s", true)
        },
        Kind { needs: "uprobes", ..kind("uprobes", "[uprobes]", "--xp", false) },
        kind("heap", "[heap]", "rw-p", false),
        kind("stack", "[stack]", "rw-p", false),
        kind("vdso", "[vdso]", "r-xp", false),
        Kind { ends: "/kinds", ..kind("program", "/", "r-xp", true) },
    ]
}

struct Fixture {
    child: Running,
    /// Addresses by the name of the kind.
    at: BTreeMap<String, u64>,
    _dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::new();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kinds.c");
        let program = Cc::c().compile(&[source.as_ref()], &dir.join("kinds"));
        let mut child = start(&Command::new(program), Duration::from_secs(300));
        let mut at = BTreeMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((kind, address)) = line.split_once(" 0x") else {
                assert_eq!(line, "ready");
                break;
            };
            at.insert(kind.to_owned(), u64::from_str_radix(address, 16).unwrap());
        }
        Self { child, at, _dir: dir }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn maps(&self) -> String {
        format!("/proc/{}/maps", self.pid())
    }
}

/// Asks the kernel itself, without names; the answer with the sizes set to 0, or the error.
fn kernel(maps: &fs::File, query_addr: u64, query_flags: u64) -> Result<ProcmapQuery, c_int> {
    let mut q = ProcmapQuery { size: 104, query_addr, query_flags, ..Default::default() };
    // SAFETY: the struct is as large as it says, and names no buffers.
    match unsafe { ioctl(maps.as_raw_fd(), 0xc068_6611, (&raw mut q).cast()) } {
        0 => Ok(q),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn ours(source: &dyn MapSource, query_addr: u64, query_flags: u64) -> Result<ProcmapQuery, c_int> {
    let mut q = ProcmapQuery { size: 104, query_addr, query_flags, ..Default::default() };
    // SAFETY: as above.
    match unsafe { procmap_query(source, (&raw mut q).cast()) } {
        0 => Ok(q),
        error => Err(-error),
    }
}

/// The kernel's own line for an address, split by hand: range and permissions, offset, device and
/// inode, name.
fn line(text: &str, address: u64) -> (String, String, String) {
    let has = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let hex = |s| u64::from_str_radix(s, 16).unwrap();
        (hex(start)..hex(end)).contains(&address)
    };
    let line = text.lines().find(has).unwrap_or_else(|| panic!("{address:x} in\n{text}"));
    let fields: Vec<&str> = line.splitn(6, ' ').collect();
    let name = fields.get(5).map_or("", |rest| rest.trim_start_matches(' '));
    (fields[..2].join(" "), fields[2..5].join(" "), name.to_owned())
}

fn as_line(v: &Vma) -> (String, String, String) {
    let name = String::from_utf8(v.name.clone().unwrap_or_default()).unwrap();
    (
        format!("{:08x}-{:08x} {}", v.start, v.end, v.perms),
        format!("{:08x} {:02x}:{:02x} {}", v.offset, v.dev.major, v.dev.minor, v.inode),
        name,
    )
}

#[test]
fn each_kind_is_what_was_asked_for_from_every_source() {
    let f = Fixture::new();
    let text = fs::read_to_string(f.maps()).unwrap();
    let (live, by_text) = (Live::of(f.pid()).unwrap(), Live::of(f.pid()).unwrap().text_only());
    let process = Process::open(f.pid()).unwrap();
    let saved = Snapshot::take(&live, Identity::of(f.pid()), Want::EVERYTHING).unwrap();
    let saved = Snapshot::from_bytes(&saved.to_bytes()).unwrap();
    let sources: [(&str, &dyn MapSource); 4] =
        [("live", &live), ("text", &by_text), ("process", &process), ("snapshot", &saved)];
    let mut missing = BTreeSet::new();
    for kind in kinds() {
        let Some(&address) = f.at.get(kind.name) else {
            assert_ne!(kind.needs, "", "{} is always there", kind.name);
            missing.insert(kind.needs);
            continue;
        };
        for (name, source) in sources {
            let what = format!("{} by {name}", kind.name);
            let ask = |filter: Filter, want| source.query(address, &filter, want).unwrap();
            let v = ask(Filter::default(), Want::EVERYTHING).unwrap_or_else(|| panic!("{what}"));
            assert_eq!(as_line(&v), line(&text, address), "{what}");
            let shown = String::from_utf8(v.name.clone().unwrap_or_default()).unwrap();
            assert!(
                shown.starts_with(kind.starts) && shown.ends_with(kind.ends),
                "{what}: {shown}"
            );
            assert_eq!(shown.is_empty(), kind.starts.is_empty(), "{what}: {shown}");
            assert_eq!(v.perms.to_string(), kind.perms, "{what}");
            assert_eq!(v.page_size, kind.page, "{what}");
            assert_eq!(v.file_backed(), kind.file, "{what}");
            let backed = Filter { file_backed: true, ..Filter::default() };
            assert_eq!(ask(backed, Want::NAME).is_some(), kind.file, "{what}");
            let shared = Filter { all: Perms::SHARED, ..Filter::default() };
            assert_eq!(ask(shared, Want::NAME).is_some(), kind.perms.ends_with('s'), "{what}");
            // Only files that are ELF, and the vDSO's image, have one. The kernel is not asked for that
            // of a socket: it would read a packet, and wait for one, for ever in this program.
            let has_id = matches!(kind.name, "vdso" | "program");
            assert_eq!(v.build_id.is_some(), has_id, "{what}");
            if !has_id && !kind.file && name != "snapshot" {
                assert_eq!(source.no_build_id(&v), Some(NoBuildId::NoFile), "{what}");
            }
        }
    }
    if !missing.is_empty() {
        skip(&missing.into_iter().collect::<Vec<_>>().join(", "));
    }
}

/// The pages of the vDSO's data: their names come and go with kernels, but they are never code.
#[test]
fn data_of_the_vdso_is_no_file_and_no_code() {
    let f = Fixture::new();
    let live = Live::of(f.pid()).unwrap();
    let all = live.all(&Filter::default(), Want::ALL).unwrap();
    let data = all.iter().filter(|v| v.name.as_ref().is_some_and(|n| n.starts_with(b"[vvar")));
    let data: Vec<_> = data.collect();
    assert!(!data.is_empty(), "{all:?}");
    for v in data {
        assert_eq!((v.perms.to_string().as_str(), v.file, v.inode), ("r--p", false, 0), "{v:?}");
        assert_eq!(v.build_id, None);
        let place = |data: bool| {
            let mut normalizer = Normalizer::new(&live).data(data);
            normalizer.normalize(&[v.start]).unwrap()[0]
        };
        assert_eq!(place(false), Place::Other(Reason::NotExecutable));
        assert_eq!(place(true), Place::Other(Reason::Special));
    }
}

/// The page in which the kernel steps over probed instructions is code, but of no file.
#[test]
fn the_page_of_uprobes_is_code_of_no_file() {
    let f = Fixture::new();
    let Some(&address) = f.at.get("uprobes") else { return skip("uprobes") };
    let live = Live::of(f.pid()).unwrap();
    let has = |filter| live.query(address, &filter, Want::NAME).unwrap().is_some();
    assert!(has(Filter { all: Perms::EXEC, ..Filter::default() }) && !has(Filter::TEXT));
    let mut normalizer = Normalizer::new(&live);
    assert_eq!(normalizer.normalize(&[address]).unwrap(), [Place::Other(Reason::Special)]);
    let modules = skep_proc::module::of(f.pid()).unwrap();
    assert!(!modules.iter().any(|module| module.text_contains(address)));
}

/// The kernel's text has a line for the page of old system calls, its ioctl has not: no source has.
#[test]
fn the_page_of_old_system_calls_is_no_mapping() {
    let f = Fixture::new();
    if !fs::read_to_string(f.maps()).unwrap().contains("[vsyscall]") {
        return skip("a kernel with vsyscall=xonly or emulate");
    }
    let (live, by_text) = (Live::of(f.pid()).unwrap(), Live::of(f.pid()).unwrap().text_only());
    let saved = Snapshot::take(&by_text, Identity::of(f.pid()), Want::ALL).unwrap();
    let maps = fs::File::open(f.maps()).unwrap();
    for source in [&live as &dyn MapSource, &by_text, &saved] {
        for filter in [Filter::default(), Filter::default().or_next()] {
            assert_eq!(source.query(VSYSCALL, &filter, Want::NAME).unwrap(), None);
        }
        let all = source.all(&Filter::default(), Want::NAME).unwrap();
        assert!(all.iter().all(|v| v.end <= VSYSCALL && !v.is_vsyscall()));
        let places = Normalizer::new(source).normalize(&[VSYSCALL, VSYSCALL + 0x1000]).unwrap();
        assert_eq!(places, [Place::Other(Reason::Vsyscall), Place::Other(Reason::Unmapped)]);
        for flags in [0, 0x10] {
            assert_eq!(ours(source, VSYSCALL, flags), Err(2));
            if live.has_ioctl() {
                assert_eq!(kernel(&maps, VSYSCALL, flags), Err(2));
            }
        }
    }
}

/// Every flag and every pair of flags at every kind, without names: the kernel's struct, bit by bit.
#[test]
fn flags_choose_among_the_kinds_as_the_kernel_does() {
    let f = Fixture::new();
    let live = Live::of(f.pid()).unwrap();
    if !live.has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let maps = fs::File::open(f.maps()).unwrap();
    let saved = Snapshot::take(&live, Identity::of(f.pid()), Want::EVERYTHING).unwrap();
    let mut found = BTreeMap::new();
    for (kind, address) in &f.at {
        for flags in 0..64 {
            let expected = kernel(&maps, *address, flags);
            for source in [&live as &dyn MapSource, &saved] {
                assert_eq!(ours(source, *address, flags), expected, "{kind} {flags:#x}");
            }
            *found.entry((flags, expected.is_ok())).or_insert(0) += 1;
        }
    }
    // Both answers were seen where both are possible; all of these can be read.
    for flags in [0x02, 0x04, 0x08, 0x20, 0x28] {
        assert!(found.contains_key(&(flags, true)) && found.contains_key(&(flags, false)));
    }
}

/// Walks that the kernel makes itself by the next address, for filters: the same mappings in the
/// same order, from every source.
#[test]
fn filtered_walks_are_the_kernels() {
    let f = Fixture::new();
    let live = Live::of(f.pid()).unwrap();
    if !live.has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let maps = fs::File::open(f.maps()).unwrap();
    let by_text = Live::of(f.pid()).unwrap().text_only();
    let mut sizes = Vec::new();
    for flags in [0x00, 0x01, 0x02, 0x04, 0x08, 0x20, 0x24, 0x06] {
        let (mut at, mut expected) = (0, Vec::new());
        loop {
            match kernel(&maps, at, flags | 0x10) {
                Ok(q) => expected.push(q.vma_start..q.vma_end),
                Err(errno) => break assert_eq!(errno, 2),
            }
            at = expected.last().unwrap().end;
        }
        let all = Perms(flags as u8).and(Perms::ALL);
        let filter = Filter { all, file_backed: flags & 0x20 != 0, ..Filter::default() };
        for source in [&live as &dyn MapSource, &by_text] {
            let found = source.all(&filter, Want::NAME).unwrap();
            assert_eq!(found.iter().map(Vma::range).collect::<Vec<_>>(), expected, "{flags:#x}");
        }
        sizes.push(expected.len());
    }
    // Nothing is writable code, all else is there.
    assert_eq!(
        sizes.iter().map(|n| *n > 0).collect::<Vec<_>>(),
        [true; 7].into_iter().chain([false]).collect::<Vec<_>>()
    );
}
