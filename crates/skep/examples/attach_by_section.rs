//! Attaches a program to the functions that its section names.

use skep::{HashMap, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    // SEC("fentry.multi/libc:getppid,*:library_by_section")
    let link = object.program("count_named")?.attach_by_section()?;
    for _ in 0..5 {
        std::hint::black_box(std::os::unix::process::parent_id());
    }
    for function in link.functions()? {
        println!("{} in {} is hooked", function.name, function.module);
    }
    drop(link);
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    for entry in counts.iter() {
        let (address, calls) = entry?;
        println!("function at {address:#x}: {calls} calls");
    }
    Ok(())
}
