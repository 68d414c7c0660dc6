//! Modules of other processes, whose programs print the addresses of their own functions.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use skep_proc::maps::{Identity, Live, MapsError, Snapshot, Want};
use skep_proc::module::{self, Module, Role};
use skep_proc::symbolize::Symbolizer;

const LIBRARY: &str = "int library_function(int x) { return x + 1; }";

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
__attribute__((noinline)) int program_function(int x) { return x * 2; }
int main(int argc, char **argv) {
    printf("program_function %p\n", (void *)program_function);
#ifdef LOAD
    for (int i = 1; i < argc; i++) {
        void *l = i == 1 ? dlopen(argv[i], RTLD_NOW) : dlmopen(LM_ID_NEWLM, argv[i], RTLD_NOW);
        if (!l) { puts(dlerror()); return 1; }
        printf("library_function%d %p\n", i, dlsym(l, "library_function"));
    }
#endif
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}"#;

struct Target {
    child: Child,
    dir: PathBuf,
    symbols: HashMap<String, u64>,
}

impl Target {
    fn build(name: &str, flags: &[&str], library_flags: &[&str]) -> PathBuf {
        let dir =
            std::env::temp_dir().join(format!("skep-processes-{name}-{}", std::process::id()));
        let dir = fs::canonicalize(dir.parent().unwrap()).unwrap().join(dir.file_name().unwrap());
        fs::create_dir_all(&dir).unwrap();
        for (file, source, flags) in [
            ("library.so", LIBRARY, [&["-shared", "-fPIC"], library_flags].concat()),
            ("program", PROGRAM, flags.to_vec()),
        ] {
            let c = dir.join(format!("{file}.c"));
            fs::write(&c, source).unwrap();
            assert!(
                Command::new("cc")
                    .arg("-O1")
                    .arg("-o")
                    .arg(dir.join(file))
                    .arg(&c)
                    .args(flags)
                    .status()
                    .unwrap()
                    .success()
            );
        }
        dir
    }

    fn start(dir: PathBuf, command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut symbols = HashMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                break;
            }
            let (name, addr) = line.split_once(" 0x").unwrap_or_else(|| panic!("{line}"));
            symbols.insert(name.to_owned(), u64::from_str_radix(addr, 16).unwrap());
        }
        Self { child, dir, symbols }
    }

    fn modules(&self) -> Vec<Module> {
        module::of(self.child.id()).unwrap()
    }

    /// The module that holds a printed function, after checking that its symbols say the same.
    fn check(&self, printed: &str, name: &str) -> Module {
        let addr = self.symbols[printed];
        let modules = self.modules();
        let found: Vec<_> = modules.into_iter().filter(|m| m.text_contains(addr)).collect();
        assert_eq!(found.len(), 1, "{addr:x}");
        let m = found.into_iter().next().unwrap();
        let functions = m.functions().unwrap();
        assert_eq!(functions.at(m.vaddr(addr)).unwrap().name_lossy(), name);
        assert!(m.span.contains(&addr));
        let mut names = Symbolizer::of(self.child.id()).unwrap();
        let frame = names.resolve(addr + 1);
        assert_eq!((frame.function.unwrap().name, frame.offset), (name.as_bytes(), 1));
        m
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn biases_of_all_kinds_of_programs() {
    for (name, flags, fixed) in [
        ("pie", &["-fPIE", "-pie"][..], false),
        ("no-pie", &["-no-pie"], true),
        ("static", &["-static"], true),
        ("static-pie", &["-static-pie"], false),
        // Segments whose addresses and offsets differ, and ones that share a page of the file.
        ("one-page", &["-Wl,-z,noseparate-code"], false),
        ("high", &["-no-pie", "-Wl,-Ttext-segment=0x12300000"], true),
        ("large-pages", &["-Wl,-z,max-page-size=0x200000"], false),
    ] {
        let dir = Target::build(name, flags, &[]);
        let t = Target::start(dir.clone(), &mut Command::new(dir.join("program")));
        let m = t.check("program_function", "program_function");
        assert_eq!(m.role, Role::Main, "{name}");
        assert_eq!(m.bias == 0, fixed, "{name} {:x}", m.bias);
        assert_eq!(m.path, dir.join("program"));
        assert_eq!(t.modules().iter().filter(|m| m.is_main()).count(), 1, "{name}");
    }
}

#[test]
fn libraries_prelinked_and_loaded_twice() {
    for (name, library_flags) in
        [("lib", &[][..]), ("prelinked", &["-Wl,-Ttext-segment=0x3f0000000"])]
    {
        let dir = Target::build(name, &["-DLOAD", "-ldl"], library_flags);
        let library = dir.join("library.so");
        let t = Target::start(
            dir.clone(),
            Command::new(dir.join("program")).args([&library, &library]),
        );
        let first = t.check("library_function1", "library_function");
        let second = t.check("library_function2", "library_function");
        assert_eq!(first.path, library);
        assert_eq!(first.role, Role::Library);
        assert_eq!((&first.path, first.inode), (&second.path, second.inode));
        // Two copies of one file are two modules with biases of their own.
        assert_ne!(first.bias, second.bias);
        assert!(!first.text_contains(t.symbols["library_function2"]));
    }
}

#[test]
fn deleted_and_replaced_files() {
    let dir = Target::build("gone", &["-DLOAD", "-ldl", "-Wl,--build-id"], &["-Wl,--build-id"]);
    let (program, library) = (dir.join("program"), dir.join("library.so"));
    let t = Target::start(dir, Command::new(&program).arg(&library));
    // A new file under the old name must not lend its symbols.
    fs::remove_file(&library).unwrap();
    fs::copy(&program, &library).unwrap();
    fs::remove_file(&program).unwrap();
    let m = t.check("program_function", "program_function"); // through `exe`, or `map_files`
    assert!(m.deleted && m.is_main());
    assert_eq!(m.path, program);
    let m =
        t.modules().into_iter().find(|m| m.text_contains(t.symbols["library_function1"])).unwrap();
    assert!(m.deleted && m.build_id.is_some());
    match m.elf() {
        Ok(elf) => assert_eq!(elf.build_id(), m.build_id),
        Err(e) => assert_eq!(e, skep_proc::elf::ElfError::Replaced),
    }
}

#[test]
fn a_program_run_by_the_dynamic_linker() {
    let linker = "/lib64/ld-linux-x86-64.so.2";
    for (name, flags) in [("by-linker", &["-pie", "-fPIE"][..]), ("by-linker-fixed", &["-no-pie"])]
    {
        let dir = Target::build(name, flags, &[]);
        let t = Target::start(dir.clone(), Command::new(linker).arg(dir.join("program")));
        assert_eq!(t.check("program_function", "program_function").role, Role::Main, "{name}");
        let modules = t.modules();
        let roles = |role| {
            modules.iter().filter(|m| m.role == role).map(|m| m.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(roles(Role::Main), [dir.join("program")]);
        assert_eq!(roles(Role::Interpreter), [fs::canonicalize(linker).unwrap()]);
    }
}

#[test]
fn saved_mappings_name_addresses_after_the_end() {
    let dir = Target::build("saved", &["-DLOAD", "-ldl"], &[]);
    let mut t =
        Target::start(dir.clone(), Command::new(dir.join("program")).arg(dir.join("library.so")));
    let pid = t.child.id();
    let saved = Snapshot::take(&Live::of(pid).unwrap(), Identity::of(pid), Want::ALL).unwrap();
    let alive = t.modules();
    drop(t.child.stdin.take());
    t.child.wait().unwrap();
    let dead = module::saved(&Snapshot::from_bytes(&saved.to_bytes()).unwrap());
    let key = |m: &Module| (m.path.clone(), m.bias, m.text.clone(), m.build_id.clone());
    let alive: Vec<_> = alive.iter().filter(|m| m.role != Role::Vdso).map(key).collect();
    assert_eq!(dead.iter().map(key).collect::<Vec<_>>(), alive);
    let mut names = Symbolizer::new(dead);
    for (printed, name) in
        [("program_function", "program_function"), ("library_function1", "library_function")]
    {
        assert_eq!(names.resolve(t.symbols[printed]).function.unwrap().name, name.as_bytes());
    }
}

#[test]
fn the_kernels_own_library_has_functions() {
    let dir = Target::build("vdso", &[], &[]);
    let t = Target::start(dir.clone(), &mut Command::new(dir.join("program")));
    let modules = t.modules();
    let vdso = modules.iter().find(|m| m.role == Role::Vdso).unwrap();
    assert_eq!(vdso.path, Path::new("[vdso]"));
    let functions = vdso.functions().unwrap();
    assert!(functions.iter().any(|f| f.symbols().any(|s| s.name == b"__vdso_clock_gettime")));
}

#[test]
fn processes_without_modules() {
    assert_eq!(module::of(u32::MAX - 1).unwrap_err(), MapsError::Gone);
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert_eq!(module::of(child.id()).unwrap_err(), MapsError::Gone);
}
