//! Files with tests (docs/unit-tests.md).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::chain::captured;
use crate::failure::{Failure, Result};
use crate::key::read_hex;

/// What a file says.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct TestFile {
    object: Option<PathBuf>,
    program: Option<String>,
    #[serde(default)]
    globals: BTreeMap<String, Json>,
    #[serde(default, rename = "test")]
    pub tests: Vec<Test>,
}

/// One test: runs of a program on one loaded object.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Test {
    pub name: String,
    object: Option<PathBuf>,
    program: Option<String>,
    #[serde(default)]
    pub globals: BTreeMap<String, Json>,
    /// Elements that are put into maps before.
    #[serde(default)]
    pub before: BTreeMap<String, Vec<Element>>,
    packet: Option<Bytes>,
    context: Option<Bytes>,
    repeat: Option<u32>,
    expect: Option<Expect>,
    /// Instead of the four above, when there are several.
    #[serde(default)]
    run: Vec<Run>,
}

/// One run.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub packet: Option<Bytes>,
    pub context: Option<Bytes>,
    pub repeat: Option<u32>,
    #[serde(default)]
    pub expect: Expect,
}

/// An element of a map.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Element {
    #[serde(default)]
    pub key: Json,
    pub value: Json,
}

/// What must come of a run. What is not named may be anything.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub retval: Option<Json>,
    pub errno: Option<Json>,
    pub packet: Option<Bytes>,
    pub context: Option<Bytes>,
    #[serde(default)]
    pub maps: BTreeMap<String, Json>,
    pub printed: Option<Vec<String>>,
}

/// Bytes, in one of several forms.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
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
    /// Reads them; names of files are relative to `base`.
    pub fn read(&self, base: &Path) -> Result<Vec<u8>> {
        let wrong = |what: String| Failure::environment(what);
        let bytes = match (&self.hex, self.zeros, &self.file, &self.capture) {
            (Some(text), None, None, None) => {
                read_hex(text).map_err(|e| wrong(format!("`{text}` are no bytes in hex: {e}")))?
            }
            (None, Some(n), None, None) if n <= MAX_INPUT => vec![0; n],
            (None, None, Some(file), None) => {
                let path = base.join(file);
                std::fs::read(&path)
                    .map_err(|e| wrong(format!("cannot read `{}`: {e}", path.display())))?
            }
            (None, None, None, Some(capture)) => {
                let number = [self.number.unwrap_or(1)];
                let found = captured::numbered(&base.join(capture).display().to_string(), &number)?;
                return Ok(found.into_iter().next().map(|(_, bytes)| bytes).unwrap_or_default());
            }
            (None, Some(n), None, None) => {
                return Err(wrong(format!("{n} bytes are more than a program takes")));
            }
            _ => {
                return Err(wrong(
                    "bytes take one of `hex`, `zeros`, `file`, `capture`".to_owned(),
                ));
            }
        };
        match self.number {
            Some(_) => Err(wrong("`number` goes with `capture` only".to_owned())),
            None if bytes.len() > MAX_INPUT => {
                Err(wrong(format!("{} bytes are more than a program takes", bytes.len())))
            }
            None => Ok(bytes),
        }
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
        let mut all: Self = toml::from_str(&text).map_err(|e| {
            let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            Failure::environment(format!("`{name}`, line {line}: {}", e.message().trim_end()))
                .hint(help)
        })?;
        let wrong = |what: String| Failure::environment(format!("`{name}`: {what}")).hint(help);
        if all.tests.is_empty() {
            return Err(wrong("there is no `[[test]]`".to_owned()));
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
    /// Returns its runs, one at least.
    pub fn runs(&self) -> &[Run] {
        &self.run
    }
}

impl Expect {
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
