//! Symbols and lines of many addresses at once: the same as one by one, and as the table of
//! functions has them; and damaged files answer, or do not, without a panic.

use std::path::Path;

use skep_proc::elf::Elf;
use skep_proc::symbolize::{SymbolFile, Want};
use skep_testkit::TempDir;
use skep_testkit::cc::Cc;
use skep_testkit::random::Random;
use skep_testkit::skip;
use skep_testkit::skip::has_command;

const BOTH: Want = Want { lines: true, inlined: true };

fn fixture(dir: &TempDir, flags: &[&str]) -> std::path::PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/data/inlined.c");
    Cc::c().args(flags).compile(&[Path::new(source)], &dir.join("inlined"))
}

/// Another reader of symbols, which sorts the whole table: [`Elf::functions`].
#[test]
fn each_address_has_the_symbol_that_the_sorted_table_has() {
    let path = std::env::current_exe().unwrap();
    let functions = Elf::open(&path).unwrap().functions().unwrap();
    assert!(functions.len() > 1000);
    let mut random = Random::new(1);
    let mut addrs: Vec<u64> = functions.iter().map(|f| f.vaddr).collect();
    addrs.extend(functions.iter().map(|f| f.vaddr + f.size.saturating_sub(1)));
    for _ in 0..10_000 {
        addrs.push(addrs[random.below(addrs.len())] + random.next_u64() % 500);
    }
    // Neither sorted nor without duplicates.
    addrs.reverse();
    let mut file = SymbolFile::open(&path).unwrap();
    let answers = file.find(&addrs, Want::default());
    let mut compared = 0;
    for addr in &addrs {
        let found = answers.get(*addr).unwrap().symbol();
        // Only functions are in the table; labels of assembly are symbols as well.
        let Some(function) = functions.covering(*addr).filter(|f| !f.size_guessed) else {
            continue;
        };
        let found = found.unwrap_or_else(|| panic!("{addr:#x} is in {}", function.name_lossy()));
        if found.start == function.vaddr {
            assert!(function.symbols().any(|s| s.name == found.name), "{addr:#x}");
            compared += 1;
        } else {
            // A label inside of the function is nearer.
            assert!(found.start > function.vaddr, "{addr:#x}");
        }
    }
    assert!(compared > 10_000, "{compared}");
    assert!(answers.get(3).is_none(), "was not asked for");
}

#[test]
fn all_at_once_answers_what_one_by_one_does() {
    let dir = TempDir::new();
    let path = fixture(&dir, &["-O2", "-g"]);
    let text = Elf::open(&path).unwrap().section(".text").unwrap().range();
    let addrs: Vec<u64> = text.collect();
    let mut file = SymbolFile::open(&path).unwrap();
    let all = file.find(&addrs, BOTH);
    let mut inlined = 0;
    for addr in addrs {
        let one = file.find(&[addr], BOTH);
        let (one, all) = (one.get(addr).unwrap(), all.get(addr).unwrap());
        // Numbers of symbols are those of one set of answers.
        let plain = |s: skep_proc::symbolize::NearSymbol<'_>| (s.name.to_vec(), s.start, s.size);
        assert_eq!(one.symbol().map(plain), all.symbol().map(plain), "{addr:#x}");
        assert_eq!(one.frames().collect::<Vec<_>>(), all.frames().collect::<Vec<_>>(), "{addr:#x}");
        inlined += usize::from(all.frames().len() == 3);
    }
    assert!(inlined > 10, "leaf in middle in outer: {inlined}");
}

/// No byte of a file is trusted.
#[test]
fn damaged_files_do_no_harm() {
    let dir = TempDir::new();
    for flags in [&["-O2", "-g"][..], &["-O2", "-g", "-gdwarf-4"], &["-O2", "-g", "-gz=zlib"]] {
        let path = fixture(&dir, flags);
        let whole = std::fs::read(&path).unwrap();
        let elf = Elf::open(&path).unwrap();
        let addrs: Vec<u64> = elf.section(".text").unwrap().range().step_by(3).collect();
        // What is read: headers of sections, tables of symbols, debug information.
        let sections = elf.sections().iter();
        let read = sections.filter(|s| s.name.starts_with(b".debug") || matches!(s.kind, 2 | 3));
        let mut places: Vec<_> =
            read.map(|s| s.offset as usize..(s.offset + s.size) as usize).collect();
        places.push(whole.len() - elf.sections().len() * 64..whole.len());
        let mut random = Random::new(flags.len() as u64);
        let mut answered = 0;
        for _ in 0..300 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random.below(4) {
                let place = &places[random.below(places.len())];
                if !place.is_empty() {
                    bytes[place.start + random.below(place.len())] = random.next_u64() as u8;
                }
            }
            if random.below(8) == 0 {
                bytes.truncate(random.below(bytes.len()));
            }
            let Ok(elf) = Elf::from_bytes(bytes) else { continue };
            let Ok(mut file) = SymbolFile::new(elf, Path::new("/nowhere"), Path::new("/")) else {
                continue;
            };
            let answers = file.find(&addrs, BOTH);
            answered +=
                addrs.iter().filter(|a| answers.get(**a).unwrap().frames().len() > 0).count();
        }
        assert!(answered > addrs.len() * 20, "some damage is elsewhere: {answered}");
    }
}

/// One name after the other: the same as all at once, for every number, also of equal addresses.
#[test]
fn names_one_by_one_are_those_of_all_at_once() {
    let mut file = SymbolFile::open(&std::env::current_exe().unwrap()).unwrap();
    let text = file.elf().section(".text").unwrap().range();
    let mut random = Random::new(5);
    let mut addrs: Vec<u64> =
        (0..20_000).map(|_| text.start + random.next_u64() % (text.end - text.start)).collect();
    addrs.extend_from_slice(&[0, u64::MAX >> 40, text.end, addrs[3], addrs[3], addrs[9]]);
    let mut names = vec![None; addrs.len()];
    file.each_name(&addrs, &mut |number, symbol| {
        let found = (symbol.name.to_vec(), symbol.first_name.to_vec(), symbol.start, symbol.size);
        let file = symbol.file.map(<[u8]>::to_vec);
        assert!(names[number].replace((found, file)).is_none(), "called twice for {number}");
    });
    let answers = file.find(&addrs, Want::default());
    for (number, found) in names.iter().enumerate() {
        let expected = answers.at(number).unwrap().symbol().map(|s| {
            let found = (s.name.to_vec(), s.first_name.to_vec(), s.start, s.size);
            (found, s.file.map(<[u8]>::to_vec))
        });
        assert_eq!(*found, expected, "{number}");
        assert_eq!(
            answers.get(addrs[number]).unwrap().symbol(),
            answers.at(number).unwrap().symbol()
        );
    }
    assert!(names.iter().flatten().count() > 10_000);
}

/// Names of every length, one longer than what is read at once; few of them and all, of the table of
/// symbols and of that of dynamic symbols; read from the file, and from memory.
#[test]
fn names_of_every_length_are_whole() {
    let dir = TempDir::new();
    let mut random = Random::new(3);
    let lens: Vec<usize> =
        (0..400).map(|_| random.below(3000)).chain([0, 1, 1023, 60_000]).collect();
    let names: Vec<String> =
        lens.iter().enumerate().map(|(i, len)| format!("f{i}_{}", "x".repeat(*len))).collect();
    let mut assembly = String::from(".text\n");
    for name in &names {
        assembly +=
            &format!(".globl {name}\n.type {name}, @function\n{name}: ret\n.size {name}, 1\n");
    }
    let (source, library) = (dir.join("names.s"), dir.join("names.so"));
    std::fs::write(&source, assembly).unwrap();
    let flags = ["-shared", "-nostdlib", "-Wl,--build-id=none"];
    Cc::c().args(&flags).compile(&[&source], &library);
    let text = Elf::open(&library).unwrap().section(".text").unwrap().range();
    let addrs: Vec<u64> = text.collect();
    assert_eq!(addrs.len(), names.len());
    for flags in [&flags[..], &["-shared", "-nostdlib", "-Wl,--build-id=none,--strip-all"]] {
        Cc::c().args(flags).compile(&[&source], &library);
        let elf = Elf::from_bytes(std::fs::read(&library).unwrap()).unwrap();
        let memory = SymbolFile::new(elf, Path::new("/nowhere"), Path::new("/")).unwrap();
        for mut file in [SymbolFile::open(&library).unwrap(), memory] {
            for step in [1, 7, 101] {
                let asked: Vec<u64> = addrs.iter().copied().step_by(step).collect();
                let mut found = vec![None; asked.len()];
                file.each_name(&asked, &mut |number, symbol| {
                    found[number] = Some(String::from_utf8(symbol.name.to_vec()).unwrap());
                });
                let answers = file.find(&asked, Want::default());
                for (number, expected) in names.iter().step_by(step).enumerate() {
                    assert!(found[number].as_ref() == Some(expected), "{step}, {number}");
                    let at_once = answers.at(number).unwrap().symbol().unwrap().name;
                    assert!(at_once == expected.as_bytes(), "{step}, {number}");
                }
            }
        }
    }
}

/// The start of `.bss` that linkers before binutils 2.44 note is where the data before it ends, also if
/// `.bss` begins further on: `addr2line` finds nothing there.
#[test]
fn a_symbol_before_its_section_names_nothing_in_it() {
    let dir = TempDir::new();
    let source = dir.join("aligned.c");
    let text = "char before = 1; __attribute__((aligned(4096))) char behind[64]; \
                int main(void) { return before + behind[0]; }";
    std::fs::write(&source, text).unwrap();
    let program = Cc::c().args(&["-no-pie"]).compile(&[&source], &dir.join("aligned"));
    let mut file = SymbolFile::open(&program).unwrap();
    let bss = file.elf().section(".bss").unwrap().range();
    let symbols = std::process::Command::new("nm").arg(&program).output().unwrap().stdout;
    let first = format!("{:016x}", bss.start);
    if String::from_utf8_lossy(&symbols).lines().any(|line| line.starts_with(&first)) {
        return skip("a linker that notes the start of `.bss` before it");
    }
    let addrs = [bss.start, bss.start + 5];
    let answers = file.find(&addrs, Want { lines: true, inlined: true });
    assert!(addrs.iter().all(|addr| answers.get(*addr).unwrap().nearest().is_none()));
    if has_command("addr2line") {
        let mut binutils = std::process::Command::new("addr2line");
        let said = binutils.args(["-fe"]).arg(&program).arg(format!("{:x}", bss.start)).output();
        assert_eq!(String::from_utf8_lossy(&said.unwrap().stdout), "??\n??:0\n");
    }
}
