//! Elements out of a JSON document: what `skep map dump --json` prints, or a list of elements alone.

use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Problem;
use super::encoder::Encoder;

/// Reads a document. `true` when the dump that it comes from was interrupted.
pub fn read(bytes: &[u8], encoder: &mut Encoder<'_>) -> Result<bool, Problem> {
    let mut document = Document { encoder, interrupted: false, found: false, problem: None };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let done = reader.deserialize_any(&mut document).and_then(|()| reader.end());
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
        Ok(document.interrupted)
    } else {
        let what = "the document has no `entries`: it is not what `skep map dump --json` prints";
        Err(Problem { at: "line 1".to_owned(), what: what.to_owned() })
    }
}

struct Document<'a, 'e> {
    encoder: &'a mut Encoder<'e>,
    interrupted: bool,
    /// There was a list of elements.
    found: bool,
    problem: Option<Problem>,
}

impl<'de> Visitor<'de> for &mut Document<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what `skep map dump --json` prints")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "raw" => self.encoder.raw |= map.next_value::<bool>()?,
                "interrupted" => self.interrupted = map.next_value()?,
                "entries" => map.next_value_seed(&mut *self)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.found = true;
        while let Some(Element { key, value }) = list.next_element()? {
            let done = match (&key, &value) {
                (Some(key), Some(value)) => self.encoder.push_json(key.get(), value.get()),
                (None, _) => Err("it has no `key`".to_owned()),
                (_, None) => Err("it has no `value`".to_owned()),
            };
            if let Err(what) = done {
                let at = format!("entry {}", self.encoder.out.count + 1);
                self.problem = Some(Problem { at, what });
                return Err(A::Error::custom("an entry cannot be used"));
            }
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
