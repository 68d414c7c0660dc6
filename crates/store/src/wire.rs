//! The byte encoding of program and link files: little-endian numbers and length-prefixed bytes.
//!
//! Both sides are skep, but the reader may be another version or look at a damaged file: every read
//! is checked.

/// Reports that encoded bytes end early or hold an impossible value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged at byte {at}: {what}")]
pub struct WireError {
    /// Where in the encoded bytes.
    pub at: usize,
    /// What was expected there.
    pub what: &'static str,
}

/// Appends values to a buffer.
#[derive(Debug, Default)]
pub struct Writer {
    buf: Vec<u8>,
}

impl Writer {
    /// Appends to bytes that are there already.
    #[must_use]
    pub fn after(buf: Vec<u8>) -> Self {
        Self { buf }
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, v: &[u8]) -> &mut Self {
        self.buf.extend_from_slice(v);
        self
    }

    /// Appends a number.
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Appends a number.
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    /// Appends a length and bytes.
    ///
    /// # Panics
    /// When `v` is 4 GiB or longer, which no caller's data can be.
    pub fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.u32(u32::try_from(v.len()).expect("encoded items are far below 4 GiB"));
        self.buf.extend_from_slice(v);
        self
    }

    /// Appends a string.
    pub fn str(&mut self, v: &str) -> &mut Self {
        self.bytes(v.as_bytes())
    }

    /// Returns what was written.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.buf
    }
}

/// Takes values from encoded bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    buf: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(buf: &'a [u8]) -> Self {
        Self { buf, at: 0 }
    }

    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let err = WireError { at: self.at, what };
        let end = self.at.checked_add(n).ok_or(err)?;
        let v = self.buf.get(self.at..end).ok_or(err)?;
        self.at = end;
        Ok(v)
    }

    /// Takes a number.
    ///
    /// # Errors
    /// When the bytes end before it does.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        let v = self.take(4, what)?;
        Ok(u32::from_le_bytes(v.try_into().map_err(|_| WireError { at: self.at, what })?))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// When the bytes end before it does.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        let v = self.take(8, what)?;
        Ok(u64::from_le_bytes(v.try_into().map_err(|_| WireError { at: self.at, what })?))
    }

    /// Takes length-prefixed bytes.
    ///
    /// # Errors
    /// When the bytes end before they do.
    pub fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], WireError> {
        let n = self.u32(what)? as usize;
        self.take(n, what)
    }

    /// Takes a string.
    ///
    /// # Errors
    /// When the bytes end before it does, or it is not UTF-8.
    pub fn str(&mut self, what: &'static str) -> Result<&'a str, WireError> {
        let at = self.at;
        std::str::from_utf8(self.bytes(what)?).map_err(|_| WireError { at, what })
    }

    /// Takes a count of items that take at least `each` bytes: bounded by what is left.
    ///
    /// # Errors
    /// When so many items cannot follow.
    pub fn count(&mut self, each: usize, what: &'static str) -> Result<usize, WireError> {
        let at = self.at;
        let n = self.u32(what)? as usize;
        if n > (self.buf.len() - self.at) / each.max(1) {
            Err(WireError { at, what })
        } else {
            Ok(n)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_short_bytes_are_refused() -> Result<(), WireError> {
        let mut w = Writer::default();
        w.u32(7).str("fentry.multi").u64(u64::MAX);
        let bytes = w.finish();
        let mut r = Reader::new(&bytes);
        assert_eq!((r.u32("a")?, r.str("b")?, r.u64("c")?), (7, "fentry.multi", u64::MAX));
        for n in 0..bytes.len() {
            let mut r = Reader::new(&bytes[..n]);
            assert!(
                r.u32("a").and_then(|_| r.str("b").map(drop)).and_then(|()| r.u64("c")).is_err(),
                "{n} bytes"
            );
        }
        Ok(())
    }

    #[test]
    fn a_count_larger_than_the_bytes_left_is_refused() {
        let mut w = Writer::default();
        w.u32(u32::MAX).u64(0);
        assert!(Reader::new(&w.finish()).count(4, "items").is_err());
        for (n, fits) in [(2, true), (3, false)] {
            let mut w = Writer::default();
            w.u32(n).u64(0);
            assert_eq!(Reader::new(&w.finish()).count(4, "items").is_ok(), fits, "{n} in 8 bytes");
        }
    }
}
