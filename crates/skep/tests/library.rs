//! The library as its users see it: sessions, links to functions of the own process and of
//! commands, typed maps, rings, test runs, and what it refuses.

use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use skep::isa::{AttachType, Insn, MapType, ProgramType, op};
use skep::load::LoadError;
use skep::maps::MapDef;
use skep::object::RawProgram;
use skep::test_run::Input;
use skep::zerocopy::{FromBytes, Immutable, IntoBytes};
use skep::{Array, Error, Functions, HashMap, PerCpuArray, PerCpuHashMap, Queue, Session, Stack};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
const FOREVER: Duration = Duration::from_secs(300);

#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Event {
    pid: u32,
    cookie: u32,
    address: u64,
}

static WORK: AtomicU64 = AtomicU64::new(0);

/// Functions to hook, each for one test.
macro_rules! functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $name(n: u64) -> u64 {
            WORK.fetch_add(n, Ordering::Relaxed) ^ n
        }
    )*};
}

functions! { library_counted library_first library_second library_told library_limited }
functions! { library_raced_one library_raced_two library_raw library_alone library_kept }
functions! { library_by_section }

static GO: AtomicBool = AtomicBool::new(false);

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn library_waits(inside: &Barrier) -> u64 {
    inside.wait();
    while !GO.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    WORK.load(Ordering::Relaxed)
}

/// The tests share a directory, as a process runs the programs of one.
fn session() -> Result<Session, Error> {
    Session::open_in(skep_testkit::TempDir::of_process().join("skep"))
}

/// Calls a function so often.
fn call(times: u64, function: extern "C" fn(u64) -> u64) {
    for n in 0..times {
        std::hint::black_box(function(n));
    }
}

/// Sums the values of all slots.
fn sum(values: Option<Vec<u64>>) -> u64 {
    values.unwrap_or_default().into_iter().sum()
}

#[test]
fn a_program_counts_its_own_calls_until_it_is_detached() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let link = object.program("count")?.attach(Functions::of_self("*:library_counted"))?;
    for n in 0..1000 {
        library_counted(n);
    }
    assert_eq!(link.functions()?.len(), 1);
    assert_eq!(link.missed().total(), 0);
    assert!(link.detach().wait(FOREVER));
    library_counted(1);
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let all: Vec<(u64, u64)> = counts.iter().collect::<Result<_, _>>()?;
    let [(address, 1000)] = all[..] else { panic!("{all:?}") };
    assert_eq!(address, library_counted as *const () as u64);
    assert_eq!((counts.get(&address)?, counts.get(&1)?), (Some(1000), None));
    Ok(())
}

/// One link runs several programs on each function, and tells them which function it is.
#[test]
fn a_link_has_several_programs_and_a_cookie_for_each_target() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let functions = Functions::of_self("library_first")
        .cookie(7)
        .and("library_second")
        .cookie(1 << 40)
        .exclude("library_waits");
    let link = object.attach(["enter", "leave"], functions)?;
    for n in 0..300 {
        library_first(n);
        if n % 3 == 0 {
            library_second(n);
        }
    }
    drop(link);
    library_second(1);
    let calls: PerCpuArray<u64> = object.map("calls")?.typed()?;
    assert_eq!((sum(calls.get(0)?), sum(calls.get(1)?)), (400, 400));
    let by_cookie: PerCpuHashMap<u64, u32> = object.map("by_cookie")?.typed()?;
    let mut sums: Vec<(u64, u32)> = by_cookie
        .iter()
        .map(|entry| entry.map(|(cookie, values)| (cookie, values.iter().sum())))
        .collect::<Result<_, _>>()?;
    sums.sort_unstable();
    assert_eq!(sums, [(7, 300), (1 << 40, 100)]);
    Ok(())
}

/// The answer of `detach` is about threads: one that is inside a function with an exit hook will
/// return through it.
#[test]
fn detaching_tells_when_no_thread_is_inside() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let link = object.attach(["enter", "leave"], Functions::of_self("library_waits"))?;
    let inside = Barrier::new(2);
    std::thread::scope(|scope| -> Result<(), Error> {
        let thread = scope.spawn(|| library_waits(&inside));
        inside.wait();
        let mut detached = link.detach();
        let early = detached.is_quiescent();
        GO.store(true, Ordering::Release);
        thread.join().expect("no panic");
        assert!(!early, "a thread was inside");
        assert!(detached.wait(FOREVER));
        Ok(())
    })?;
    let calls: PerCpuArray<u64> = object.map("calls")?.typed()?;
    assert_eq!((sum(calls.get(0)?), sum(calls.get(1)?)), (1, 0), "it was off at the return");
    Ok(())
}

#[test]
fn records_of_a_ring_come_in_order_and_are_waited_for() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let program = object.program("tell")?;
    let functions = Functions::of_self("library_told").cookie(3);
    let link = program.attach(functions)?;
    let mut events = object.ring("events")?.typed::<Event>();
    assert!(matches!(object.ring("events"), Err(Error::Map { .. })), "there is one reader");
    let address = library_told as *const () as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| call(500, library_told));
        for _ in 0..500 {
            let event = events.next_within(FOREVER)?;
            let event = event.unwrap_or_else(|| panic!("{:?}", link.missed()));
            assert_eq!(event, Event { pid: std::process::id(), cookie: 3, address });
        }
        Ok::<(), Error>(())
    })?;
    assert_eq!(events.try_next()?, None);
    assert_eq!(events.until_idle(Duration::ZERO).count(), 0);
    drop(link);
    Ok(())
}

#[test]
fn a_command_is_traced_from_its_start() -> Result<(), Box<dyn std::error::Error>> {
    let agent = skep_testkit::trace::agent_symbols();
    let session = session()?;
    let object = session.load(OBJECT)?;
    let link = object.program("count")?.attach(Functions::of_commands("libc.so.6:malloc"))?;
    let mut command = link.command_with("sort", &agent)?;
    assert!(command.arg("/etc/passwd").stdout(std::process::Stdio::null()).status()?.success());
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let calls: u64 = counts.iter().map(|entry| entry.map(|(_, n)| n)).sum::<Result<u64, _>>()?;
    assert!(calls > 0);
    assert!(link.functions()?.iter().any(|f| f.name == "malloc" && f.skipped.is_none()));
    Ok(())
}

#[test]
fn programs_run_on_packets_and_share_maps_with_the_test() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let (waiting, done): (Queue<u32>, Stack<u32>) =
        (object.map("waiting")?.typed()?, object.map("done")?.typed()?);
    waiting.push(&9)?;
    waiting.push(&4)?;
    let program = object.program("first_bytes")?;
    let verdicts = [9, 9, 5, 4].map(|byte| program.test_run(&Input::data(&[byte; 64])));
    let verdicts: Vec<u32> =
        verdicts.into_iter().map(|r| r.map(|r| r.retval)).collect::<Result<_, _>>()?;
    assert_eq!(verdicts, [2, 1, 1, 2]);
    assert_eq!((waiting.pop()?, done.peek()?, done.pop()?, done.pop()?, done.pop()?), {
        (None, Some(5), Some(5), Some(9), None)
    });
    let short = program.test_run(&Input::data(&[0; 3])).expect_err("no Ethernet header");
    assert!(short.to_string().contains("first_bytes"), "{short}");
    Ok(())
}

#[test]
fn what_is_taken_is_gone_and_counted_once() -> Result<(), Error> {
    let session = session()?;
    let object = session.loader().max_entries("counts", 300).load(OBJECT)?;
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    for n in 0..300 {
        counts.insert(&n, &(n * n))?;
    }
    assert!(matches!(counts.insert(&300, &1), Err(Error::Map { .. })), "it is full");
    let mut taken: Vec<(u64, u64)> = counts.iter().taken().collect::<Result<_, _>>()?;
    taken.sort_unstable();
    assert_eq!(taken, (0..300).map(|n| (n, n * n)).collect::<Vec<_>>());
    assert_eq!(counts.iter().strict().count(), 0);
    assert!(!counts.remove(&5)?);
    Ok(())
}

/// A global variable that is set before loading is what the program sees.
#[test]
fn options_change_what_is_loaded() -> Result<(), Error> {
    let session = session()?;
    let object = session.loader().global("limit", 3).autoload("first_bytes", false).load(OBJECT)?;
    assert!(object.program("first_bytes").is_err());
    let rodata: Array<u64> = object.map(".rodata")?.typed()?;
    assert_eq!(rodata.get(0)?, Some(3));
    let link = object.program("count")?.attach(Functions::of_self("library_limited"))?;
    call(10, library_limited);
    drop(link);
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let n = counts.get(&(library_limited as *const () as u64))?;
    assert_eq!(n, Some(3));
    Ok(())
}

/// A program that is in no file counts like any other, and is verified like any other.
#[test]
fn programs_come_as_instructions() -> Result<(), Error> {
    let session = session()?;
    let map = session
        .create_map(&MapDef { name: "sum".to_owned(), ..MapDef::new(MapType::Array, 4, 8, 1) })?;
    let [low, high] = Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 0);
    let count = [
        Insn { code: op::ST | op::MEM | op::W, regs: 10, off: -4, imm: 0 },
        low,
        high,
        Insn::mov64_reg(2, 10),
        Insn { code: op::ALU64 | op::ADD, regs: 2, off: 0, imm: -4 },
        Insn::call(1),
        Insn { code: op::JMP | op::JEQ, regs: 0, off: 2, imm: 0 },
        Insn::mov64_imm(1, 1),
        Insn { code: op::STX | op::ATOMIC | op::DW, regs: 0x10, off: 0, imm: 0 },
        Insn::mov64_imm(0, 0),
        Insn::exit(),
    ];
    let mut raw = RawProgram::new("count_raw", ProgramType::Tracing, &count);
    raw.attach_type = Some(AttachType::TraceFentryMulti);
    raw.target = Some("library_raw");
    let object = session.load_instructions(&raw, std::slice::from_ref(&map))?;
    let link = object.program("count_raw")?.attach(Functions::of_self("library_raw"))?;
    call(123, library_raw);
    drop(link);
    assert_eq!(map.typed::<Array<u64>>()?.get(0)?, Some(123));

    let refused = session.load_instructions(&raw, &[]).map(drop);
    assert!(matches!(refused, Err(Error::Load(LoadError::Instructions { .. }))), "{refused:?}");
    raw.insns = &count[3..];
    let refused = session.load_instructions(&raw, std::slice::from_ref(&map)).map(drop);
    assert!(matches!(refused, Err(Error::Load(LoadError::Rejected(_)))), "{refused:?}");
    let elsewhere = Session::scratch()?.create_map(map.def())?;
    raw.insns = &count;
    let refused = session.load_instructions(&raw, &[elsewhere]).map(drop);
    assert!(matches!(refused, Err(Error::Load(LoadError::MapHandle { .. }))), "{refused:?}");
    Ok(())
}

/// A link keeps what it needs, though the object it came from is gone, and a pattern may be a list.
#[test]
fn a_link_outlives_its_object() -> Result<(), Error> {
    let session = session()?;
    let link = session
        .load(OBJECT)?
        .program("tell")?
        .attach(Functions::of_self("library_kept,library_no_such_function").cookie(5))?;
    // Another loader removes what nobody uses.
    drop(Session::open_in(session.dir().path())?);
    call(3, library_kept);
    assert_eq!((link.missed().total(), link.processes()?.len()), (0, 1));
    assert!(matches!(
        session.load(OBJECT)?.program("tell")?.attach(Functions::of_self(",")),
        Err(Error::NothingAttached { .. })
    ));
    Ok(())
}

/// Threads claim their slots in one directory.
#[test]
fn a_process_runs_programs_of_one_directory() -> Result<(), Error> {
    let counted = session()?.load(OBJECT)?;
    let link = counted.program("count")?.attach(Functions::of_self("library_alone"))?;
    let other = Session::scratch()?;
    let object = other.load(OBJECT)?;
    let refused = object.program("count")?.attach(Functions::of_self("library_waits"));
    assert!(matches!(refused, Err(Error::Process { .. })), "{refused:?}");
    let refused = object.program("first_bytes")?.test_run(&Input::data(&[0; 64]));
    assert!(matches!(refused, Err(Error::Runner(_))), "{refused:?}");
    // What was refused has the same id in the other directory, and takes nothing away.
    call(10, library_alone);
    drop(link);
    let counts: HashMap<u64, u64> = counted.map("counts")?.typed()?;
    assert_eq!(counts.get(&(library_alone as *const () as u64))?, Some(10));
    Ok(())
}

#[test]
fn refusals_say_what_and_where() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let text = |e: Error| e.to_string();
    assert_eq!(
        object.map("count").map(drop).map_err(text),
        Err("the object has no map `count`; it has `by_cookie`, `events`, `waiting`, `done`, \
             `counts`, `calls`, `.rodata`, `.bss`"
            .to_owned())
    );
    assert_eq!(
        object.map("counts")?.typed::<HashMap<u32, u64>>().map(drop).map_err(text),
        Err("map `counts`: a key has 8 bytes, `u32` has 4".to_owned())
    );
    assert_eq!(
        object.map("counts")?.typed::<Array<u64>>().map(drop).map_err(text),
        Err("map `counts` is of type hash, and no array".to_owned())
    );
    let nothing = object.program("count")?.attach(Functions::of_self("no_such_function"));
    assert_eq!(
        nothing.map(drop).map_err(text),
        Err("no function matching `no_such_function` was attached: this process and its libraries have \
             none of that name"
            .to_owned())
    );
    let packets = object.program("first_bytes")?.attach(Functions::of_self("malloc"));
    assert_eq!(
        packets.map(drop).map_err(text),
        Err("program `first_bytes`: section `xdp` does not attach to functions of a process"
            .to_owned())
    );
    assert_eq!(
        session.load("/no/such/file").map(drop).map_err(text),
        Err("cannot read `/no/such/file`: No such file or directory (os error 2)".to_owned())
    );
    assert!(session.loader().global("no_such", 1).load(OBJECT).is_err());
    let none = object.program("count")?.attach(Functions::of_self(","));
    assert_eq!(
        none.map(drop).map_err(text),
        Err("no function is named: a pattern is `MODULE:FUNCTION` or `FUNCTION`".to_owned())
    );
    let none = object.attach([], Functions::of_commands("malloc")).map(drop).map_err(text);
    let Err(none) = none else { panic!("there is nothing to run") };
    assert!(none.starts_with("a link needs a program: name at least one of `count`, "), "{none}");
    Ok(())
}

/// A file that is not there is no reason to show programs other arguments.
#[test]
fn prototypes_of_what_is_not_there_are_refused() -> Result<(), Box<dyn std::error::Error>> {
    let session = session()?;
    let dir = skep_testkit::TempDir::in_memory();
    let rubbish = dir.join("rubbish");
    std::fs::write(&rubbish, b"\0\0\0\0")?;
    for path in [dir.join("missing"), rubbish, dir.path().to_owned()] {
        let refused = session.loader().prototypes(&path).load(OBJECT).map(drop);
        let Err(e @ Error::Prototypes { .. }) = refused else { panic!("{refused:?}") };
        let begin = format!("cannot look up the types of functions in `{}`: ", path.display());
        assert!(e.to_string().starts_with(&begin), "{e}");
    }
    // A name is looked for as a shell does; a library need not be executable.
    session.loader().prototypes("sh").load(OBJECT)?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let library =
        maps.lines().filter_map(|l| Some(&l[l.find('/')?..])).find(|p| p.contains("libc"));
    let copy = dir.join("libcopy.so");
    std::fs::copy(library.ok_or("there is a C library")?, &copy)?;
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    session.loader().prototypes(&copy).load(OBJECT)?;
    Ok(())
}

/// The section says which functions, as for `skep run`.
#[test]
fn programs_are_attached_where_their_section_says() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let link = object.program("count_named")?.attach_by_section()?;
    call(20, library_by_section);
    std::hint::black_box(std::os::unix::process::parent_id());
    let mut names: Vec<String> = link.functions()?.into_iter().map(|f| f.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["getppid", "library_by_section"]);
    drop(link);
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    assert_eq!(counts.get(&(library_by_section as *const () as u64))?, Some(20));
    // Other tests may have called the other one.
    assert!(counts.iter().count() == 2);

    // Options go with it.
    let functions = Functions::of_self_by_section().cookie(11).exclude("getppid");
    let section = "fentry.multi/*:library_by_section";
    let loader = session.loader().program_type("enter", section).program_type("tell", section);
    let object = loader.load(OBJECT)?;
    let link = object.attach(["enter", "tell"], functions.clone())?;
    call(3, library_by_section);
    drop(link);
    let by_cookie: PerCpuHashMap<u64, u32> = object.map("by_cookie")?.typed()?;
    assert_eq!(by_cookie.get(&11)?.map(|n| n.iter().sum::<u32>()), Some(3));

    let refused = object.attach(["enter", "leave"], functions).map(drop);
    let Err(e @ Error::Sections { .. }) = refused else { panic!("{refused:?}") };
    assert!(e.to_string().contains("`enter` and `leave`"), "{e}");
    let object = session.loader().program_type("count", "fentry.multi").load(OBJECT)?;
    let refused = object.program("count")?.attach_by_section().map(drop);
    assert!(matches!(refused, Err(Error::Attach(_))), "{refused:?}");
    Ok(())
}

/// One command, and links of two objects.
#[test]
fn a_command_is_traced_by_several_links() -> Result<(), Box<dyn std::error::Error>> {
    let agent = skep_testkit::trace::agent_symbols();
    let session = session()?;
    let (first, second) = (session.load(OBJECT)?, session.load(OBJECT)?);
    let counting = first.program("count")?.attach(Functions::of_commands("libc.so.6:malloc"))?;
    let pairs = second.attach(["enter", "leave"], Functions::of_commands("libc.so.6:free"))?;
    let links = [&counting, &pairs, &counting];
    let mut command = session.command_with("sort", links, &agent)?;
    assert!(command.arg("/etc/passwd").stdout(std::process::Stdio::null()).status()?.success());
    let counts: HashMap<u64, u64> = first.map("counts")?.typed()?;
    assert!(matches!(counts.iter().collect::<Result<Vec<_>, _>>()?[..], [(_, 1..)]));
    let calls: PerCpuArray<u64> = second.map("calls")?.typed()?;
    let (entries, returns) = (sum(calls.get(0)?), sum(calls.get(1)?));
    assert!(entries > 0 && entries == returns, "{entries} {returns}");
    assert_eq!((counting.processes()?.len(), pairs.processes()?.len()), (1, 1));

    let plain = session.command("sort", [])?;
    assert_eq!(plain.get_envs().count(), 0);
    let elsewhere = Session::scratch()?.command_with("sort", [&pairs], &agent).map(drop);
    assert!(matches!(elsewhere, Err(Error::OtherDirectory { .. })), "{elsewhere:?}");
    let missing = session.command_with("sort", [&pairs], "/no/such/agent.so".as_ref()).map(drop);
    let Err(e @ Error::NoAgent { .. }) = missing else { panic!("{missing:?}") };
    assert!(e.to_string().contains("`/no/such/agent.so`"), "{e}");
    Ok(())
}

/// A process that runs already: its calls are counted from `attach` to `detach`, as often as it makes
/// them, and it goes on.
#[test]
fn functions_of_a_process_that_runs() -> Result<(), Box<dyn std::error::Error>> {
    use std::io::{BufRead, BufReader, Write};
    let agent = skep_testkit::trace::agent_symbols();
    let mut shell = Command::new("sh");
    shell.args(["-c", "while read -r line; do echo \"$line\"; done"]);
    shell.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut shell = shell.spawn()?;
    let (mut input, output) = (shell.stdin.take().expect("a pipe"), shell.stdout.take());
    let mut lines = BufReader::new(output.expect("a pipe")).lines();
    let mut echo = |times: u32| -> std::io::Result<()> {
        for n in 0..times {
            writeln!(input, "{n}")?;
            assert_eq!(lines.next().transpose()?, Some(n.to_string()));
        }
        Ok(())
    };
    echo(1)?;
    let session = session()?;
    let object = session.load(OBJECT)?;
    let program = object.program("count")?;
    let write = || Functions::of_pid(shell.id(), "libc.so.6:write").agent(&agent);
    let link = program.attach(write())?;
    echo(100)?;
    assert_eq!(link.attached().map(|a| (a.pid(), a.functions())), Some((shell.id(), 1)));
    assert!(link.attached().is_some_and(skep::Attached::is_running));
    let processes: Vec<u32> = link.processes()?.iter().map(|p| p.pid).collect();
    assert_eq!(processes, [shell.id()]);
    assert!(link.detach().wait(FOREVER));
    echo(10)?;
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    let all: Vec<(u64, u64)> = counts.iter().collect::<Result<_, _>>()?;
    assert!(matches!(all[..], [(_, 100)]), "{all:?}");

    // What is not there is an error, and leaves the process as it was.
    let nothing = Functions::of_pid(shell.id(), "no_such_function").agent(&agent);
    let refused = program.attach(nothing).map(drop);
    assert!(matches!(refused, Err(Error::NothingAttached { .. })), "{refused:?}");
    let elsewhere = write().agent("/no/such/agent.so");
    assert!(matches!(program.attach(elsewhere).map(drop), Err(Error::NoAgent { .. })));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", shell.id()))?.count();
    assert_eq!(tasks, 1);
    echo(1)?;
    drop(input);
    assert!(shell.wait()?.success());
    let gone = Functions::of_pid(shell.id(), "libc:write").agent(&agent);
    assert!(matches!(program.attach(gone).map(drop), Err(Error::InProcess(_))));
    Ok(())
}

/// A link that is dropped takes its hooks out; the next one finds the functions as they were.
#[test]
fn links_come_and_go_under_running_threads() -> Result<(), Error> {
    let session = session()?;
    let object = session.load(OBJECT)?;
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), Error> {
        let _stop = skep_testkit::run::SetOnDrop(&end);
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    library_raced_one(library_raced_two(1));
                }
            });
        }
        for round in 0..50 {
            let link = object.attach(["enter", "leave"], Functions::of_self("library_raced_*"))?;
            if round % 2 == 0 {
                assert!(link.detach().wait(FOREVER));
            }
        }
        Ok(())
    })?;
    let calls: PerCpuArray<u64> = object.map("calls")?.typed()?;
    assert!(sum(calls.get(0)?) >= sum(calls.get(1)?));
    Ok(())
}

/// Each example is a program that ends by itself.
#[test]
fn examples_run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::current_exe()?;
    let dir = dir.ancestors().nth(2).ok_or("a target directory")?.join("examples");
    let names = [
        "attach_by_section",
        "count_self",
        "domain_policy",
        "events",
        "filter_packets",
        "ordered",
        "packet_test",
        "several_programs",
        "trace_command",
        "typed_maps",
    ];
    if !names.iter().all(|name| dir.join(name).is_file()) {
        // `cargo test --test library` builds no examples.
        let mut cargo = Command::new(env!("CARGO"));
        assert!(cargo.args(["build", "--package", "skep", "--examples"]).status()?.success());
    }
    for name in names {
        let mut command = Command::new(dir.join(name));
        let output = command.env("SKEP_PRELOAD", skep_testkit::trace::agent_symbols()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.is_empty(), "{name}: {text}{errors}");
    }
    Ok(())
}
