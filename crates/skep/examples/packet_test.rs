//! A unit test of a packet program: no root, no interface, no kernel.

use skep::test_run::Input;
use skep::{Queue, Session, Stack};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let waiting: Queue<u32> = object.map("waiting")?.typed()?;
    let done: Stack<u32> = object.map("done")?.typed()?;
    waiting.push(&0x45)?;

    let program = object.program("first_bytes")?;
    assert_eq!(program.test_run(&Input::data(&[0x45; 64]))?.retval, XDP_PASS);
    assert_eq!(program.test_run(&Input::data(&[0x60; 64]))?.retval, XDP_DROP);
    assert_eq!(done.pop()?, Some(0x60));
    println!("`{}` passes what it should", program.name());
    Ok(())
}
