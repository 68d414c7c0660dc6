//! Tables of test files, taken apart member by member.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value as Json};

/// A table, less what was taken from it.
pub struct Table {
    members: Map<String, Json>,
    /// What it is, for messages.
    name: String,
}

impl Table {
    /// Takes a value for a table.
    pub fn of(value: Json, name: &str) -> Result<Self, String> {
        match value {
            Json::Object(members) => Ok(Self { members, name: name.to_owned() }),
            other => Err(format!("{name} is {other}, not a table")),
        }
    }

    /// Makes a table of one member.
    pub fn single(member: &str, value: Json, name: String) -> Self {
        let members = std::iter::once((member.to_owned(), value)).collect();
        Self { members, name }
    }

    /// Says what it is, once that is known.
    pub fn set_name(&mut self, name: String) {
        self.name = name;
    }

    /// Tells whether it has a member.
    pub fn has(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    /// Takes a member, whatever it is.
    pub fn take(&mut self, member: &str) -> Option<Json> {
        self.members.remove(member)
    }

    fn wrong<T>(&self, member: &str, value: &Json, wanted: &str) -> Result<T, String> {
        Err(format!("{}: `{member}` is {value}, not {wanted}", self.name))
    }

    /// Takes a text.
    pub fn text(&mut self, member: &str) -> Result<Option<String>, String> {
        match self.take(member) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(other) => self.wrong(member, &other, "a text"),
        }
    }

    /// Takes the name of a file.
    pub fn path(&mut self, member: &str) -> Result<Option<PathBuf>, String> {
        Ok(self.text(member)?.map(PathBuf::from))
    }

    /// Takes a number that fits.
    pub fn number<N: TryFrom<u64>>(&mut self, member: &str) -> Result<Option<N>, String> {
        let Some(value) = self.take(member) else { return Ok(None) };
        match value.as_u64().and_then(|n| N::try_from(n).ok()) {
            Some(number) => Ok(Some(number)),
            None => self.wrong(member, &value, "a number that fits"),
        }
    }

    /// Takes a list, and makes something of each of its values.
    pub fn list<T>(
        &mut self,
        member: &str,
        of: impl Fn(Json) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        match self.take(member) {
            None => Ok(Vec::new()),
            Some(Json::Array(all)) => {
                let made = all.into_iter().map(of).collect::<Result<_, _>>();
                made.map_err(|what: String| match what.starts_with("test `") {
                    true => what,
                    false => format!("{}, `{member}`: {what}", self.name),
                })
            }
            Some(other) => self.wrong(member, &other, "a list"),
        }
    }

    /// Takes a table with any members.
    pub fn members(&mut self, member: &str) -> Result<BTreeMap<String, Json>, String> {
        match self.take(member) {
            None => Ok(BTreeMap::new()),
            Some(Json::Object(members)) => Ok(members.into_iter().collect()),
            Some(other) => self.wrong(member, &other, "a table"),
        }
    }

    /// Fails if there are members that nobody took.
    pub fn end(self) -> Result<(), String> {
        match self.members.keys().next() {
            None => Ok(()),
            Some(unknown) => Err(format!("{} has an unknown key `{unknown}`", self.name)),
        }
    }
}
