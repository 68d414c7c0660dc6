//! Addresses to places, beside a plain search of the text; many, few, sorted or not, while mappings
//! change, after `dlopen`, across files that are written.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Fixture;
use skep_proc::elf::BuildId;
use skep_proc::maps::{
    BuildIds, Dev, Filter, Freshness, Live, MapSource, Mappings, MapsError, NoBuildId, Normalizer,
    Perms, Place, Reason, Snapshot, Strategy, Vma, Want,
};
use skep_testkit::random::Random;
use skep_testkit::{TempDir, skip};

/// What a place says, without numbers that depend on the order of questions.
type Said = Result<(Vec<u8>, u64, Option<BuildId>), Reason>;

fn say(normalizer: &Normalizer<'_>, places: &[Place]) -> Vec<Said> {
    let say = |place: &Place| match place {
        Place::File { file, offset } => {
            let file = &normalizer.files()[*file as usize];
            Ok((file.name.clone(), *offset, file.build_id.clone()))
        }
        Place::Other(reason) => Err(*reason),
    };
    places.iter().map(say).collect()
}

/// The same by a search through all mappings for each address.
fn naive(vmas: &[Vma], addresses: &[u64], data: bool) -> Vec<Said> {
    let one = |address: &u64| {
        if (0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000).contains(address) {
            return Err(Reason::Vsyscall);
        }
        let v = vmas.iter().find(|v| v.contains(*address)).ok_or(Reason::Unmapped)?;
        if !data && !v.perms.contains(Perms::EXEC) {
            return Err(Reason::NotExecutable);
        }
        let name = v.name.clone().unwrap_or_default();
        if v.inode == 0 && name != b"[vdso]" {
            return Err(match name.as_slice() {
                b"" => Reason::Anonymous,
                b"[heap]" => Reason::Heap,
                b"[stack]" => Reason::Stack,
                _ => Reason::Special,
            });
        }
        Ok((name, address - v.start + v.offset, v.build_id.clone().map(BuildId)))
    };
    addresses.iter().map(one).collect()
}

/// Edges of all mappings, and places between.
fn addresses(vmas: &[Vma], random: &mut Random) -> Vec<u64> {
    let mut out = vec![0, 1, u64::MAX, u64::MAX - 1, 0xffff_ffff_ff60_0400, 1 << 63];
    for v in vmas {
        out.extend([v.start - 1, v.start, v.end - 1, v.end]);
        out.push(v.start + random.next_u64() % (v.end - v.start));
    }
    out
}

#[test]
fn places_are_those_of_a_plain_search_in_every_order_from_every_source() {
    let f = Fixture::new("places");
    let (live, text) = (f.live(), f.text());
    let vmas = live.all(&Filter::default(), Want::ALL).unwrap();
    let taken = Snapshot::take(&live, Default::default(), Want::EVERYTHING).unwrap();
    let saved = Snapshot::from_bytes(&taken.to_bytes()).unwrap();
    let mut random = Random::new(3);
    let sorted = {
        let mut all = addresses(&vmas, &mut random);
        all.sort_unstable();
        all
    };
    let mut shuffled = sorted.clone();
    shuffled.extend_from_slice(&sorted);
    for i in (1..shuffled.len()).rev() {
        shuffled.swap(i, random.below(i + 1));
    }
    let falling: Vec<u64> = sorted.iter().rev().copied().collect();
    let sources: [(&str, &dyn MapSource); 3] =
        [("ioctl", &live), ("text", &text), ("snapshot", &saved)];
    for data in [false, true] {
        for (order, addresses) in
            [("sorted", &sorted), ("shuffled", &shuffled), ("falling", &falling)]
        {
            let expected = naive(&vmas, addresses, data);
            for (name, source) in sources {
                for strategy in [Strategy::Adaptive, Strategy::Queries, Strategy::ReadAll] {
                    if name == "text" && strategy == Strategy::Queries {
                        continue;
                    }
                    let mut n = Normalizer::new(source).data(data).strategy(strategy);
                    let places = n.normalize(addresses).unwrap();
                    let what = format!("{name} {order} {strategy:?} {data}");
                    assert_eq!(say(&n, &places), expected, "{what}");
                    assert_eq!(n.freshness(), Freshness::Validated);
                    // Again, with files known; and without build ids.
                    let places = n.normalize(addresses).unwrap();
                    assert_eq!(say(&n, &places), expected, "{what}, again");
                    let mut n = Normalizer::new(source).data(data).build_ids(false);
                    let mut places = n.normalize(addresses).unwrap();
                    places.reverse();
                    let mut bare = expected.clone();
                    bare.iter_mut().flatten().for_each(|place| place.2 = None);
                    bare.reverse();
                    assert_eq!(say(&n, &places), bare, "{what}, no build ids");
                }
            }
        }
    }
}

/// A source that counts what it is asked.
struct Counting<'a>(&'a Mappings, std::cell::Cell<usize>);

impl MapSource for Counting<'_> {
    fn query(&self, addr: u64, filter: &Filter, want: Want) -> Result<Option<Vma>, MapsError> {
        self.1.set(self.1.get() + 1);
        self.0.query(addr, filter, want)
    }

    fn all(&self, filter: &Filter, want: Want) -> Result<Vec<Vma>, MapsError> {
        self.1.set(self.1.get() + 1_000_000);
        self.0.all(filter, want)
    }
}

#[test]
fn a_mapping_is_asked_for_once_and_kept_only_when_told_so() {
    let vma = |n: u64| Vma {
        start: n << 20,
        end: (n << 20) + 0x8000,
        perms: Perms::READ | Perms::EXEC,
        offset: 0x1000,
        dev: Dev { major: 8, minor: 1 },
        inode: 1 + n % 10,
        name: Some(format!("/file{}", n % 10).into_bytes()),
        build_id: Some(vec![n as u8 % 10; 20]),
        ..Vma::default()
    };
    let vmas: Vec<Vma> = (1..=1000).map(vma).collect();
    let made = Mappings::new(vmas.clone()).unwrap();
    let counting = Counting(&made, Default::default());
    let mut random = Random::new(5);
    let addresses: Vec<u64> = (0..200_000)
        .map(|_| ((1 + random.below(1000) as u64) << 20) + random.below(0x8000) as u64)
        .collect();
    let mut n = Normalizer::new(&counting);
    let places = n.normalize(&addresses).unwrap();
    // Each mapping once, and each file once more for its name and build id.
    assert_eq!(counting.1.replace(0), 1000 + 10);
    assert_eq!(n.files().len(), 10);
    let vmas: BTreeMap<u64, &Vma> = vmas.iter().map(|v| (v.start, v)).collect();
    for (address, place) in addresses.iter().zip(&places) {
        let v = vmas[&(address & !0xf_ffff)];
        let Place::File { file, offset } = *place else { panic!("{place:?}") };
        assert_eq!(offset, v.file_offset(*address));
        assert_eq!(Some(&n.files()[file as usize].name), v.name.as_ref());
    }
    n.normalize(&addresses[..1]).unwrap();
    assert_eq!(counting.1.replace(0), 2, "nothing was kept");
    let mut n = Normalizer::new(&counting).keep_mappings();
    n.normalize(&addresses).unwrap();
    assert_eq!(n.freshness(), Freshness::Validated);
    counting.1.set(0);
    assert_eq!(n.normalize(&addresses).unwrap(), places);
    assert_eq!((counting.1.get(), n.freshness()), (0, Freshness::Assumed));
    n.refresh();
    n.normalize(&addresses[..1]).unwrap();
    assert_eq!((counting.1.replace(0), n.freshness()), (2, Freshness::Validated));
    // Falling addresses in one gap are not asked for one by one for ever.
    let mut n = Normalizer::new(&counting);
    let falling: Vec<u64> = (0..100_000).map(|a| (5 << 20) - 1 - a).collect();
    let places = n.normalize(&falling).unwrap();
    assert!(places.iter().all(|p| *p == Place::Other(Reason::Unmapped)));
    assert!((1_000_000..1_000_100).contains(&counting.1.get()), "{}", counting.1.get());
}

#[test]
fn a_library_that_is_loaded_is_noticed_by_its_own_process() {
    #[allow(unsafe_code)]
    unsafe fn open(name: &std::ffi::CStr) -> *mut std::ffi::c_void {
        unsafe extern "C" {
            fn dlopen(name: *const std::ffi::c_char, flags: i32) -> *mut std::ffi::c_void;
        }
        // SAFETY: the name ends with NUL; what a test library does at loading is the test's.
        unsafe { dlopen(name.as_ptr(), 2) }
    }
    let dir = TempDir::new();
    let (source, library) = (dir.join("l.c"), dir.join("l.so"));
    fs::write(&source, "int loaded(void) { return 7; }\n").unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--build-id", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().unwrap().success());
    let live = Live::own().unwrap();
    let mut n = Normalizer::new(&live).keep_mappings();
    let here = a_library_that_is_loaded_is_noticed_by_its_own_process as *const () as u64;
    n.normalize(&[here]).unwrap();
    let generation = live.generation();
    let name = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the library does nothing at loading.
    #[allow(unsafe_code)]
    let handle = unsafe { open(&name) };
    assert!(!handle.is_null());
    assert_ne!(live.generation(), generation);
    let code = live.all(&Filter::TEXT, Want::NAME).unwrap();
    let code = code.iter().find(|v| v.name.as_deref() == Some(name.as_bytes())).unwrap();
    let places = n.normalize(&[here, code.start]).unwrap();
    assert_eq!(n.freshness(), Freshness::Validated);
    let elf = skep_proc::elf::Elf::open(&library).unwrap();
    assert_eq!(say(&n, &places)[1], Ok((name.as_bytes().to_vec(), code.offset, elf.build_id())));
    n.normalize(&[here]).unwrap();
    assert_eq!(n.freshness(), Freshness::Assumed);
}

#[test]
fn a_build_id_is_read_once_for_a_file_and_again_when_that_is_written() {
    let f = Fixture::new("cached");
    let known = Arc::new(BuildIds::default());
    let live = f.live().with_build_ids(known.clone());
    let program = live.all(&Filter::TEXT, Want::ALL).unwrap().remove(0);
    assert!(program.build_id.is_some());
    let files = known.len();
    assert!(files > 0);
    let again = f.live().with_build_ids(known.clone());
    again.all(&Filter::TEXT, Want::ALL).unwrap();
    assert_eq!(known.len(), files, "nothing new");
    // The file of a mapping is written: it has the build id of another program then.
    let dir = TempDir::new();
    let (source, other) = (dir.join("o.c"), dir.join("other"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--build-id=0x0102", "-o"]).arg(&other).arg(&source);
    assert!(cc.status().unwrap().success());
    let id = |live: &Live| {
        let vmas = live.all(&Filter::default(), Want::ALL).unwrap();
        let v = vmas.into_iter().find(|v| v.name.as_ref().is_some_and(|n| n.ends_with(b"/a b")));
        v.unwrap().build_id
    };
    assert_eq!(id(&live), None);
    let bytes = fs::read(&other).unwrap();
    fs::write(f.dir.join("files/a b"), &bytes).unwrap();
    assert_eq!(id(&live), Some(vec![1, 2]));
    let longer = bytes.windows(2).position(|w| w == [1, 2]).map(|_| ());
    assert!(longer.is_some());
}

#[test]
fn a_build_id_that_is_missing_has_a_reason() {
    let f = Fixture::new("missing");
    let live = f.live();
    let vmas = live.all(&Filter::default(), Want::NAME).unwrap();
    let mut normalizer = Normalizer::new(&live).data(true);
    let starts: Vec<u64> = vmas.iter().map(|v| v.start).collect();
    normalizer.normalize(&starts).unwrap();
    let why = |end: &str| {
        let file = normalizer.files().iter().find(|f| f.name.ends_with(end.as_bytes()));
        let file = file.unwrap_or_else(|| panic!("{end}"));
        assert_eq!(file.build_id.is_none(), file.no_build_id.is_some(), "{end}");
        file.no_build_id
    };
    assert_eq!(why("/program"), None);
    assert_eq!(why("/a b"), Some(NoBuildId::NotElf));
    assert_eq!(why("[vdso]"), None);
    // Who may use `map_files` finds it.
    let gone = [Some(NoBuildId::NotFound), Some(NoBuildId::NotElf)];
    assert!(gone.contains(&why("/gone (deleted)")), "{:?}", why("/gone (deleted)"));
    // A program without the note.
    let dir = TempDir::new();
    let (source, plain) = (dir.join("p.c"), dir.join("plain"));
    fs::write(&source, "#include <unistd.h>\nint main(void) { return pause(); }\n").unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-Wl,--build-id=none", "-o"]).arg(&plain).arg(&source);
    assert!(cc.status().unwrap().success());
    let mut child = std::process::Command::new(&plain).spawn().unwrap();
    // The process is there a moment before its program is mapped.
    let ask = || -> Result<Option<_>, MapsError> {
        let live = Live::of(child.id())?;
        let mut all = live.all(&Filter::default(), Want::NAME)?.into_iter();
        let program = all.find(|v| v.name.as_ref().is_some_and(|n| n.ends_with(b"/plain")));
        program.map(|v| Ok((live.no_build_id(&v), live.build_id(&v)?))).transpose()
    };
    let end = Instant::now() + Duration::from_secs(300);
    let mut tries = std::iter::from_fn(|| (Instant::now() < end).then(ask));
    let found = tries.find(|answer| !matches!(answer, Ok(None))).unwrap_or(Ok(None));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, Ok(Some((Some(NoBuildId::NoNote), None))));
}

/// Answers while another thread maps and unmaps: what stays mapped is always found, and what never
/// is is never found.
#[test]
fn churn_makes_no_wrong_answer() {
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let time = if stress { Duration::from_secs(60) } else { Duration::from_millis(300) };
    let stop = AtomicBool::new(false);
    let live = Live::own().unwrap();
    if !live.has_ioctl() {
        skip("PROCMAP_QUERY (Linux 6.11)");
    }
    let text = Live::own().unwrap().text_only();
    let still = live.all(&Filter::TEXT, Want::ALL).unwrap();
    let mut addresses: Vec<u64> = still.iter().flat_map(|v| [v.start, v.end - 1]).collect();
    addresses.extend([8, u64::MAX]);
    let mut expected = naive(&still, &addresses, false);
    expected.iter_mut().flatten().for_each(|place| place.2 = None);
    std::thread::scope(|s| {
        let _stop = skep_testkit::run::SetOnDrop(&stop);
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(std::hint::black_box(vec![1u8; 4 << 20]));
            }
        });
        let start = Instant::now();
        let mut rounds = 0;
        while start.elapsed() < time || rounds < 20 {
            for source in [&live, &text] {
                let mut n = Normalizer::new(source).build_ids(false);
                let places = n.normalize(&addresses).unwrap();
                assert_eq!(say(&n, &places), expected);
            }
            rounds += 1;
        }
    });
}
