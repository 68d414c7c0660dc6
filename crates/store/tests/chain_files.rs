//! Chain files over many changes: they do not grow, and readers, killed writers and damage are no
//! harm, also when a file begins anew.

use std::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use skep_isa::ProgramType;
use skep_store::chain::{ChainFile, ChainSpec, Edge, Node, SharedMap, SharedObject, To};
use skep_store::dir::{Dir, Kind};
use skep_testkit::random::Random;
use skep_testkit::run::SetOnDrop;

fn spec() -> ChainSpec {
    let edge = |on, to| Edge { on, to, bound: None };
    let node = |id, edges| Node {
        id,
        program: 10 + id,
        name: format!("program_{id}"),
        attach_type: None,
        frags: false,
        edges,
    };
    ChainSpec {
        prog_type: ProgramType::Xdp,
        revision: 7,
        next: 3,
        entry: Some(1),
        budget: 32,
        aborts: true,
        empty: 2,
        nodes: vec![node(1, vec![edge(8, To::Node(2)), edge(4, To::End(2))]), node(2, Vec::new())],
        objects: Vec::new(),
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("skep-chain-{}-{name}", std::process::id());
        // In memory, where a hole gives back what it covers.
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(name);
        drop(std::fs::remove_dir_all(&path));
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn next(spec: ChainSpec) -> Result<(Option<ChainSpec>, ()), ()> {
    let revision = spec.revision + 1;
    Ok((Some(ChainSpec { revision, ..spec }), ()))
}

/// A chain that is changed all day takes no more room than one that is changed a hundred times,
/// keeps its name and the maps that its programs share, and each change is noticed by the length.
#[test]
fn a_chain_that_is_changed_often_does_not_grow() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new("often");
    let dir = Dir::create(&scratch.0)?;
    let maps = vec![SharedMap { name: "counts".to_owned(), id: 3, generation: 9 }];
    let set = vec![("limit".to_owned(), "64".to_owned())];
    let (file, programs) = ("/a.o".into(), vec![11]);
    let objects = vec![SharedObject { hash: 7, file, shares: true, set, programs, maps }];
    let file = ChainFile::create(&dir, "fw", &ChainSpec { objects, ..spec() })?;
    let opened_before = ChainFile::open(&dir, 1)?;
    let (mut length, mut most) = (file.length()?, 0);
    for n in 1..=5_000 {
        assert_eq!(file.change(next)?, Ok(()));
        assert!(file.length()? > length);
        length = file.length()?;
        most = most.max(std::fs::metadata(dir.object(Kind::Chain, 1))?.blocks() * 512);
        if n % 97 == 0 {
            let want = ChainSpec { revision: 7 + n, ..file.read()? };
            assert_eq!((opened_before.read()?, want.objects.len()), (want, 1));
        }
    }
    assert_eq!(ChainFile::open(&dir, 1)?.name(), "fw");
    assert!(length > 512 << 10, "{length} bytes");
    assert!(most <= 64 << 10, "{most} bytes of {length}");
    Ok(())
}

/// Readers that read while writers write, over many new beginnings, see revisions only grow.
#[test]
fn readers_never_see_an_older_revision() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new("readers");
    let dir = Dir::create(&scratch.0)?;
    let file = ChainFile::create(&dir, "fw", &spec())?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut seen, mut reads) = (0, 0);
                    while !done.load(Relaxed) || reads == 0 {
                        let read = ChainFile::open(&dir, 1).expect("it is there").read();
                        let read = read.expect("it can be read");
                        assert!(read.revision >= seen, "{} after {seen}", read.revision);
                        assert_eq!(read, ChainSpec { revision: read.revision, ..spec() });
                        seen = read.revision;
                        reads += 1;
                    }
                })
            })
            .collect();
        let stop = SetOnDrop(&done);
        for _ in 0..4_000 {
            file.change(next).expect("it can be written").expect("it is changed");
        }
        drop(stop);
        readers.into_iter().for_each(|r| r.join().expect("no reader fails"));
    });
    assert_eq!(file.read()?.revision, 4_007);
    Ok(())
}

/// What a writer leaves that dies anywhere, in a record or when the file begins anew: the state
/// before or after, and the next writer goes on.
#[test]
fn a_writer_that_dies_anywhere_leaves_a_state() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new("dies");
    let dir = Dir::create(&scratch.0)?;
    let file = ChainFile::create(&dir, "fw", &spec())?;
    let path = dir.object(Kind::Chain, 1);
    let (mut restarts, mut revision) = (0, 7);
    while restarts < 5 {
        let before = std::fs::read(&path)?;
        assert_eq!(file.change(next)?, Ok(()));
        revision += 1;
        let after = std::fs::read(&path)?;
        let places = 16..48;
        if before[places.clone()] == after[places] {
            continue;
        }
        restarts += 1;
        let common = before.len();
        let cuts =
            (common..after.len()).map(|n| (n, 48)).chain((16..=48).map(|n| (after.len(), n)));
        for (len, written) in cuts {
            // The records up to `len`, the places up to `written`, and no hole yet.
            let mut bytes = after[..len].to_vec();
            bytes[48..common].copy_from_slice(&before[48..]);
            let from = if len < after.len() { 16 } else { written };
            bytes[from..48].copy_from_slice(&before[from..48]);
            std::fs::write(&path, &bytes)?;
            let is = ChainFile::open(&dir, 1)?;
            let want = if len < after.len() { revision - 1 } else { revision };
            assert_eq!((is.name(), is.read()?.revision), ("fw", want), "{len} {written}");
            assert_eq!(is.change(next)?, Ok(()));
            assert_eq!(is.read()?, ChainSpec { revision: want + 1, ..spec() });
            assert!(is.length()? > len as u64);
        }
        std::fs::write(&path, &after)?;
    }
    Ok(())
}

/// Damage anywhere in a file, also one that began anew: an error or a state that was there, and
/// no panic; lengths that lie take no memory.
#[test]
fn damaged_files_are_errors_or_older_states() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new("damaged");
    let dir = Dir::create(&scratch.0)?;
    let file = ChainFile::create(&dir, "fw", &spec())?;
    for _ in 0..400 {
        assert_eq!(file.change(next)?, Ok(()));
    }
    let path = dir.object(Kind::Chain, 1);
    let good = std::fs::read(&path)?;
    let mut random = Random::new(0x5eed);
    for n in 0..4_000_u32 {
        let mut bad = good.clone();
        for _ in 0..=n % 3 {
            // Half of them where the file is not only old records.
            let area = if n % 2 == 0 { bad.len() } else { 64 };
            let at = random.below(area);
            let value = random.below(256) as u8;
            bad[at] = value;
        }
        if n % 7 == 0 {
            bad.truncate(random.below(bad.len()));
        }
        std::fs::write(&path, &bad)?;
        if let Ok(spec) = ChainFile::open(&dir, 1).and_then(|f| f.read()) {
            assert!((7..=407).contains(&spec.revision), "{}", spec.revision);
            assert_eq!(spec, ChainSpec { revision: spec.revision, ..self::spec() });
        }
    }
    Ok(())
}
