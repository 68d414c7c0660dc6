//! Function boundaries from `.eh_frame`, which also stripped files have.
//!
//! A frame description (FDE) covers one contiguous piece of code. A piece that begins with the
//! return address on top of the stack and no register saved is a function's start. Others are parts
//! that the compiler moved away (`.cold`), code that is jumped to with a frame of its own, code
//! that nothing returns from (`_start`, the place where a new thread begins), and the kernel's way
//! back from a signal handler. A cold part entered before anything was pushed looks like a function
//! here: nothing in the tables tells them apart.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, CommonInformationEntry, DwEhPe, EhFrame, EhFrameHdr,
    EndianSlice, LittleEndian, Pointer, RegisterRule, UnwindContext, UnwindSection, UnwindTableRow,
    X86_64,
};

use super::{EM_X86_64, Elf, ElfError};

const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// One piece of code that has unwind information.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fde {
    /// First link-time address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The piece begins as a called function does: CFA is `rsp + 8`, the return address is at
    /// CFA-8, nothing else is saved.
    pub function_entry: bool,
}

impl Fde {
    /// Link-time addresses covered.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Cie<'a> = CommonInformationEntry<Bytes<'a>>;

impl Elf {
    /// Reads all frame descriptions of the code, sorted by address. A file without any gives none.
    ///
    /// A record that makes no sense ends the reading: what came before is kept, as unwinders do.
    pub fn fdes(&self) -> Result<Vec<Fde>, ElfError> {
        self.frames().map(<[Fde]>::to_vec)
    }

    /// The same, read once.
    pub(super) fn frames(&self) -> Result<&[Fde], ElfError> {
        if let Some(known) = self.fdes.get() {
            return Ok(known);
        }
        let fdes = self.read_frames()?;
        Ok(self.fdes.get_or_init(|| fdes))
    }

    /// Tells for each place whether the stack is there as it is at a function's start: for a second
    /// entry into a function, in the middle of a piece. Reads all tables again: ask for many at
    /// once.
    pub fn entered_at(&self, places: &[u64]) -> Result<Vec<bool>, ElfError> {
        let mut out = vec![false; places.len()];
        if places.is_empty() {
            return Ok(out);
        }
        let mut order: Vec<(u64, usize)> = places.iter().copied().zip(0..).collect();
        order.sort_unstable();
        for (vaddr, data) in self.frame_data()? {
            each_frame(vaddr, &data, |fde, rows| {
                let first = order.partition_point(|o| o.0 < fde.start);
                let last = order.partition_point(|o| o.0 < fde.end);
                for (place, index) in order.get(first..last).unwrap_or_default() {
                    if let Some(entered) = out.get_mut(*index) {
                        *entered |= rows(*place);
                    }
                }
            });
        }
        Ok(out)
    }

    fn read_frames(&self) -> Result<Vec<Fde>, ElfError> {
        if self.machine != EM_X86_64 {
            return Err(ElfError::Unsupported { what: "unwind tables of another machine" });
        }
        let mut out = Vec::new();
        for (vaddr, data) in self.frame_data()? {
            each_frame(vaddr, &data, |mut fde, entered_at| {
                fde.function_entry = entered_at(fde.start);
                out.push(fde);
            });
        }
        let text = self.text();
        out.retain(|f: &Fde| {
            f.start < f.end && super::range_of(&text, f.start).is_some_and(|t| f.end <= t.end)
        });
        out.sort_by_key(|f| (f.start, f.end));
        out.dedup_by_key(|f| f.start);
        Ok(out)
    }

    /// Address and bytes of the `.eh_frame` sections; without section headers, the place the
    /// program header points to.
    fn frame_data(&self) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
        let sections = self
            .sections
            .iter()
            .filter(|s| s.name == b".eh_frame" && s.size != 0 && s.kind != super::SHT_NOBITS);
        let found: Vec<_> = sections
            .map(|s| Ok((s.vaddr, self.section_data(s)?)))
            .collect::<Result<_, ElfError>>()?;
        if !found.is_empty() {
            return Ok(found);
        }
        let Some(header) = self.segments.iter().find(|s| s.kind == PT_GNU_EH_FRAME) else {
            return Ok(found);
        };
        let head = self.read("unwind table header", header.offset, header.file_size.min(64))?;
        let Some(start) = frame_pointer(header.vaddr, &head) else { return Ok(found) };
        let load = self.segments.iter().find(|s| {
            s.kind == super::PT_LOAD && start >= s.vaddr && start - s.vaddr < s.file_size
        });
        match load {
            Some(s) => Ok(vec![(start, self.read_vaddr(start, s.file_size - (start - s.vaddr))?)]),
            None => Ok(found),
        }
    }
}

/// Where the header says that the frame descriptions begin.
fn frame_pointer(vaddr: u64, head: &[u8]) -> Option<u64> {
    // The table behind the pointer may be longer than what was read, and is not needed: the header
    // is read as one without.
    let mut short = head.get(..12).unwrap_or(head).to_vec();
    for encoding in short.get_mut(2..4)? {
        *encoding = DwEhPe(0xff).0; // DW_EH_PE_omit
    }
    let bases = BaseAddresses::default().set_eh_frame_hdr(vaddr);
    match EhFrameHdr::new(&short, LittleEndian).parse(&bases, 8).ok()?.eh_frame_ptr() {
        Pointer::Direct(at) => Some(at),
        Pointer::Indirect(_) => None,
    }
}

/// Reads the records of one section, as far as they make sense. `each` gets a piece of code and can
/// ask whether the stack is at a place in it as at a function's start.
fn each_frame(vaddr: u64, data: &[u8], mut each: impl FnMut(Fde, &mut dyn FnMut(u64) -> bool)) {
    let section = EhFrame::new(data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(vaddr);
    let mut context = UnwindContext::new();
    // Neighbors share their CIE.
    let mut last: Option<Cie<'_>> = None;
    let mut entries = section.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|section, bases, offset| {
            if let Some(cie) = last.as_ref().filter(|c| c.offset() == offset.0) {
                return Ok(cie.clone());
            }
            let cie = section.cie_from_offset(bases, offset)?;
            last = Some(cie.clone());
            Ok(cie)
        });
        let Ok(fde) = fde else { return };
        let start = fde.initial_address();
        let Some(end) = start.checked_add(fde.len()) else { return };
        each(Fde { start, end, function_entry: false }, &mut |place| {
            let Ok(mut rows) = fde.rows(&section, &bases, &mut context) else { return false };
            while let Ok(Some(row)) = rows.next_row() {
                if row.contains(place) {
                    return !fde.is_signal_trampoline() && is_entry(row);
                }
            }
            false
        });
    }
}

/// Tells whether a row is that of a function just called: nothing on the stack but the return
/// address.
fn is_entry(row: &UnwindTableRow<usize>) -> bool {
    let on_top =
        matches!(row.cfa(), CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 });
    let mut rules = row.registers();
    // A rule that is not there says that the return address is in a register, which this machine
    // does not have.
    let returns = rules.clone().any(|r| *r == (X86_64::RA, RegisterRule::Offset(-8)));
    on_top && returns && rules.all(|(register, rule)| *register == X86_64::RA || is_kept(rule))
}

/// Tells whether a register is where the caller left it, or nowhere.
fn is_kept(rule: &RegisterRule<usize>) -> bool {
    matches!(rule, RegisterRule::Undefined | RegisterRule::SameValue)
}
