//! The `.BTF.ext` section: which function and which source line each instruction comes from, and
//! CO-RE relocations.

use super::parse::Words;
use super::{BtfError, TypeId};

const MAGIC: u16 = 0xeb9f;
const HEADER: usize = 24;
/// Length of a header that also has CO-RE relocations.
const HEADER_CORE: usize = 32;

/// Holds the contents of a `.BTF.ext` section, by code section.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BtfExt {
    /// Functions.
    pub funcs: Vec<SectionInfo<FuncInfo>>,
    /// Source lines.
    pub lines: Vec<SectionInfo<LineInfo>>,
    /// CO-RE relocations.
    pub core: Vec<SectionInfo<CoreRelo>>,
}

/// The records of one code section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionInfo<T> {
    /// Where the section's name stands in the strings of the `.BTF` section.
    pub name_off: u32,
    /// The records as they come.
    pub records: Vec<T>,
}

/// Says which function starts at an instruction (`struct bpf_func_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuncInfo {
    /// Offset in the section in bytes.
    pub offset: u32,
    /// The function's type.
    pub type_id: TypeId,
}

/// Says which source line starts at an instruction (`struct bpf_line_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineInfo {
    /// Offset in the section in bytes.
    pub offset: u32,
    /// Where the file's name stands in the strings.
    pub file_off: u32,
    /// Where the line's text stands in the strings.
    pub text_off: u32,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl LineInfo {
    /// Takes the words of a record apart.
    pub(crate) fn from_words([offset, file_off, text_off, place]: [u32; 4]) -> Self {
        Self { offset, file_off, text_off, line: place >> 10, column: place & 0x3ff }
    }
}

/// One CO-RE relocation (`struct bpf_core_relo`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreRelo {
    /// Offset in the section in bytes.
    pub offset: u32,
    /// The local type.
    pub type_id: TypeId,
    /// Where the access string (`0:1:2`) stands in the strings.
    pub access_off: u32,
    /// What is asked of the target's types (`enum bpf_core_relo_kind`).
    pub kind: u32,
}

impl BtfExt {
    /// Reads a `.BTF.ext` section.
    ///
    /// # Errors
    /// When the data is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        let mut head = Words::new(bytes, 0);
        let magic = head.u32()?;
        if magic & 0xffff != u32::from(MAGIC) {
            return Err(BtfError::Header { what: "wrong magic number" });
        }
        if (magic >> 16) & 0xff != 1 {
            return Err(BtfError::Header { what: "unknown version" });
        }
        let head_len = head.u32()? as usize;
        if head_len < HEADER {
            return Err(BtfError::Header { what: "length below 24" });
        }
        let mut part = || -> Result<(usize, &[u8]), BtfError> {
            let (off, len) = (head.u32()? as usize, head.u32()? as usize);
            let start = head_len.checked_add(off);
            let range = start.and_then(|s| bytes.get(s..s.checked_add(len)?));
            range
                .map(|b| (head_len + off, b))
                .ok_or(BtfError::Header { what: "a part lies outside the data" })
        };
        let (funcs, lines) = (part()?, part()?);
        let core = if head_len >= HEADER_CORE { part()? } else { (0, &[][..]) };
        Ok(Self {
            funcs: sections(funcs, |[offset, type_id]| FuncInfo { offset, type_id })?,
            lines: sections(lines, LineInfo::from_words)?,
            core: sections(core, |[offset, type_id, access_off, kind]| CoreRelo {
                offset,
                type_id,
                access_off,
                kind,
            })?,
        })
    }
}

/// Reads one part: record size, then per section its name, a count and the records, of which `K`
/// words are understood.
fn sections<const K: usize, T>(
    (base, bytes): (usize, &[u8]),
    each: impl Fn([u32; K]) -> T,
) -> Result<Vec<SectionInfo<T>>, BtfError> {
    let mut out = Vec::new();
    if bytes.is_empty() {
        return Ok(out);
    }
    let mut w = Words::new(bytes, base);
    let size = w.u32()? as usize;
    if size < K * 4 || !size.is_multiple_of(4) {
        return Err(BtfError::Header { what: "records of impossible size" });
    }
    while !w.done() {
        let (name_off, count) = (w.u32()?, w.u32()? as usize);
        let all =
            w.take(count.checked_mul(size).ok_or(BtfError::Truncated { offset: w.offset() })?)?;
        let records = all.chunks_exact(size).map(|record| {
            let mut words = [0; K];
            for (word, bytes) in words.iter_mut().zip(record.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            each(words)
        });
        out.push(SectionInfo { name_off, records: records.collect() });
    }
    Ok(out)
}
