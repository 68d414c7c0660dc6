//! Stacks of core files, through code that has no unwind tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use skep_proc::elf::Elf;
use skep_proc::unwind::CoreStacks;
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;
use skep_testkit::skip::skip;

const LIMIT: Duration = Duration::from_secs(300);

/// A program that dies in assembly.
fn die(dir: &TempDir, assembly: &str) -> Option<(PathBuf, PathBuf)> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        skip("core files in the working directory (kernel.core_pattern)");
        return None;
    }
    let source = format!(
        "__asm__(\".text\\n.globl bare\\n.type bare, @function\\nbare:\\n{assembly}\\n.size bare, .-bare\\n\");
         extern int bare(void);
         __attribute__((noinline)) int middle(int n) {{ return bare() + n; }}
         __attribute__((noinline)) int outer(int n) {{ return middle(n + 1) * 2; }}
         int main(int c, char **v) {{ (void)v; return outer(c) + 1; }}\n"
    );
    fs::write(dir.join("a.c"), source).unwrap();
    let program = Cc::c().args(&["-O1", "-no-pie"]).compile(&[&dir.join("a.c")], &dir.join("a"));
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited && exec ./a"]).current_dir(dir.path());
    run(&mut command, b"", LIMIT);
    let entries = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let core = entries.into_iter().find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core"))
    });
    if core.is_none() {
        skip("a kernel that writes core files");
    }
    Some((program, core?))
}

/// The functions of the program on the stack, and how many frames there are in all.
fn walk(program: &Path, core: &Path) -> (Vec<String>, usize) {
    let functions = Elf::open(program).unwrap().functions().unwrap();
    let mut core = CoreStacks::open(core).unwrap();
    let registers = core.threads()[0].registers;
    let frames = core.walk(registers, 1000);
    let names = frames.iter().filter_map(|frame| {
        let function = functions.covering(frame.place())?;
        Some(String::from_utf8_lossy(function.name).into_owned())
    });
    (names.collect(), frames.len())
}

/// As in `clone3` of the C library: the frame pointer is something else, and nothing was pushed.
#[test]
fn the_caller_of_assembly_without_tables_is_found() {
    let dir = TempDir::new();
    let Some((program, core)) = die(&dir, "mov $77, %ebp\\nud2") else { return };
    let (names, frames) = walk(&program, &core);
    assert_eq!(names.get(..4).unwrap_or(&names), ["bare", "middle", "outer", "main"]);
    assert!(frames < 20, "{frames}");
}

/// What is no frame pointer may lead to itself; it made a thousand frames.
#[test]
fn a_frame_pointer_that_leads_to_itself_ends_the_stack() {
    let dir = TempDir::new();
    let assembly = "pushq $1\\npushq $2\\nmov %rsp, %rbp\\nmov %rbp, (%rsp)\\nsub $8, %rsp\\nmovq $3, (%rsp)\\nud2";
    let Some((program, core)) = die(&dir, assembly) else { return };
    let (names, frames) = walk(&program, &core);
    assert_eq!((names, frames), (vec!["bare".to_owned()], 2));
}
