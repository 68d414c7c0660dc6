//! What is said of accesses that are out of bounds: `data/bounds.txt` has all of it, and all of it
//! was read.

use skep_isa::{MapType, ProgramType, text};
use skep_object::{Linked, LinkedMap, MapSpec, Object};
use skep_verifier::{Options, Rejection, verify};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn rejections() -> Vec<(String, Result<(), Box<Rejection>>)> {
    let object = Object::parse(&std::fs::read(data("bounds.bpf.o")).expect("test data"))
        .expect("a readable object");
    let judge = |i: usize| {
        let linked = object.link(i).expect("a program that links");
        (linked.name.clone(), verify(&linked, &Options::default()).map(drop).map_err(Box::new))
    };
    (0..object.programs.len()).map(judge).collect()
}

/// `SKEP_RECORD=1` writes the file anew, to be read before it is committed.
#[test]
fn accesses_out_of_bounds_say_which_bytes_of_what_and_what_to_do() {
    let mut text = String::new();
    for (name, verdict) in rejections() {
        match verdict {
            Ok(()) => writeln!(text, "{name}: accepted"),
            Err(r) => {
                let said = r.to_string();
                let said =
                    said.split_once(" was rejected: ").map_or(said.as_str(), |(_, said)| said);
                writeln!(text, "{name}: {said}\n    {}", r.hint.as_deref().unwrap_or("-"))
            }
        }
        .expect("a string takes all");
    }
    let file = data("bounds.txt");
    if std::env::var_os("SKEP_RECORD").is_some() {
        std::fs::write(&file, &text).expect("test data can be written");
    }
    let want = std::fs::read_to_string(&file).expect("test data");
    for (got, want) in text.lines().zip(want.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(text.lines().count(), want.lines().count());
}

/// Both sides of a jump may lead to the same instruction: what is told is of the side that is at
/// fault.
#[test]
fn of_a_jump_to_one_place_the_side_at_fault_is_told() {
    for (jump, fault) in
        [("jge %r3, %r1, +0", true), ("jlt %r3, %r1, +0", true), ("jlt %r3, %r1, out", false)]
    {
        let asm = format!(
            "ldxw %r2, [%r1]\nldxw %r3, [%r1+4]\nmov %r1, %r2\nadd %r1, 8\n{jump}\nldxdw %r0, [%r1-8]\nout: mov %r0, 2\nexit\n"
        );
        let linked =
            Linked::from_insns("p", ProgramType::Xdp, text::assemble(&asm).expect("assembly"));
        let said = verify(&linked, &Options::default()).map(drop).map_err(|r| r.to_string());
        let told = said.as_ref().is_err_and(|s| {
            s.contains("bytes 0..8 of the packet: no comparison with `data_end` covers them")
        });
        assert_eq!((said.is_err(), told), (fault, fault), "{jump}: {said:?}");
    }
}

/// The line that the kernel's log has before its words is there too, with the numbers of the path
/// that is shown.
#[test]
fn logs_have_the_kernels_line_about_the_bytes() {
    let all = rejections();
    let log = |name: &str| match all.iter().find(|(n, _)| n == name) {
        Some((_, Err(r))) => r.log().to_owned(),
        _ => panic!("{name} is not refused"),
    };
    let log = log("one_too_many");
    let lines: Vec<&str> = log.lines().rev().skip(1).take(2).collect();
    assert_eq!(
        lines,
        [
            "R0 max value is outside of the allowed memory range",
            "invalid access to map value, value_size=128 off=128 size=8"
        ]
    );
}

/// Of a long path only the end is kept: what may have been before it is not said to be missing.
#[test]
fn nothing_is_said_of_steps_that_are_not_kept() {
    let said = |between: usize| {
        let asm = format!(
            "call get_prandom_u32\njgt %r0, 16, out\n{}lddw %r1, value 0\nadd %r1, %r0\nldxb %r0, [%r1]\nout: mov %r0, 0\nexit\n",
            "mov %r3, 0\n".repeat(between)
        );
        let mut linked =
            Linked::from_insns("p", ProgramType::Kprobe, text::assemble(&asm).expect("assembly"));
        linked.maps.push(LinkedMap { index: 0, spec: MapSpec::new("m", MapType::Array, 4, 8, 1) });
        let Err(r) = verify(&linked, &Options::default()) else { panic!("accepted") };
        assert!(r.to_string().contains("bytes 16..17 of a value of 8: the index may be 16"), "{r}");
        r.hint.unwrap_or_default()
    };
    assert_eq!(
        said(9),
        "the test at insn 1 lets 16 through: the index must be `< 8`, so leave at `>= 8`"
    );
    assert_eq!(
        said(900),
        "nothing near the access tests the index: `if (index < 8)` before the access, or `index & 7`"
    );
}
