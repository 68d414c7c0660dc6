//! Keys as text and JSON; those that are byte strings have forms of their own, which can be typed
//! and loaded again.
//!
//! | printed | JSON | the key is |
//! |---|---|---|
//! | `"etc/passwd"` | `"etc/passwd"` | printable UTF-8 |
//! | `hex 00ff` | `{"hex":"00ff"}` | anything else |

use std::fmt;

use serde_json::{Value as Json, json};
use skep_object::btf::Value;

use crate::value::{hex, to_json};

/// A key, decoded.
#[derive(Clone, PartialEq, Debug)]
pub enum Key {
    /// One of a fixed size, by its type; any key where bytes are wanted.
    Typed(Value),
    /// A byte string.
    Bytes(Vec<u8>),
    /// There is none: elements of queues and stacks.
    None,
}

impl Key {
    /// Makes it JSON.
    pub fn json(&self) -> Json {
        match self {
            Self::Typed(value) => to_json(value),
            Self::Bytes(bytes) => match printable(bytes) {
                Some(text) => text.into(),
                None => json!({"hex": hex(bytes)}),
            },
            Self::None => Json::Null,
        }
    }

    /// Makes it a field of comma-separated values: a text without quotes, unless it would be read as
    /// something else then.
    pub fn field(bytes: &[u8]) -> String {
        match printable(bytes) {
            Some(text) if read(text).is_ok_and(|read| read == bytes) => text.to_owned(),
            _ => Self::Bytes(bytes.to_vec()).to_string(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Typed(value) => value.fmt(f),
            // As JSON quotes it.
            Self::Bytes(bytes) => match printable(bytes) {
                Some(text) => Json::from(text).fmt(f),
                None => write!(f, "hex {}", hex(bytes)),
            },
            Self::None => Ok(()),
        }
    }
}

/// Returns the text that bytes are, if all of it can be printed.
pub fn printable(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

/// Reads a byte string: a text, with quotes as in JSON or without; bytes after `hex`; or, as in
/// bpftool, a length and as many bytes, `[hex] LENGTH BYTE…`.
///
/// Fails with what is wrong with it.
pub fn read(text: &str) -> Result<Vec<u8>, String> {
    if text.starts_with('"') {
        return match serde_json::from_str::<String>(text) {
            Ok(text) => Ok(text.into_bytes()),
            Err(e) => Err(format!("the quotes are not as in JSON: {e}")),
        };
    }
    if let Some(rest) = text.strip_prefix("hex ") {
        return match counted(rest, 16) {
            Some(bytes) => bytes,
            None => read_hex(rest),
        };
    }
    counted(text, 10).unwrap_or_else(|| Ok(text.as_bytes().to_vec()))
}

/// Reads bytes in hex, with or without `0x` and spaces.
pub fn read_hex(text: &str) -> Result<Vec<u8>, String> {
    let mut digits = Vec::with_capacity(text.len());
    for word in text.split_ascii_whitespace() {
        let word = word.strip_prefix("0x").unwrap_or(word);
        if let Some(other) = word.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(format!("`{other}` is not a hexadecimal digit"));
        }
        digits.extend(word.bytes());
    }
    let digit = |c: u8| (c as char).to_digit(16).unwrap_or(0) as u8;
    if digits.len() % 2 != 0 {
        return Err(format!("it has {} hexadecimal digits, but a byte takes two", digits.len()));
    }
    Ok(digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect())
}

/// Reads `LENGTH BYTE…`; `None` where it is none: another text of words may begin with a number.
fn counted(text: &str, radix: u32) -> Option<Result<Vec<u8>, String>> {
    let (length, rest) = text.split_once(' ')?;
    if length.starts_with('0') || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let words: Vec<&str> = rest.split(' ').collect();
    if length.parse() != Ok(words.len()) {
        return None;
    }
    let byte = |word: &&str| {
        let (digits, radix) = word.strip_prefix("0x").map_or((*word, radix), |hex| (hex, 16));
        u8::from_str_radix(digits, radix).ok()
    };
    words.iter().map(byte).collect::<Option<Vec<u8>>>().map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_strings_are_typed_as_text_as_hex_and_as_bpftool_has_them() {
        for (text, want) in [
            ("etc/passwd", &b"etc/passwd"[..]),
            ("two words", b"two words"),
            (r#""etc\n\"x\"""#, b"etc\n\"x\""),
            ("hex 00ff", &[0, 255]),
            ("hex 00 ff", &[0, 255]),
            ("hex 0x00 0xff", &[0, 255]),
            ("hex 3 61 62 63", b"abc"),
            ("3 97 98 99", b"abc"),
            ("3 0x61 0x62 0x63", b"abc"),
            ("3 blind mice", b"3 blind mice"),
            ("2 many words here", b"2 many words here"),
            ("2 300 1", b"2 300 1"),
            ("hexes", b"hexes"),
            ("", b""),
        ] {
            assert_eq!(read(text).as_deref(), Ok(want), "{text}");
        }
        assert_eq!(
            read("hex 00f"),
            Err("it has 3 hexadecimal digits, but a byte takes two".into())
        );
        assert_eq!(read("hex 0g"), Err("`g` is not a hexadecimal digit".into()));
        assert!(read("\"open").is_err_and(|e| e.contains("the quotes are not as in JSON")));
    }

    #[test]
    fn what_is_printed_leads_back_to_the_bytes() {
        let keys: [&[u8]; 12] = [
            b"plain",
            b"hex 61",
            b"\"quoted\"",
            b"1 7",
            b"a\0",
            b"\xff\x00",
            b"a,b\n",
            " höher 語".as_bytes(),
            b"0x61",
            b"{\"hex\":\"00\"}",
            b"\\",
            b"hex ",
        ];
        for key in keys {
            let shown = Key::Bytes(key.to_vec());
            assert_eq!(read(&shown.to_string()).as_deref(), Ok(key), "{shown}");
            assert_eq!(read(&Key::field(key)).as_deref(), Ok(key), "{}", Key::field(key));
        }
        let json = |key: &[u8]| Key::Bytes(key.to_vec()).json();
        assert_eq!(json(b"a b"), json!("a b"));
        assert_eq!(json(b"a\0"), json!({"hex": "6100"}));
        assert_eq!(json(b"\xc3("), json!({"hex": "c328"}));
    }
}
