//! JSON objects written field by field, for lists of very many: through a serializer each takes three
//! times as many instructions.

use crate::layout::decimal;

/// An object that is being written.
///
/// ```
/// use skep_text::fields::Fields;
///
/// let mut out = Vec::new();
/// let mut fields = Fields::begin(&mut out);
/// fields.text("name", "a\"b");
/// fields.number("calls", 3);
/// fields.number_or_null("total_ns", None);
/// fields.end();
/// assert_eq!(out, br#"{"name":"a\"b","calls":3,"total_ns":null}"#);
/// ```
#[derive(Debug)]
pub struct Fields<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> Fields<'o> {
    /// Begins an object behind what is there.
    pub fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        let start = out.len();
        Self { out, start }
    }

    /// Writes a key, which must be such that JSON writes it as it is.
    fn key(&mut self, key: &str) {
        debug_assert!(is_plain(key), "a key that has to be escaped: {key}");
        if self.out.len() > self.start {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Writes a text.
    pub fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        if is_plain(value) {
            self.out.push(b'"');
            self.out.extend_from_slice(value.as_bytes());
            self.out.push(b'"');
        } else {
            serde_json::to_writer(&mut *self.out, value).expect("writing to memory does not fail");
        }
    }

    /// Writes a number.
    pub fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        decimal(self.out, value);
    }

    /// Writes a number, or that there is none.
    pub fn number_or_null(&mut self, key: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.null(key),
        }
    }

    /// Writes yes or no.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    /// Writes that there is nothing.
    pub fn null(&mut self, key: &str) {
        self.key(key);
        self.out.extend_from_slice(b"null");
    }

    /// Ends the object.
    pub fn end(self) {
        self.out.push(b'}');
    }
}

/// Tells whether JSON writes a text as it is.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Fields;

    #[test]
    fn objects_are_those_of_the_serializer() {
        let texts = (0..0x180).filter_map(char::from_u32).map(|c| format!("a{c}b"));
        for text in texts.chain(["".to_owned(), "\u{1f41d}\u{2028}".to_owned()]) {
            let mut out = b"[".to_vec();
            let mut fields = Fields::begin(&mut out);
            fields.text("text", &text);
            fields.end();
            let value = json!({ "text": text });
            assert_eq!(out, format!("[{value}").as_bytes());
        }
        let mut out = Vec::new();
        Fields::begin(&mut out).end();
        assert_eq!(out, b"{}");
        out.clear();
        let mut fields = Fields::begin(&mut out);
        fields.flag("yes", true);
        fields.flag("no", false);
        fields.null("nothing");
        for (key, n) in [("zero", 0), ("ten", 10), ("most", u64::MAX)] {
            fields.number(key, n);
            fields.number_or_null(&format!("{key} perhaps"), Some(n).filter(|n| *n > 0));
        }
        fields.end();
        let text = std::str::from_utf8(&out).expect("JSON is");
        let expected = r#"{"yes":true,"no":false,"nothing":null,"zero":0,"zero perhaps":null,"ten":10,"ten perhaps":10,"most":18446744073709551615,"most perhaps":18446744073709551615}"#;
        assert_eq!(text, expected);
        assert!(serde_json::from_str::<Value>(text).is_ok());
    }
}
