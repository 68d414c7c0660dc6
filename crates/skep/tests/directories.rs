//! Threads that use two directories in one process: at any time programs of one of them run, and
//! each thread has its slot there. In a process of its own, as links keep the directory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use skep::isa::{AttachType, Insn, MapType, ProgramType, op};
use skep::maps::{MapDef, SlotTable};
use skep::object::RawProgram;
use skep::test_run::Input;
use skep::{Error, Functions, Map, Object, PerCpuArray, Session};

mod small_library;

/// One test at a time: both are about all that the process runs.
static ONE: Mutex<()> = Mutex::new(());

/// Ends the other threads of a test when one fails.
struct Fails<'a>(&'a AtomicBool);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// A program that adds one to the value of its slot, as a program of the kernel does: two threads
/// in one slot lose some.
fn counter(session: &Session, prog_type: ProgramType, retval: i32) -> Result<(Object, Map), Error> {
    let def = MapDef { name: "sum".to_owned(), ..MapDef::new(MapType::PercpuArray, 4, 8, 1) };
    let map = session.create_map(&def)?;
    let [low, high] = Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 0);
    let insns = [
        Insn { code: op::ST | op::MEM | op::W, regs: 10, off: -4, imm: 0 },
        low,
        high,
        Insn::mov64_reg(2, 10),
        Insn { code: op::ALU64 | op::ADD, regs: 2, off: 0, imm: -4 },
        Insn::call(1),
        Insn { code: op::JMP | op::JEQ, regs: 0, off: 3, imm: 0 },
        Insn { code: op::LDX | op::MEM | op::DW, regs: 0x01, off: 0, imm: 0 },
        Insn { code: op::ALU64 | op::ADD, regs: 1, off: 0, imm: 1 },
        Insn { code: op::STX | op::MEM | op::DW, regs: 0x10, off: 0, imm: 0 },
        Insn::mov64_imm(0, retval),
        Insn::exit(),
    ];
    let mut raw = RawProgram::new("counter", prog_type, &insns);
    if prog_type == ProgramType::Tracing {
        raw.attach_type = Some(AttachType::TraceFentryMulti);
        raw.target = Some("directories.so:small");
    }
    Ok((session.load_instructions(&raw, std::slice::from_ref(&map))?, map))
}

fn sum(map: &Map) -> Result<u64, Error> {
    Ok(map.typed::<PerCpuArray<u64>>()?.get(0)?.iter().flatten().sum())
}

#[test]
fn test_runs_of_two_directories_take_turns() -> Result<(), Error> {
    const RUNS: u64 = 200;
    const REPEAT: u32 = 2000;
    let _one = ONE.lock();
    let sessions = [Session::scratch()?, Session::scratch()?];
    let loaded = [0, 1].map(|n: usize| counter(&sessions[n], ProgramType::Xdp, 2));
    let [first, second] = loaded;
    let loaded = [first?, second?];
    std::thread::scope(|scope| {
        for (object, _) in loaded.iter().chain(&loaded) {
            scope.spawn(move || {
                let program = object.program("counter").expect("it was loaded");
                let input = Input { repeat: REPEAT, ..Input::data(&[0; 64]) };
                for _ in 0..RUNS {
                    assert_eq!(program.test_run(&input).expect("it waits").retval, 2);
                }
            });
        }
    });
    for ((_, map), session) in loaded.iter().zip(&sessions) {
        assert_eq!(sum(map)?, 2 * RUNS * u64::from(REPEAT));
        // A slot for each of the two threads that run programs of this directory.
        let table = SlotTable::open_or_create(session.dir().path()).expect("it is there");
        assert!(table.highest() <= 2, "{} slots", table.highest());
    }
    Ok(())
}

/// The table of each session that had attached something, or run a program, stayed mapped.
#[test]
fn directories_that_are_gone_leave_no_tables() -> Result<(), Error> {
    let _one = ONE.lock();
    let home = skep_testkit::TempDir::in_memory();
    let counted = small_library::open(&small_library::build(home.join("directories.so")));
    let mut mapped = Vec::new();
    for round in 0..8 {
        let session = Session::scratch()?;
        let (object, map) = counter(&session, ProgramType::Tracing, 0)?;
        let link = object.program("counter")?.attach(Functions::of_self("directories.so:small"))?;
        std::hint::black_box(counted(1));
        assert!(link.detach().wait(std::time::Duration::from_secs(60)));
        assert_eq!(sum(&map)?, 1, "round {round}");
        drop((object, map));
        let (object, map) = counter(&session, ProgramType::Xdp, 2)?;
        object.program("counter")?.test_run(&Input::data(&[0; 64])).expect("it runs");
        assert_eq!(sum(&map)?, 1, "round {round}");
        drop((object, map, session));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        mapped.push(maps.lines().filter(|line| line.contains("/slots")).count());
    }
    // That of the last one.
    assert!(mapped.iter().all(|n| *n == mapped[0]), "{mapped:?}");
    Ok(())
}

#[test]
fn links_of_one_directory_keep_all_others_out() -> Result<(), Error> {
    const TRIES: u64 = 100;
    const CALLS: i64 = 500;
    let _one = ONE.lock();
    let home = skep_testkit::TempDir::in_memory();
    let counted = small_library::open(&small_library::build(home.join("directories.so")));
    let sessions = [Session::scratch()?, Session::scratch()?];
    let loaded = [0, 1].map(|n: usize| counter(&sessions[n], ProgramType::Tracing, 0));
    let [first, second] = loaded;
    let (loaded, tested) = ([first?, second?], counter(&sessions[0], ProgramType::Xdp, 2)?);
    let (inside, won) = ([const { AtomicUsize::new(0) }; 2], [const { AtomicU64::new(0) }; 2]);
    let (runs, done) = (AtomicU64::new(0), AtomicUsize::new(0));
    let failed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in [0, 1, 0, 1] {
            let (object, inside, won, done) = (&loaded[n].0, &inside, &won, &done);
            scope.spawn(move || {
                let program = object.program("counter").expect("it was loaded");
                let _fails = Fails(failed);
                let mut tries = 0;
                while tries < TRIES || won[n].load(Ordering::Relaxed) == 0 {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    tries += 1;
                    let functions = Functions::of_self("directories.so:small");
                    let link = match program.attach(functions) {
                        Ok(link) => link,
                        Err(Error::Process { why }) if why.contains("can run none of") => {
                            std::thread::yield_now();
                            continue;
                        }
                        Err(e) => panic!("{e}"),
                    };
                    inside[n].fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside[1 - n].load(Ordering::SeqCst), 0, "both were attached");
                    for n in 0..CALLS {
                        std::hint::black_box(counted(n));
                    }
                    inside[n].fetch_sub(1, Ordering::SeqCst);
                    drop(link);
                    won[n].fetch_add(1, Ordering::Relaxed);
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        // Test runs beside them go on while it is their own directory that has links, or none has.
        let (object, runs, done) = (&tested.0, &runs, &done);
        scope.spawn(move || {
            let program = object.program("counter").expect("it was loaded");
            let _fails = Fails(failed);
            while done.load(Ordering::Relaxed) < 4 && !failed.load(Ordering::Relaxed) {
                match program.test_run(&Input::data(&[0; 64])) {
                    Ok(_) => drop(runs.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::Runner(_) | Error::TestRun { .. }) => std::thread::yield_now(),
                    Err(e) => panic!("{e}"),
                }
            }
        });
    });
    for ((_, map), won) in loaded.iter().zip(&won) {
        // Calls of other threads are seen too while a link is there.
        let least = won.load(Ordering::Relaxed) * CALLS as u64;
        assert!(least > 0 && sum(map)? >= least, "{} of {least}", sum(map)?);
    }
    assert_eq!(sum(&tested.1)?, runs.load(Ordering::Relaxed));
    Ok(())
}
