//! What programs send while a command runs: ring buffer records, perf events and printed lines,
//! taken out by a thread for each buffer.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value as Json, json};
use skep::isa::MapType;
use skep::maps::{Consumer, Map, MapError, PerfReader};
use skep_text::record::RecordTypes;
use skep_text::value::{hex, to_json};

use crate::failure::{Context, Failure, Result};
use crate::units;

/// How long a thread sleeps before it looks whether the command has ended; records wake it at once.
const NAP: Duration = Duration::from_millis(10);

/// What a record is.
#[derive(Debug)]
pub enum Form {
    /// Bytes only its program knows.
    Bytes,
    /// A structure; a record of another size is bytes.
    Typed(RecordTypes),
    /// A line of `bpf_trace_printk`.
    Line,
}

/// The records of one buffer: the last ones, and how many there were.
#[derive(Debug)]
pub struct Records {
    /// The map's name.
    pub name: String,
    /// The `map` object of JSON documents.
    map: Json,
    form: Form,
    total: u64,
    /// Samples of perf events for which there was no room.
    lost: u64,
    last: VecDeque<Vec<u8>>,
    keep: usize,
    damaged: Option<MapError>,
}

impl Records {
    fn push(&mut self, record: &[u8]) {
        self.total += 1;
        if self.last.len() == self.keep {
            self.last.pop_front();
        }
        self.last.push_back(record.to_vec());
    }

    /// Takes out everything there is.
    fn drain(&mut self, source: &mut Source) {
        loop {
            match source.next_record() {
                Ok(Some(record)) => self.push(record),
                Ok(None) => return,
                Err(e) => self.damaged = Some(e),
            }
        }
    }

    fn text(&self, record: &[u8]) -> String {
        match &self.form {
            Form::Bytes => hex(record),
            Form::Typed(types) => {
                types.decode(record).map_or_else(|| hex(record), |v| v.to_string())
            }
            Form::Line => {
                let text = record.split(|b| *b == 0).next().unwrap_or_default();
                String::from_utf8_lossy(text).trim_end_matches('\n').to_owned()
            }
        }
    }

    fn value(&self, record: &[u8]) -> Json {
        let typed = if let Form::Typed(types) = &self.form { types.decode(record) } else { None };
        typed.map_or_else(|| self.text(record).into(), |v| to_json(&v))
    }

    /// Tells what was wrong with the buffer's memory, if anything.
    pub fn damage(&self) -> Option<&MapError> {
        self.damaged.as_ref()
    }

    /// Writes the records under a heading.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let shown = self.last.len() as u64;
        let kind = if matches!(self.form, Form::Line) {
            "printed"
        } else {
            self.map["type"].as_str().unwrap_or("ringbuf")
        };
        let lost = if self.lost > 0 { format!(", {} lost", self.lost) } else { String::new() };
        let mut what = units::count(self.total, "record");
        if shown < self.total {
            what += &format!(", the last {shown}");
        }
        writeln!(out, "{} ({kind}, {what}{lost}):", self.name)?;
        self.last.iter().try_for_each(|r| writeln!(out, "  {}", self.text(r)))
    }

    /// The JSON form.
    pub fn json(&self) -> Json {
        json!({"map": self.map, "total": self.total, "lost": self.lost, "records": self.last.iter().map(|r| self.value(r)).collect::<Json>()})
    }
}

/// Where records come from.
enum Source {
    Ring(Consumer),
    Perf(PerfReader),
}

impl Source {
    fn of(map: &Map) -> Result<Self, MapError> {
        match map.def().map_type {
            MapType::PerfEventArray => map.perf_reader().map(Self::Perf),
            _ => map.consumer().map(Self::Ring),
        }
    }

    fn next_record(&mut self) -> Result<Option<&[u8]>, MapError> {
        match self {
            Self::Ring(ring) => ring.next_record(),
            Self::Perf(rings) => rings.next_record().map(|r| r.map(|(_, record)| record)),
        }
    }

    fn wait(&self, timeout: Duration) {
        // Whether there is something is seen by looking.
        let _ = match self {
            Self::Ring(ring) => ring.wait(timeout),
            Self::Perf(rings) => rings.wait(timeout),
        };
    }

    fn lost(&self) -> u64 {
        match self {
            Self::Ring(_) => 0,
            Self::Perf(rings) => rings.lost().sum(),
        }
    }
}

/// Tells whether a map is a stream of records.
pub fn is_stream(map: &Map) -> bool {
    matches!(map.def().map_type, MapType::Ringbuf | MapType::PerfEventArray)
}

/// A thread that empties one buffer.
#[derive(Debug)]
pub struct Collector {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Records>,
}

impl Collector {
    /// Starts to take records out of a map, keeping the last `keep`.
    pub fn start(name: &str, map: &Map, form: Form, keep: usize) -> Result<Self> {
        let mut source = Source::of(map).context(format!("cannot read from map `{name}`"))?;
        let mut records = Records {
            name: name.to_owned(),
            map: json!({"id": map.id(), "name": name, "type": map.def().map_type.name()}),
            form,
            total: 0,
            lost: 0,
            last: VecDeque::new(),
            keep: keep.max(1),
            damaged: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            // Looks for the end first, and then once more for records.
            loop {
                let last = stopped.load(Ordering::Acquire); // pairs with the Release in `finish`
                records.drain(&mut source);
                if last {
                    records.lost = source.lost();
                    return records;
                }
                source.wait(NAP);
            }
        };
        let thread = std::thread::Builder::new()
            .name("events".to_owned())
            .spawn(work)
            .context("cannot start a thread")?;
        Ok(Self { stop, thread })
    }

    /// Takes out what is left and ends the thread.
    pub fn finish(self) -> Result<Records> {
        self.stop.store(true, Ordering::Release); // pairs with the Acquire in the thread
        self.thread.join().map_err(|_| Failure::environment("the thread that reads events failed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep::Dir;
    use skep::dir::Kind;
    use skep::maps::MapDef;

    #[test]
    fn perf_events_are_records_too() -> Result {
        let path = std::env::temp_dir().join(format!("skep-cli-perf-{}", std::process::id()));
        let dir = Dir::create(&path)?;
        let map = Map::create(
            &dir.kind(Kind::Map),
            1,
            &MapDef::new(MapType::PerfEventArray, 4, 4, 2).named("p"),
        )?;
        let collector = Collector::start("p", &map, Form::Bytes, 10)?;
        let send = |ring, bytes: &[u8]| {
            let parts = [(bytes.as_ptr(), bytes.len() as u64), (std::ptr::null(), 0)];
            // SAFETY: the bytes are there.
            unsafe { map.perf_output(ring, parts) }
        };
        assert_eq!((send(1, b"ab"), send(2, b"ab")), (0, -7));
        let mut text = Vec::new();
        collector.finish()?.write(&mut text)?;
        assert_eq!(String::from_utf8_lossy(&text), "p (perf_event_array, 1 record):\n  6162\n");
        drop(std::fs::remove_dir_all(path));
        Ok(())
    }

    #[test]
    fn all_records_are_counted_and_the_last_ones_kept() -> Result {
        let path = std::env::temp_dir().join(format!("skep-cli-events-{}", std::process::id()));
        let dir = Dir::create(&path)?;
        let map = Map::create(
            &dir.kind(Kind::Map),
            1,
            &MapDef::new(MapType::Ringbuf, 0, 0, 1 << 16).named("r"),
        )?;
        let collector = Collector::start("r", &map, Form::Bytes, 2)?;
        for n in 0..5_u8 {
            // SAFETY: one readable byte.
            assert_eq!(unsafe { map.ringbuf_output(&raw const n, 1, 0) }, 0);
        }
        let records = collector.finish()?;
        assert_eq!(
            records.json().to_string(),
            r#"{"map":{"id":1,"name":"r","type":"ringbuf"},"total":5,"lost":0,"records":["03","04"]}"#
        );
        let mut text = Vec::new();
        records.write(&mut text)?;
        assert_eq!(
            String::from_utf8_lossy(&text),
            "r (ringbuf, 5 records, the last 2):\n  03\n  04\n"
        );
        drop(std::fs::remove_dir_all(path));
        Ok(())
    }
}
