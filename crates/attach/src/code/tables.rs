//! Whether a function may have a table of jumps, without a look at what its instructions are.
//!
//! Who looks at instructions one after the other takes ten times as long. Here every byte is taken for
//! the beginning of one that names a table, so none is missed that there is, and some are seen that are
//! none.

/// Where a table may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// One of distances from itself, by `lea`.
    Distances(u64),
    /// One of addresses, by a jump.
    Addresses(u64),
    /// Nobody knows: the address has 32 bits.
    Anywhere,
}

/// Bytes of the longest of these instructions behind their prefixes, but for REX.
const SIZE: usize = 7;

/// The places that instructions in `code` may name, the first byte of which is at `start`.
pub(super) fn places(code: &[u8], start: u64) -> impl Iterator<Item = Place> {
    let all = code.windows(SIZE).enumerate();
    all.filter_map(move |(at, window)| {
        let place = match *window {
            // lea r64, [rip + distance]: REX is right before the opcode, or has no effect.
            [0x48..=0x4f, 0x8d, modrm, a, b, c, d] if modrm & 0xc7 == 5 => {
                let end = start.wrapping_add((at + SIZE) as u64);
                let by = i32::from_le_bytes([a, b, c, d]);
                Place::Distances(end.wrapping_add_signed(by.into()))
            }
            // jmp [index * scale + address]
            [0xff, modrm, sib, a, b, c, d] if modrm & 0xc7 == 4 && sib & 7 == 5 => {
                Place::Addresses(i64::from(i32::from_le_bytes([a, b, c, d])) as u64)
            }
            _ => return None,
        };
        let before = code.get(..at).unwrap_or_default().iter().rev();
        let small = before.take_while(|byte| is_prefix(**byte)).any(|byte| *byte == ADDRESS_SIZE);
        Some(if small { Place::Anywhere } else { place })
    })
}

const ADDRESS_SIZE: u8 = 0x67;

/// Tells whether a byte may be a prefix of an instruction.
fn is_prefix(byte: u8) -> bool {
    matches!(
        byte,
        0x26 | 0x2e | 0x36 | 0x3e | 0x40
            ..=0x4f | 0x64 | 0x65 | 0x66 | ADDRESS_SIZE | 0xf0 | 0xf2 | 0xf3
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{bytes, tables};
    use crate::predecode::Instructions;
    use crate::predecode::{WINDOW, tests::each_encoding};
    use iced_x86::DecoderOptions;
    use skep_proc::maps::{self, Perms};

    /// What instructions name, one after the other.
    fn named(code: &[u8], start: u64) -> Vec<Place> {
        let mut all = Instructions::new(code, start, DecoderOptions::NO_INVALID_CHECK);
        let mut out = Vec::new();
        while let Some(found) = all.next() {
            let (distances, addresses) = tables(found, &mut all);
            out.extend(distances.map(Place::Distances));
            out.extend(addresses.map(Place::Addresses));
        }
        out
    }

    fn none_is_missed(code: &[u8], start: u64) -> usize {
        let mut seen: Vec<Place> = places(code, start).collect();
        seen.sort_unstable_by_key(|place| format!("{place:?}"));
        let anywhere = seen.contains(&Place::Anywhere);
        let named = named(code, start);
        for place in &named {
            assert!(anywhere || seen.contains(place), "{place:x?} in {code:02x?}");
        }
        named.len()
    }

    #[test]
    fn no_table_of_any_encoding_is_missed() {
        const HERE: u64 = 0x7f00_1234_5678;
        let mut count = 0;
        each_encoding(|bytes: &[u8; WINDOW]| count += none_is_missed(bytes, HERE));
        for code in [
            &[0x42, 0xff, 0x24, 0xfd, 0xf0, 0xff, 0xff, 0xff][..],
            &[0x3e, 0xff, 0x24, 0xcd, 0x78, 0x56, 0x34, 0x12],
            &[0xff, 0x24, 0x0d, 0x78, 0x56, 0x34, 0x12],
            &[0x67, 0xff, 0x24, 0x0d, 0x78, 0x56, 0x34, 0x82],
            &[0x67, 0x66, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0x80],
            &[0x66, 0x67, 0x2e, 0x4c, 0x8d, 0x3d, 0x10, 0, 0, 0],
            &[0xf2, 0x3e, 0x43, 0xff, 0x24, 0xe5, 0x78, 0x56, 0x34, 0x12],
        ] {
            assert_eq!(none_is_missed(code, HERE), 1, "{code:02x?}");
        }
        assert!(count > 10, "{count}");
    }

    #[test]
    fn no_table_of_this_process_is_missed() {
        let wanted = Perms::EXEC | Perms::READ;
        let code = maps::own().unwrap().into_iter().filter(|v| v.perms.contains(wanted));
        let mut count = 0;
        for range in code.map(|v| v.range()) {
            // In parts, as functions are.
            for start in (range.start..range.end).step_by(1000) {
                // SAFETY: mapped code of this process, which stays: no library is unloaded here.
                let code = unsafe { bytes(&(start..range.end.min(start + 1000))) };
                count += none_is_missed(code, start);
            }
        }
        assert!(count > 1000, "{count}");
    }
}
