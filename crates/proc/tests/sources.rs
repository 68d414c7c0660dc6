//! Files with mappings beside the live process that they show: core files of gdb and of the kernel,
//! recordings of perf; and processes that end, execute and share.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::Fixture;
use skep_proc::maps::{
    self, Filter, Knows, Live, MapSource, MapsError, PerfData, Perms, Process, Saved, Snapshot,
    Vma, Want, core_from_bytes, open_core,
};
use skep_testkit::random::Random;
use skep_testkit::run::run;
use skep_testkit::{TempDir, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// What a core file can say of a mapping.
fn as_in_core(v: &Vma) -> Vma {
    let special = v.name.as_deref().is_some_and(|n| n.starts_with(b"[") && n != b"[vdso]");
    Vma {
        perms: v.perms.and(Perms(7)) | Perms::SHARING_UNKNOWN,
        dev: Default::default(),
        inode: 0,
        name: v.name.clone().filter(|_| !special),
        ..v.clone()
    }
}

/// The core of the fixture that gdb writes while it is stopped.
fn gdb_core(f: &Fixture) -> Option<Snapshot> {
    if !skip::has_command("gdb") || !std::path::Path::new("/usr/bin/gcore").exists() {
        skip("gdb's gcore");
        return None;
    }
    let dir = TempDir::new();
    let pid = f.child.id().to_string();
    let mut gcore = Command::new("gcore");
    let ended = run(gcore.arg("-o").arg(dir.join("core")).arg(&pid), b"", LIMIT);
    match open_core(dir.join(format!("core.{pid}"))) {
        Err(_) if !ended.status.success() => {
            skip("the right to trace processes");
            None
        }
        core => Some(core.expect("a core file")),
    }
}

#[test]
fn a_core_file_of_gdb_says_what_the_process_says() {
    let f = Fixture::new("gcore");
    let Some(core) = gdb_core(&f) else { return };
    assert_eq!(core.identity().pid, f.child.id());
    assert_eq!(core.knows(), Knows(0));
    let live = f.live().all(&Filter::default(), Want::ALL).unwrap();
    let mut ids = 0;
    for v in &live {
        // gdb leaves out memory that cannot be read, and huge pages.
        let ours = core.query(v.start, &Filter::default(), Want::ALL).unwrap();
        let Some(ours) = ours else {
            assert!(!v.file_backed() || v.perms == Perms::NONE || v.name.is_none(), "{v:?}");
            continue;
        };
        let expected = as_in_core(v);
        // gdb cuts names at newlines, and does not know that a space belongs to one.
        let odd = v.name.as_ref().is_some_and(|n| n.iter().any(|b| !b.is_ascii_graphic()));
        if ours.file && !odd {
            assert_eq!((&ours.name, ours.offset), (&expected.name, expected.offset), "{v:?}");
            assert_eq!(ours.range(), v.range());
        }
        if !ours.perms.contains(Perms::UNKNOWN) && !odd {
            // A segment that gdb makes of a read-only file's pages says that they can be read.
            assert_eq!(ours.perms, expected.perms, "{v:?}");
        }
        if ours.build_id.is_some() {
            assert_eq!(ours.build_id, expected.build_id, "{v:?}");
            ids += 1;
        }
    }
    assert!(ids >= 5, "{ids}");
    let code = live.iter().filter(|v| v.perms.contains(Perms::EXEC) && v.build_id.is_some());
    for v in code {
        let ours = core.query(v.start, &Filter::default(), Want::ALL).unwrap().unwrap();
        assert_eq!(Some(ours.perms), Some(as_in_core(v).perms), "{v:?}");
    }
    let shared = Filter { all: Perms::SHARED, ..Filter::default() };
    assert!(matches!(core.query(0, &shared, Want::NAME), Err(MapsError::Unsupported { .. })));
}

/// What the kernel writes when a process is killed by a signal, if it writes files at all.
#[test]
fn a_core_file_of_the_kernel_says_what_the_process_said() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        return skip("core files in the working directory (kernel.core_pattern)");
    }
    let dir = TempDir::new();
    let script = "ulimit -c unlimited && exec sleep 1000";
    let mut sleep = Command::new("sh");
    sleep.args(["-c", script]).current_dir(dir.path());
    let mut child = skep_testkit::run::start(&sleep, LIMIT);
    // It has started when it sleeps (`clock_nanosleep` or `nanosleep`).
    let asleep = |s: &str| s.starts_with("230 ") || s.starts_with("35 ");
    loop {
        match fs::read_to_string(format!("/proc/{}/syscall", child.id())) {
            Ok(call) if asleep(&call) => break,
            Ok(_) => std::thread::yield_now(),
            Err(_) => return skip("/proc/PID/syscall, and the right to read it"),
        }
    }
    let live = Live::of(child.id()).unwrap().all(&Filter::default(), Want::ALL).unwrap();
    skep_testkit::run::signal(child.id(), skep_testkit::run::Signal::QUIT);
    let status = child.wait().unwrap();
    let path = ["core".to_owned(), format!("core.{}", child.id())];
    let path = path.iter().map(|name| dir.join(name)).find(|path| path.exists());
    let Some(path) = path.filter(|_| std::os::unix::process::ExitStatusExt::core_dumped(&status))
    else {
        return skip("a kernel that writes core files");
    };
    let core = open_core(&path).unwrap();
    assert_eq!(core.identity().pid, child.id());
    let all = core.all(&Filter::default(), Want::ALL).unwrap();
    let mut expected: Vec<Vma> = live.iter().map(as_in_core).collect();
    // The first page of a file has to be in the core for its build id to be known, and the kernel
    // writes that only of what can be executed or was changed; names are the notes' own.
    let known: BTreeMap<_, _> = all.iter().map(|v| (v.start, v.build_id.clone())).collect();
    for v in &mut expected {
        let id = known.get(&v.start).cloned().flatten();
        assert!(id.is_none() || id == v.build_id, "{v:?}");
        v.build_id = id;
    }
    assert_eq!(all, expected);
    assert!(all.iter().filter(|v| v.build_id.is_some()).count() >= 5);
    let Saved::One(again) = maps::open(&path).unwrap() else { panic!("a core file is one") };
    assert_eq!(again, core);
}

/// `perf record` of a command, and what perf itself prints of the mappings in it.
#[test]
fn perf_data_says_what_perf_says() {
    if !skip::has_command("perf") {
        return skip("perf");
    }
    let dir = TempDir::new();
    let file = dir.join("perf.data");
    let mut all_flags = vec![(&["-d"][..], true), (&[], false), (&["--buildid-mmap"], false)];
    if cfg!(feature = "symbolize") {
        all_flags.extend([(&["-z"][..], false), (&["-z", "-o", "-"], false)]);
    }
    all_flags.push((&["-o", "-"], false));
    for (flags, data) in all_flags {
        let mut record = Command::new("perf");
        record.args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(&file).args(flags);
        let ended = run(record.args(["--", "sh", "-c", "ls / >&2; true"]), b"", LIMIT);
        if !ended.status.success() {
            return skip("the right to use perf_event_open, and a perf that knows its flags");
        }
        if flags.contains(&"-") {
            fs::write(&file, &ended.stdout).unwrap();
        }
        let mut script = Command::new("perf");
        script.args(["script", "--show-mmap-events", "-i"]).arg(&file);
        let said = run(&mut script, b"", LIMIT);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let data_file = PerfData::open(&file).unwrap();
        let recording: Vec<_> = data_file.processes().map(Result::unwrap).collect();
        let mut compared = 0;
        for line in said.lines() {
            // `… PERF_RECORD_MMAP2 1/1: [0x1000(0x2000) @ 0x3000 fe:00 7 0]: r-xp /bin/x`
            let Some((_, line)) = line.split_once("PERF_RECORD_MMAP2 ") else { continue };
            let (pid, rest) = line.split_once('/').unwrap();
            let Some(process) = recording.iter().find(|p| (p.pid as i32).to_string() == pid) else {
                panic!("no process {pid}: {line}")
            };
            let (numbers, what) = rest.split_once('[').unwrap().1.split_once("]: ").unwrap();
            let (start, more) = numbers.split_once('(').unwrap();
            let (len, more) = more.split_once(") @ ").unwrap();
            let hex = |s: &str| u64::from_str_radix(s.trim_start_matches("0x"), 16).unwrap();
            let (start, len) = (hex(start), hex(len));
            let fields: Vec<&str> = more.split(' ').collect();
            let (perms, name) = what.split_once(' ').unwrap();
            // Later mappings take the place of earlier ones; `sh` and `ls` keep most.
            let found = process.snapshot.query(start, &Filter::default(), Want::ALL).unwrap();
            let Some(v) = found.filter(|v| v.range() == (start..start + len)) else { continue };
            if v.name.as_deref().unwrap_or(b"//anon") != name.as_bytes() {
                continue;
            }
            assert_eq!(v.perms.to_string(), perms, "{line}");
            if v.file {
                assert_eq!(v.offset, if fields[0] == "0" { 0 } else { hex(fields[0]) }, "{line}");
            }
            if let Some(dev) = fields.get(1).filter(|f| f.contains(':') && fields.len() > 3) {
                assert_eq!(format!("{:02x}:{:02x}", v.dev.major, v.dev.minor), **dev, "{line}");
                assert_eq!(v.inode.to_string(), fields[2], "{line}");
            }
            let id = v
                .build_id
                .as_ref()
                .map(|id| id.iter().map(|b| format!("{b:02x}")).collect::<String>());
            if let Some(said) = more.split('<').nth(1).and_then(|s| s.split('>').next()) {
                assert_eq!(id.as_deref(), Some(said), "{line}");
            } else if v.file && v.perms.contains(Perms::EXEC) && name.starts_with("/usr") {
                let elf = skep_proc::elf::Elf::open(name).unwrap().build_id().unwrap();
                assert!(id.is_none() || id == Some(elf.to_string()), "{line}");
            }
            compared += 1;
        }
        assert!(compared >= 6, "{compared} of\n{said}");
        let ls = recording.iter().find(|p| p.name == b"ls").expect("ls was recorded");
        let all = ls.snapshot.all(&Filter::default(), Want::ALL).unwrap();
        assert_eq!(all.iter().any(|v| !v.perms.contains(Perms::EXEC)), data, "{flags:?}");
        let has =
            |end: &[u8]| all.iter().any(|v| v.name.as_ref().is_some_and(|n| n.ends_with(end)));
        // What the shell had mapped went with `exec`.
        assert!(has(b"/ls") && has(b"[vdso]") && !has(b"/dash") && !has(b"/bash"));
    }
}

#[test]
fn a_process_that_executes_another_program_is_told_from_what_it_was() {
    let mut sh = Command::new("sh");
    let mut child = sh
        .args(["-c", "echo ready; read x; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let mut process = Process::open(pid).unwrap();
    process.check().unwrap();
    assert!(!process.reopen().unwrap());
    let first = |p: &Process| p.query(0, &Filter::default().or_next(), Want::NAME);
    let before = first(&process).unwrap().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\necho\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    assert_eq!(process.check(), Err(MapsError::Execed { pid }));
    assert_eq!(first(&process), Err(MapsError::Execed { pid }));
    assert_eq!(process.all(&Filter::default(), Want::ALL), Err(MapsError::Execed { pid }));
    assert!(process.reopen().unwrap());
    assert_eq!(process.generation(), 1);
    assert_ne!(first(&process).unwrap().unwrap().name, before.name);
    drop(stdin);
    child.wait().unwrap();
    assert_eq!(process.check(), Err(MapsError::Ended { pid }));
    assert_eq!(first(&process), Err(MapsError::Ended { pid }));
    assert_eq!(process.reopen(), Err(MapsError::Ended { pid }));
    assert_eq!(Process::open(pid).unwrap_err(), MapsError::Ended { pid });
}

/// The child of a `vfork` has its parent's address space, which goes on answering after the child
/// has executed something else.
#[test]
fn a_shared_address_space_does_not_hide_an_exec() {
    let dir = TempDir::new();
    let source = dir.join("vfork.c");
    fs::write(
        &source,
        "#define _GNU_SOURCE\n#include <sched.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         #include <unistd.h>\nstatic int child(void *p) { char c; (void)p; read(0, &c, 1);\n\
         execlp(\"sleep\", \"sleep\", \"60\", (char *)0); return 1; }\n\
         int main(void) { char *stack = malloc(1 << 16);\n\
         int pid = clone(child, stack + (1 << 16), CLONE_VM | 17, 0);\n\
         printf(\"%d\\n\", pid); fflush(stdout); pause(); return 0; }\n",
    )
    .unwrap();
    let program = dir.join("vfork");
    let ended = run(Command::new("cc").arg("-o").arg(&program).arg(&source), b"", LIMIT);
    assert!(ended.status.success(), "{}", ended.transcript());
    let mut parent = skep_testkit::run::start(&Command::new(&program), LIMIT);
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    let process = Process::open(pid).unwrap();
    process.check().unwrap();
    let here = process.query(0, &Filter::default().or_next(), Want::NAME).unwrap().unwrap();
    parent.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    while fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    // The kernel answers with what is the parent's.
    let stale = process.query(0, &Filter::default().or_next(), Want::NAME).unwrap().unwrap();
    assert_eq!(stale, here);
    assert_eq!(process.check(), Err(MapsError::Execed { pid }));
    skep_testkit::run::signal(pid, skep_testkit::run::Signal::KILL);
}

#[test]
fn a_kernel_thread_is_none_of_ours() {
    if fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        return skip("the first pid namespace");
    }
    assert_eq!(Process::open(2).unwrap_err(), MapsError::KernelThread { pid: 2 });
}

#[test]
fn page_sizes_by_text_are_those_of_the_ioctl() {
    let f = Fixture::new("pages");
    let (live, text) = (f.live(), f.text());
    if !live.has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let want = Want { page_size: true, ..Want::default() };
    let all = live.all(&Filter::default(), want).unwrap();
    assert!(all.iter().all(|v| v.page_size >= 4096));
    assert_eq!(all, text.all(&Filter::default(), want).unwrap());
}

/// Damaged files are errors or odd answers; never a panic, an endless loop or an exhausted memory.
#[test]
fn damaged_files_of_every_kind() {
    let f = Fixture::new("damaged");
    let mut samples: Vec<(&str, Vec<u8>)> = Vec::new();
    let live = f.live();
    let taken = Snapshot::take(&live, Default::default(), Want::EVERYTHING).unwrap();
    samples.push(("snapshot", taken.to_bytes()));
    samples.push(("core", small_core()));
    samples.push(("perf", small_perf_data()));
    #[cfg(feature = "symbolize")]
    samples.push(("perf", compressed(&small_perf_data(), 81, 100, 2)));
    for (name, sample) in &samples {
        assert!(read_as(name, sample.clone(), true), "{name}");
    }
    let mut random = Random::new(17);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 400_000 } else { 4000 };
    for round in 0..rounds {
        let (name, sample) = &samples[round % samples.len()];
        let mut bytes = sample.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            let value = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
            let width = [1, 1, 4, 8][random.below(4)];
            bytes.iter_mut().skip(at).take(width).for_each(|b| *b = value);
        }
        if random.below(8) == 0 {
            let keep = random.below(bytes.len());
            bytes.truncate(keep);
        }
        read_as(name, bytes, false);
    }
    for (name, sample) in &samples {
        for len in (0..sample.len()).step_by(1 + sample.len() / 300) {
            assert!(!read_as(name, sample[..len].to_vec(), false) || *name != "snapshot");
        }
    }
}

/// Reads and asks; a damaged snapshot also with a checksum that fits.
fn read_as(name: &str, mut bytes: Vec<u8>, intact: bool) -> bool {
    let ask = |s: &Snapshot| {
        for v in s.vmas() {
            let _ = s.query(v.start, &Filter::TEXT.or_next(), Want::ALL);
        }
    };
    match name {
        "core" => core_from_bytes(bytes).map(|s| ask(&s)).is_ok(),
        "perf" => PerfData::from_bytes(bytes)
            .and_then(|p| p.processes().collect::<Result<Vec<_>, _>>())
            .map(|all| all.iter().for_each(|p| ask(&p.snapshot)))
            .is_ok(),
        _ => {
            let as_is = Snapshot::from_bytes(&bytes).is_ok();
            if let (false, Some(end)) = (intact, bytes.len().checked_sub(8)) {
                let sum = bytes[..end].iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
                });
                bytes[end..].copy_from_slice(&sum.to_le_bytes());
                let _ = Snapshot::from_bytes(&bytes).map(|s| ask(&s));
            }
            as_is
        }
    }
}

/// A core file of one mapped ELF file and one area, with notes.
fn small_core() -> Vec<u8> {
    let words = |w: &[u64]| w.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let note = |kind: u32, content: &[u8]| {
        let mut out = [5u32, content.len() as u32, kind].map(u32::to_le_bytes).concat();
        out.extend(b"CORE\0\0\0\0");
        out.extend(content);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    };
    let mut files = words(&[2, 4096, 0x1000, 0x2000, 0, 0x2000, 0x4000, 1]);
    files.extend(b"/bin/x\0/bin/x\0");
    let notes =
        [note(3, &[7; 136]), note(6, &words(&[33, 0x9000, 0, 0])), note(0x4649_4c45, &files)]
            .concat();
    let ident = |kind: u16| {
        let mut out = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        out.extend([kind.to_le_bytes(), 62u16.to_le_bytes()].concat());
        out.extend(1u32.to_le_bytes());
        out.extend(words(&[0, 64, 0]));
        out.extend(0u32.to_le_bytes());
        out.extend(
            [64u16, 56, if kind == 4 { 3 } else { 2 }, 64, 0, 0].map(u16::to_le_bytes).concat(),
        );
        out
    };
    let segment = |kind: u32, flags: u32, rest: [u64; 6]| {
        [[kind.to_le_bytes(), flags.to_le_bytes()].concat(), words(&rest)].concat()
    };
    let mut image = ident(3);
    image.extend(segment(4, 4, [176, 176, 0, 36, 36, 4]));
    image.extend(segment(1, 5, [0x1000, 0x1000, 0, 0x2000, 0x2000, 4096]));
    image.extend([4u32, 20, 3].map(u32::to_le_bytes).concat());
    image.extend(b"GNU\0");
    image.extend([9; 20]);
    let at = 64 + 3 * 56;
    let image_at = (at + notes.len()) as u64;
    let len = image.len() as u64;
    let mut core = ident(4);
    core.extend(segment(4, 0, [at as u64, 0, 0, notes.len() as u64, 0, 1]));
    core.extend(segment(1, 4, [image_at, 0x1000, 0, len, 0x1000, 1]));
    core.extend(segment(1, 6, [image_at, 0x9000, 0, 0, 0x1000, 1]));
    core.extend(notes);
    core.extend(image);
    core
}

#[test]
fn a_core_file_by_hand_is_read_in_full() {
    let core = core_from_bytes(small_core()).unwrap();
    let vma = |start, end, perms: Perms, offset| Vma {
        start,
        end,
        perms: perms | Perms::SHARING_UNKNOWN,
        offset,
        name: Some(b"/bin/x".to_vec()),
        build_id: Some(vec![9; 20]),
        file: true,
        ..Vma::default()
    };
    let area = Vma {
        name: Some(b"[vdso]".to_vec()),
        build_id: None,
        file: false,
        ..vma(0x9000, 0xa000, Perms::READ | Perms::WRITE, 0)
    };
    let mut expected = vec![
        vma(0x1000, 0x2000, Perms::READ, 0),
        vma(0x2000, 0x4000, Perms::READ | Perms::EXEC, 0x1000),
        area,
    ];
    // Its image is that of the ELF header that is not in the core.
    expected[2].build_id = None;
    assert_eq!(core.vmas(), expected);
    assert_eq!(core.identity().pid, 0x0707_0707);
}

/// A file with records of every kind that counts, times out of order.
fn small_perf_data() -> Vec<u8> {
    let mut records = Vec::new();
    let mut put = |kind: u32, misc: u16, body: &[u8], time: u64| {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend(time.to_le_bytes());
        records.extend(kind.to_le_bytes());
        records.extend(misc.to_le_bytes());
        records.extend((body.len() as u16 + 8).to_le_bytes());
        records.extend(body);
    };
    let ids = |pid: u32| [pid, pid].map(u32::to_le_bytes).concat();
    let words = |w: &[u64]| w.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let mmap2 = |pid: u32, start: u64, len: u64, offset: u64, name: &[u8]| {
        let file = [8u32, 1].map(u32::to_le_bytes).concat();
        let prot = [5u32, 2].map(u32::to_le_bytes).concat();
        [ids(pid), words(&[start, len, offset]), file, words(&[77, 0]), prot, name.to_vec()]
            .concat()
    };
    put(10, 0, &mmap2(1, 0x1000, 0x4000, 0, b"/bin/a\0"), 10);
    // In the middle of it, later.
    put(10, 0, &mmap2(1, 0x2000, 0x1000, 0x7000, b"/bin/b\0"), 30);
    put(7, 0, &[2u32, 1, 2, 1].map(u32::to_le_bytes).concat(), 20);
    put(3, 1 << 13, &[ids(3), b"new\0".to_vec()].concat(), 50);
    put(10, 0, &mmap2(3, 0x1000, 0x1000, 0, b"/bin/old\0"), 40);
    put(1, 0, &[ids(4), words(&[0x5000, 0x1000, 0x3000]), b"/bin/c\0".to_vec()].concat(), 5);
    let mut file = b"PERFILE2".to_vec();
    let (attr_at, data_at) = (104, 104 + 80);
    file.extend(words(&[
        104,
        80,
        attr_at,
        80,
        data_at,
        records.len() as u64,
        0,
        0,
        1 << 2,
        0,
        0,
        0,
    ]));
    let mut attr = vec![0; 80];
    attr[24..32].copy_from_slice(&(1u64 << 2).to_le_bytes());
    attr[40..48].copy_from_slice(&(1u64 << 18).to_le_bytes());
    file.resize(104, 0);
    file.extend(attr);
    file.extend(records);
    let mut id = [0u32.to_le_bytes(), [0, 0, 48, 0]].concat();
    id.extend(u32::MAX.to_le_bytes());
    id.extend([5; 20]);
    id.extend([0; 4]);
    id.extend(b"/bin/b\0");
    id.resize(48, 0);
    let at = file.len() as u64 + 16;
    file.extend(words(&[at, id.len() as u64]));
    file.extend(id);
    file
}

/// The same file with its records in a stream of zstd, as `perf record -z` writes it: in pieces that
/// end where a block does, not where a record does, and without an end of the stream.
#[cfg(feature = "symbolize")]
fn compressed(file: &[u8], kind: u32, block: usize, frames: usize) -> Vec<u8> {
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let (start, size) = (u64_at(40), u64_at(48));
    let mut records = Vec::new();
    let plain = &file[start..start + size];
    let per_frame = plain.len().div_ceil(frames).next_multiple_of(8);
    for (number, part) in plain.chunks(per_frame).enumerate() {
        let blocks = part.chunks(block);
        let count = blocks.len();
        for (at, bytes) in blocks.enumerate() {
            let mut piece = Vec::new();
            if at == 0 {
                // A window of 512 KiB, as of perf's first level.
                piece.extend(0xfd2f_b528u32.to_le_bytes());
                piece.extend([0, 9 << 3]);
            }
            let last = at + 1 == count && number + 1 < frames;
            piece.extend(&((bytes.len() as u32) << 3 | u32::from(last)).to_le_bytes()[..3]);
            piece.extend(bytes);
            let mut body = Vec::new();
            if kind == 83 {
                body.extend((piece.len() as u64).to_le_bytes());
                piece.resize(piece.len().next_multiple_of(8), 0x55);
            }
            body.extend(piece);
            records.extend(kind.to_le_bytes());
            records.extend(0u16.to_le_bytes());
            records.extend((body.len() as u16 + 8).to_le_bytes());
            records.extend(body);
        }
    }
    let mut out = file[..start].to_vec();
    out[48..56].copy_from_slice(&(records.len() as u64).to_le_bytes());
    let end = start + records.len();
    out.extend(records);
    let mut features = file[start + size..].to_vec();
    features[..8].copy_from_slice(&(end as u64 + 16).to_le_bytes());
    out.extend(features);
    out
}

#[cfg(feature = "symbolize")]
#[test]
fn compressed_records_are_those_that_were_compressed() {
    let plain = small_perf_data();
    let read = |bytes: Vec<u8>| {
        let recording = PerfData::from_bytes(bytes).unwrap();
        recording.processes().map(Result::unwrap).collect::<Vec<_>>()
    };
    let want = read(plain.clone());
    assert_eq!(want.len(), 4);
    for kind in [81, 83] {
        for block in [3, 16, 100, 5000] {
            for frames in [1, 2, 3] {
                let file = compressed(&plain, kind, block, frames);
                assert_eq!(read(file), want, "{kind} {block} {frames}");
            }
        }
    }
}

#[test]
fn records_count_in_order_of_time_and_later_ones_win() {
    let recording = PerfData::from_bytes(small_perf_data()).unwrap();
    let all: Vec<_> = recording.processes().map(Result::unwrap).collect();
    let line = |v: &Vma| {
        let name = String::from_utf8_lossy(v.name.as_deref().unwrap_or_default()).into_owned();
        let id = v.build_id.as_ref().map_or(0, Vec::len);
        format!("{:x}-{:x} {} {:x} {name} {id}", v.start, v.end, v.perms, v.offset)
    };
    let lines = |pid: u32| {
        let process = all.iter().find(|p| p.pid == pid).expect("it was recorded");
        process.snapshot.vmas().iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(1),
        [
            "1000-2000 r-xp 0 /bin/a 0",
            "2000-3000 r-xp 7000 /bin/b 20",
            "3000-5000 r-xp 2000 /bin/a 0"
        ]
    );
    // Forked before the second mapping.
    assert_eq!(lines(2), ["1000-5000 r-xp 0 /bin/a 0"]);
    // What was mapped before an exec is gone.
    assert!(lines(3).is_empty());
    assert_eq!(lines(4), ["5000-6000 --x? 3000 /bin/c 0"]);
    assert_eq!(all.iter().find(|p| p.pid == 3).expect("it was recorded").name, b"new");
}
