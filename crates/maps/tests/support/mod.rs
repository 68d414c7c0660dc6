//! What the tests of this crate share: a directory, forked children, random numbers.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod qp_audit;
pub mod qp_trie;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use rustix::fs::{SeekFrom, seek};
use skep_isa::MapType;
use skep_maps::{Map, MapDef, MapError, SlotTable};

/// A skep directory on tmpfs that ends with the value.
pub struct Dir {
    path: PathBuf,
    ids: AtomicU32,
}

impl Dir {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path = PathBuf::from(format!(
            "/dev/shm/skep-maps-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        ));
        std::fs::create_dir_all(path.join("maps")).expect("tmpfs is writable");
        Self { path, ids: AtomicU32::new(1) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn maps(&self) -> PathBuf {
        self.path.join("maps")
    }

    pub fn create(&self, def: &MapDef) -> Result<Map, MapError> {
        Map::create(&self.maps(), self.ids.fetch_add(1, Relaxed), def)
    }

    pub fn make(&self, def: &MapDef) -> Map {
        self.create(def).expect("a good definition")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn kill(pid: i32, signal: i32) -> i32;
    fn unshare(flags: i32) -> i32;
    fn raise(signal: i32) -> i32;
    fn ptrace(request: i32, ...) -> i64;
    fn mount(
        source: *const u8,
        target: *const u8,
        kind: *const u8,
        flags: u64,
        data: *const u8,
    ) -> i32;
}

/// A forked child; waited for by `join` or killed by `kill`.
pub struct Child(i32);

/// Runs `f` in a forked child, whose exit status is its result.
pub fn forked(f: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child runs `f` and ends without unwinding into the parent's frames; glibc keeps
    // malloc usable there.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "fork");
    if pid == 0 {
        // Whatever it waits for: it does not outlive the test.
        let _ =
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
        // SAFETY: ends the child only.
        unsafe { _exit(status) }
    }
    Child(pid)
}

impl Child {
    pub fn pid(&self) -> i32 {
        self.0
    }

    pub fn join(self) -> i32 {
        let pid = std::mem::ManuallyDrop::new(self).0;
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
        if status & 0x7f == 0 { status >> 8 & 0xff } else { -(status & 0x7f) }
    }

    /// Sends SIGKILL; the child stays a zombie until `join`.
    pub fn kill(&self) {
        self.signal(9);
    }

    /// Sends a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: signals our own child.
        unsafe { kill(self.0, number) };
    }

    /// The letter that says what the process does now.
    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
        let stat = stat.expect("not waited for yet");
        stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).unwrap_or('?')
    }

    /// Tells whether the child has ended and waits for `join`.
    pub fn has_ended(&self) -> bool {
        self.state() == 'Z'
    }

    /// Waits until a child that stops by itself has done so.
    pub fn wait_until_standing(&self) {
        while self.state() != 'T' {
            assert!(!self.has_ended(), "the child failed");
            std::thread::yield_now();
        }
    }

    pub fn wait_until_running(&self) {
        while self.state() != 'R' {
            assert!(!self.has_ended(), "the child failed");
            std::thread::yield_now();
        }
    }
}

/// In a child: has its parent trace it, and stops; `false` where that is not allowed.
pub fn stop_to_be_traced() -> bool {
    const TRACEME: i32 = 0;
    // SAFETY: concerns this process only.
    unsafe { ptrace(TRACEME, 0, 0usize, 0usize) == 0 && stop() }
}

/// Stops this process by `SIGSTOP`.
pub fn stop() -> bool {
    // SAFETY: stops this process only.
    unsafe { raise(19) == 0 }
}

impl Child {
    /// Waits until a traced child has stopped, and returns the signal that did it; or the exit
    /// status of one that has ended.
    pub fn wait_until_stopped(&self) -> Result<i32, i32> {
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { waitpid(self.0, &raw mut status, 0) }, self.0);
        if status & 0xff == 0x7f { Ok(status >> 8 & 0xff) } else { Err(status >> 8 & 0xff) }
    }

    /// Has a traced child that is stopped execute one instruction.
    pub fn step(&self) -> Result<i32, i32> {
        const SINGLESTEP: i32 = 9;
        self.go_on(SINGLESTEP, 0)
    }

    /// Has a traced child that is stopped run to its next stop.
    pub fn resume(&self) -> Result<i32, i32> {
        self.resume_with(0)
    }

    /// The same, with the signal that stopped it.
    pub fn resume_with(&self, signal: usize) -> Result<i32, i32> {
        const CONT: i32 = 7;
        self.go_on(CONT, signal)
    }

    /// Has a traced child that is stopped stop also when it has stored to one of some words of its
    /// memory; `false` where the processor does not offer that. All are forgotten with none.
    pub fn watch(&self, words: &[u64]) -> bool {
        const POKEUSER: i32 = 6;
        /// `offsetof(struct user, u_debugreg)`.
        const REGISTERS: usize = 848;
        // SAFETY: the child is ours and is stopped.
        let set = |i: usize, value: u64| unsafe {
            ptrace(POKEUSER, self.0, REGISTERS + 8 * i, value as usize) == 0
        };
        // For each its bit, and that stores to eight bytes are meant.
        let each = (0..words.len().min(4)).map(|i| 1 << (2 * i) | 0b1001 << (16 + 4 * i));
        set(7, 0)
            && words.iter().take(4).enumerate().all(|(i, at)| set(i, *at))
            && set(7, each.sum())
    }

    fn go_on(&self, how: i32, signal: usize) -> Result<i32, i32> {
        // SAFETY: the child is ours and is stopped.
        let done = unsafe { ptrace(how, self.0, 0usize, signal) };
        assert_eq!(done, 0, "a traced child that is stopped goes on");
        self.wait_until_stopped()
    }
}

/// A test that fails leaves no child behind.
impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: waits for our own child, which has been killed.
        unsafe { waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// What a forked child has to itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Own<'a> {
    /// A tmpfs of a size (as for mount(8)) over a directory.
    Tmpfs(&'a str, &'a Path),
    /// A ramfs, which has no fallocate(2), over a directory.
    Ramfs(&'a Path),
    /// A pid namespace: `f` runs in its first process.
    Pids,
    /// The same, and nothing under /proc.
    PidsWithoutProc,
    /// Nothing under /proc.
    NoProc,
}

/// Runs `f` in a forked child that has something to itself; `false`, and nothing run, where that is
/// not allowed.
pub fn apart(own: Own<'_>, f: impl FnOnce()) -> bool {
    const NO: i32 = 77;
    const MOUNTS: i32 = 0x0002_0000;
    const USER: i32 = 0x1000_0000;
    const PIDS: i32 = 0x2000_0000;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let begin = || {
        let write =
            |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text).is_ok();
        let pids = if matches!(own, Own::Pids | Own::PidsWithoutProc) { PIDS } else { 0 };
        let (at, size) = match own {
            Own::Tmpfs(size, at) => (at, size),
            Own::Ramfs(at) => (at, "0"),
            _ => (Path::new("/proc"), "16k"),
        };
        let kind = if matches!(own, Own::Ramfs(_)) { c"ramfs" } else { c"tmpfs" };
        let (at, options) = (format!("{}\0", at.display()), format!("size={size}\0"));
        // SAFETY: this process has one thread, so it may go into namespaces of its own; all strings
        // end with a zero.
        unsafe {
            unshare(USER | MOUNTS | pids) == 0
                && write("setgroups", "deny".to_owned())
                && write("uid_map", format!("0 {uid} 1"))
                && write("gid_map", format!("0 {gid} 1"))
                && (own == Own::Pids
                    || mount(
                        c"none".as_ptr().cast(),
                        at.as_ptr(),
                        kind.as_ptr().cast(),
                        0,
                        options.as_ptr(),
                    ) == 0)
        }
    };
    let child = forked(|| {
        if !begin() {
            return NO;
        }
        // A pid namespace begins with the next child.
        forked(|| {
            f();
            0
        })
        .join()
    });
    match child.join() {
        NO => false,
        status => {
            assert_eq!(status, 0, "in the child");
            true
        }
    }
}

/// As [`apart`], in a directory with a tmpfs of its own.
pub fn on_small_tmpfs(size: &str, f: impl FnOnce(&Dir)) -> bool {
    let below = Dir::new();
    in_own(&below, Own::Tmpfs(size, below.path()), f)
}

/// As [`apart`], in a directory that is a file system of its own.
pub fn in_own(below: &Dir, own: Own<'_>, f: impl FnOnce(&Dir)) -> bool {
    apart(own, || {
        let dir = Dir { path: below.path.clone(), ids: AtomicU32::new(1) };
        std::fs::create_dir(dir.maps()).expect("room");
        f(&dir);
    })
}

/// Takes all that is left in a file system until it is removed.
pub fn fill_up(dir: &Dir) -> PathBuf {
    use std::io::Write;
    let path = dir.path().join("filler");
    let mut file = std::fs::File::create(&path).expect("a name");
    while file.write_all(&[7; 4096]).is_ok() {}
    path
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// More rounds with `SKEP_STRESS=1`.
pub fn rounds(normal: u32, stress: u32) -> u32 {
    if std::env::var_os("SKEP_STRESS").is_some_and(|v| v == "1") { stress } else { normal }
}

/// A word of a map's payload, for tests that put there what a process that died left.
pub fn word(map: &Map, at: u64) -> &AtomicU64 {
    let payload = map.file().payload();
    assert!(payload.writable() && at.is_multiple_of(8) && at + 8 <= payload.len());
    // SAFETY: a word of the mapping, which the map keeps, and which is reached as atomics only.
    unsafe { AtomicU64::from_ptr((payload.base() + at) as *mut u64) }
}

/// All words of a map's payload.
fn payload(map: &Map) -> &[AtomicU64] {
    let payload = map.file().payload();
    // SAFETY: the payload is mapped from a page on, as long as the map is there, and is reached as
    // atomics only.
    unsafe {
        std::slice::from_raw_parts(payload.base() as *const AtomicU64, payload.len() as usize / 8)
    }
}

/// What a map's memory holds: its pages that are not all zero, by number, and their words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    pages: Vec<usize>,
    words: Vec<u64>,
}

/// Words of a page.
const PAGE: usize = 512;

/// The pages of a map's payload that have memory. All others are zero, and get memory when somebody
/// looks at them through the mapping: a map of a few elements may have room for a million.
fn used_pages(map: &Map) -> Vec<usize> {
    let file = map.file().reopen().expect("it has its name");
    let end = map.file().payload().len();
    let (mut at, mut all) = (0, vec![]);
    while let Ok(from) = seek(&file, SeekFrom::Data(at))
        && from < end
    {
        at = seek(&file, SeekFrom::Hole(from)).expect("an end").min(end);
        all.extend(from as usize / 8 / PAGE..(at as usize / 8).div_ceil(PAGE));
    }
    all
}

/// All of a map's memory.
pub fn memory(map: &Map) -> Memory {
    let mut all = Memory::default();
    for page in used_pages(map) {
        let words = payload(map).chunks(PAGE).nth(page).expect("a page of the payload");
        if words.iter().any(|w| w.load(Relaxed) != 0) {
            all.pages.push(page);
            all.words.extend(words.iter().map(|w| w.load(Relaxed)));
        }
    }
    all
}

/// Puts a map's memory back as it was.
pub fn restore(map: &Map, memory: &Memory) {
    let put = |page, was: &mut dyn Iterator<Item = u64>| {
        let words = payload(map).chunks(PAGE).nth(page).expect("a page of the payload");
        for (w, was) in words.iter().zip(was) {
            if w.load(Relaxed) != was {
                w.store(was, Relaxed);
            }
        }
    };
    for page in used_pages(map) {
        if memory.pages.binary_search(&page).is_err() {
            put(page, &mut std::iter::repeat(0));
        }
    }
    for (page, words) in memory.pages.iter().zip(memory.words.chunks(PAGE)) {
        put(*page, &mut words.iter().copied());
    }
}

/// Has a traced child change a map, one instruction after the other. Whenever the map's memory has
/// changed, that is one more state in which a stopped writer leaves it, shown to `standing`, and a
/// killed one: all are returned when the child is dead. What is done at a thread's first use only
/// comes before, with `prepare`. `None` where nobody may trace.
pub fn each_state(
    map: &Map,
    prepare: impl FnOnce(&Map),
    change: impl FnOnce(&Map),
    mut standing: impl FnMut(&Child),
) -> Option<Vec<Memory>> {
    const NO: i32 = 77;
    let child = forked(|| {
        let map = Map::open(map.file().path(), skep_maps::Access::ReadWrite).expect("opens");
        prepare(&map);
        if !stop_to_be_traced() {
            return NO;
        }
        change(&map);
        stop();
        0
    });
    if let Err(status) = child.wait_until_stopped() {
        // It has been waited for.
        std::mem::forget(child);
        assert_eq!(status, NO, "in the child");
        return None;
    }
    let mut states = vec![memory(map)];
    while child.step().expect("the change does not fail") != 19 {
        let now = memory(map);
        if states.last() != Some(&now) {
            states.push(now);
            standing(&child);
        }
    }
    child.kill();
    child.join();
    Some(states)
}

pub fn table(dir: &Dir, slots: u32) -> std::sync::Arc<SlotTable> {
    let table = SlotTable::with_slots(dir.path(), slots).expect("a table");
    table.install();
    table
}

pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().expect("whole words"))).collect()
}

/// A small definition of a type, with room for a twelve-byte value where any is allowed.
pub fn small(t: MapType) -> MapDef {
    let row = t.row();
    let key = [4, 0].into_iter().find(|k| row.key.allows(*k)).unwrap_or(8);
    let value =
        [12, 16, 4, 0].into_iter().find(|v| row.value.allows(*v)).expect("one of them fits");
    let entries = if matches!(t, MapType::Ringbuf | MapType::UserRingbuf) { 4096 } else { 20 };
    let def = MapDef::new(t, key, value, entries);
    match t {
        MapType::LpmTrie | MapType::QpTrie => def.flags(skep_isa::MapFlags::NO_PREALLOC),
        MapType::ArrayOfMaps | MapType::HashOfMaps => {
            def.inner(&MapDef::new(MapType::Array, 4, 8, 2))
        }
        _ => def,
    }
}

/// A key of such a map, by number.
pub fn small_key(t: MapType, i: u32) -> Vec<u8> {
    match t {
        MapType::LpmTrie => {
            [32 - i % 3, (i * 7).to_be()].iter().flat_map(|w| w.to_ne_bytes()).collect()
        }
        _ if t.row().key.allows(4) => i.to_ne_bytes().to_vec(),
        _ => vec![],
    }
}

/// Fills such a map with `n` elements, or as many as a type takes by itself.
pub fn fill(dir: &Dir, map: &Map, n: u32) {
    let t = map.def().map_type;
    let inner = map.def().inner.as_ref().map(|def| dir.make(def));
    for i in 0..n {
        let key = small_key(t, i);
        match t {
            MapType::Ringbuf => {
                // SAFETY: 40 bytes are readable.
                assert_eq!(unsafe { map.ringbuf_output([i as u8; 40].as_ptr(), 40, 0) }, 0)
            }
            MapType::UserRingbuf => map.user_ringbuf_output(&[i as u8; 40]).expect("room"),
            MapType::StackTrace => {
                // SAFETY: two words are readable.
                let _ = unsafe { map.stack_id([u64::from(i) + 1, 7].as_ptr(), 2, 1 << 10) };
            }
            MapType::PerfEventArray => {
                map.update(&key, &[0; 4], 0).expect("a ring");
                let parts = [([i as u8; 40].as_ptr(), 40), (std::ptr::null(), 0)];
                // SAFETY: 40 bytes are readable.
                let done = unsafe { map.perf_output(i, parts) };
                assert_eq!(done, 0);
            }
            MapType::Cpumap => {
                map.update(&0u32.to_ne_bytes(), &[9, 0, 0, 0], 0).expect("the first processor")
            }
            _ => {
                let value = match &inner {
                    Some(inner) => inner.id().to_ne_bytes().to_vec(),
                    None => vec![5; map.user_value_size()],
                };
                map.update(&key, &value, 0).expect("room");
            }
        }
    }
}

/// Tells whether a type's elements can be walked.
pub fn has_dump(t: MapType) -> bool {
    !matches!(
        t,
        MapType::Ringbuf | MapType::UserRingbuf | MapType::PerfEventArray | MapType::BloomFilter
    )
}

/// All that such a map holds, sorted: elements, the samples of a ring, which are consumed, or those
/// of 256 values that a filter claims to hold.
pub fn contents(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = vec![];
    let mut add = |value: &[u8]| all.push((vec![], value.to_vec()));
    match map.def().map_type {
        t if has_dump(t) => all = map.iter().map(|e| e.expect("can be read")).collect(),
        MapType::Ringbuf => {
            let mut consumer = map.consumer().expect("alone");
            while let Some(sample) = consumer.next_record().expect("whole") {
                add(sample);
            }
        }
        MapType::UserRingbuf => {
            let mut drain = map.user_ringbuf_drain().expect("alone");
            while let Ok((at, len)) = drain.next_sample() {
                // SAFETY: the sample is in the ring until the next one is asked for.
                add(unsafe { std::slice::from_raw_parts(at, len as usize) });
            }
        }
        MapType::BloomFilter => {
            for b in 0..=255 {
                let mut value = vec![b; map.user_value_size()];
                if map.lookup_into(&[], &mut value, 0).is_ok() {
                    add(&value);
                }
            }
        }
        t => panic!("{t}: nothing reads it"),
    }
    all.sort();
    all
}
