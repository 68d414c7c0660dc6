//! Any bytes as a capture file, and as a list of files by verdict. The packets that are read are written in
//! each format and read again: the same bytes, and with pcapng the same times.
#![no_main]

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use skep_net::port::batch::Meta;
use skep_net::port::capture::{Format, Reader, Unit, Writer, split};
use skep_net::port::{Batch, Received, Sink, Source};

type Packets = Vec<(Meta, Vec<u8>)>;

fn read(file: &[u8]) -> Packets {
    let mut all = Vec::new();
    let Ok(reader) = Reader::new("fuzz", Box::new(Cursor::new(file.to_vec()))) else { return all };
    let (mut reader, mut batch) = (reader.any_link_type(), Batch::new());
    while let Ok(Received::Frames) = reader.receive(&mut batch, Duration::ZERO) {
        all.extend(batch.frames().map(|f| (f.meta, f.bytes.to_vec())));
        batch.clear();
    }
    all
}

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn write(packets: &Packets, format: Format) -> Vec<u8> {
    let memory = Memory::default();
    let mut writer = Writer::new("fuzz", Box::new(memory.clone()), format);
    let mut batch = Batch::with_limit(1);
    for (meta, bytes) in packets {
        assert!(batch.push(*meta, bytes));
        assert_eq!(writer.send(&batch, &[0]).expect("memory takes all").packets, 1);
        batch.clear();
    }
    writer.flush().expect("memory takes all");
    let bytes = memory.0.lock().expect("one thread").clone();
    bytes
}

fuzz_target!(|data: &[u8]| {
    let packets = read(data);
    let again = read(&write(&packets, Format::Pcapng));
    assert_eq!(again.len(), packets.len());
    for ((meta, bytes), (then, same)) in packets.iter().zip(&again) {
        assert_eq!((meta.ns, bytes), (then.ns, same));
    }
    for unit in [Unit::Nanoseconds, Unit::Microseconds] {
        let again = read(&write(&packets, Format::Pcap(unit)));
        assert!(again.iter().map(|p| &p.1).eq(packets.iter().map(|p| &p.1)));
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = split::parse(text).map_err(|e| e.to_string());
    }
});
