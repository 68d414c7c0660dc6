//! What was expected beside what came.

use serde_json::Value as Json;
use skep_text::value::hex;

/// Describes how bytes differ: where first, and both there. `None`: they do not.
#[must_use]
pub fn bytes(what: &str, expected: &[u8], got: Option<&[u8]>) -> Option<String> {
    let Some(got) = got else { return Some(format!("there is no {what}")) };
    if expected == got {
        return None;
    }
    let at = expected.iter().zip(got).take_while(|(e, g)| e == g).count();
    let from = at - at % 16;
    let line = |bytes: &[u8]| {
        let end = bytes.len().min(from + 16);
        bytes.get(from..end).filter(|b| !b.is_empty()).map_or("nothing".to_owned(), hex)
    };
    let sizes = if expected.len() == got.len() {
        String::new()
    } else {
        format!(" ({} bytes expected, {} came)", expected.len(), got.len())
    };
    Some(format!(
        "the {what} differs at byte {at}{sizes}; from byte {from}:\n  expected {}\n  got      {}",
        line(expected),
        line(got)
    ))
}

/// Tells whether a value is as expected. Of a table, only the named members count.
#[must_use]
pub fn fits(expected: &Json, got: &Json) -> bool {
    match (expected, got) {
        (Json::Object(expected), Json::Object(got)) => {
            expected.iter().all(|(name, e)| got.get(name).is_some_and(|g| fits(e, g)))
        }
        (Json::Array(expected), Json::Array(got)) => {
            expected.len() == got.len() && expected.iter().zip(got).all(|(e, g)| fits(e, g))
        }
        // Numbers in hex and beyond 64 bits are text on one side.
        (Json::String(text), Json::Number(n)) | (Json::Number(n), Json::String(text)) => {
            number(text).is_some_and(|of_text| {
                n.as_i64().map(i128::from).or(n.as_u64().map(i128::from)) == Some(of_text)
            })
        }
        (Json::String(a), Json::String(b)) => {
            a == b || number(a).is_some_and(|a| number(b) == Some(a))
        }
        (Json::Number(a), Json::Number(b)) => {
            a == b || a.as_f64() == b.as_f64() && a.is_f64() != b.is_f64()
        }
        (a, b) => a == b,
    }
}

fn number(text: &str) -> Option<i128> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let n = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    n.ok().map(|n| sign * n)
}

/// Describes how a map differs: elements that must be there by their keys, or `absent`; records and
/// elements without keys in order; variables by their names.
#[must_use]
pub fn map(name: &str, expected: &Json, got: &Json) -> Vec<String> {
    let keyed = |e: &Json| e.get("key").is_some();
    match (expected, got) {
        (Json::Array(all), Json::Array(there)) if !all.is_empty() && all.iter().all(keyed) => {
            all.iter().filter_map(|e| element(name, e, there)).collect()
        }
        (Json::Object(all), Json::Object(there)) => all
            .iter()
            .filter_map(|(variable, e)| match there.get(variable) {
                None => Some(format!("`{name}` has no variable `{variable}`")),
                Some(g) if fits(e, g) => None,
                Some(g) => Some(format!("variable `{variable}` is {g}, expected {e}")),
            })
            .collect(),
        (e, g) if fits(e, g) => Vec::new(),
        (e, g) => vec![format!("map `{name}` has {g}, expected {e}")],
    }
}

fn element(name: &str, expected: &Json, there: &[Json]) -> Option<String> {
    let key = expected.get("key")?;
    let found = there.iter().find(|g| g.get("key").is_some_and(|k| fits(key, k)));
    let absent = expected.get("absent").and_then(Json::as_bool) == Some(true);
    if absent && expected.as_object()?.len() > 2 {
        return Some(format!("map `{name}`, element {key}: what is absent has only a `key`"));
    }
    match (found, absent) {
        (None, true) => None,
        (None, false) => Some(format!("map `{name}` has no element {key}")),
        (Some(_), true) => Some(format!("map `{name}` has an element {key}, expected none")),
        (Some(found), false) => {
            let wrong = |(what, e): (&String, &Json)| {
                let got = found.get(what).unwrap_or(&Json::Null);
                let differs = !(fits(e, got) || what == "absent" && e.is_boolean());
                differs
                    .then(|| format!("map `{name}`, element {key}: {what} is {got}, expected {e}"))
            };
            expected.as_object()?.iter().find_map(wrong)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_tables_only_what_is_named_counts() {
        assert!(fits(&json!({"a": 1}), &json!({"a": 1, "b": 2})));
        assert!(!fits(&json!({"a": 1, "c": 0}), &json!({"a": 1, "b": 2})));
        assert!(!fits(&json!([1]), &json!([1, 2])));
        assert!(fits(&json!("0x10"), &json!(16)) && fits(&json!("0xff"), &json!("0xFF")));
        assert!(!fits(&json!("16x"), &json!(16)) && !fits(&json!(1), &json!(true)));
    }

    #[test]
    fn elements_are_found_by_their_keys() {
        let there = json!([{"key": 1, "value": 5}, {"key": 2, "value": {"n": 1, "m": 2}}]);
        let none: Vec<String> = vec![];
        assert_eq!(map("m", &json!([{"key": 2, "value": {"n": 1}}]), &there), none);
        assert_eq!(map("m", &json!([{"key": 3, "absent": true}]), &there), none);
        assert_eq!(
            map(
                "m",
                &json!([{"key": 1, "value": 6}, {"key": 1, "absent": true}, {"key": 9, "value": 0}]),
                &there
            ),
            [
                "map `m`, element 1: value is 5, expected 6",
                "map `m` has an element 1, expected none",
                "map `m` has no element 9"
            ]
        );
        assert_eq!(
            map(
                "m",
                &json!([{"key": 9, "value": 1, "absent": true}, {"key": 1, "absent": 1}, {"key": 1, "absent": false}]),
                &there
            ),
            [
                "map `m`, element 9: what is absent has only a `key`",
                "map `m`, element 1: absent is null, expected 1"
            ]
        );
        assert_eq!(map("m", &json!([]), &there).len(), 1);
        assert_eq!(map("m", &json!([]), &json!([])), none);
    }

    #[test]
    fn bytes_are_shown_where_they_differ() {
        assert_eq!(bytes("packet", &[1; 20], Some(&[1; 20])), None);
        let mut other = [1; 20];
        other[17] = 2;
        let text = bytes("packet", &[1; 20], Some(&other)).unwrap_or_default();
        assert!(text.contains("at byte 17;") && text.contains("got      01020101"), "{text}");
        let text = bytes("packet", &[1; 20], Some(&[1; 16])).unwrap_or_default();
        assert!(text.contains("(20 bytes expected, 16 came)") && text.contains("got      nothing"));
    }
}
