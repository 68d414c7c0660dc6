//! Prints a record for each call of a function, as it comes.

use std::time::Duration;

use skep::zerocopy::{FromBytes, Immutable, IntoBytes};
use skep::{Functions, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

/// `struct event` of the object.
#[derive(FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Event {
    pid: u32,
    cookie: u32,
    address: u64,
}

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let functions = Functions::of_self("libc:getpid").cookie(1).and("libc:getppid").cookie(2);
    let _link = object.program("tell")?.attach(functions)?;
    let events = object.ring("events")?.typed::<Event>();

    std::thread::spawn(|| {
        for _ in 0..3 {
            let _ = (std::process::id(), std::os::unix::process::parent_id());
        }
    });

    for event in events.until_idle(Duration::from_secs(2)).take(6) {
        let event = event?;
        println!("process {}: function {} at {:#x}", event.pid, event.cookie, event.address);
    }
    Ok(())
}
