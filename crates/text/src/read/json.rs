//! Elements out of JSON: what `skep map dump --json` prints, a list of elements alone, or one element
//! after the other (JSON Lines).

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Problem;
use super::encoder::Encoder;
use crate::elements::Elements;

/// Reads a document, or as many as there are elements. `true` when the dump that they come from was
/// interrupted.
pub fn read(bytes: &[u8], encoder: &mut Encoder<'_>) -> Result<bool, Problem> {
    let was_raw = encoder.raw;
    let done = read_in_order(bytes, encoder);
    // Members have no order: `raw` may stand behind the elements, which are read again then.
    match done {
        Ok((interrupted, false)) => Ok(interrupted),
        Err(problem) if was_raw || !is_raw(bytes) => Err(problem),
        _ => {
            encoder.raw = true;
            encoder.out = Elements::new(encoder.shape().keys);
            read_in_order(bytes, encoder).map(|(interrupted, _)| interrupted)
        }
    }
}

/// Tells whether a document says that it is raw, whatever else it has.
fn is_raw(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Head {
        raw: bool,
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    Head::deserialize(&mut reader).is_ok_and(|head| head.raw)
}

/// As [`read`], with elements as they come; tells also whether the document said only behind some that
/// they are raw.
fn read_in_order(bytes: &[u8], encoder: &mut Encoder<'_>) -> Result<(bool, bool), Problem> {
    let mut document = Document {
        encoder,
        interrupted: false,
        raw_late: false,
        found: false,
        is_element: false,
        begun: false,
        problem: None,
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let mut done = reader.deserialize_any(&mut document);
    while done.is_ok() && document.is_element {
        let before = document.encoder.out.count;
        (document.is_element, document.found, document.begun) = (false, false, false);
        // Whether this is the end is asked only here: each error counts all lines before it.
        done = reader.deserialize_any(&mut document);
        if !document.begun && done.as_ref().is_err_and(|e| is_end(e, bytes)) {
            (done, document.found) = (Ok(()), true);
            break;
        }
        if done.is_ok() && !document.is_element {
            let what = if document.found {
                "after an element comes a list of them"
            } else {
                "after an element comes what is none: it has no `key`"
            };
            return Err(Problem { at: format!("entry {}", before + 1), what: what.to_owned() });
        }
    }
    done = done.and_then(|()| reader.end());
    if let Some(problem) = document.problem {
        return Err(problem);
    }
    done.map_err(|e| {
        // Where it stands is said first.
        let text = e.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        let what = if e.is_eof() {
            format!("the document ends too early: {what}")
        } else {
            what.to_owned()
        };
        Problem { at: format!("line {}, column {}", e.line(), e.column()), what }
    })?;
    if document.found {
        Ok((document.interrupted, document.raw_late))
    } else {
        let what = "the document has no `entries`: it is not what `skep map dump --json` prints, and no element with a `key` and a `value`";
        Err(Problem { at: "line 1".to_owned(), what: what.to_owned() })
    }
}

/// Tells whether there was nothing behind the last element.
fn is_end(e: &serde_json::Error, bytes: &[u8]) -> bool {
    e.is_eof()
        && bytes.trim_ascii_end().ends_with(b"}")
        && e.to_string().starts_with("EOF while parsing a value")
}

struct Document<'a, 'e> {
    encoder: &'a mut Encoder<'e>,
    interrupted: bool,
    /// That elements are raw was said behind some.
    raw_late: bool,
    /// There was a list of elements, or an element.
    found: bool,
    /// The document was an element.
    is_element: bool,
    /// There was something of the document.
    begun: bool,
    problem: Option<Problem>,
}

impl Document<'_, '_> {
    /// Adds an element.
    fn push<E: Error>(
        &mut self,
        key: Option<&RawValue>,
        value: Option<&RawValue>,
    ) -> Result<(), E> {
        let done = match (key, value) {
            (Some(key), Some(value)) => self.encoder.push_json(key.get(), value.get()),
            (None, _) => Err("it has no `key`".to_owned()),
            (_, None) => Err("it has no `value`".to_owned()),
        };
        done.map_err(|what| {
            let at = format!("entry {}", self.encoder.out.count + 1);
            self.problem = Some(Problem { at, what });
            E::custom("an entry cannot be used")
        })
    }
}

impl<'de> Visitor<'de> for &mut Document<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what `skep map dump --json` prints")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut key, mut value) = (None, None);
        self.begun = true;
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "key" if key.is_some() => return Err(A::Error::duplicate_field("key")),
                "value" if value.is_some() => return Err(A::Error::duplicate_field("value")),
                "key" => key = Some(map.next_value::<&RawValue>()?),
                "value" => value = Some(map.next_value::<&RawValue>()?),
                "raw" => {
                    let is_new = map.next_value::<bool>()? && !self.encoder.raw;
                    self.raw_late |= is_new && self.found;
                    self.encoder.raw |= is_new;
                }
                "interrupted" => self.interrupted = map.next_value()?,
                "entries" => map.next_value_seed(&mut *self)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if key.is_none() && value.is_none() {
            return Ok(());
        }
        (self.found, self.is_element) = (true, true);
        self.push(key, value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        (self.found, self.begun) = (true, true);
        while let Some(Element { key, value }) = list.next_element()? {
            self.push(key, value)?;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Document<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, list: D) -> Result<(), D::Error> {
        list.deserialize_seq(self)
    }
}

/// One element. A key of `null` is one, of a map without keys.
#[derive(Deserialize)]
struct Element<'a> {
    #[serde(borrow, default, deserialize_with = "there")]
    key: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "there")]
    value: Option<&'a RawValue>,
}

fn there<'de, D: Deserializer<'de>>(json: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}
