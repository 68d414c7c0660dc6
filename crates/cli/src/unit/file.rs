//! Files with tests (docs/unit-tests.md).

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use skep::isa::errno::ERRNOS;
use skep_text::key::read_hex;

use super::table::Table;
use crate::chain::captured;
use crate::failure::{FAILED, Failure, Result};
use crate::files;

/// What a file says.
#[derive(Debug)]
pub struct TestFile {
    object: Option<PathBuf>,
    program: Option<String>,
    globals: BTreeMap<String, Json>,
    pub tests: Vec<Test>,
}

/// One test: runs of a program on one loaded object.
#[derive(Debug)]
pub struct Test {
    pub name: String,
    object: Option<PathBuf>,
    program: Option<String>,
    pub globals: BTreeMap<String, Json>,
    /// Elements that are put into maps before.
    pub before: BTreeMap<String, Vec<Element>>,
    packet: Option<Bytes>,
    context: Option<Bytes>,
    repeat: Option<u32>,
    expect: Option<Expect>,
    /// Instead of the four above, when there are several.
    run: Vec<Run>,
}

/// One run.
#[derive(Default, Debug)]
pub struct Run {
    pub packet: Option<Bytes>,
    pub context: Option<Bytes>,
    pub repeat: Option<u32>,
    pub expect: Expect,
}

/// An element of a map.
#[derive(Debug)]
pub struct Element {
    pub key: Json,
    pub value: Json,
}

/// What must come of a run. What is not named may be anything.
#[derive(Default, Debug)]
pub struct Expect {
    pub retval: Option<Json>,
    /// A positive number.
    pub errno: Option<i32>,
    pub packet: Option<Bytes>,
    pub context: Option<Bytes>,
    pub maps: BTreeMap<String, Json>,
    pub printed: Option<Vec<String>>,
}

/// Bytes, in one of several forms.
#[derive(Debug)]
pub struct Bytes {
    hex: Option<String>,
    zeros: Option<usize>,
    file: Option<PathBuf>,
    capture: Option<PathBuf>,
    /// Of the capture, from 1 on.
    number: Option<u64>,
}

/// More than the kernel takes for any program type.
const MAX_INPUT: usize = 1 << 20;

impl Bytes {
    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "bytes")?;
        let bytes = Self {
            hex: table.text("hex")?,
            zeros: table.number("zeros")?,
            file: table.path("file")?,
            capture: table.path("capture")?,
            number: table.number("number")?,
        };
        table.end().map(|()| bytes)
    }

    /// Reads them; names of files are relative to `base`. What is wrong with another file is a failure of the
    /// test ([`FAILED`]).
    pub fn read(&self, base: &Path) -> Result<Vec<u8>> {
        let wrong = |what: String| Failure::environment(what);
        if self.number.is_some() && self.capture.is_none() {
            return Err(wrong("`number` goes with `capture` only".to_owned()));
        }
        let too_many = |n: usize| format!("{n} bytes are more than a program takes");
        let bytes = match (&self.hex, self.zeros, &self.file, &self.capture) {
            (Some(text), None, None, None) => {
                read_hex(text).map_err(|e| wrong(format!("`{text}` are no bytes in hex: {e}")))?
            }
            (None, Some(n), None, None) if n <= MAX_INPUT => vec![0; n],
            (None, None, Some(file), None) => {
                let path = base.join(file);
                let cannot =
                    |e: String| Failure::failed(format!("cannot read `{}`: {e}", path.display()));
                let bytes = files::read(&path).map_err(|e| cannot(e.to_string()))?;
                if bytes.len() > MAX_INPUT {
                    return Err(cannot(too_many(bytes.len())));
                }
                bytes
            }
            (None, None, None, Some(capture)) => {
                let number = [self.number.unwrap_or(1)];
                let found = captured::numbered(&base.join(capture).display().to_string(), &number)
                    .map_err(|f| Failure { status: FAILED, ..f })?;
                return Ok(found.into_iter().next().map(|packet| packet.bytes).unwrap_or_default());
            }
            (None, Some(n), None, None) => return Err(wrong(too_many(n))),
            _ => {
                return Err(wrong(
                    "bytes take one of `hex`, `zeros`, `file`, `capture`".to_owned(),
                ));
            }
        };
        if bytes.len() > MAX_INPUT { Err(wrong(too_many(bytes.len()))) } else { Ok(bytes) }
    }
}

/// What a test is about, with what the file says for all of them.
pub struct Subject {
    pub object: PathBuf,
    pub program: String,
    /// Variables and their values, spelled as for `--set`.
    pub globals: Vec<(String, String)>,
}

impl TestFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
        let help = "docs/unit-tests.md describes these files";
        let whole: Json = toml::from_str(&text).map_err(|e| {
            let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let what = e.message().trim_end();
            // Of what the file becomes.
            let what = what.strip_prefix("JSON ").unwrap_or(what);
            Failure::environment(format!("`{name}`, line {line}: {what}")).hint(help)
        })?;
        let wrong = |what: String| Failure::environment(format!("`{name}`: {what}")).hint(help);
        let mut all = Self::of(whole).map_err(wrong)?;
        if all.tests.is_empty() {
            return Err(wrong("there is no `[[test]]`".to_owned()));
        }
        let mut names = HashSet::new();
        if let Some(again) = all.tests.iter().find(|test| !names.insert(&test.name)) {
            return Err(wrong(format!("two tests have the name `{}`", again.name)));
        }
        for test in &mut all.tests {
            let own = Run {
                packet: test.packet.take(),
                context: test.context.take(),
                repeat: test.repeat.take(),
                expect: test.expect.take().unwrap_or_default(),
            };
            let is_own = own.packet.is_some()
                || own.context.is_some()
                || own.repeat.is_some()
                || own.expect.is_some();
            if is_own && !test.run.is_empty() {
                return Err(wrong(format!(
                    "test `{}` has runs; what a run gets and must give stands in them",
                    test.name
                )));
            }
            if test.run.is_empty() {
                test.run.push(own);
            }
            if let Some(n) = test.run.iter().position(|r| !r.expect.is_some()) {
                return Err(wrong(format!(
                    "test `{}`, run {}: `expect` names nothing, so it cannot fail",
                    test.name,
                    n + 1
                )));
            }
        }
        Ok(all)
    }

    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "the file")?;
        let file = Self {
            object: table.path("object")?,
            program: table.text("program")?,
            globals: table.members("globals")?,
            tests: table.list("test", Test::of)?,
        };
        table.end().map(|()| file)
    }

    /// Says what a test is about.
    pub fn subject(&self, test: &Test, base: &Path) -> Result<Subject> {
        let missing = |what: &str| {
            Failure::environment(format!("neither test `{}` nor the file has `{what}`", test.name))
        };
        let object = test.object.as_ref().or(self.object.as_ref());
        let program = test.program.as_ref().or(self.program.as_ref());
        let mut globals = self.globals.clone();
        globals.extend(test.globals.clone());
        let text = |value: Json| match value {
            Json::String(text) => text,
            other => other.to_string(),
        };
        Ok(Subject {
            object: base.join(object.ok_or_else(|| missing("object"))?),
            program: program.ok_or_else(|| missing("program"))?.clone(),
            globals: globals.into_iter().map(|(name, value)| (name, text(value))).collect(),
        })
    }
}

impl Test {
    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "a test")?;
        let name = table.text("name")?.filter(|name| !name.is_empty());
        let name = name.ok_or("a test has no `name`")?;
        let of = format!("test `{name}`");
        table.set_name(of.clone());
        Self::named(name, table).map_err(|what| match what.starts_with(&of) {
            true => what,
            false => format!("{of}: {what}"),
        })
    }

    fn named(name: String, mut table: Table) -> Result<Self, String> {
        let mut before = BTreeMap::new();
        for (map, elements) in table.members("before")? {
            let mut one = Table::single(&map, elements, "`before`".to_owned());
            before.insert(map.clone(), one.list(&map, Element::of)?);
        }
        let test = Self {
            object: table.path("object")?,
            program: table.text("program")?,
            globals: table.members("globals")?,
            before,
            packet: table.take("packet").map(Bytes::of).transpose()?,
            context: table.take("context").map(Bytes::of).transpose()?,
            repeat: table.number("repeat")?,
            expect: table.take("expect").map(Expect::of).transpose()?,
            run: table.list("run", Run::of)?,
            name,
        };
        table.end().map(|()| test)
    }

    /// Returns its runs, one at least.
    pub fn runs(&self) -> &[Run] {
        &self.run
    }
}

impl Run {
    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "a run")?;
        let run = Self {
            packet: table.take("packet").map(Bytes::of).transpose()?,
            context: table.take("context").map(Bytes::of).transpose()?,
            repeat: table.number("repeat")?,
            expect: table.take("expect").map(Expect::of).transpose()?.unwrap_or_default(),
        };
        table.end().map(|()| run)
    }
}

impl Element {
    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "an element")?;
        let key = table.take("key").unwrap_or_default();
        let value = table.take("value").ok_or("an element has no `value`")?;
        table.end().map(|()| Self { key, value })
    }
}

/// Reads the name or number of an error.
fn errno(value: &Json) -> Result<i32, String> {
    let known = match value {
        Json::String(name) => ERRNOS.iter().find(|e| e.name == name).map(|e| e.number),
        number => number.as_i64().and_then(|n| i32::try_from(n).ok()).filter(|n| *n > 0),
    };
    known.ok_or_else(|| format!("`errno` has {value}, which is no error, as \"EINVAL\" is one"))
}

impl Expect {
    fn of(whole: Json) -> Result<Self, String> {
        let mut table = Table::of(whole, "`expect`")?;
        let text = |line: Json| match line {
            Json::String(line) => Ok(line),
            other => Err(format!("`printed` has {other}, which is no text")),
        };
        let printed = if table.has("printed") { Some(table.list("printed", text)?) } else { None };
        let expect = Self {
            retval: table.take("retval"),
            errno: table.take("errno").map(|e| errno(&e)).transpose()?,
            packet: table.take("packet").map(Bytes::of).transpose()?,
            context: table.take("context").map(Bytes::of).transpose()?,
            maps: table.members("maps")?,
            printed,
        };
        table.end().map(|()| expect)
    }

    /// Tells whether anything is expected.
    fn is_some(&self) -> bool {
        self.retval.is_some()
            || self.errno.is_some()
            || self.packet.is_some()
            || self.context.is_some()
            || !self.maps.is_empty()
            || self.printed.is_some()
    }
}
