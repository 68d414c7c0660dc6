//! `skep trace --perfetto`: each call of the report is a slice of the trace, read by a reader of its
//! own here, and by Perfetto's own definitions where Python has them.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Skep, fails, json, text};
use serde_json::Value as Json;
use skep_testkit::cc::Cc;
use skep_testkit::run::run;
use skep_testkit::skip;

const SOURCE: &str = r#"
    #include <pthread.h>
    #define N __attribute__((noinline))
    N int leaf(int n, const char *what) { asm volatile("" :: "r"(what) : "memory"); return n - 3; }
    N int tree(int n) { int r = leaf(n, "x") + leaf(n + 1, "y \"z\""); asm volatile("" ::: "memory"); return r; }
    static void *work(void *p) { for (int i = 0; i < 50; i++) tree(i); return p; }
    int main(void) {
        pthread_t t;
        pthread_create(&t, 0, work, 0);
        work(0);
        pthread_join(t, 0);
    }
"#;

/// A field of a message.
#[derive(Clone, Copy, Debug)]
enum Field<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// The fields of a message by number, in order.
fn fields(mut bytes: &[u8]) -> BTreeMap<u64, Vec<Field<'_>>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let end = bytes.iter().position(|b| b & 0x80 == 0).expect("an end");
        let (number, rest) = bytes.split_at(end + 1);
        *bytes = rest;
        number.iter().rev().fold(0, |n, b| n << 7 | u64::from(b & 0x7f))
    }
    let mut all: BTreeMap<u64, Vec<Field<'_>>> = BTreeMap::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            2 => {
                let size = varint(&mut bytes) as usize;
                let (field, rest) = bytes.split_at(size);
                bytes = rest;
                Field::Bytes(field)
            }
            other => panic!("wire type {other}"),
        };
        all.entry(key >> 3).or_default().push(field);
    }
    all
}

type Fields<'m> = BTreeMap<u64, Vec<Field<'m>>>;

fn number(fields: &Fields<'_>, field: u64) -> u64 {
    match fields.get(&field).map(|all| all[0]) {
        Some(Field::Number(n)) => n,
        _ => 0,
    }
}

fn inner<'m>(fields: &Fields<'m>, field: u64) -> Vec<&'m [u8]> {
    let all = fields.get(&field).into_iter().flatten();
    all.map(|f| if let Field::Bytes(b) = f { *b } else { panic!("{field} is a number") }).collect()
}

fn string(fields: &Fields<'_>, field: u64) -> String {
    inner(fields, field).first().map(|bytes| text(bytes)).unwrap_or_default()
}

/// Pid and tid, name, module, begin, end, and the arguments with the result.
type Slice = (u64, u64, String, String, u64, u64, Json);

/// The slices of a trace, as `trace_processor` would close them: an end ends the last one that is open
/// on its track.
fn slices(trace: &[u8]) -> Vec<Slice> {
    let mut names: [BTreeMap<u64, String>; 2] = Default::default();
    let mut threads = BTreeMap::new();
    let mut events = Vec::new();
    for (n, packet) in inner(&fields(trace), 1).into_iter().enumerate() {
        let packet = fields(packet);
        // The first packet begins the numbers of names, all are of one sequence.
        assert_eq!((number(&packet, 10), number(&packet, 13)), (1, if n == 0 { 3 } else { 2 }));
        for table in inner(&packet, 12).into_iter().map(fields) {
            for (which, field) in [(0, 2), (1, 1)] {
                for entry in inner(&table, field).into_iter().map(fields) {
                    let old = names[which].insert(number(&entry, 1), string(&entry, 2));
                    assert_eq!(old, None);
                }
            }
        }
        for track in inner(&packet, 60).into_iter().map(fields) {
            for thread in inner(&track, 4).into_iter().map(fields) {
                let ids = (number(&thread, 1), number(&thread, 2));
                assert_eq!(threads.insert(number(&track, 1), ids), None);
            }
            for process in inner(&track, 3).into_iter().map(fields) {
                assert_eq!(string(&process, 6), "calls");
            }
        }
        for event in inner(&packet, 11).into_iter().map(fields) {
            let mut args = serde_json::Map::new();
            for arg in inner(&event, 4).into_iter().map(fields) {
                let value = if arg.contains_key(&6) {
                    string(&arg, 6).into()
                } else if arg.contains_key(&3) {
                    number(&arg, 3).into()
                } else {
                    (number(&arg, 4) as i64).into()
                };
                args.insert(string(&arg, 10), value);
            }
            events.push((
                number(&packet, 8),
                number(&event, 9),
                number(&event, 11),
                names[0].get(&number(&event, 10)).cloned().unwrap_or_default(),
                names[1].get(&number(&event, 3)).cloned().unwrap_or_default(),
                Json::Object(args),
            ));
        }
    }
    events.sort_by_key(|event| event.0);
    let mut open: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
    let mut all = Vec::new();
    for (time, kind, track, name, module, args) in events {
        let (pid, tid) = threads[&track];
        let stack = open.entry(track).or_default();
        match kind {
            1 => stack.push((pid, tid, name, module, time, 0, args)),
            2 => {
                let mut slice = stack.pop().expect("one that is open");
                slice.5 = time;
                all.push(slice);
            }
            other => panic!("an event of type {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty));
    all.sort_by_key(|slice| (slice.1, slice.4));
    all
}

/// What Perfetto's definitions read: how many slices begin and end, and the names.
const PYTHON: &str = r#"
import sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace(); trace.ParseFromString(open(sys.argv[1], "rb").read())
names, seen, ends, args = {}, {}, 0, set()
for p in trace.packet:
    for m in (p, p.track_event, p.track_descriptor, p.interned_data): assert len(UnknownFieldSet(m)) == 0
    for n in p.interned_data.event_names: names[n.iid] = n.name
    if p.HasField("track_event"):
        e = p.track_event
        if e.type == TrackEvent.TYPE_SLICE_BEGIN:
            seen[names[e.name_iid]] = seen.get(names[e.name_iid], 0) + 1
            args |= {(a.name, a.WhichOneof("value")) for a in e.debug_annotations}
        elif e.type == TrackEvent.TYPE_SLICE_END: ends += 1
threads = [p.track_descriptor.thread.tid for p in trace.packet if p.track_descriptor.HasField("thread")]
processes = [p.track_descriptor.process.process_name for p in trace.packet if p.track_descriptor.HasField("process")]
print(sorted(seen.items()), ends, len(threads), processes, sorted(args))
"#;

#[test]
fn every_call_is_a_slice() {
    let skep = Skep::new();
    let source = skep.path("calls.c");
    std::fs::write(&source, SOURCE).unwrap();
    let flags = ["-g", "-O1", "-pthread", "-falign-functions=16"];
    let program = Cc::c().args(&flags).compile(&[&source], &skep.path("calls"));
    let file = skep.path("calls.perfetto").display().to_string();
    let program = program.display().to_string();
    let args = ["trace", "calls:leaf,tree", "--args", "--ret", "--json", "--perfetto", &file, "--"];
    let ended = skep.run(args.into_iter().chain([program.as_str()]));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let calls = json(&ended.stdout);
    let mut want: Vec<Slice> = Vec::new();
    for call in calls["calls"].as_array().unwrap() {
        let n = |key: &str| call[key].as_u64().unwrap();
        let s = |key: &str| call[key].as_str().unwrap().to_owned();
        let mut args = call["args"].clone();
        args.as_object_mut().unwrap().insert("ret".to_owned(), call["ret"].clone());
        let (start, took) = (n("start_ns"), n("took_ns"));
        want.push((n("pid"), n("tid"), s("function"), s("module"), start, start + took, args));
    }
    want.sort_by_key(|slice| (slice.1, slice.4));
    assert_eq!(want.len(), 300);
    assert_eq!(slices(&std::fs::read(&file).unwrap()), want);
    by_perfettos_definitions(Path::new(&file));
}

fn by_perfettos_definitions(file: &Path) {
    let mut python = Command::new("python3");
    let there = python.args(["-c", "import perfetto.protos.perfetto.trace.perfetto_trace_pb2"]);
    if !there.output().is_ok_and(|out| out.status.success()) {
        return skip("python3 with `perfetto` and `protobuf`");
    }
    let mut python = Command::new("python3");
    let ended = run(python.args(["-c", PYTHON]).arg(file), b"", Duration::from_secs(300));
    assert_eq!(ended.shell_status(), 0, "{}", ended.transcript());
    let want = "[('leaf', 200), ('tree', 100)] 300 2 ['calls'] \
                [('n', 'uint_value'), ('ret', 'int_value'), ('ret', 'uint_value'), ('what', 'string_value')]\n";
    assert_eq!(text(&ended.stdout), want);
}

#[test]
fn one_timeline_at_a_time() {
    let args = ["trace", "x:*", "--perfetto", "a", "--chrome", "b", "--", "true"];
    fails(&Skep::new(), &args, 2, "cannot be used with");
}
