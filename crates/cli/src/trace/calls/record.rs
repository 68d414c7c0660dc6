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
    data: &'r [u8],
}

impl<'r> Record<'r> {
    /// Reads a record; `None` when it is too short to be one.
    pub fn read(bytes: &'r [u8]) -> Option<Self> {
        let (head, data) = bytes.split_at_checked(HEAD)?;
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let (thread, which) = (word(16)?, word(24)?);
        Some(Self {
            start: word(0)?,
            took: Some(word(8)?).filter(|t| *t != u64::MAX),
            pid: (thread >> 32) as u32,
            tid: thread as u32,
            function: which as u32,
            number: (which >> 32) as u32,
            depth: word(32)?,
            data,
        })
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
    /// It had not returned when the trace ended.
    pub running: bool,
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
            running: false,
            depth: record.depth,
            plan,
            data: record.data,
        }
    }

    /// Its result; `None` where none was asked for, or there is none.
    fn result(&self) -> Option<Option<Value>> {
        if self.running || self.took_ns.is_none() { None } else { self.plan.result(self.data) }
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
            Some(Value::Float(x)) if x.abs() >= 1e15 || (*x != 0.0 && x.abs() < 1e-5) => {
                write!(f, "{x:e}")
            }
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
            None if self.running => f.write_str(" has not returned"),
            None => Ok(()),
        }
    }
}
