//! Sources of mappings, compared with each other and with the text of the kernel.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::Fixture;

use skep_proc::maps::{
    Filter, Identity, Live, MapSource, MapsError, Perms, Process, Snapshot, Vma, Want,
};
use skep_testkit::{TempDir, skip};

/// What all sources must agree on: page sizes are the ioctl's alone, the text escapes newlines.
fn comparable(mut v: Vma) -> Vma {
    v.page_size = 0;
    if v.escaped {
        let text = String::from_utf8(v.name.take().unwrap()).unwrap();
        // The one name that is not an escape.
        v.name = Some(
            if text.contains("back") { text } else { text.replace("\\012", "\n") }.into_bytes(),
        );
        v.escaped = false;
    }
    v
}

fn filters() -> Vec<Filter> {
    let mut out = Vec::new();
    for all in 0..16 {
        for file_backed in [false, true] {
            out.push(Filter { all: Perms(all), file_backed, ..Filter::default() });
        }
    }
    out.push(Filter { any: Perms::WRITE | Perms::EXEC, ..Filter::default() });
    out.push(Filter {
        none: Perms::WRITE,
        any: Perms::READ,
        file_backed: true,
        ..Filter::default()
    });
    out.push(Filter { none: Perms::READ | Perms::WRITE | Perms::EXEC, ..Filter::default() });
    out
}

#[test]
fn ioctl_text_and_snapshot_agree() {
    let f = Fixture::new("agree");
    let (live, text) = (f.live(), f.text());
    if !live.has_ioctl() {
        skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let saved = Snapshot::take(&text, Identity::of(f.child.id()), Want::ALL).unwrap();
    assert_eq!(saved.identity().pid, f.child.id());
    assert!(saved.identity().start_time > 0);
    let saved = Snapshot::from_bytes(&saved.to_bytes()).unwrap();
    let every = text.all(&Filter::default(), Want::ALL).unwrap();
    assert_eq!(saved.vmas(), every);
    assert!(every.len() > 30);
    for filter in filters() {
        let expected: Vec<_> =
            every.iter().filter(|v| filter.matches(v)).cloned().map(comparable).collect();
        let sources: [(&str, &dyn Fn() -> Vec<Vma>); 5] = [
            ("ioctl walk", &|| live.walk(&filter, Want::ALL).map(Result::unwrap).collect()),
            ("all", &|| live.all(&filter, Want::ALL).unwrap()),
            ("text walk", &|| text.walk(&filter, Want::ALL).map(Result::unwrap).collect()),
            ("text all", &|| text.all(&filter, Want::ALL).unwrap()),
            ("snapshot", &|| saved.all(&filter, Want::ALL).unwrap()),
        ];
        for (name, source) in sources {
            assert_eq!(
                source().into_iter().map(comparable).collect::<Vec<_>>(),
                expected,
                "{name} {filter:?}"
            );
        }
    }
    // Single questions, at and around all edges.
    for v in &every {
        for addr in [v.start.wrapping_sub(1), v.start, v.start + 1, v.end - 1, v.end] {
            for filter in [
                Filter::default(),
                Filter::TEXT,
                Filter::default().or_next(),
                Filter::TEXT.or_next(),
            ] {
                let ask =
                    |s: &dyn MapSource| s.query(addr, &filter, Want::NAME).unwrap().map(comparable);
                assert_eq!(ask(&live), ask(&text), "{addr:x} {filter:?}");
                assert_eq!(ask(&saved), ask(&text), "{addr:x} {filter:?}");
            }
        }
    }
}

#[test]
fn odd_names_come_back_as_they_are() {
    let f = Fixture::new("names");
    if !f.live().has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    for name in [
        &b"a b"[..],
        b"ends in blank ",
        b"tab\t",
        b"new\nline",
        b"back\\012slash",
        b"raw \xff\xfe",
        b"fake (deleted)",
        b"gone (deleted)",
    ] {
        let vma = f.named(name);
        let from_text = f.text().query(vma.start, &Filter::default(), Want::NAME).unwrap().unwrap();
        // One reading leads to the file, except for the one that is gone.
        let inode = |n: &[u8]| {
            use std::os::unix::{ffi::OsStrExt, fs::MetadataExt};
            fs::metadata(std::ffi::OsStr::from_bytes(n)).ok().map(|m| m.ino())
        };
        for v in [&vma, &from_text] {
            let found = v.readings().iter().any(|n| inode(n) == Some(v.inode));
            assert_eq!(found, !name.starts_with(b"gone"), "{v:?}");
        }
    }
    let deep = f.text().all(&Filter::default(), Want::NAME).unwrap();
    let deep =
        deep.iter().find(|v| v.name.as_ref().is_some_and(|n| n.ends_with(b"/deep"))).unwrap();
    assert!(deep.name.as_ref().unwrap().len() > 4096);
    assert_eq!(
        f.live().query(deep.start, &Filter::default(), Want::NAME).unwrap().unwrap().name,
        deep.name
    );
    assert_eq!(
        f.live().query(deep.start, &Filter::default(), Want::default()).unwrap().unwrap().name,
        None
    );
}

#[test]
fn build_ids_come_from_notes() {
    let f = Fixture::new("ids");
    let expected = skep_proc::elf::Elf::open(f.dir.join("program")).unwrap().build_id().unwrap();
    for source in [f.live(), f.text()] {
        let all = source.all(&Filter::default(), Want::ALL).unwrap();
        let of = |end: &[u8]| {
            all.iter().find(|v| v.name.as_ref().is_some_and(|n| n.ends_with(end))).unwrap()
        };
        assert_eq!(of(b"/program").build_id.as_ref(), Some(&expected.0));
        assert_eq!(of(b"/a b").build_id, None);
        assert!(of(b"[vdso]").build_id.is_some());
        // Without the name, too.
        let id = source
            .query(of(b"/program").start, &Filter::default(), Want { name: false, ..Want::ALL })
            .unwrap()
            .unwrap();
        assert_eq!((id.name, id.build_id.as_ref()), (None, Some(&expected.0)));
    }
}

/// The kernel gives ids of 1 to 20 bytes; longer ones are read from the file.
#[test]
fn build_ids_of_every_length() {
    let dir = TempDir::new();
    let source = dir.join("l.c");
    fs::write(&source, "int nothing;\n").unwrap();
    let lengths = [1, 16, 20, 32, 0];
    let id = |length: usize| (1..=length as u8).collect::<Vec<u8>>();
    let mut preload = String::new();
    for length in lengths {
        let hex: String = id(length).iter().map(|byte| format!("{byte:02x}")).collect();
        let wanted = if hex.is_empty() { "none".to_owned() } else { format!("0x{hex}") };
        let library = dir.join(format!("lib{length}.so"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", &format!("-Wl,--build-id={wanted}"), "-o"]).arg(&library);
        assert!(cc.arg(&source).status().unwrap().success());
        preload += &format!("{} ", library.display());
    }
    // It reads when it has been loaded.
    let mut cat = Command::new("cat");
    cat.env("LD_PRELOAD", preload.trim()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = cat.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"x").unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
    let found = |live: &Live, length: usize, end: &str| {
        let all = live.all(&Filter::default(), Want::ALL).unwrap();
        let name = format!("/lib{length}.so{end}");
        let mut of = all
            .into_iter()
            .filter(|v| v.name.as_ref().is_some_and(|n| n.ends_with(name.as_bytes())));
        let first = of.next().expect("it is loaded").build_id;
        assert!(of.all(|v| v.build_id == first), "of all mappings of {name}");
        first
    };
    for text in [false, true] {
        let live = || {
            let live = Live::of(child.id()).unwrap();
            if text { live.text_only() } else { live }
        };
        for length in lengths {
            let expected = Some(id(length)).filter(|id| !id.is_empty());
            assert_eq!(found(&live(), length, ""), expected, "{length} bytes, text: {text}");
        }
    }
    // The file has gone: the kernel has it all the same, others need the right to use `map_files`.
    fs::remove_file(dir.join("lib20.so")).unwrap();
    let live = Live::of(child.id()).unwrap();
    if live.has_ioctl() {
        assert_eq!(found(&live, 20, " (deleted)"), Some(id(20)));
    } else {
        skip("PROCMAP_QUERY");
    }
    let by_text = found(&live.text_only(), 20, " (deleted)");
    assert!(by_text.is_none() || by_text == Some(id(20)), "{by_text:?}");
    drop(stdin);
    child.wait().unwrap();
}

#[test]
fn a_process_that_went_away_says_so() {
    let mut f = Fixture::new("gone");
    let (live, text) = (f.live(), f.text());
    assert!(live.query(0, &Filter::default().or_next(), Want::NAME).unwrap().is_some());
    drop(f.child.stdin.take());
    // A zombie has no address space either.
    while fs::read_to_string(format!("/proc/{}/stat", f.child.id()))
        .unwrap()
        .rsplit_once(") ")
        .unwrap()
        .1
        .as_bytes()[0]
        != b'Z'
    {
        std::thread::yield_now();
    }
    for source in [&live, &text, &f.live()] {
        assert_eq!(source.query(0, &Filter::default().or_next(), Want::NAME), Err(MapsError::Gone));
        assert_eq!(source.all(&Filter::default(), Want::NAME), Err(MapsError::Gone));
    }
    f.child.wait().unwrap();
    assert_eq!(live.query(0, &Filter::default().or_next(), Want::NAME), Err(MapsError::Gone));
    assert_eq!(Live::of(f.child.id()).unwrap_err(), MapsError::Gone);
}

#[test]
fn exec_ends_an_address_space() {
    let mut sh = Command::new("sh");
    let mut child = sh
        .args(["-c", "echo ready; read x; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let live = Live::of(child.id()).unwrap();
    assert!(live.query(0, &Filter::default().or_next(), Want::NAME).unwrap().is_some());
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"go\necho\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap(); // `cat` echoes, so the exec is over
    assert_eq!(live.query(0, &Filter::default().or_next(), Want::NAME), Err(MapsError::Gone));
    assert_eq!(live.all(&Filter::default(), Want::NAME), Err(MapsError::Gone));
    assert!(
        Live::of(child.id())
            .unwrap()
            .query(0, &Filter::default().or_next(), Want::NAME)
            .unwrap()
            .is_some()
    );
    drop(stdin);
    child.wait().unwrap();
}

/// Runs as another user, with a descriptor of our mappings for its standard input.
#[test]
#[ignore = "run by the test below"]
fn without_rights() {
    let pid = std::env::var("SKEP_TEST_PID").unwrap().parse().unwrap();
    assert_eq!(Live::of(pid).unwrap_err(), MapsError::NoPermission { pid });
    assert_eq!(skep_proc::module::of(pid).unwrap_err(), MapsError::NoPermission { pid });
    assert_eq!(Process::open(pid).unwrap_err(), MapsError::NoPermission { pid });
    let symbolizer = skep_proc::symbolize::Symbolizer::of(pid);
    assert_eq!(symbolizer.unwrap_err(), MapsError::NoPermission { pid });
    // A descriptor that was opened by someone with the right gives it to us.
    let fd = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().unwrap();
    let live = Live::from_fd(fd, pid);
    let first = live.query(0, &Filter::default().or_next(), Want::ALL).unwrap().unwrap();
    assert!(first.name.is_some());
    assert_eq!(
        live.text_only().query(0, &Filter::default().or_next(), Want::NAME).unwrap().unwrap().start,
        first.start
    );
}

#[test]
fn rights_are_needed_to_open_and_can_be_handed_on() {
    use std::os::unix::process::CommandExt;
    if !fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t0\t0\n") {
        return skip("root");
    }
    let f = Fixture::new("rights");
    let program = f.dir.join("tests");
    skep_testkit::program::copy(&std::env::current_exe().unwrap(), &program);
    let out = Command::new(&program)
        .args(["--ignored", "--exact", "without_rights"])
        .env("SKEP_TEST_PID", f.child.id().to_string())
        .stdin(fs::File::open(format!("/proc/{}/maps", f.child.id())).unwrap())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
}

/// A descriptor that somebody opened may be of another file of the process.
#[test]
fn files_that_answer() {
    use rustix::fs::{Mode, OFlags, open};
    if !Live::own().unwrap().has_ioctl() {
        return skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let f = Fixture::new("files");
    let pid = f.child.id();
    let opened = |name: &str, flags: OFlags| {
        let path = format!("/proc/{pid}/{name}");
        // A kernel may be built without some of them.
        Some(Live::from_fd(open(path, flags, Mode::empty()).ok()?, pid))
    };
    let first = |live: &Live| live.query(0, &Filter::default().or_next(), Want::NAME);
    let expected = first(&f.live()).unwrap();
    assert!(expected.is_some());
    for name in ["maps".to_owned(), format!("task/{pid}/maps")] {
        let live = opened(&name, OFlags::RDONLY).unwrap();
        assert!(live.has_ioctl(), "{name}");
        assert_eq!(first(&live).unwrap(), expected, "{name}");
    }
    let own = open("/proc/thread-self/maps", OFlags::RDONLY, Mode::empty()).unwrap();
    assert!(first(&Live::from_fd(own, std::process::id())).unwrap().is_some());
    for name in ["smaps", "smaps_rollup", "numa_maps"] {
        if let Some(live) = opened(name, OFlags::RDONLY) {
            assert!(!live.has_ioctl(), "{name}");
        }
    }
    // What is no text of mappings is no answer.
    for (name, flags) in
        [("maps", OFlags::PATH), ("pagemap", OFlags::RDONLY), ("numa_maps", OFlags::RDONLY)]
    {
        if let Some(live) = opened(name, flags) {
            let answer = first(&live);
            assert!(matches!(answer, Err(_) | Ok(None)), "{name}: {answer:?}");
        }
    }
}

#[test]
fn a_kernel_thread_has_no_mappings() {
    // 2 is kthreadd, if we can see it at all.
    if fs::read_to_string("/proc/2/comm").ok().as_deref() != Some("kthreadd\n") {
        return skip("the first pid namespace");
    }
    match Live::of(2) {
        Ok(live) => assert_eq!(live.all(&Filter::default(), Want::NAME), Err(MapsError::Gone)),
        Err(e) => assert_eq!(e, MapsError::NoPermission { pid: 2 }),
    }
}

#[test]
fn walks_under_churn_go_forward_only() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _stop = skep_testkit::run::SetOnDrop(&stop);
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(std::hint::black_box(vec![1u8; 4 << 20]));
            }
        });
        let live = Live::own().unwrap();
        for _ in 0..200 {
            for source in [
                live.walk(&Filter::default(), Want::NAME).collect::<Result<Vec<_>, _>>(),
                live.all(&Filter::default(), Want::NAME),
            ] {
                let vmas = source.unwrap();
                assert!(vmas.windows(2).all(|w| w[0].end <= w[1].start));
            }
        }
    });
}
