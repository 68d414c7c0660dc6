//! Records of calls: what `bpf/calls.bpf.c` put together, read back.

use std::fmt;

use serde_json::{Map, Value as Json};
use skep::object::btf::Value;
use skep_text::value::to_json;

use super::plan::{DATA, Plan};
use crate::trace::recording::Event;

/// Bytes in front of the data: `HEAD`.
pub const HEAD: usize = 40;
/// Bytes of a frame: `struct frame`.
pub const FRAME_SIZE: usize = HEAD + DATA + 592;

/// What is known of a call: `state` of `struct frame`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It returned, or nobody will see that.
    Over,
    /// It runs, or did when its thread ended.
    Runs,
    /// Something jumped out of it before `took` was over.
    Left,
}

/// A record, taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    pub start: u64,
    /// `None`: nobody saw it return.
    pub took: Option<u64>,
    pub pid: u32,
    pub tid: u32,
    /// Its index in the link.
    pub function: u32,
    /// The number of its plan.
    pub number: u32,
    pub depth: u64,
    pub state: State,
    data: &'r [u8],
}

impl<'r> Record<'r> {
    /// Reads a record; `None` when it is too short to be one.
    pub fn read(bytes: &'r [u8]) -> Option<Self> {
        let (head, data) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let (thread, which, rest) = (word(16)?, word(24)?, word(32)?);
        Some(Self {
            start: word(0)?,
            took: Some(word(8)?).filter(|t| *t != u64::MAX),
            pid: (thread >> 32) as u32,
            tid: thread as u32,
            function: which as u32,
            number: (which >> 32) as u32,
            depth: rest & u64::from(u32::MAX),
            state: match rest >> 32 {
                0 => State::Over,
                1 => State::Runs,
                _ => State::Left,
            },
            data,
        })
    }
}

/// Writes into a record that its call was left before so much time was over.
pub fn leave(bytes: &mut [u8], took: u64) {
    for (at, value) in [(8, took.to_le_bytes()), (36, [2, 0, 0, 0, 0, 0, 0, 0])] {
        let word = bytes.get_mut(at..HEAD.min(at + 8)).into_iter().flatten();
        word.zip(value).for_each(|(to, from)| *to = from);
    }
}

/// A call with its values.
pub struct Call<'c> {
    pub pid: u32,
    pub tid: u32,
    /// Since the trace began.
    pub start_ns: u64,
    /// `None`: nobody sees it return.
    pub took_ns: Option<u64>,
    /// It had not returned when the trace, or its thread, ended.
    pub running: bool,
    /// Something jumped out of it.
    pub left: bool,
    pub depth: u64,
    pub plan: &'c Plan,
    pub data: &'c [u8],
}

impl<'c> Call<'c> {
    /// Takes a record's parts.
    pub fn of(record: &Record<'c>, plan: &'c Plan) -> Self {
        Self {
            pid: record.pid,
            tid: record.tid,
            start_ns: 0,
            took_ns: None,
            running: record.state == State::Runs,
            left: record.state == State::Left,
            depth: record.depth,
            plan,
            data: record.data,
        }
    }

    /// Its result; `None` where none was asked for, or there is none.
    fn result(&self) -> Option<Option<Value>> {
        if self.running || self.left || self.took_ns.is_none() {
            None
        } else {
            self.plan.result(self.data)
        }
    }

    /// Its arguments by name; those without one by number.
    fn args_json(&self) -> Json {
        let named = |(at, (name, value)): (usize, (&str, Option<Value>))| {
            let name = if name.is_empty() { format!("arg{at}") } else { name.to_owned() };
            (name, value.as_ref().map_or(Json::Null, to_json))
        };
        Json::Object(self.plan.args(self.data).enumerate().map(named).collect::<Map<_, _>>())
    }

    /// What is shown of it, `values` as JSON if they are wanted so.
    pub fn event(&self, function: u32, values: bool) -> Event {
        Event {
            function,
            pid: self.pid,
            tid: self.tid,
            depth: self.depth,
            start_ns: self.start_ns,
            took_ns: self.took_ns,
            running: self.running,
            left: self.left,
            values: String::new(),
            args: if values && self.plan.knows_args() { self.args_json() } else { Json::Null },
            ret: self
                .result()
                .filter(|_| values)
                .map(|value| value.as_ref().map_or(Json::Null, to_json)),
        }
    }
}

struct Show(Option<Value>);

impl fmt::Display for Show {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("…"),
            Some(Value::Pointer(0)) => f.write_str("NULL"),
            Some(value) => value.fmt(f),
        }
    }
}

/// As in C, behind the name: `(path="/etc/passwd", flags=0) = 3`.
impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        let mut any = false;
        for (name, value) in self.plan.args(self.data) {
            let comma = if any { ", " } else { "" };
            let equals = if name.is_empty() { "" } else { "=" };
            write!(f, "{comma}{name}{equals}{}", Show(value))?;
            any = true;
        }
        if self.plan.variadic || !self.plan.knows_args() {
            f.write_str(if any { ", …" } else { "…" })?;
        }
        f.write_str(")")?;
        match self.result() {
            Some(value) => write!(f, " = {}", Show(value)),
            None => f.write_str(unfinished(self.running, self.left)),
        }
    }
}

/// What is said of a call that did not return.
pub fn unfinished(running: bool, left: bool) -> &'static str {
    match (running, left) {
        (true, _) => " has not returned",
        (_, true) => " was left",
        _ => "",
    }
}
