//! Elements out of comma-separated values (RFC 4180), as `skep map dump --csv` prints them.

use std::borrow::Cow;

use serde_json::{Map as Object, Value as Json};
use skep_isa::KeyShape;

use super::Problem;
use super::direct::Direct;
use super::encoder::Encoder;
use crate::csv::Columns;
use crate::input::Role;

/// Reads the lines behind the names of the columns.
pub fn read(text: &str, columns: &Columns, encoder: &mut Encoder<'_>) -> Result<(), Problem> {
    let mut records = Records { rest: text, line: 1 };
    let mut fields = Vec::new();
    let problem = |line: usize, what: String| Problem { at: format!("line {line}"), what };
    records.next(&mut fields).map_err(|what| problem(1, what))?;
    let (direct_key, direct_value) = (
        Fields::of(encoder, Role::Key, &columns.key),
        Fields::of(encoder, Role::Value, &columns.value),
    );
    // The values of one key so far, for per-CPU maps, and the line of its first one.
    let mut open: Option<(Vec<u8>, Vec<Vec<u8>>, usize)> = None;
    loop {
        let line = records.line;
        let wrong = |what| problem(line, what);
        if !records.next(&mut fields).map_err(wrong)? {
            break;
        }
        if fields.len() != columns.count() {
            return Err(problem(
                line,
                format!(
                    "it has {} fields, but there are {} columns",
                    fields.len(),
                    columns.count()
                ),
            ));
        }
        let (keys, rest) = fields.split_at(columns.key.len());
        let (cpu, values) = rest.split_at(rest.len() - columns.value.len());
        let key = match direct_key.as_ref().and_then(|direct| direct.bytes(keys)) {
            Some(key) => key,
            None => part(encoder, Role::Key, keys, &columns.key).map_err(wrong)?,
        };
        let value = match direct_value.as_ref().and_then(|direct| direct.bytes(values)) {
            Some(value) => value,
            None => part(encoder, Role::Value, values, &columns.value).map_err(wrong)?,
        };
        let Some(cpu) = cpu.first() else {
            encoder.push(&key, &value);
            continue;
        };
        let cpu: usize = cpu
            .parse()
            .map_err(|_| problem(line, format!("`{cpu}` is not the number of a CPU")))?;
        match &mut open {
            Some((open, each, _)) if *open == key && cpu == each.len() => each.push(value),
            _ if cpu == 0 => {
                close(encoder, open.take())?;
                open = Some((key, vec![value], line));
            }
            _ => return Err(problem(line, format!("CPU {cpu} does not follow the one before"))),
        }
    }
    close(encoder, open)
}

/// The fields of structures, most of which are made directly.
struct Fields {
    size: usize,
    /// Offset, size and type of each.
    all: Vec<((usize, usize), Direct)>,
}

impl Fields {
    /// Looks at the columns of a structure.
    fn of(encoder: &Encoder<'_>, role: Role, paths: &[Vec<String>]) -> Option<Self> {
        let shape = encoder.shape();
        let size = if role == Role::Key { shape.keys.max_len() } else { shape.value_size };
        let direct = encoder.direct(role)?;
        let member = |path: &Vec<String>| {
            let (at, direct) = direct.member(path.get(1..)?)?;
            Some((at, direct.clone()))
        };
        Some(Self { size, all: paths.iter().map(member).collect::<Option<_>>()? })
    }

    fn bytes(&self, fields: &[Cow<'_, str>]) -> Option<Vec<u8>> {
        let mut out = vec![0; self.size];
        for (field, ((at, size), direct)) in fields.iter().zip(&self.all) {
            let out = out.get_mut(*at..*at + *size)?;
            direct.fill_field(field, out).then_some(())?;
        }
        Some(out)
    }
}

fn close(
    encoder: &mut Encoder<'_>,
    open: Option<(Vec<u8>, Vec<Vec<u8>>, usize)>,
) -> Result<(), Problem> {
    let Some((key, each, line)) = open else { return Ok(()) };
    let value = encoder.values(each);
    let value = value.map_err(|what| Problem { at: format!("line {line}"), what })?;
    encoder.push(&key, &value);
    Ok(())
}

/// Makes a key or a value from its fields.
fn part(
    encoder: &Encoder<'_>,
    role: Role,
    fields: &[Cow<'_, str>],
    paths: &[Vec<String>],
) -> Result<Vec<u8>, String> {
    let (shape, single) = (encoder.shape(), matches!(paths, [path] if path.len() == 1));
    let type_id = if role == Role::Key { shape.key_type_id } else { shape.value_type_id };
    let is_text = role == Role::Key && matches!(shape.keys, KeyShape::Bytes { .. });
    let typed = encoder.btf().is_some() && type_id != 0 && !encoder.raw && !is_text;
    match fields {
        [] => Ok(Vec::new()),
        [field] if !typed => {
            if encoder.looks_raw(role, field) {
                return Err(super::looks_raw(field));
            }
            encoder.text(role, field)
        }
        [field] if single => {
            if encoder.looks_raw(role, field) {
                return Err(super::looks_raw(field));
            }
            json(encoder, role, &Json::from(field.as_ref()))
        }
        fields => {
            let mut object = Object::new();
            for (field, path) in fields.iter().zip(paths) {
                put(&mut object, path.get(1..).unwrap_or_default(), field);
            }
            json(encoder, role, &Json::Object(object))
        }
    }
}

fn json(encoder: &Encoder<'_>, role: Role, json: &Json) -> Result<Vec<u8>, String> {
    if role == Role::Key { encoder.key_of(json) } else { encoder.value_of(json) }
}

/// Puts a field into the structure that its column's name tells.
fn put(object: &mut Object<String, Json>, path: &[String], field: &str) {
    match path {
        [] => {}
        [name] => drop(object.insert(name.clone(), field.into())),
        [name, rest @ ..] => {
            let inner = object.entry(name.as_str()).or_insert_with(|| Object::new().into());
            if let Json::Object(inner) = inner {
                put(inner, rest, field);
            }
        }
    }
}

/// Returns the fields of the first line.
pub fn first(text: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let mut fields = Vec::new();
    Records { rest: text, line: 1 }.next(&mut fields)?;
    Ok(fields)
}

/// Lines, and their fields.
struct Records<'a> {
    rest: &'a str,
    /// The line that comes next.
    line: usize,
}

impl<'a> Records<'a> {
    /// Reads the next line; `false` at the end.
    fn next(&mut self, fields: &mut Vec<Cow<'a, str>>) -> Result<bool, String> {
        fields.clear();
        if self.rest.is_empty() {
            return Ok(false);
        }
        loop {
            let field = self.field()?;
            fields.push(field);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest;
                continue;
            }
            let rest = self.rest.strip_prefix('\r').unwrap_or(self.rest);
            self.rest = match rest.strip_prefix('\n') {
                Some(rest) => rest,
                None if rest.is_empty() => rest,
                None => return Err("there is something behind a closing quote".to_owned()),
            };
            self.line += 1;
            return Ok(true);
        }
    }

    fn field(&mut self) -> Result<Cow<'a, str>, String> {
        let Some(quoted) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', '\r', '\n']).unwrap_or(self.rest.len());
            let (field, rest) = self.rest.split_at(end);
            self.rest = rest;
            return Ok(field.into());
        };
        let (mut field, mut at) = (String::new(), quoted);
        loop {
            let (text, rest) = at.split_once('"').ok_or("a quote is not closed")?;
            field.push_str(text);
            self.line += text.matches('\n').count();
            match rest.strip_prefix('"') {
                Some(rest) => {
                    field.push('"');
                    at = rest;
                }
                None => {
                    self.rest = rest;
                    return Ok(field.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_line_ends_and_counts_are_as_in_rfc_4180() {
        let mut records = Records { rest: "a,\"b \"\"c\"\",\nd\",\r\n,x\n\"y\"", line: 1 };
        let (mut all, mut fields) = (Vec::new(), Vec::new());
        while records.next(&mut fields) == Ok(true) {
            all.push((records.line, fields.clone()));
        }
        assert_eq!(
            all,
            [
                (3, vec!["a".into(), "b \"c\",\nd".into(), "".into()]),
                (4, vec!["".into(), "x".into()]),
                (5, vec!["y".into()]),
            ]
        );
        for (text, why) in [
            ("\"open", "a quote is not closed"),
            ("\"a\"b", "there is something behind a closing quote"),
        ] {
            assert_eq!(Records { rest: text, line: 1 }.next(&mut fields), Err(why.to_owned()));
        }
    }
}
