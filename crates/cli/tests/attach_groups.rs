//! `skep trace` of processes whose control groups have limits, which end a process or keep it from what it
//! does: what they leave is enough, or nothing is begun.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::live::{LIMIT, Target, Tracer, calls};
use common::{Skep, text};
use serde_json::Value as Json;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;

/// A control group of a test's own.
struct Group {
    dir: PathBuf,
    limit: &'static str,
    usage: &'static str,
}

impl Group {
    /// One that limits memory. Nothing where nobody lets us make one. Nor where there is swap: there the
    /// kernel ends nothing.
    fn of_memory(name: &str) -> Option<Self> {
        let v1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
        let v2 = ("/sys/fs/cgroup", "memory.max", "memory.current");
        let meminfo = fs::read_to_string("/proc/meminfo").expect("it is there");
        let has_swap = !meminfo.contains("SwapFree:              0 kB");
        if has_swap { None } else { Self::new(name, [v1, v2], "4000000") }
    }

    /// One that limits threads.
    fn of_threads(name: &str) -> Option<Self> {
        let mounts = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        Self::new(name, mounts.map(|mount| (mount, "pids.max", "pids.current")), "1")
    }

    fn new(name: &str, both: [(&str, &'static str, &'static str); 2], first: &str) -> Option<Self> {
        both.into_iter().find_map(|(mount, limit, usage)| {
            let dir = Path::new(mount).join(format!("skep-test-{name}-{}", std::process::id()));
            fs::create_dir(&dir).ok()?;
            let group = Self { dir, limit, usage };
            fs::write(group.limit(), first).ok().map(|()| group)
        })
    }

    fn limit(&self) -> PathBuf {
        self.dir.join(self.limit)
    }

    fn processes(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Lets it have so many MiB more than it has.
    fn leave(&self, mib: u64) {
        let used = fs::read_to_string(self.dir.join(self.usage)).expect("it tells");
        let limit = used.trim().parse::<u64>().expect("a number") + (mib << 20);
        fs::write(self.limit(), limit.to_string()).expect("it is ours");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        // Those that have ended leave it a little later.
        while fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The kernel ends a process when its control group has no memory left: whatever that has, attaching to
/// very many functions does not come to that.
#[test]
fn a_control_group_with_little_memory() {
    let Some(group) = Group::of_memory("little") else {
        return skep_testkit::skip("a memory cgroup, and no swap");
    };
    let dir = TempDir::new();
    let source = r#"
        #include <stdio.h>
        #include <sys/prctl.h>
        __asm__(".altmacro\n.macro one n\n.type f_\\n,@function\nf_\\n: .cfi_startproc\n"
                "lea 1(%rdi), %eax\nadd %edi, %eax\nret\n.cfi_endproc\n.size f_\\n, .-f_\\n\n.endm\n"
                ".set i, 0\n.rept 20000\none %i\n.set i, i + 1\n.endr\n");
        __attribute__((noinline, noclone)) int work(int n) { static volatile int s; return s += n; }
        int main(void) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
            setvbuf(stdout, 0, _IONBF, 0);
            for (puts("ready"); getchar() != EOF; puts("done")) work(1);
            return 7;
        }
    "#;
    fs::write(dir.join("big.c"), source).expect("it is written");
    let program = Cc::c().arg("-O1").compile(&[&dir.join("big.c")], &dir.join("big"));
    let mut inside = Command::new("sh");
    inside.args(["-c", r#"echo $$ > "$0" && exec "$1""#]);
    inside.arg(group.processes()).arg(&program);
    fs::write(group.limit(), (1_u64 << 30).to_string()).expect("it is ours");
    let mut target = Target::start(dir, program.clone(), &inside);
    let skep = Skep::new();
    let pid = target.pid().to_string();
    let mut refused = 0;
    for mib in (17..80).step_by(7) {
        group.leave(mib);
        let ended = skep.run(["trace", "*", "-p", &pid, "--for", "100ms", "-o", "/dev/null"]);
        let errors = text(&ended.stderr);
        if ended.status.code() != Some(0) {
            assert!(errors.contains("its control group has"), "{mib}: {}", ended.transcript());
            refused += 1;
        }
        target.tell("");
    }
    assert!((1..9).contains(&refused), "{refused}");
    group.leave(1 << 20);
    target.end();
    // Nor where the command is started by a `skep` in that group.
    let mut refused = 0;
    for mib in (9..100).step_by(9) {
        group.leave(mib);
        let traced = skep.command(["trace", "*", "-o", "/dev/null", "--"]);
        let mut inside = run_inside(&group, &traced);
        inside.arg(&program);
        let ended = run(&mut inside, b"", LIMIT);
        assert_eq!(ended.shell_status(), 7, "{mib}: {}", ended.transcript());
        refused += usize::from(text(&ended.stderr).contains("its control group has"));
    }
    assert!((1..10).contains(&refused), "{refused}");
}

/// What a library took is there again when it is closed, and what listing its functions took at once: a
/// program that opens one again and again is traced to its end.
#[test]
fn a_control_group_with_memory_for_one_library_at_a_time() {
    let Some(group) = Group::of_memory("reopened") else {
        return skep_testkit::skip("a memory cgroup, and no swap");
    };
    let dir = TempDir::new();
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("it is written");
    write(
        "plug.c",
        "__attribute__((noinline)) int plug(int x) { __asm__ volatile(\"nop\\n.rept 4\\nnop\\n.endr\"); return x + 1; }
        __asm__(\".text\\n.globl large\\n.type large, @function\\nlarge: .fill 4 << 20, 1, 0xcc\\n.size large, . - large\");\n",
    );
    write(
        "opens.c",
        "#include <dlfcn.h>\nint main(int argc, char **argv) {
            for (int i = 0; argc > 1 && i < 40; i++) {
                void *library = dlopen(argv[1], RTLD_NOW);
                int (*plug)(int) = library ? dlsym(library, \"plug\") : 0;
                if (!plug || plug(1) != 2 || dlclose(library)) return 1;
            }
            return 7;
        }\n",
    );
    let shared = ["-O1", "-shared", "-fPIC"];
    let library = Cc::c().args(&shared).compile(&[&dir.join("plug.c")], &dir.join("libplug.so"));
    let program = Cc::c().compile(&[&dir.join("opens.c")], &dir.join("opens"));
    let skep = Skep::new();
    group.leave(60);
    let report = dir.join("report.json");
    let traced = skep.command(["trace", "--allow-unmatched", "libplug.so:plug", "--json", "-o"]);
    let mut inside = run_inside(&group, &traced);
    inside.arg(&report).arg("--").arg(&program).arg(&library);
    let ended = run(&mut inside, b"", LIMIT);
    assert_eq!(ended.shell_status(), 7, "{}", ended.transcript());
    let report = fs::read_to_string(&report).expect("it is written");
    let report: Json = serde_json::from_str(&report).expect("a report");
    assert_eq!(calls(&report, "plug"), 40, "{}", ended.transcript());
}

/// A command that is run in a group.
fn run_inside(group: &Group, command: &Command) -> Command {
    let mut inside = Command::new("sh");
    inside.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(group.processes());
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        inside.env(name, value.unwrap_or_default());
    }
    inside
}

/// In a control group without memory for the agent, the kernel would end the process.
#[test]
fn a_control_group_without_memory() {
    let Some(group) = Group::of_memory("full") else {
        return skep_testkit::skip("a memory cgroup, and no swap");
    };
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    fs::write(group.processes(), target.pid().to_string()).expect("it is ours");
    let pid = target.pid().to_string();
    let refused = skep.run(["trace", "*", "-p", &pid, "--for", "10ms"]);
    // It lives.
    target.tell("threads 5");
    fs::write(group.limit(), (64 << 20).to_string()).expect("it is ours");
    let tracer = Tracer::attach(&skep, &target, &["target:*"]);
    target.tell("main 5");
    assert_eq!(calls(&tracer.end(), "work"), 5);
    target.end();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.transcript());
    let said = text(&refused.stderr);
    assert!(
        said.contains("its control group has") && said.contains("raise the limit in"),
        "{said}"
    );
}

/// A control group that has as many threads as it may have.
#[test]
fn a_control_group_without_threads() {
    let Some(group) = Group::of_threads("threads") else {
        return skep_testkit::skip("a pids cgroup");
    };
    let (skep, mut target) = (Skep::new(), Target::dynamic());
    fs::write(group.processes(), target.pid().to_string()).expect("it is ours");
    let refused = skep.run(["trace", "target:work", "-p", &target.pid().to_string()]);
    fs::write(group.limit(), "max").expect("it is ours");
    let tracer = Tracer::attach(&skep, &target, &["target:work"]);
    target.tell("main 5");
    assert_eq!(calls(&tracer.end(), "work"), 5);
    target.end();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.transcript());
    assert!(text(&refused.stderr).contains("may have no more threads"), "{}", refused.transcript());
}
