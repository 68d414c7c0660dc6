//! Records of calls: what `bpf/calls.bpf.c` put together, read back.

use std::fmt;

use serde_json::{Map, Value as Json};
use skep::object::btf::Value;
use skep_text::value::to_json;

use super::plan::{DATA, Plan};

/// Bytes in front of the data: `HEAD`.
pub const HEAD: usize = 40;
/// Bytes of a frame: `struct frame`.
pub const FRAME_SIZE: usize = HEAD + DATA + 448;

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

/// A call with its names, ready to be printed.
pub struct Call<'c> {
    pub name: &'c str,
    pub module: &'c str,
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
    /// Names a record's parts.
    pub fn of(record: &Record<'c>, name: &'c str, module: &'c str, plan: &'c Plan) -> Self {
        Self {
            name,
            module,
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
    pub fn args_json(&self) -> Json {
        let named = |(at, (name, value)): (usize, (&str, Option<Value>))| {
            let name = if name.is_empty() { format!("arg{at}") } else { name.to_owned() };
            (name, value.as_ref().map_or(Json::Null, to_json))
        };
        Json::Object(self.plan.args(self.data).enumerate().map(named).collect::<Map<_, _>>())
    }

    /// Its result.
    pub fn result_json(&self) -> Option<Json> {
        self.result().map(|value| value.as_ref().map_or(Json::Null, to_json))
    }

    /// Its arguments and its result as `ret`; null where nothing is known of them.
    pub fn annotations(&self) -> Json {
        let result = self.result_json();
        if !self.plan.knows_args() && result.is_none() {
            return Json::Null;
        }
        let mut args = self.args_json();
        if let (Some(args), Some(result)) = (args.as_object_mut(), result) {
            args.insert("ret".to_owned(), result);
        }
        args
    }

    /// The call as JSON.
    pub fn json(&self) -> Json {
        let mut out = Map::new();
        let mut add = |name: &str, value: Json| drop(out.insert(name.to_owned(), value));
        add("function", self.name.into());
        add("module", self.module.into());
        add("pid", self.pid.into());
        add("tid", self.tid.into());
        add("depth", self.depth.into());
        add("start_ns", self.start_ns.into());
        add("took_ns", self.took_ns.into());
        if self.running {
            add("running", true.into());
        }
        if self.plan.knows_args() {
            add("args", self.args_json());
        }
        if let Some(result) = self.result_json() {
            add("ret", result);
        }
        out.into()
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

/// As in C: `open(path="/etc/passwd", flags=0) = 3`.
impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
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
