//! Runs a command under two links: one program counts calls by function, two count entries and
//! returns.

use skep::{Functions, HashMap, PerCpuArray, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let (first, second) = (session.load(OBJECT)?, session.load(OBJECT)?);
    let calls = first.program("count")?.attach(Functions::of_commands("libc:malloc"))?;
    let pairs = second.attach(["enter", "leave"], Functions::of_commands("libc:free"))?;

    // Needs the agent (the library that traced commands load): `SKEP_PRELOAD`, or
    // `libskep_preload.so` beside this program.
    let status = session.command("sort", [&calls, &pairs])?.arg("/etc/hostname").status()?;

    println!("sort ended with {status}");
    let counts: HashMap<u64, u64> = first.map("counts")?.typed()?;
    for entry in counts.iter() {
        println!("malloc: {} calls", entry?.1);
    }
    let sums: PerCpuArray<u64> = second.map("calls")?.typed()?;
    let sum = |index| Ok::<u64, skep::Error>(sums.get(index)?.iter().flatten().sum());
    println!("free: {} entries, {} returns", sum(0)?, sum(1)?);
    Ok(())
}
