//! Reading a recording.

use std::collections::HashMap;

use super::parts::{Pass, event, small, summary};
use super::{
    CALL, Done, Event, Hash, MAGIC, NUMBERED, PROCESS, SUMMARY, Summary, Unreadable, VERSION,
    nothing,
};

/// The multiple of the file that texts may take, each counted where it is used.
const TEXT_ROOM: usize = 256;

/// The items of a file.
pub struct Reader<'f> {
    rest: &'f [u8],
    texts: Vec<&'f str>,
    /// Bytes of texts that may still be used.
    room: usize,
    /// Names of processes.
    pub processes: HashMap<u32, String>,
}

/// What comes next in a file.
#[expect(clippy::large_enum_variant, reason = "almost all are calls")]
pub enum Item {
    Call(Event),
    End(Box<Summary>),
}

impl<'f> Reader<'f> {
    /// Checks a file as a whole.
    pub fn new(file: &'f [u8]) -> Done<Self> {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).unwrap_or(0);
        let rest = file.strip_prefix(MAGIC).ok_or(Unreadable::Foreign)?;
        let (version, rest) = rest.split_at_checked(8).ok_or(Unreadable::Damaged)?;
        if word(version) != VERSION {
            return Err(Unreadable::Version(word(version)));
        }
        let end = rest.len().checked_sub(16).ok_or(Unreadable::Damaged)?;
        let (items, end) = rest.split_at(end);
        let (len, sum) = end.split_at(8);
        let mut hash = Hash::default();
        hash.add(items);
        if word(len) != items.len() as u64 || word(sum) != hash.0 {
            return Err(Unreadable::Damaged);
        }
        Ok(Self::of_items(items))
    }

    pub(super) fn of_items(items: &'f [u8]) -> Self {
        let room = items.len().saturating_mul(TEXT_ROOM);
        Self { rest: items, texts: Vec::new(), room, processes: HashMap::new() }
    }

    /// Reads the next call, or the summary, which is the last item.
    pub fn next(&mut self) -> Done<Item> {
        loop {
            match self.varint()? {
                CALL => {
                    let mut call = Event::default();
                    event(self, &mut call)?;
                    return Ok(Item::Call(call));
                }
                PROCESS => {
                    let (mut pid, mut name) = (0, String::new());
                    small(self, &mut pid)?;
                    self.text(&mut name)?;
                    self.processes.insert(pid, name);
                }
                SUMMARY => {
                    let mut told = Box::new(nothing());
                    summary(self, &mut told)?;
                    return if self.rest.is_empty() {
                        Ok(Item::End(told))
                    } else {
                        Err(Unreadable::Damaged)
                    };
                }
                _ => return Err(Unreadable::Damaged),
            }
        }
    }

    fn varint(&mut self) -> Done<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Unreadable::Damaged)?;
            self.rest = rest;
            n |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Unreadable::Damaged)
    }
}

impl Pass for Reader<'_> {
    fn number(&mut self, n: &mut u64) -> Done {
        *n = self.varint()?;
        Ok(())
    }

    fn text(&mut self, text: &mut String) -> Done {
        let found = match self.varint()? {
            0 => {
                let len = usize::try_from(self.varint()?).map_err(|_| Unreadable::Damaged)?;
                let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Unreadable::Damaged)?;
                self.rest = rest;
                let found = std::str::from_utf8(bytes).map_err(|_| Unreadable::Damaged)?;
                if self.texts.len() < NUMBERED {
                    self.texts.push(found);
                }
                found
            }
            number => {
                let at = usize::try_from(number - 1).map_err(|_| Unreadable::Damaged)?;
                self.texts.get(at).copied().ok_or(Unreadable::Damaged)?
            }
        };
        self.room = self.room.checked_sub(found.len()).ok_or(Unreadable::Damaged)?;
        found.clone_into(text);
        Ok(())
    }

    fn most(&self) -> usize {
        self.rest.len()
    }
}
