//! `procmap_query` beside the kernel's ioctl: every field, every error, over several sources.

#![allow(unsafe_code)]

mod common;

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;

use common::Fixture;
use skep_proc::maps::{Identity, Live, MapSource, Mappings, MapsError, Snapshot, Vma, Want};
use skep_proc::procmap_query::{ProcmapQuery, procmap_query};
use skep_testkit::skip;

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
}

/// The struct with room behind it, and what it points to.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    bytes: Vec<u8>,
    name: Vec<u8>,
    id: Vec<u8>,
}

/// A call as C would prepare it: the answer of `ask` (0 or a negative error) and what was written.
fn call(
    q: ProcmapQuery,
    more: &[u8],
    name: usize,
    id: usize,
    ask: impl FnOnce(*mut c_void) -> c_int,
) -> (c_int, Call) {
    // Whatever is not written keeps its value.
    let mut name = vec![0xaa; name];
    let mut id = vec![0xbb; id];
    let mut q = q;
    if !name.is_empty() && q.vma_name_addr == 1 {
        q.vma_name_addr = name.as_mut_ptr().expose_provenance() as u64;
    }
    if !id.is_empty() && q.build_id_addr == 1 {
        q.build_id_addr = id.as_mut_ptr().expose_provenance() as u64;
    }
    let mut bytes = vec![0u8; 104];
    // SAFETY: both are 104 bytes of plain numbers.
    unsafe { bytes.as_mut_ptr().cast::<ProcmapQuery>().write_unaligned(q) };
    bytes.extend(more);
    let status = ask(bytes.as_mut_ptr().cast());
    // Addresses differ from call to call.
    bytes[88..104].fill(0);
    (status, Call { bytes, name, id })
}

fn kernel(maps: &File) -> impl Fn(*mut c_void) -> c_int {
    |query| {
        // SAFETY: the tests pass structs of the size that they name, or addresses of nothing.
        if unsafe { ioctl(maps.as_raw_fd(), 0xc068_6611, query) } == 0 {
            0
        } else {
            -std::io::Error::last_os_error().raw_os_error().unwrap()
        }
    }
}

fn ours(source: &dyn MapSource) -> impl Fn(*mut c_void) -> c_int {
    // SAFETY: as above.
    move |query| unsafe { procmap_query(source, query) }
}

const FULL: ProcmapQuery = ProcmapQuery {
    size: 104,
    query_flags: 0,
    query_addr: 0,
    vma_start: 0,
    vma_end: 0,
    vma_flags: 0,
    vma_page_size: 0,
    vma_offset: 0,
    inode: 0,
    dev_major: 0,
    dev_minor: 0,
    vma_name_size: 4096,
    build_id_size: 20,
    vma_name_addr: 1,
    build_id_addr: 1,
};

#[test]
fn every_field_is_the_kernels() {
    let f = Fixture::new("abi");
    let maps = File::open(format!("/proc/{}/maps", f.child.id())).unwrap();
    if !f.live().has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let (live, text) = (f.live(), f.text());
    let saved = Snapshot::take(&live, Identity::of(f.child.id()), Want::EVERYTHING).unwrap();
    let saved = Snapshot::from_bytes(&saved.to_bytes()).unwrap();
    let sources: [(&str, &dyn MapSource); 3] =
        [("ioctl", &live), ("text", &text), ("snapshot", &saved)];
    let mut compared = 0;
    for vma in saved.vmas() {
        for address in [vma.start, vma.end - 1, vma.start - 1] {
            for flags in [0, 0x10, 0x10 | 0x20, 0x14, 0x08, 0x18] {
                let q = ProcmapQuery { query_addr: address, query_flags: flags, ..FULL };
                let expected = call(q, b"", 4096, 20, kernel(&maps));
                for (name, source) in sources {
                    // The text takes long; the ambiguous name is compared in other tests.
                    if name == "text" && (flags != 0 || address != vma.start) {
                        continue;
                    }
                    let got = call(q, b"", 4096, 20, ours(source));
                    if got.0 == -36 && expected.0 == -36 {
                        continue;
                    }
                    assert_eq!(got, expected, "{name} {address:x} {flags:x} {vma:?}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn sizes_flags_and_buffers_fail_as_in_the_kernel() {
    let f = Fixture::new("errno");
    let maps = File::open(format!("/proc/{}/maps", f.child.id())).unwrap();
    if !f.live().has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let live = f.live();
    let program = live.all(&skep_proc::maps::Filter::TEXT, Want::ALL).unwrap().remove(0);
    let at = ProcmapQuery { query_addr: program.start, ..FULL };
    let same = |q: ProcmapQuery, more: &[u8], name: usize, id: usize, what: &str| {
        let expected = call(q, more, name, id, kernel(&maps));
        let got = call(q, more, name, id, ours(&live));
        assert_eq!(got.0, expected.0, "{what}");
        assert!(got == expected, "{what}: other bytes");
        expected.0
    };
    let none = ProcmapQuery {
        vma_name_size: 0,
        vma_name_addr: 0,
        build_id_size: 0,
        build_id_addr: 0,
        ..at
    };
    // Sizes, with nothing behind and with something behind.
    let mut seen = std::collections::BTreeSet::new();
    for size in (0..=120).chain([4095, 4096, 4097, u64::MAX]) {
        for more in [vec![0u8; 4100], vec![1u8; 4100]] {
            seen.insert(same(ProcmapQuery { size, ..none }, &more, 0, 0, &format!("size {size}")));
            // A struct that ends before the buffers' addresses has sizes without them.
            // An address that is cut is another one in each call.
            if !(89..104).contains(&size) || size == 96 {
                let q = ProcmapQuery { size, ..at };
                same(q, &more, 4096, 20, &format!("size {size}, buffers"));
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [-22, -7, 0]);
    for bit in 0..64 {
        let q = ProcmapQuery { query_flags: 1 << bit, ..none };
        let status = same(q, b"", 0, 0, &format!("flag {bit}"));
        assert!(bit < 6 || status == -22);
    }
    // Either a buffer and its size, or neither.
    for (name_size, name_addr, id_size, id_addr) in
        [(0, 1, 0, 0), (9, 0, 0, 0), (0, 0, 0, 1), (0, 0, 20, 0), (4096, 1, 20, 0)]
    {
        let q = ProcmapQuery {
            vma_name_size: name_size,
            vma_name_addr: name_addr,
            build_id_size: id_size,
            build_id_addr: id_addr,
            ..at
        };
        assert_eq!(same(q, b"", 4096, 20, "half a buffer"), -22);
    }
    // Names that fit just so, and not; and nothing at all is mapped.
    let len = program.name.as_ref().unwrap().len() as u32 + 1;
    for size in [1, 2, len - 1, len, len + 1, 4096, 5000, u32::MAX] {
        let room = size.min(6000) as usize;
        let q = ProcmapQuery { vma_name_size: size, vma_name_addr: 1, ..none };
        let status = same(q, b"", room, 0, &format!("name of {size}"));
        assert_eq!(status, if size < len { -36 } else { 0 });
    }
    for flags in [0, 0x10] {
        let q = ProcmapQuery { query_addr: u64::MAX, query_flags: flags, ..none };
        assert_eq!(same(q, b"", 0, 0, "the end"), -2);
    }
    // The deep file's name is longer than any that is answered.
    let deep = f.text().all(&skep_proc::maps::Filter::default(), Want::NAME).unwrap();
    let long = |v: &&Vma| v.name.as_ref().is_some_and(|n| n.len() > 4096);
    let deep = deep.iter().find(long).unwrap().start;
    let q = ProcmapQuery { query_addr: deep, ..FULL };
    assert_eq!(same(q, b"", 4096, 20, "a long name"), -36);
    assert_eq!(same(ProcmapQuery { query_addr: deep, ..none }, b"", 0, 0, "without"), 0);
}

#[test]
fn addresses_of_nothing_are_efault() {
    let own = Live::own().unwrap();
    if !own.has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let maps = File::open("/proc/self/maps").unwrap();
    let here = addresses_of_nothing_are_efault as *const () as u64;
    // SAFETY: there is never memory at these addresses, which is what is tested.
    unsafe {
        for address in [0usize, 8, 1 << 63] {
            let nothing = std::ptr::without_provenance_mut::<c_void>(address);
            assert_eq!(kernel(&maps)(nothing), -14);
            assert_eq!(procmap_query(&own, nothing), -14);
        }
    }
    for (name, id) in [(8, 1), (1, 8)] {
        let q = ProcmapQuery { query_addr: here, vma_name_addr: name, build_id_addr: id, ..FULL };
        let expected = call(q, b"", 4096, 20, kernel(&maps));
        let got = call(q, b"", 4096, 20, ours(&own));
        assert_eq!((got.0, expected.0), (-14, -14));
        assert_eq!(got.1.bytes, expected.1.bytes, "the struct is not written");
    }
    // Memory that may only be read.
    static READ_ONLY: [u64; 13] = [104, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut q = READ_ONLY;
    q[2] = here;
    assert_eq!(ours(&own)(q.as_mut_ptr().cast()), 0);
    let constant = READ_ONLY.as_ptr().cast_mut().cast();
    // Nothing is mapped at 0, so nothing is written.
    assert_eq!(ours(&own)(constant), -2);
}

#[test]
fn build_ids_that_do_not_fit() {
    let vma = |start, id: usize| Vma {
        start,
        end: start + 1,
        build_id: Some((1..=id as u8).collect()),
        file: true,
        ..Vma::default()
    };
    let all = [1, 16, 20, 21, 32].map(|id| vma(id as u64, id)).to_vec();
    let source = Mappings::new(all).unwrap();
    // As measured of the kernel: 1, 16 and 20 bytes are answered, longer ones are none.
    for (id, room, status, answered) in [
        (1, 20, 0, 1),
        (16, 16, 0, 16),
        (16, 15, -36, 0),
        (20, 20, 0, 20),
        (20, 19, -36, 0),
        (21, 20, 0, 0),
        (32, 64, 0, 0),
    ] {
        let q = ProcmapQuery {
            query_addr: id,
            vma_name_size: 0,
            vma_name_addr: 0,
            build_id_size: room,
            ..FULL
        };
        let (got, after) = call(q, b"", 0, room as usize, ours(&source));
        assert_eq!(got, status, "{id} in {room}");
        if status == 0 {
            let size = u32::from_ne_bytes(after.bytes[84..88].try_into().unwrap());
            assert_eq!(size, answered);
            assert_eq!(after.id[..answered as usize], *(1..=answered as u8).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_source_that_has_ended_is_esrch() {
    let mut f = Fixture::new("ended");
    let (live, maps) = (f.live(), File::open(format!("/proc/{}/maps", f.child.id())).unwrap());
    let process = skep_proc::maps::Process::open(f.child.id()).unwrap();
    drop(f.child.stdin.take());
    f.child.wait().unwrap();
    let q = ProcmapQuery { query_flags: 0x10, ..FULL };
    if Live::own().unwrap().has_ioctl() {
        assert_eq!(call(q, b"", 4096, 20, kernel(&maps)).0, -3);
    }
    assert_eq!(call(q, b"", 4096, 20, ours(&live)).0, -3);
    assert_eq!(call(q, b"", 4096, 20, ours(&process)).0, -3);
}

/// The descriptor belongs to the address space that was there when it was opened.
#[test]
fn a_process_that_has_executed_another_program_is_esrch() {
    let mut child = std::process::Command::new("sh")
        .args(["-c", "echo ready; read x; exec cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let maps = File::open(format!("/proc/{}/maps", child.id())).unwrap();
    let (live, text) = (Live::of(child.id()).unwrap(), Live::of(child.id()).unwrap().text_only());
    let process = skep_proc::maps::Process::open(child.id()).unwrap();
    let has_ioctl = Live::own().unwrap().has_ioctl();
    let sources: [&dyn MapSource; 3] = [&live, &text, &process];
    let q = ProcmapQuery { query_flags: 0x10, ..FULL };
    for source in sources {
        assert_eq!(call(q, b"", 4096, 20, ours(source)).0, 0);
    }
    child.stdin.as_mut().unwrap().write_all(b"go\necho\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap(); // `cat` echoes, so the exec is over
    if has_ioctl {
        assert_eq!(call(q, b"", 4096, 20, kernel(&maps)).0, -3);
    }
    for source in sources {
        assert_eq!(call(q, b"", 4096, 20, ours(source)).0, -3);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_thread_of_the_kernel_is_esrch() {
    // 2 is kthreadd, if we can see it at all.
    if std::fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        return skip("the first pid namespace");
    }
    // Newer kernels refuse to open it with the same error.
    let opened = File::open("/proc/2/maps").map_err(|e| -e.raw_os_error().unwrap());
    if Live::own().unwrap().has_ioctl() {
        assert_eq!(
            opened.map_or_else(|e| e, |maps| call(FULL, b"", 4096, 20, kernel(&maps)).0),
            -3
        );
    }
    for text in [false, true] {
        match Live::of(2) {
            Ok(live) => {
                let live = if text { live.text_only() } else { live };
                assert_eq!(call(FULL, b"", 4096, 20, ours(&live)).0, -3);
            }
            Err(error) => assert_eq!(error, MapsError::Gone),
        }
    }
}
