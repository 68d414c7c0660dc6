//! What files say that describe chains (docs/chains.md).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use skep::chain::Assignments;

use crate::failure::{Failure, Result};

/// What a file says.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields)]
pub struct Described {
    #[serde(rename = "type")]
    pub prog_type: Option<String>,
    pub budget: Option<u32>,
    pub exhausted: Option<When>,
    pub order: Option<Order>,
    pub at_end: Option<End>,
    #[serde(default, rename = "program")]
    pub programs: Vec<Program>,
}

/// What happens to a run that has used its budget up.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum When {
    Stop,
    Abort,
}

/// How programs follow each other.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As they stand there, by `on`.
    Listed,
    /// As libxdp sorts them.
    Priority,
}

/// What a chain by priority answers at its end.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum End {
    Pass,
    Last,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Program {
    pub object: PathBuf,
    pub program: String,
    pub label: Option<String>,
    pub on: Option<BTreeMap<String, Target>>,
    pub priority: Option<u32>,
    pub actions: Option<String>,
    /// What global variables are set to before loading.
    #[serde(default)]
    globals: BTreeMap<String, Json>,
    /// It shares its maps and variables with no other program.
    #[serde(default)]
    pub own_maps: bool,
}

/// Where an edge leads: a target alone, or a table.
#[derive(Clone, Debug)]
pub struct Target {
    pub to: String,
    /// How often a packet may go there this way.
    pub times: Option<u32>,
}

impl Target {
    /// A target alone.
    pub fn plain(to: &str) -> Self {
        Self { to: to.to_owned(), times: None }
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextOrTable)
    }
}

struct TextOrTable;

impl<'de> Visitor<'de> for TextOrTable {
    type Value = Target;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a target, as in `pass = \"next\"`, or `{ to = \"LABEL\", times = 3 }`")
    }

    fn visit_str<E>(self, text: &str) -> Result<Target, E> {
        Ok(Target::plain(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Target, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            to: String,
            times: Option<u32>,
        }
        let Table { to, times } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Target { to, times })
    }
}

impl Program {
    /// Lists what variables are set to, as text that `--set` would take.
    pub fn variables(&self) -> Assignments {
        let mut all = Assignments::new();
        self.globals.iter().for_each(|(name, value)| variables(&mut all, name.clone(), value));
        all
    }

    /// Returns what edges call it.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.program)
    }
}

/// Adds the variable of a name; a table has the members of a struct.
fn variables(all: &mut Assignments, name: String, value: &Json) {
    match value {
        Json::String(text) => all.push((name, text.clone())),
        Json::Object(members) => members
            .iter()
            .for_each(|(member, value)| variables(all, format!("{name}.{member}"), value)),
        other => all.push((name, other.to_string())),
    }
}

impl Described {
    /// Reads a file; paths of objects are relative to it.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::environment(format!("cannot read `{name}`: {e}")))?;
        Self::parse(&text, path)
    }

    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let name = path.display();
        let mut all: Self = toml::from_str(text).map_err(|e| {
            let before = e.span().and_then(|s| text.get(..s.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            Failure::environment(format!("`{name}`, line {line}: {}", e.message()))
                .hint("docs/chains.md describes these files")
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        for program in &mut all.programs {
            program.object = base.join(&program.object);
            let label = program.label.as_deref().unwrap_or("LABEL");
            if label.is_empty() || ["next", "end"].contains(&label) || label.starts_with("end:") {
                return Err(Failure::environment(format!(
                    "`{name}`: `{label}` cannot be a label, as edges to it would lead elsewhere"
                )));
            }
        }
        Ok(all)
    }

    /// Adds what another file says; settings of the whole chain must agree.
    pub fn append(&mut self, other: Self, path: &Path) -> Result {
        fn agree<T: PartialEq>(
            all: &mut Option<T>,
            new: Option<T>,
            what: &str,
            path: &Path,
        ) -> Result {
            match (&*all, new) {
                (Some(old), Some(new)) if *old != new => Err(Failure::environment(format!(
                    "`{}` has another `{what}` than the files before",
                    path.display()
                ))),
                (None, new) => {
                    *all = new;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
        agree(&mut self.prog_type, other.prog_type, "type", path)?;
        agree(&mut self.budget, other.budget, "budget", path)?;
        agree(&mut self.exhausted, other.exhausted, "exhausted", path)?;
        agree(&mut self.order, other.order, "order", path)?;
        agree(&mut self.at_end, other.at_end, "at_end", path)?;
        for program in other.programs {
            let twice = |p: &Program| p.label.is_some() && p.label == program.label;
            if self.programs.iter().any(twice) {
                let (path, label) = (path.display(), program.label());
                let text = format!("`{path}`: there already is a program with label `{label}`");
                return Err(Failure::environment(text));
            }
            self.programs.push(program);
        }
        Ok(())
    }
}
