//! Calls as Perfetto's own traces: smaller than Chrome's JSON, and what its `trace_processor` reads
//! fastest.
//!
//! A file is a list of `TracePacket`s. Each thread is a track below its process's; a call is an event
//! that begins a slice, and one that ends it. Names of functions and modules are written once, and
//! numbers stand for them. Packets are in the order in which calls returned; readers sort by time.
//!
//! <https://perfetto.dev/docs/reference/synthetic-track-event>,
//! <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use serde_json::Value as Json;

use super::timeline::{Named, Timeline};
use crate::protobuf::Message;
use crate::trace::recording::Summary;

/// `TracePacket`.
const TIMESTAMP: u64 = 8;
const SEQUENCE: u64 = 10;
const TRACK_EVENT: u64 = 11;
const INTERNED_DATA: u64 = 12;
const SEQUENCE_FLAGS: u64 = 13;
const TRACK_DESCRIPTOR: u64 = 60;
/// `TrackEvent.Type`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

/// Writes packets, call by call.
#[derive(Default)]
pub struct Packets {
    begun: bool,
    processes: HashSet<u32>,
    threads: HashSet<u64>,
    /// Numbers of names of functions and of modules.
    functions: HashMap<String, u64>,
    modules: HashMap<String, u64>,
}

impl Packets {
    /// Writes a packet. The first one says that numbers of names begin.
    fn write(&mut self, out: &mut dyn Write, packet: &mut Message) -> io::Result<()> {
        let flags = if std::mem::replace(&mut self.begun, true) { 2 } else { 1 | 2 };
        packet.number(SEQUENCE, 1).number(SEQUENCE_FLAGS, flags);
        out.write_all(&Message::default().bytes(1, &packet.0).0)
    }

    /// The track of a call's thread, which is described before it is used.
    fn track(
        &mut self,
        out: &mut dyn Write,
        call: &Named<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<u64> {
        let event = call.event;
        let group = u64::from(event.pid) << 32;
        let track = group | u64::from(event.tid);
        if self.processes.insert(event.pid) {
            let mut described = Message::default();
            described.number(1, event.pid.into()).bytes(6, process().as_bytes());
            let mut descriptor = Message::default();
            descriptor.number(1, group).bytes(3, &described.0);
            self.write(out, Message::default().bytes(TRACK_DESCRIPTOR, &descriptor.0))?;
        }
        if self.threads.insert(track) {
            let mut thread = Message::default();
            thread.number(1, event.pid.into()).number(2, event.tid.into());
            let mut descriptor = Message::default();
            descriptor.number(1, track).number(5, group).bytes(4, &thread.0);
            self.write(out, Message::default().bytes(TRACK_DESCRIPTOR, &descriptor.0))?;
        }
        Ok(track)
    }
}

/// The number of a name; a new one goes into the packet's table.
fn number_of(
    numbers: &mut HashMap<String, u64>,
    name: &str,
    table: &mut Message,
    field: u64,
) -> u64 {
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    let number = numbers.len() as u64 + 1;
    numbers.insert(name.to_owned(), number);
    table.bytes(field, &Message::default().number(1, number).bytes(2, name.as_bytes()).0);
    number
}

/// `DebugAnnotation`: an argument.
fn annotation(name: &str, value: &Json) -> Message {
    let mut out = Message::default();
    out.bytes(10, name.as_bytes());
    match value {
        Json::String(text) => out.bytes(6, text.as_bytes()),
        // 0 is a value here.
        Json::Number(n) if n.is_u64() || n.is_i64() => {
            let field = if n.is_u64() { 3 } else { 4 };
            out.varint(field << 3);
            out.varint(n.as_u64().unwrap_or(n.as_i64().unwrap_or_default() as u64));
            &mut out
        }
        other => out.bytes(9, other.to_string().as_bytes()),
    };
    out
}

impl Timeline for Packets {
    fn call(
        &mut self,
        out: &mut dyn Write,
        call: &Named<'_>,
        process: &dyn Fn() -> String,
    ) -> io::Result<()> {
        let event = call.event;
        let track = self.track(out, call, process)?;
        let mut names = Message::default();
        let name = number_of(&mut self.functions, call.name, &mut names, 2);
        let module = number_of(&mut self.modules, call.module, &mut names, 1);
        let mut slice = Message::default();
        let kind = if event.took_ns.is_some() { SLICE_BEGIN } else { INSTANT };
        slice.number(9, kind).number(11, track).number(10, name).number(3, module);
        if event.left {
            slice.number(3, number_of(&mut self.modules, "left", &mut names, 1));
        }
        for (name, value) in event.annotations().as_object().into_iter().flatten() {
            slice.bytes(4, &annotation(name, value).0);
        }
        let mut packet = Message::default();
        packet.number(TIMESTAMP, event.start_ns).bytes(TRACK_EVENT, &slice.0);
        if !names.0.is_empty() {
            packet.bytes(INTERNED_DATA, &names.0);
        }
        self.write(out, &mut packet)?;
        // Of one that still runs only the beginning is known.
        if let (Some(took), false) = (event.took_ns, event.running) {
            let end = Message::default().number(9, SLICE_END).number(11, track).0.clone();
            let mut packet = Message::default();
            packet.number(TIMESTAMP, event.start_ns + took).bytes(TRACK_EVENT, &end);
            self.write(out, &mut packet)?;
        }
        Ok(())
    }

    /// A list of packets has no end.
    fn end(&mut self, _: &mut dyn Write, _: Option<&mut Summary>) -> io::Result<()> {
        Ok(())
    }
}
