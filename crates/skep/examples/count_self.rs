//! Counts the calls of `malloc` in this very process.

use skep::{Functions, HashMap, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let link = object.program("count")?.attach(Functions::of_self("libc:malloc"))?;

    let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();

    let mut detached = link.detach();
    assert!(detached.wait(std::time::Duration::from_secs(10)));
    let counts: HashMap<u64, u64> = object.map("counts")?.typed()?;
    for entry in counts.iter() {
        let (address, calls) = entry?;
        println!("malloc at {address:#x}: {calls} calls for {} words", words.len());
    }
    Ok(())
}
