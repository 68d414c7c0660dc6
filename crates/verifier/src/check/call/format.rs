//! Format strings of helpers that print.

use super::{Call, wrong};
use crate::check::Walk;
use crate::reg::{Kind, Reg};
use crate::reject::Reason;
use skep_isa::MapFlags;
use skep_isa::helper::{Helper, id};

impl Walk<'_> {
    /// Checks a string in a read-only map.
    pub(super) fn string(
        &mut self,
        h: &Helper,
        reg: u8,
        r: &Reg,
        call: &mut Call,
    ) -> Result<(), Reason> {
        let Kind::Value(map) = r.kind else { return Err(wrong(reg, r, "map_value")) };
        let frozen = self
            .spec(map)
            .is_some_and(|m| m.frozen && m.flags.has(MapFlags::RDONLY_PROG) && m.data.is_some());
        if !frozen || r.nullable {
            return Err(Reason::NotReadOnlyMap { reg });
        }
        if r.val.as_const().is_none() {
            return Err(Reason::NotConstAddress { reg });
        }
        let text = self.constant_bytes(r, map, 0).ok_or(Reason::NotTerminated)?;
        if !text.contains(&0) {
            return Err(Reason::NotTerminated);
        }
        if h.id == id::SNPRINTF {
            call.format = Some((*r, map));
        }
        Ok(())
    }

    /// Counts the argument words of a format, refusing what `bpf_bprintf_prepare` refuses.
    pub(super) fn format_words(&self, r: &Reg, map: u32) -> Result<u32, Reason> {
        let text = self
            .constant_bytes(r, map, 0)
            .and_then(|t| t.split(|b| *b == 0).next())
            .unwrap_or_default();
        count_conversions(text)
    }
}

/// Counts conversions of a kernel format string (kernel/bpf/helpers.c `bpf_bprintf_prepare`).
fn count_conversions(text: &[u8]) -> Result<u32, Reason> {
    let bad = |what| Err(Reason::BadFormat { what });
    let space = |c: u8| matches!(c, b' ' | 9..=13);
    let ends = |c: Option<&u8>| c.is_none_or(|c| space(*c) || c.is_ascii_punctuation());
    if !text.iter().all(|c| c.is_ascii_graphic() || space(*c)) {
        return bad("a character that cannot be printed");
    }
    let mut words = 0;
    let mut rest = text;
    while let Some(at) = rest.iter().position(|c| *c == b'%') {
        rest = &rest[at + 1..];
        if let [b'%', after @ ..] = rest {
            rest = after;
            continue;
        }
        rest = &rest[rest.iter().take_while(|c| matches!(c, b'0' | b'+' | b'-' | b' ')).count()..];
        rest = &rest[rest.iter().take_while(|c| c.is_ascii_digit()).count()..];
        rest = match rest {
            [b'p', after @ ..] if ends(after.first()) => after,
            [b'p', b'k' | b'u', b's', after @ ..] if ends(after.first()) => after,
            [b'p', b'K' | b'x' | b's' | b'S' | b'B', after @ ..] => after,
            [b'p', b'i' | b'I', b'4' | b'6', after @ ..] => after,
            [b's', after @ ..] if ends(after.first()) => after,
            [b'c', after @ ..] => after,
            [b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..]
            | [b'l', b'l', b'i' | b'd' | b'u' | b'x' | b'X', after @ ..] => after,
            _ => return bad("unknown conversion"),
        };
        words += 1;
        if words > 12 {
            return bad("more than 12 conversions");
        }
    }
    Ok(words)
}
