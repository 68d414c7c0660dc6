//! JSON objects written field by field, for lists of very many: through a serializer each takes several
//! times as many instructions.

use crate::layout::digits;

/// Text that is written in small pieces, into room that stays.
#[derive(Debug, Default)]
pub struct Text {
    room: Vec<u8>,
    len: usize,
}

impl Text {
    /// Adds a piece.
    pub fn put(&mut self, piece: &[u8]) {
        let end = self.len + piece.len();
        if end > self.room.len() {
            self.grow(end);
        }
        if let Some(to) = self.room.get_mut(self.len..end) {
            to.copy_from_slice(piece);
        }
        self.len = end;
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        self.room.resize(end.max(2 * self.room.len()).next_multiple_of(4096), 0);
    }

    /// Returns what was written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// A key of a field, with what stands around it; [`field_key!`](crate::field_key) makes it.
#[derive(Clone, Copy, Debug)]
pub struct Key(&'static str);

impl Key {
    /// Takes a key as it is between two texts: `,"key":"`.
    ///
    /// # Panics
    /// When it is not that, or JSON does not write the key as it is. Keys are made while code is compiled.
    #[must_use]
    pub const fn between_texts(text: &'static str) -> Self {
        let [b',', b'"', key @ .., b'"', b':', b'"'] = text.as_bytes() else {
            panic!("a key has no such form");
        };
        let mut rest = key;
        while let [first, more @ ..] = rest {
            assert!(
                *first >= b' ' && *first != b'"' && *first != b'\\',
                "a key that has to be escaped"
            );
            rest = more;
        }
        Self(text)
    }

    /// As it is before a text, or before something else. `first`: nothing is before it.
    fn before(self, text: bool, first: bool) -> &'static [u8] {
        let end = self.0.len() - usize::from(!text);
        self.0.as_bytes().get(usize::from(first)..end).unwrap_or_default()
    }
}

/// Makes the key of a field.
#[macro_export]
macro_rules! field_key {
    ($name:literal) => {
        const { $crate::fields::Key::between_texts(concat!(",\"", $name, "\":\"")) }
    };
}

/// An object that is being written.
///
/// ```
/// use skep_text::fields::{Fields, Text};
/// use skep_text::field_key;
///
/// let mut out = Text::default();
/// let mut fields = Fields::begin(&mut out);
/// fields.text(field_key!("name"), "a\"b");
/// fields.number(field_key!("calls"), 3);
/// fields.number_or_null(field_key!("total_ns"), None);
/// fields.end();
/// assert_eq!(out.bytes(), br#"{"name":"a\"b","calls":3,"total_ns":null}"#);
/// ```
#[derive(Debug)]
pub struct Fields<'o> {
    out: &'o mut Text,
    start: usize,
}

impl<'o> Fields<'o> {
    /// Begins an object behind what is there.
    pub fn begin(out: &'o mut Text) -> Self {
        out.put(b"{");
        let start = out.len;
        Self { out, start }
    }

    fn key(&mut self, key: Key, text: bool) {
        self.out.put(key.before(text, self.out.len == self.start));
    }

    /// Writes a text.
    pub fn text(&mut self, key: Key, value: &str) {
        let plain = is_plain(value.as_bytes());
        self.key(key, plain);
        if plain {
            self.out.put(value.as_bytes());
            self.out.put(b"\"");
        } else {
            let text = serde_json::to_vec(value).expect("writing to memory does not fail");
            self.out.put(&text);
        }
    }

    /// Writes a number.
    pub fn number(&mut self, key: Key, value: u64) {
        self.key(key, false);
        digits(value, |digits| self.out.put(digits));
    }

    /// Writes a number, or that there is none.
    pub fn number_or_null(&mut self, key: Key, value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.null(key),
        }
    }

    /// Writes yes or no.
    pub fn flag(&mut self, key: Key, value: bool) {
        self.key(key, false);
        self.out.put(if value { b"true" } else { b"false" });
    }

    /// Writes that there is nothing.
    pub fn null(&mut self, key: Key) {
        self.key(key, false);
        self.out.put(b"null");
    }

    /// Ends the object.
    pub fn end(self) {
        self.out.put(b"}");
    }
}

/// Tells whether JSON writes a text as it is: no byte is below a space, a quote or a backslash.
fn is_plain(text: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES << 7;
    let (words, rest) = text.as_chunks::<8>();
    let is_plain_word = |word: u64| {
        // The highest bit of a byte, if a byte is below what is subtracted: exact for the lowest such
        // byte, and so for whether there is one.
        let below = |word: u64, least: u64| word.wrapping_sub(ONES * least) & !word & HIGH;
        let is = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
        below(word, u64::from(b' ')) | is(b'"') | is(b'\\') == 0
    };
    words.iter().all(|word| is_plain_word(u64::from_le_bytes(*word)))
        && rest.iter().all(|b| *b >= b' ' && *b != b'"' && *b != b'\\')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Fields, Text};

    #[test]
    fn objects_are_those_of_the_serializer() {
        let texts = (0..0x180).filter_map(char::from_u32).flat_map(|c| {
            // In each place of a word, and behind the last whole one.
            (0..18).map(move |at| format!("{}{c}{}", "a".repeat(at), "~".repeat(17 - at)))
        });
        let mut out = Text::default();
        for text in texts.chain(["".to_owned(), "\u{1f41d}\u{2028}".to_owned(), "x".repeat(9000)]) {
            out.clear();
            out.put(b"[");
            let mut fields = Fields::begin(&mut out);
            fields.text(field_key!("text"), &text);
            fields.end();
            let value = json!({ "text": text });
            assert_eq!(out.bytes(), format!("[{value}").as_bytes());
        }
        let mut out = Text::default();
        Fields::begin(&mut out).end();
        assert_eq!(out.bytes(), b"{}");
        out.clear();
        let mut fields = Fields::begin(&mut out);
        fields.flag(field_key!("yes"), true);
        fields.flag(field_key!("no"), false);
        fields.null(field_key!("nothing"));
        for n in [0, 10, u64::MAX] {
            fields.number(field_key!("n"), n);
            fields.number_or_null(field_key!("n perhaps"), Some(n).filter(|n| *n > 0));
        }
        fields.end();
        let text = std::str::from_utf8(out.bytes()).expect("JSON is");
        let expected = r#"{"yes":true,"no":false,"nothing":null,"n":0,"n perhaps":null,"n":10,"n perhaps":10,"n":18446744073709551615,"n perhaps":18446744073709551615}"#;
        assert_eq!(text, expected);
        assert!(serde_json::from_str::<Value>(text).is_ok());
    }
}
