//! Program files: verified instructions, and what is needed to run them elsewhere.
//!
//! A loader writes one only from a [`Verified`](skep_verifier::Verified) program; a target maps and compiles it without
//! verifying again, because the directory belongs to the same user and is closed to all others.

use skep_isa::{AttachType, Insn, ProgramType};

use crate::dir::{Dir, Kind};
use crate::record::{FileKind, RecordError, RecordFile};
use crate::wire::{Reader, WireError, Writer};

const KIND: FileKind = FileKind { number: 2, name: "program" };
const TAG: u32 = 1;

/// A verified program as it stands in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The C function's name.
    pub name: String,
    /// The section it came from.
    pub section: String,
    /// Its type.
    pub prog_type: ProgramType,
    /// Its attach type, when the section fixed one.
    pub attach_type: Option<AttachType>,
    /// Ids of the maps that `PSEUDO_MAP_IDX` immediates index.
    pub maps: Vec<u32>,
    /// Bytes of the context it may read, from the first.
    pub ctx_read: u32,
    /// The instructions.
    pub insns: Vec<Insn>,
}

/// A program file held open: the object lives at least as long.
#[derive(Debug)]
pub struct ProgramFile {
    /// The object's id.
    pub id: u32,
    /// What it holds.
    pub program: Program,
    _file: RecordFile,
}

impl Program {
    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.str(&self.name).str(&self.section);
        w.u32(self.prog_type as u32).u32(self.attach_type.map_or(u32::MAX, |a| a as u32)).u32(self.ctx_read);
        w.u32(self.maps.len() as u32);
        for id in &self.maps {
            w.u32(*id);
        }
        let insns: Vec<u8> = self.insns.iter().flat_map(|i| i.to_bytes()).collect();
        w.bytes(&insns);
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let name = r.str("program name")?.to_owned();
        let section = r.str("section name")?.to_owned();
        let unknown = |what| WireError { at: 0, what };
        let prog_type = ProgramType::from_raw(r.u32("program type")?).ok_or(unknown("a known program type"))?;
        let attach_type = match r.u32("attach type")? {
            u32::MAX => None,
            n => Some(AttachType::from_raw(n).ok_or(unknown("a known attach type"))?),
        };
        let ctx_read = r.u32("context size")?;
        let maps = (0..r.count(4, "map ids")?).map(|_| r.u32("map id")).collect::<Result<_, _>>()?;
        let insns = Insn::decode(r.bytes("instructions")?).ok_or(unknown("whole instructions"))?;
        Ok(Self { name, section, prog_type, attach_type, maps, ctx_read, insns })
    }

    /// Writes the program as a new object. Only the loader calls this, with a verified program.
    ///
    /// # Errors
    /// When no id can be taken or the file cannot be written.
    pub(crate) fn store(self, dir: &Dir) -> Result<ProgramFile, crate::Error> {
        let id = dir.next_id(Kind::Program)?;
        let file = RecordFile::create(&dir.object(Kind::Program, id), KIND, &[(TAG, self.encode())])?;
        Ok(ProgramFile { id, program: self, _file: file })
    }
}

impl ProgramFile {
    /// Opens the program with this id.
    ///
    /// # Errors
    /// When there is none, or its file is damaged or of another version.
    pub fn open(dir: &Dir, id: u32) -> Result<Self, RecordError> {
        let file = RecordFile::open(&dir.object(Kind::Program, id), KIND)?;
        let damaged = |what| file.damaged(WireError { at: 0, what });
        let records = file.read()?;
        let (_, payload) = records.iter().find(|(tag, _)| *tag == TAG).ok_or_else(|| damaged("a program record"))?;
        let program = Program::decode(payload).map_err(|e| file.damaged(e))?;
        Ok(Self { id, program, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_back_from_its_bytes() -> Result<(), WireError> {
        let p = Program {
            name: "count".to_owned(),
            section: "fentry.multi/*".to_owned(),
            prog_type: ProgramType::Tracing,
            attach_type: Some(AttachType::TraceFentryMulti),
            maps: vec![3, 9],
            ctx_read: 48,
            insns: vec![Insn::mov64_imm(0, 0), Insn::exit()],
        };
        assert_eq!(Program::decode(&p.encode())?, p);
        Ok(())
    }
}
