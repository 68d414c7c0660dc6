//! Profiles for pprof: the protocol buffer of `profile.proto`, not compressed, which pprof reads
//! as well.
//!
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Frames, Unit};
use crate::protobuf::Message;

/// The table of strings; the first is the empty one.
struct Strings<'f> {
    numbers: HashMap<&'f str, u64>,
    all: Vec<&'f str>,
}

impl<'f> Strings<'f> {
    fn add(&mut self, string: &'f str) -> u64 {
        let next = self.all.len() as u64;
        *self.numbers.entry(string).or_insert_with(|| {
            self.all.push(string);
            next
        })
    }
}

/// Writes the stacks.
pub fn write(frames: &Frames, out: &mut dyn Write) -> io::Result<()> {
    let mut profile = Message::default();
    let mut strings = Strings { numbers: HashMap::from([("", 0)]), all: vec![""] };
    let (kind, unit) = match frames.unit {
        Unit::Samples => ("samples", "count"),
        Unit::Nanoseconds => ("time", "nanoseconds"),
    };
    let (kind, unit) = (strings.add(kind), strings.add(unit));
    profile.bytes(1, &Message::default().number(1, kind).number(2, unit).0);
    for stack in &frames.stacks {
        let mut sample = Message::default();
        // Numbers of locations begin at 1.
        sample.packed(1, stack.locations.iter().map(|l| *l as u64 + 1));
        sample.packed(2, std::iter::once(stack.weight));
        if let Some(root) = &stack.root {
            let (key, value) = (strings.add("thread"), strings.add(root));
            sample.bytes(3, &Message::default().number(1, key).number(2, value).0);
        }
        profile.bytes(2, &sample.0);
    }
    let mut modules: HashMap<&str, u64> = HashMap::new();
    for (i, location) in frames.locations.iter().enumerate() {
        let mut module = 0;
        if !location.module.is_empty() {
            let next = modules.len() as u64 + 1;
            module = *modules.entry(&location.module).or_insert_with(|| {
                let mut mapping = Message::default();
                mapping.number(1, next).number(5, strings.add(&location.module));
                // All names are there: functions, files, lines, inlined frames.
                for field in 7..=10 {
                    mapping.number(field, 1);
                }
                profile.bytes(3, &mapping.0);
                next
            });
        }
        let mut message = Message::default();
        message.number(1, i as u64 + 1).number(2, module).number(3, location.addr);
        for (function, line) in &location.functions {
            let line = u64::from(*line);
            message.bytes(4, &Message::default().number(1, *function as u64 + 1).number(2, line).0);
        }
        profile.bytes(4, &message.0);
    }
    for (i, function) in frames.functions.iter().enumerate() {
        let (name, file) = (strings.add(&function.name), strings.add(&function.file));
        let mut message = Message::default();
        message.number(1, i as u64 + 1).number(2, name).number(3, name).number(4, file);
        profile.bytes(5, &message.0);
    }
    for string in &strings.all {
        profile.bytes(6, string.as_bytes());
    }
    out.write_all(&profile.0)
}
