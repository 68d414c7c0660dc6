//! A packet program between two ports: frames of a generator go through it into a capture file.
//! With a capture file or an interface in the generator's place, nothing else changes.

use skep::Session;
use skep::port::capture::{Format, Reader, Writer};
use skep::port::generator::Generator;
use skep::port::{Batch, Outputs, Source, Until, Verdict};
use skep::test_run::Engine;

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/packets/packets.bpf.o");

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let mut program = object.program("swap")?.packets(Engine::Jit)?;

    let path = std::env::temp_dir().join(format!("skep-example-{}.pcapng", std::process::id()));
    let mut outputs = Outputs::new();
    let back = outputs.add(Box::new(Writer::create(&path, Format::Pcapng)?));
    outputs.send_verdict(Verdict::Tx.kind(), back);
    let mut source = Generator::new(&[64, 1514]).packets(1000);
    let stats = program.pump(&mut source, &mut outputs, &Until::default())?;
    drop(outputs);

    let mut batch = Batch::new();
    Reader::open(&path)?.receive(&mut batch, std::time::Duration::ZERO)?;
    std::fs::remove_file(&path)?;
    // The program answers: to whom the generator's frames came from.
    let first = batch.frame(0).ok_or("the file has no packet")?;
    assert_eq!((first.bytes[..6].to_vec(), stats.sent.packets), (vec![2, 0, 0, 0, 0, 1], 1000));
    println!("{} packets, {} answered", stats.packets, stats.verdicts[Verdict::Tx.kind()]);
    Ok(())
}
