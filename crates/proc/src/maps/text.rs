//! The text of `/proc/PID/maps`.
//!
//! `start-end perms offset major:minor inode`, then, only if there is a name, blanks up to a column
//! and the name to the end of the line. The name is verbatim: it may contain and end in blanks and
//! need not be UTF-8, so it is neither split nor trimmed.

use super::{Dev, MapsError, Perms, Vma};

/// Parses the whole text. An unfinished last line is an error, as lines are never torn.
pub fn parse(text: &[u8]) -> Result<Vec<Vma>, MapsError> {
    let mut out = Vec::new();
    for (i, line) in text.split(|&b| b == b'\n').enumerate() {
        if !line.is_empty() {
            out.push(parse_line(line).map_err(|what| MapsError::Malformed { line: i + 1, what })?);
        }
    }
    Ok(out)
}

fn parse_line(line: &[u8]) -> Result<Vma, &'static str> {
    let mut rest = line;
    let mut field = |what| {
        let (head, tail) = match rest.iter().position(|&b| b == b' ') {
            Some(at) => rest.split_at(at),
            None => (rest, &[][..]),
        };
        rest = tail.get(1..).unwrap_or_default();
        if head.is_empty() { Err(what) } else { Ok(head) }
    };
    let range = field("address range")?;
    let perms = field("permissions")?;
    let offset = hex(field("offset")?).ok_or("offset")?;
    let dev = field("device")?;
    let inode = decimal(field("inode")?).ok_or("inode")?;
    let (start, end) = pair(range, b'-').ok_or("address range")?;
    if start >= end {
        return Err("address range");
    }
    let (major, minor) = pair(dev, b':').ok_or("device")?;
    let dev = Dev {
        major: u32::try_from(major).map_err(|_| "device")?,
        minor: u32::try_from(minor).map_err(|_| "device")?,
    };
    let name: Option<Vec<u8>> =
        rest.iter().position(|&b| b != b' ').and_then(|at| rest.get(at..)).map(<[u8]>::to_vec);
    let perms = parse_perms(perms).ok_or("permissions")?;
    let escaped = name.as_ref().is_some_and(|n| n.windows(4).any(|w| w == b"\\012"));
    Ok(Vma { start, end, perms, offset, dev, inode, name, escaped, build_id: None, page_size: 0 })
}

fn parse_perms(text: &[u8]) -> Option<Perms> {
    let &[r, w, x, s] = text else { return None };
    let bit = |have: u8, yes: u8, no: u8, p: Perms| match have {
        b if b == yes => Some(p),
        b if b == no => Some(Perms::NONE),
        _ => None,
    };
    Some(
        bit(r, b'r', b'-', Perms::READ)?
            | bit(w, b'w', b'-', Perms::WRITE)?
            | bit(x, b'x', b'-', Perms::EXEC)?
            | bit(s, b's', b'p', Perms::SHARED)?,
    )
}

fn pair(text: &[u8], by: u8) -> Option<(u64, u64)> {
    let at = text.iter().position(|&b| b == by)?;
    Some((hex(text.get(..at)?)?, hex(text.get(at + 1..)?)?))
}

fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0u64, |n, &b| Some(n << 4 | u64::from(char::from(b).to_digit(16)?)))
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, &b| {
        n.checked_mul(10)?.checked_add(u64::from(char::from(b).to_digit(10)?))
    })
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
            ("x", "permissions"),
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
