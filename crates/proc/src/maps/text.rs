//! The text of `/proc/PID/maps`.
//!
//! `start-end perms offset major:minor inode`, then, only if there is a name, blanks up to a column
//! and the name to the end of the line. The name is verbatim: it may contain and end in blanks and
//! need not be UTF-8, so it is neither split nor trimmed.

use super::MapsError;
use super::vma::{Dev, Perms, Vma, has_escape};

/// One line; the name is borrowed from the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) perms: Perms,
    pub(crate) offset: u64,
    pub(crate) dev: Dev,
    pub(crate) inode: u64,
    pub(crate) name: Option<&'a [u8]>,
}

impl Line<'_> {
    pub(crate) fn to_vma(self, named: bool) -> Vma {
        let name = self.name.filter(|_| named);
        Vma {
            start: self.start,
            end: self.end,
            perms: self.perms,
            offset: self.offset,
            dev: self.dev,
            inode: self.inode,
            name: name.map(<[u8]>::to_vec),
            escaped: name.is_some_and(has_escape),
            file: self.inode != 0 || self.dev != Dev::default(),
            build_id: None,
            page_size: 0,
        }
    }
}

/// Parses the whole text.
///
/// # Errors
/// [`MapsError::Malformed`] with the first line that is not as the kernel writes them; an
/// unfinished last line is one, as lines are never torn.
pub fn parse(text: &[u8]) -> Result<Vec<Vma>, MapsError> {
    let mut out = Vec::with_capacity(text.len() / 64);
    lines(text, |line| out.push(line.to_vma(true)))?;
    Ok(out)
}

/// Goes through the text without copying names.
pub(crate) fn lines<'a>(text: &'a [u8], mut each: impl FnMut(Line<'a>)) -> Result<(), MapsError> {
    let (mut rest, mut number) = (text, 0);
    while !rest.is_empty() {
        number += 1;
        let malformed = |what| MapsError::Malformed { line: number, what };
        if let Some(tail) = rest.strip_prefix(b"\n") {
            rest = tail;
            continue;
        }
        let (line, tail) = parse_line(rest).map_err(malformed)?;
        each(line);
        rest = tail;
    }
    Ok(())
}

/// Parses a line; returns what is behind it.
fn parse_line(text: &[u8]) -> Result<(Line<'_>, &[u8]), &'static str> {
    let (start, rest) = hex(text, b'-').ok_or("address range")?;
    let (end, rest) = hex(rest, b' ').ok_or("address range")?;
    if start >= end {
        return Err("address range");
    }
    let (perms, rest) = perms(rest).ok_or("permissions")?;
    let (offset, rest) = hex(rest, b' ').ok_or("offset")?;
    let (major, rest) = hex(rest, b':').ok_or("device")?;
    let last = |rest: &[u8]| rest.split(|b| *b == b'\n').next().is_some_and(is_number);
    let (minor, rest) =
        hex(rest, b' ').ok_or_else(|| if last(rest) { "inode" } else { "device" })?;
    let dev = Dev {
        major: u32::try_from(major).map_err(|_| "device")?,
        minor: u32::try_from(minor).map_err(|_| "device")?,
    };
    let (inode, mut rest) = decimal(rest).ok_or("inode")?;
    while let Some(tail) = rest.strip_prefix(b" ") {
        rest = tail;
    }
    let (name, tail) = match rest.iter().position(|&b| b == b'\n') {
        Some(at) => (rest.get(..at), rest.get(at + 1..)),
        None => (Some(rest), None),
    };
    let name = name.filter(|n| !n.is_empty());
    Ok((Line { start, end, perms, offset, dev, inode, name }, tail.unwrap_or_default()))
}

/// `rwxp ` or the like.
fn perms(text: &[u8]) -> Option<(Perms, &[u8])> {
    let (&[r, w, x, s, b' '], rest) = text.split_first_chunk()? else { return None };
    let bit = |have: u8, yes: u8, no: u8, p: Perms| match have {
        b if b == yes => Some(p),
        b if b == no => Some(Perms::NONE),
        _ => None,
    };
    let perms = bit(r, b'r', b'-', Perms::READ)?
        | bit(w, b'w', b'-', Perms::WRITE)?
        | bit(x, b'x', b'-', Perms::EXEC)?
        | bit(s, b's', b'p', Perms::SHARED)?;
    Some((perms, rest))
}

/// A number of 1 to 16 digits that ends with `end`, and what is behind that.
fn hex(text: &[u8], end: u8) -> Option<(u64, &[u8])> {
    let mut n = 0u64;
    for (i, &byte) in text.iter().take(17).enumerate() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if byte == end && i > 0 => return Some((n, text.get(i + 1..)?)),
            _ => return None,
        };
        if i == 16 {
            return None;
        }
        n = n << 4 | u64::from(digit);
    }
    None
}

/// Tells whether these are hexadecimal digits.
fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_hexdigit)
}

/// A number that ends with a blank, the line or the text, and the rest from there on.
fn decimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut n = 0u64;
    let mut digits = 0;
    for &byte in text {
        match byte {
            b'0'..=b'9' => n = n.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?,
            b' ' | b'\n' => break,
            _ => return None,
        }
        digits += 1;
    }
    (digits > 0).then(|| (n, text.get(digits..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Vma {
        parse(line.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn names_are_verbatim() {
        let pad = "7f0000000000-7f0000001000 r-xs 00001000 103:02 1234                      ";
        for name in [
            "/a b",
            "/ends in blank ",
            "/tab\t",
            "/two  blanks",
            "/x (deleted)",
            "[heap]",
            "/back\\012slash",
        ] {
            let vma = one(&format!("{pad}{name}\n"));
            assert_eq!(vma.name.as_deref(), Some(name.as_bytes()));
            assert_eq!(
                (vma.start, vma.end, vma.offset, vma.inode),
                (0x7f0000000000, 0x7f0000001000, 0x1000, 1234)
            );
            assert_eq!(vma.dev, Dev { major: 0x103, minor: 2 });
            assert_eq!(vma.perms.to_string(), "r-xs");
        }
        let mut raw = pad.as_bytes().to_vec();
        raw.extend(b"/\xff\xfe\n");
        assert_eq!(parse(&raw).unwrap()[0].name.as_deref(), Some(&b"/\xff\xfe"[..]));
    }

    #[test]
    fn anonymous_lines_have_no_name() {
        assert_eq!(one("1000-2000 rw-p 00000000 00:00 0 \n").name, None);
        assert_eq!(one("1000-2000 rw-p 00000000 00:00 0\n").name, None);
        assert_eq!(one("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n").end, 0xffffffffff601000);
    }

    #[test]
    fn malformed_lines_name_their_field() {
        for (line, field) in [
            ("", ""),
            ("x", "address range"),
            ("1000 r--p 0 0:0 0", "address range"),
            ("2000-1000 r--p 0 0:0 0", "address range"),
            ("1000-2000 rr-p 0 0:0 0", "permissions"),
            ("1000-2000 r--p 11112222333344445 0:0 0", "offset"),
            ("1000-2000 r--p 0 00 0", "device"),
            ("1000-2000 r--p 0 111111111:0 0", "device"),
            ("1000-2000 r--p 0 0:0 a", "inode"),
            ("1000-2000 r--p 0 0:0 99999999999999999999", "inode"),
            ("1000-2000 r--p 0 0:0", "inode"),
        ] {
            match parse(line.as_bytes()) {
                Ok(v) => assert!(v.is_empty() && field.is_empty(), "{line}"),
                Err(e) => assert_eq!(e, MapsError::Malformed { line: 1, what: field }, "{line}"),
            }
        }
    }
}
