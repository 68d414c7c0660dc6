//! What the build takes out of the agent's object file: what only panics would print, and nothing
//! that anybody may read.

#[allow(dead_code, reason = "the test needs a part of it")]
#[path = "../build/elf.rs"]
mod elf;
#[path = "../build/panics.rs"]
mod panics;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;
use std::time::Duration;

use elf::Elf;
use panics::{Places, without_texts};
use skep_testkit::run::run;
use skep_testkit::skip::has_command;
use skep_testkit::{TempDir, skip};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// `Unread` is for the panic of `expect`, `Read` and what is in it for whoever gets the string.
/// `Formatted` is printed by code whose name is one of those that print for panics.
const SOURCE: &str = r#"
    #[derive(Debug)] pub struct Unread(pub u8);
    #[derive(Debug)] pub struct Inner { pub number: u8 }
    #[derive(Debug)] pub struct Read { pub inner: Inner, pub other: &'static str }
    #[derive(Debug)] pub struct Formatted { pub number: u8 }
    pub fn unwraps(r: Result<u8, Unread>) -> u8 { r.expect("a number") }
    pub fn prints(r: Read) -> String { format!("{r:?}") }
    pub fn cpp_demangle(f: Formatted) { panic!("{f:?}") }
"#;

/// `xor eax, eax; ret`
const RETURN_OK: [u8; 3] = [0x31, 0xc0, 0xc3];

/// The object file of the source, of a compiler with these flags. `None` without a compiler.
fn object(flags: &[&str]) -> Option<Vec<u8>> {
    if !has_command("rustc") {
        skip("rustc");
        return None;
    }
    let dir = TempDir::in_memory();
    let (source, object) = (dir.join("texts.rs"), dir.join("texts.o"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition=2024", "--crate-type=lib", "--emit=obj", "-Copt-level=2"])
        .args(["--target=x86_64-unknown-linux-gnu", "-Ccodegen-units=1"])
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&object);
    let ended = run(&mut rustc, b"", Duration::from_secs(300));
    assert!(ended.status.success(), "{}", ended.transcript());
    Some(std::fs::read(object).unwrap())
}

/// What an object file has of `Debug::fmt` of the types of the source: code, and whether anything
/// in it refers to something.
fn debugs(file: &[u8]) -> Result<BTreeMap<&'static str, (Vec<u8>, bool)>> {
    let elf = Elf::read(file)?;
    let mut found = BTreeMap::new();
    for (i, section) in elf.sections.iter().enumerate() {
        let name = String::from_utf8_lossy(elf.name(file, section)?).into_owned();
        if !name.starts_with(".text.") || !name.contains("Debug") {
            continue;
        }
        let types = ["Unread", "Inner", "Read", "Formatted"];
        let of = types.into_iter().find(|of| {
            name.contains(&format!("{}{of}", of.len())) || name.contains(&format!("..{of}$"))
        });
        let Some(of) = of else { continue };
        let refers = elf.sections.iter().any(|s| s.kind == 4 && s.info as usize == i && s.size > 0);
        found.insert(of, (elf::bytes_of(file, section)?.to_vec(), refers));
    }
    Ok(found)
}

#[test]
fn only_what_somebody_may_read_keeps_its_text() -> Result<()> {
    for flags in [&[][..], &["-Csymbol-mangling-version=v0"]] {
        let Some(whole) = object(flags) else { return Ok(()) };
        let before = debugs(&whole)?;
        assert!(before.values().all(|(code, refers)| *refers && code.len() > 3), "{before:?}");
        let after = without_texts(whole, Places::One).ok_or("nothing was taken out")?;
        let after = debugs(&after)?;
        for of in ["Unread", "Formatted"] {
            assert_eq!(after[of], (RETURN_OK.to_vec(), false), "{flags:?}: {of}");
        }
        for of in ["Read", "Inner"] {
            assert_eq!(after[of], before[of], "{flags:?}: {of}");
        }
    }
    Ok(())
}

#[test]
fn another_file_stays_as_it_is() {
    let Some(whole) = object(&[]) else { return };
    // Of another processor.
    let mut other = whole.clone();
    other[18] = 183;
    assert_eq!(without_texts(other, Places::One), None);
    assert_eq!(without_texts(b"BC\xc0\xde".to_vec(), Places::One), None);
    assert_eq!(without_texts(Vec::new(), Places::One), None);
}

/// Where a file is damaged the linker says so; this does not panic, and keeps its length.
#[test]
fn a_damaged_file_is_survived() {
    let Some(whole) = object(&[]) else { return };
    for len in (0..whole.len()).step_by(whole.len() / 300) {
        assert_eq!(without_texts(whole[..len].to_vec(), Places::One), None, "{len} bytes");
    }
    let headers = Elf::read(&whole).unwrap().headers;
    for at in (0..64).chain(headers..whole.len()) {
        for byte in [0x00, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            let after = without_texts(damaged, Places::One);
            assert!(after.is_none_or(|after| after.len() == whole.len()), "byte {at}");
        }
    }
}
