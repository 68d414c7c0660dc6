//! Places inside functions: any instruction, if five bytes around it can be moved.
//!
//! Best are the bytes from the instruction on. If code jumps between them, or they end before there
//! are five, those before it are taken along: the hooks then run between moved instructions, and
//! nothing may jump to the place itself, as it would pass them by.
//!
//! Who jumps where is known of direct branches, tables of jumps and addresses in the module's data.
//! The unwinder's landing pads need no look: compilers let nothing run into one, so what comes before
//! a pad ends in a jump or a call, which no five bytes reach over.

use super::PatchSite;
use crate::code::{Code, Originals, original_bytes};
use crate::flow::{Flow, flow};
use crate::jump::PATCH;
use crate::sites::{Function, Kind};
use crate::skip::Skip;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};
use std::borrow::Cow;
use std::ops::Range;

/// How many bytes before a place are taken along at most.
const BEFORE: u64 = 12;

/// What is known for places inside functions of one module, which are many of one function often.
pub(crate) struct Places<'a> {
    labels: Labels,
    /// The function that was looked at last.
    body: Option<Body<'a>>,
}

impl<'a> Places<'a> {
    /// Knows nothing yet of those among some targets.
    pub(crate) fn of<'t>(targets: impl Iterator<Item = &'t Function>) -> Self {
        let (mut start, mut end) = (u64::MAX, 0);
        for within in targets.filter_map(|f| f.within.as_ref()) {
            (start, end) = (start.min(within.range.start), end.max(within.range.end));
        }
        Self { labels: Labels { range: start..end, found: None }, body: None }
    }
}

/// The addresses inside functions that the module's data keeps.
struct Labels {
    /// From the first of the functions that places are in to the last.
    range: Range<u64>,
    /// Known once somebody has asked: to find them is to read all data.
    found: Option<Vec<u64>>,
}

impl Labels {
    /// Tells whether one of them is in a part of these functions.
    fn lead_into(&mut self, code: &Code, part: &Range<u64>) -> bool {
        let found = self.found.get_or_insert_with(|| code.labels(&self.range));
        let first = found.partition_point(|label| *label < part.start);
        found.get(first).is_some_and(|label| *label < part.end)
    }
}

/// A function's instructions as the linker left them.
struct Body<'a> {
    range: Range<u64>,
    bytes: Cow<'a, [u8]>,
    all: Vec<Instruction>,
}

/// Finds the bytes to change for hooks at a place in the function in `range`.
pub(super) fn find(
    place: &Function,
    range: &Range<u64>,
    originals: Originals<'_>,
    places: &mut Places<'_>,
) -> Result<PatchSite, Skip> {
    match place.kind {
        Kind::Func | Kind::Cold => {}
        Kind::Resolver => return Err(Skip::Resolver),
        Kind::Stub => return Err(Skip::LinkageStub),
    }
    let addr = place.addr;
    let code = place.module.code();
    let text = code.text_of(range.start).ok_or(Skip::NotCode { addr })?;
    let range = range.start..range.end.min(text.end).min(code.next_start(range.start));
    if !range.contains(&addr) {
        return Err(Skip::NotCode { addr });
    }
    let Places { labels, body } = places;
    if !body.as_ref().is_some_and(|body| body.range == range) {
        *body = Some(Body::read(range, originals));
    }
    body.as_ref().map_or(Err(Skip::NotCode { addr }), |body| body.find(addr, code, labels))
}

impl Body<'_> {
    fn read(range: Range<u64>, originals: Originals<'_>) -> Self {
        // SAFETY: within a mapped executable range.
        let bytes = unsafe { original_bytes(&range, originals) };
        let mut decoder = Decoder::with_ip(64, &bytes, range.start, DecoderOptions::NONE);
        let all = decoder.iter().collect();
        Self { range, bytes, all }
    }

    /// Finds the bytes to change for hooks at `addr`.
    fn find(&self, addr: u64, code: &Code, labels: &mut Labels) -> Result<PatchSite, Skip> {
        let invalid = self.all.iter().take_while(|i| i.ip() <= addr).find(|i| i.is_invalid());
        let offset = |addr: u64| addr - self.range.start;
        let n = match (invalid, self.all.binary_search_by_key(&addr, Instruction::ip)) {
            (None, Ok(n)) => n,
            (Some(i), _) => return Err(Skip::Undecodable { offset: offset(i.ip()) }),
            (None, Err(_)) => return Err(Skip::Undecodable { offset: offset(addr) }),
        };
        self.site(n, n, code, labels).or_else(|why| {
            let near =
                |first: &usize| self.all.get(*first).is_some_and(|i| addr - i.ip() <= BEFORE);
            let earlier = (0..n).rev().take_while(near);
            earlier.map(|first| self.site(first, n, code, labels)).find_map(Result::ok).ok_or(why)
        })
    }

    /// Looks whether the instructions from `first` on can be moved, with hooks before instruction
    /// `n`.
    fn site(
        &self,
        first: usize,
        n: usize,
        code: &Code,
        labels: &mut Labels,
    ) -> Result<PatchSite, Skip> {
        let start = self.all.get(first).map_or(0, Instruction::ip);
        let offset = |i: &Instruction| i.ip() - self.range.start;
        let mut end = start;
        let mut moved = Vec::with_capacity(8);
        for (k, i) in self.all.iter().enumerate().skip(first) {
            if end >= start + PATCH as u64 && k >= n {
                break;
            }
            let goes_on = matches!(flow(i), Flow::Next | Flow::ConditionalBranch);
            if i.is_invalid() {
                return Err(Skip::Undecodable { offset: offset(i) });
            }
            if k < n && !goes_on {
                let why = "the code before it does not run into it";
                return Err(Skip::Unmovable { offset: offset(i), why });
            }
            end = i.next_ip();
            moved.push(*i);
            let ends = !goes_on && !matches!(flow(i), Flow::Call | Flow::IndirectCall);
            if (ends || matches!(i.mnemonic(), Mnemonic::Ud2 | Mnemonic::Hlt))
                && end < start + PATCH as u64
            {
                return Err(Skip::TooShort { room: end - start });
            }
        }
        if end < start + PATCH as u64 {
            return Err(Skip::TooShort { room: end - start });
        }
        let bytes = self.bytes.get((start - self.range.start) as usize..).unwrap_or_default();
        let bytes = bytes.get(..(end - start) as usize).unwrap_or_default();
        let site = PatchSite::of(bytes, &moved, n - first);
        if moved.len() > 1 || n > first {
            let last = self.all.get(n).filter(|_| n > first).map_or(0, |i| i.ip() + 1);
            self.check_jumps(&(start + 1..last.max(start + PATCH as u64)), code, labels)?;
        }
        site.check_moved(self.range.start)?;
        Ok(site)
    }

    /// Refuses when something jumps into these bytes.
    fn check_jumps(&self, cut: &Range<u64>, code: &Code, labels: &mut Labels) -> Result<(), Skip> {
        let into = |from, target: u64| {
            Err(Skip::JumpInto { from, offset: target.wrapping_sub(self.range.start) })
        };
        for i in self.all.iter().filter(|i| i.op0_kind() == OpKind::NearBranch64) {
            if cut.contains(&i.near_branch_target()) {
                return into(i.ip(), i.near_branch_target());
            }
        }
        if let Some((target, from)) = code.branches_into(cut.clone()).next() {
            return into(from, target);
        }
        if let Some(from) = code.table_into(&self.range, &self.bytes, cut) {
            return into(from, cut.start);
        }
        if code.has_indirect_jump(&self.range) && labels.lead_into(code, cut) {
            let why = "the program keeps an address in the bytes to change";
            return Err(Skip::Unmovable { offset: cut.start - self.range.start, why });
        }
        Ok(())
    }
}
