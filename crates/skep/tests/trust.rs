//! What stands between a proof and a run, for callers that use no unsafe code: programs run with
//! the maps they were verified with, in the context they were verified for, and come out of files
//! that nobody else could have written.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use skep::RecordError;
use skep::dir::{Dir, Kind, Scratch};
use skep::link::{FunctionAttachType, describe};
use skep::load::{Loaded, Loader};
use skep::maps::{Access, Map};
use skep::object::Object;
use skep::prog::ProgramFile;
use skep::test_run::{Engine, Input, Runner, RunnerError};
use skep_testkit::TempDir;

const ENGINES: [Engine; 2] = [Engine::Jit, Engine::Interp];

fn object() -> Object {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trust.bpf.o");
    Object::parse(&std::fs::read(path).unwrap()).unwrap()
}

fn store(loaded: &Loaded, slot: u32, program: &str) {
    let id = loaded.program(program).unwrap().id();
    loaded.map("jumps").unwrap().update(&slot.to_ne_bytes(), &id.to_ne_bytes(), 0).unwrap();
}

/// Programs of two types, on two engines, have the same array open at once: each finds its own side
/// of it, and nobody goes on in a program that takes another context.
#[test]
fn an_array_leads_each_program_to_its_own_kind() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let scratch = Scratch::create_in(&dir).unwrap();
    let loaded = Loader::new(scratch.dir()).load(&object()).unwrap();
    let packet = [0; 60];
    let run = |runner: &Runner| runner.test_run(&Input::data(&packet)).unwrap().retval;
    let make = |name, engine| Runner::new(scratch.dir(), &loaded, name, engine).unwrap();
    let runners: Vec<_> =
        ENGINES.into_iter().flat_map(|e| [make("xdp_jump", e), make("tc_jump", e)]).collect();
    let all = || runners.iter().map(run).collect::<Vec<_>>();
    assert_eq!(all(), [55, 56, 55, 56]);
    for _ in 0..2 {
        store(&loaded, 0, "xdp_target");
        assert_eq!(all(), [3, 56, 3, 56]);
        store(&loaded, 0, "tc_target");
        assert_eq!(all(), [55, 7, 55, 7]);
    }
}

/// A session keeps a word between its two runs, which its context has the address of; that of other
/// programs has none.
#[test]
fn only_a_session_goes_on_as_a_session() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    for engine in ENGINES {
        let scratch = Scratch::create_in(&dir).unwrap();
        let loaded = Loader::new(scratch.dir()).load(&object()).unwrap();
        let run = |name| {
            let runner = Runner::new(scratch.dir(), &loaded, name, engine).unwrap();
            assert_eq!(runner.test_run(&Input::none()).unwrap().retval, 0);
            let noted = loaded.map("numbers").unwrap().lookup(&[0; 4]).unwrap();
            u64::from_ne_bytes(noted.try_into().unwrap())
        };
        store(&loaded, 1, "session_target");
        assert_eq!((run("entry_jump"), run("session_jump")), (57, 9), "{engine:?}");
        store(&loaded, 1, "entry_target");
        assert_eq!((run("entry_jump"), run("session_jump")), (8, 8), "{engine:?}");
        assert_eq!(run("probe_session"), 10, "a test run has the word as well");
    }
}

/// Loads that may find nothing give 0, whatever runs the program, and whichever program of the
/// process was the first to have some.
#[test]
fn what_is_not_there_is_zero_on_every_engine_and_behind_tail_calls() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    for engine in [Engine::Interp, Engine::Jit] {
        for through in ["xdp_jump", "look"] {
            let scratch = Scratch::create_in(&dir).unwrap();
            let loaded = Loader::new(scratch.dir()).load(&object()).unwrap();
            store(&loaded, 0, "look");
            let runner = Runner::new(scratch.dir(), &loaded, through, engine).unwrap();
            assert_eq!(
                runner.test_run(&Input::data(&[0; 60])).unwrap().retval,
                4,
                "{through}, {engine:?}"
            );
        }
    }
}

/// There is no limit to the arrays that are in use at once: the last one works as the first.
#[test]
fn any_number_of_program_arrays_is_in_use() {
    const MANY: usize = 300;
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let scratch = Scratch::create_in(&dir).unwrap();
    let object = object();
    let packet = [0; 60];
    let mut all = Vec::new();
    for _ in 0..MANY {
        let loaded = Loader::new(scratch.dir())
            .autoload_only("xdp_jump")
            .autoload_only("xdp_target")
            .load(&object)
            .unwrap();
        let runner = Runner::new(scratch.dir(), &loaded, "xdp_jump", Engine::Jit).unwrap();
        all.push((loaded, runner));
    }
    for (n, (loaded, runner)) in all.iter().enumerate() {
        store(loaded, 0, "xdp_target");
        assert_eq!(runner.test_run(&Input::data(&packet)).unwrap().retval, 3, "array {n}");
    }
}

/// A program is not run with other maps than those it was verified with, though they have the same
/// ids: in another directory, or in place of files that were removed.
#[test]
fn other_maps_are_not_taken_for_those_of_the_proof() {
    let temp = TempDir::in_memory();
    let dirs = [Dir::create(&temp.join("a")).unwrap(), Dir::create(&temp.join("b")).unwrap()];
    let object = object();
    let loaded = dirs.each_ref().map(|dir| Loader::new(dir).load(&object).unwrap());
    let [a, b] = loaded.each_ref().map(|l| l.program("count").unwrap());
    assert_eq!(a.program().maps(), b.program().maps(), "ids begin at 1 in each directory");
    for engine in ENGINES {
        Runner::open(&dirs[0], a.program(), engine).unwrap();
        let refused = Runner::open(&dirs[1], a.program(), engine);
        assert!(
            matches!(refused, Err(RunnerError::Maps { ref source, .. }) if source.index == 0),
            "{refused:?}"
        );
    }
    // What its file says, with another file in a map's place.
    let file = ProgramFile::open(&dirs[0], a.id()).unwrap();
    assert_eq!(file.program(), a.program());
    let id = file.program().maps()[0];
    std::fs::remove_file(dirs[0].object(Kind::Map, id)).unwrap();
    std::fs::copy(dirs[1].object(Kind::Map, id), dirs[0].object(Kind::Map, id)).unwrap();
    assert!(Map::open(&dirs[0].object(Kind::Map, id), Access::ReadWrite).is_ok());
    assert!(matches!(
        Runner::open(&dirs[0], file.program(), Engine::Jit),
        Err(RunnerError::Maps { .. })
    ));
    drop(loaded);
}

/// What an object says of a program is not only what the verifier looked at: a session's program
/// under another section hangs nowhere.
#[test]
fn a_section_does_not_turn_a_session_into_something_else() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let of = |change: fn(&mut skep::object::Program)| {
        let mut object = object();
        object.programs.iter_mut().filter(|p| p.name == "probe_session").for_each(change);
        let loaded = Loader::new(&dir).load(&object).unwrap();
        describe(loaded.program("probe_session").unwrap(), &["f".to_owned()])
            .map(|spec| spec.programs[0].attach_type)
            .ok()
    };
    assert_eq!(of(|_| ()), Some(FunctionAttachType::Session));
    assert_eq!(of(|p| p.section = "uprobe/f".to_owned()), None);
    assert_eq!(of(|p| p.section = "uretprobe/f".to_owned()), None);
}

/// A program file is the verifier's word: it is of this user, nobody else can write it, and it is
/// the file that has the name.
#[test]
fn a_program_file_that_others_can_write_is_refused() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let loaded = Loader::new(&dir).load(&object()).unwrap();
    let id = loaded.program("count").unwrap().id();
    let path = dir.object(Kind::Program, id);
    let mode =
        |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    assert!(ProgramFile::open(&dir, id).is_ok());
    for open in [0o660, 0o602, 0o622] {
        mode(open);
        assert!(matches!(ProgramFile::open(&dir, id), Err(RecordError::Mode { .. })), "{open:o}");
    }
    mode(0o600);
    assert!(ProgramFile::open(&dir, id).is_ok());
    let other = dir.object(Kind::Program, id + 1000);
    std::os::unix::fs::symlink(&path, &other).unwrap();
    assert!(ProgramFile::open(&dir, id + 1000).is_err(), "a link may lead anywhere");
}
