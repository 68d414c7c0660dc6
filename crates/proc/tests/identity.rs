//! Which process, and which of its address spaces, an answer is about: threads that outlive the main
//! thread, programs executed by any thread, ids that are used again, processes that are ending.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skep_proc::maps::{
    Filter, Identity, Live, MapSource, MapsError, NoBuildId, Normalizer, Place, Process, Vma, Want,
    parse,
};
use skep_proc::module::{self, Role};
use skep_proc::symbolize::Symbolizer;
use skep_testkit::cc::Cc;
use skep_testkit::run::{Running, Signal, run, signal, start};
use skep_testkit::{TempDir, skip};

const LIMIT: Duration = Duration::from_secs(300);

/// `tests/fixtures/threads.c`.
struct Threads {
    child: Running,
    out: BufReader<std::process::ChildStdout>,
    second: u32,
    function: u64,
    program: PathBuf,
    _dir: TempDir,
}

impl Threads {
    fn new(how: &str) -> Self {
        let dir = TempDir::new();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/threads.c");
        let program = fs::canonicalize(dir.path()).unwrap().join("threads");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-pthread", "-Wl,--build-id=sha1", "-o"]).arg(&program).arg(source);
        assert!(cc.status().unwrap().success());
        let mut child = start(Command::new(&program).arg(how), LIMIT);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let (second, function) = line.trim().split_once(" 0x").unwrap();
        let (second, function) =
            (second.parse().unwrap(), u64::from_str_radix(function, 16).unwrap());
        line.clear();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, out, second, function, program, _dir: dir }
    }

    /// Lets the second thread execute `cat`, and waits until that runs.
    fn exec(&mut self) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"exec\n").unwrap();
        stdin.write_all(b"echo\n").unwrap();
        let mut echo = [0; 5];
        self.out.read_exact(&mut echo).unwrap();
        assert_eq!(&echo, b"echo\n");
    }
}

fn state(task: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{task}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

fn first(source: &dyn MapSource) -> Result<Option<Vma>, MapsError> {
    source.query(0, &Filter::default().or_next(), Want::NAME)
}

#[test]
fn a_process_goes_on_without_its_main_thread() {
    let t = Threads::new("ends");
    let pid = t.child.id();
    assert_eq!(state(pid), 'Z');
    assert_eq!(fs::read(format!("/proc/{pid}/maps")).unwrap_or_default(), b"");

    // What the kernel says of the other thread.
    let text = fs::read(format!("/proc/{}/maps", t.second)).unwrap();
    let expected: Vec<Vma> =
        parse(&text).unwrap().into_iter().filter(|v| !v.is_vsyscall()).collect();
    assert!(expected.len() > 5);
    let process = Process::open(pid).unwrap();
    process.check().unwrap();
    let sources: [&dyn MapSource; 3] =
        [&process, &Live::of(pid).unwrap(), &Live::of(pid).unwrap().text_only()];
    for source in sources {
        assert_eq!(source.all(&Filter::default(), Want::NAME).unwrap(), expected);
        let all = source.all(&Filter::default(), Want::EVERYTHING).unwrap();
        assert!(all.iter().all(|v| v.page_size == 4096), "{all:?}");
        let named = |name: &[u8]| all.iter().find(|v| v.name.as_deref() == Some(name)).unwrap();
        let program = named(t.program.as_os_str().as_encoded_bytes());
        assert_eq!(program.build_id.as_ref().unwrap().len(), 20);
        assert!(named(b"[vdso]").build_id.is_some());
        let places = Normalizer::new(source).normalize(&[t.function]).unwrap();
        assert!(matches!(places[..], [Place::File { .. }]), "{places:?}");
    }
    // A first question of each kind.
    assert_eq!(first(&Live::of(pid).unwrap()).unwrap().as_ref(), expected.first());
    assert_eq!(first(&Live::of(pid).unwrap().text_only()).unwrap().as_ref(), expected.first());

    let modules = module::of(pid).unwrap();
    let main = modules.iter().find(|m| m.role == Role::Main).unwrap();
    assert_eq!(main.path, t.program);
    assert!(main.elf().is_ok());
    assert!(modules.iter().find(|m| m.role == Role::Vdso).unwrap().elf().is_ok());
    let mut names = Symbolizer::of(pid).unwrap();
    assert_eq!(names.resolve(t.function).function.unwrap().name, b"of_the_program");

    // A descriptor shows what it was opened for, which is nothing here.
    let file = fs::File::open(format!("/proc/{pid}/maps")).unwrap();
    assert_eq!(first(&Live::from_fd(file.into(), pid)), Err(MapsError::Gone));
}

/// The thread that executes another program gets the number of the main thread, whether that has ended
/// or is ended by the kernel now.
#[test]
fn any_thread_may_execute_another_program() {
    for how in ["ends", "waits"] {
        let mut t = Threads::new(how);
        let pid = t.child.id();
        let mut process = Process::open(pid).unwrap();
        let lives = [Live::of(pid).unwrap(), Live::of(pid).unwrap().text_only()];
        let before = first(&process).unwrap().unwrap();
        for live in &lives {
            assert_eq!(first(live).unwrap().as_ref(), Some(&before), "{how}");
        }
        let identity = Identity::of(pid);
        t.exec();
        assert!(!fs::exists(format!("/proc/{}", t.second)).unwrap(), "{how}");
        for live in &lives {
            assert_eq!(first(live), Err(MapsError::Gone), "{how}");
        }
        assert_eq!(process.check(), Err(MapsError::Execed { pid }), "{how}");
        assert_eq!(first(&process), Err(MapsError::Execed { pid }), "{how}");
        assert!(process.reopen().unwrap(), "{how}");
        let after = first(&process).unwrap().unwrap();
        assert!(after.name.as_ref().is_some_and(|name| name.ends_with(b"/cat")), "{how} {after:?}");
        assert_eq!((process.identity(), process.generation()), (identity, 1), "{how}");
        drop(t.child.stdin.take());
        t.child.wait().unwrap();
        assert_eq!(process.check(), Err(MapsError::Ended { pid }), "{how}");
    }
}

/// What is read by the process's number, not by the descriptor, is not taken from what the process has
/// executed since.
#[test]
fn the_vdso_of_another_program_is_not_the_one_that_was_asked_about() {
    let mut sh = Command::new("setarch");
    // All programs have their vDSO in one place then.
    sh.args(["-R", "sh", "-c", "echo ready; read x; exec cat"]);
    let mut child = start(&sh, LIMIT);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    if line != "ready\n" {
        return skip("setarch -R");
    }
    let pid = child.id();
    let find = |live: &Live| {
        let all = live.all(&Filter::default(), Want::NAME).unwrap();
        all.into_iter().find(|v| v.name.as_deref() == Some(b"[vdso]")).unwrap()
    };
    let live = Live::of(pid).unwrap();
    let vdso = find(&live);
    assert!(live.build_id(&vdso).unwrap().is_some());
    assert_eq!(live.no_build_id(&vdso), None);
    child.stdin.as_mut().unwrap().write_all(b"go\necho\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    let new = Live::of(pid).unwrap();
    assert_eq!(find(&new).range(), vdso.range());
    assert!(new.build_id(&vdso).unwrap().is_some());
    assert_eq!(live.build_id(&vdso), Ok(None));
    assert_eq!(live.no_build_id(&vdso), Some(NoBuildId::Unreadable));
}

/// A process that is ending gives its address space up long before it is a zombie, if that is large. It
/// has not executed anything.
#[test]
fn a_process_that_is_ending_has_executed_nothing() {
    let dir = TempDir::new();
    let source = dir.join("large.c");
    fs::write(
        &source,
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(void) { size_t size = 256ul << 20; char *p = malloc(size); memset(p, 1, size);\n\
         puts(\"ready\"); fflush(stdout); pause(); return p[size / 2]; }\n",
    )
    .unwrap();
    let program = Cc::c().compile(&[&source], &dir.join("large"));
    let mut child = start(&Command::new(program), LIMIT);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = child.id();
    let process = Process::open(pid).unwrap();
    signal(pid, Signal::KILL);
    let mut ways = 0;
    loop {
        // Both ways to ask, in turn.
        ways += 1;
        let answer = if ways % 2 == 0 { process.check() } else { Process::open(pid).map(drop) };
        match answer {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, MapsError::Ended { pid });
                if state(pid) == 'Z' {
                    break;
                }
            }
        }
    }
    child.wait().unwrap();
}

/// Runs in a PID namespace of its own, where the next id can be chosen.
#[test]
#[ignore = "run by the test below"]
fn in_a_namespace() {
    let cat = || {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let answer = |child: &mut Child| {
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    };
    let mut old = cat();
    answer(&mut old);
    let pid = old.id();
    let mut process = Process::open(pid).unwrap();
    let untouched = Process::open(pid).unwrap();
    let (live, text) = (Live::of(pid).unwrap(), Live::of(pid).unwrap().text_only());
    let modules = module::of(pid).unwrap();
    let vdso = modules.iter().find(|m| m.role == Role::Vdso).unwrap();
    let identity = Identity::of(pid);
    let vma = first(&process).unwrap().unwrap();
    assert_eq!(first(&live).unwrap().as_ref(), Some(&vma));
    assert_eq!(first(&text).unwrap().as_ref(), Some(&vma));
    old.kill().unwrap();
    old.wait().unwrap();

    // Start times are counted in hundredths of a second.
    let new = loop {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut new = cat();
        assert_eq!(new.id(), pid, "nothing else runs in this namespace");
        if Identity::of(pid) != identity {
            break new;
        }
        new.kill().unwrap();
        new.wait().unwrap();
    };
    let mut new = new;
    answer(&mut new);
    let there = first(&Live::of(pid).unwrap()).unwrap().unwrap();
    assert_ne!(there.start, vma.start, "addresses are random");
    let ended = MapsError::Ended { pid };
    for source in [&process, &untouched] {
        assert_eq!(source.check(), Err(ended.clone()));
        assert_eq!(first(source), Err(ended.clone()));
        assert_eq!(source.all(&Filter::default(), Want::EVERYTHING), Err(ended.clone()));
        assert_eq!(source.build_id(&there), Ok(None));
    }
    assert_eq!(process.reopen(), Err(ended.clone()));
    for source in [&live, &text] {
        assert_eq!(first(source), Err(MapsError::Gone));
        assert_eq!(source.all(&Filter::default(), Want::EVERYTHING), Err(MapsError::Gone));
    }
    // Files are those of the modules or none; memory is the other's.
    assert!(vdso.elf().is_err());
    let main = modules.iter().find(|m| m.role == Role::Main).unwrap();
    assert_eq!(main.elf().unwrap().build_id(), main.build_id);
    // The one that has the id now is asked as any other.
    assert_eq!(first(&Process::open(pid).unwrap()).unwrap(), Some(there));
    new.kill().unwrap();
    new.wait().unwrap();
}

#[test]
fn an_id_that_is_used_again_is_another_process() {
    if !skip::is_root() || !skip::has_command("unshare") {
        return skip("root and `unshare`");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--mount-proc"]);
    let probe =
        run(unshare.args(["sh", "-c", "echo 100 > /proc/sys/kernel/ns_last_pid"]), b"", LIMIT);
    if !probe.status.success() {
        return skip("the right to make namespaces, and to choose the next id");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--mount-proc"]);
    unshare.arg(std::env::current_exe().unwrap()).args(["--ignored", "--exact", "in_a_namespace"]);
    let ended = run(&mut unshare, b"", LIMIT);
    let said = ended.transcript();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}
