//! Programs of this very process on a probe that it declares, with a cookie of the user's.
#![cfg(not(miri))]

use std::time::Duration;

use skep::{Functions, HashMap, Session};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// As `usdt.bpf.c` has it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Seen {
    calls: u64,
    count: i64,
    cookie: i64,
    id: i64,
    size: i64,
    letter: i64,
    constant: i64,
    path: [u8; 16],
}

/// A probe as `sys/sdt.h` makes it: the note names the address of a `nop`, and two constants.
#[inline(never)]
fn request(n: u64) -> u64 {
    // SAFETY: an instruction that does nothing, and a note in a section that is not loaded.
    unsafe {
        std::arch::asm!(
            "990: nop",
            "nop dword ptr [rax]",
            "nop dword ptr [rax]",
            ".pushsection .note.stapsdt, \"\", \"note\"",
            ".balign 4",
            ".4byte 992f-991f, 994f-993f, 3",
            "991: .asciz \"stapsdt\"",
            "992: .balign 4",
            "993: .8byte 990b, 0, 0",
            ".asciz \"demo\"",
            ".asciz \"request\"",
            ".asciz \"-4@\\0443 8@\\0440 -8@%rdi\"",
            "994: .balign 4",
            ".popsection",
            in("rdi") n,
            options(nostack, preserves_flags),
        );
    }
    n + 1
}

#[test]
fn a_program_sees_its_own_probe() -> Result<(), skep::Error> {
    let session = Session::scratch()?;
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/data/usdt.bpf.o");
    let object = session.load(object)?;
    let functions = Functions::of_self("/proc/self/exe:demo:request").cookie(7);
    let link = object.program("request")?.attach(functions)?;
    let sum: u64 = (0..10).map(request).sum();
    assert_eq!(sum, 55);
    assert!(link.detach().wait(Duration::from_secs(300)));
    request(1000);
    let probes: HashMap<i32, Seen> = object.map("probes")?.typed()?;
    let seen = probes.get(&1)?.expect("it ran");
    let expected = Seen {
        calls: 10,
        count: 3,
        cookie: 7,
        id: 30,
        size: 45,
        letter: 0,
        constant: 0,
        path: [0; 16],
    };
    assert_eq!(seen, expected);
    let none = object.program("request")?.attach(Functions::of_self("/proc/self/exe:demo:no"));
    let said = none.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("there are `demo:request`"), "{said}");
    Ok(())
}
