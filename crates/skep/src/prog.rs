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
const TAG_SOURCE: u32 = 2;

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
    /// Names and lines, for profilers.
    pub source: Source,
}

/// Where a program's instructions come from; empty when the object did not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// First slot and name of each function.
    pub functions: Vec<(u32, String)>,
    /// The source files.
    pub files: Vec<String>,
    /// First slot, index of the file and number of each line.
    pub lines: Vec<(u32, u32, u32)>,
}

impl Source {
    /// Takes what an object says.
    #[cfg(feature = "loader")]
    pub(crate) fn of(linked: &skep_object::Linked) -> Self {
        let mut source = Self::default();
        source.functions.extend(linked.subprogs.iter().map(|f| (f.start as u32, f.name.clone())));
        for line in &linked.lines {
            let file = source.files.iter().position(|f| *f == line.file).unwrap_or_else(|| {
                source.files.push(line.file.clone());
                source.files.len() - 1
            });
            source.lines.push((line.insn as u32, file as u32, line.line));
        }
        source
    }

    /// Gives one of the lines a file name; `None` when there is no such file.
    pub(crate) fn line(&self, &(insn, file, line): &(u32, u32, u32)) -> Option<skep_vm::perf::Line<'_>> {
        Some(skep_vm::perf::Line { insn: insn as usize, file: self.files.get(file as usize)?, line })
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.functions.len() as u32);
        for (at, name) in &self.functions {
            w.u32(*at).str(name);
        }
        w.u32(self.files.len() as u32);
        for file in &self.files {
            w.str(file);
        }
        w.u32(self.lines.len() as u32);
        for (insn, file, line) in &self.lines {
            w.u32(*insn).u32(*file).u32(*line);
        }
        w.finish()
    }

    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let mut source = Self::default();
        for _ in 0..r.count(8, "functions")? {
            source.functions.push((r.u32("slot")?, r.str("function name")?.to_owned()));
        }
        for _ in 0..r.count(4, "files")? {
            source.files.push(r.str("file name")?.to_owned());
        }
        for _ in 0..r.count(12, "lines")? {
            source.lines.push((r.u32("slot")?, r.u32("file")?, r.u32("line")?));
        }
        Ok(source)
    }
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
        Ok(Self { name, section, prog_type, attach_type, maps, ctx_read, insns, source: Source::default() })
    }

    /// Writes the program as a new object. Only the loader calls this, with a verified program.
    ///
    /// # Errors
    /// When no id can be taken or the file cannot be written.
    pub(crate) fn store(self, dir: &Dir) -> Result<ProgramFile, crate::Error> {
        let id = dir.next_id(Kind::Program)?;
        let file = RecordFile::create(&dir.object(Kind::Program, id), KIND, &[(TAG, self.encode()), (TAG_SOURCE, self.source.encode())])?;
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
        let mut program = Program::decode(payload).map_err(|e| file.damaged(e))?;
        if let Some((_, payload)) = records.iter().find(|(tag, _)| *tag == TAG_SOURCE) {
            program.source = Source::decode(payload).map_err(|e| file.damaged(e))?;
        }
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
            source: Source::default(),
        };
        assert_eq!(Program::decode(&p.encode())?, p);
        let source =
            Source { functions: vec![(0, "count".to_owned())], files: vec!["a.bpf.c".to_owned()], lines: vec![(0, 0, 7), (1, 0, 8)] };
        assert_eq!(Source::decode(&source.encode())?, source);
        assert_eq!(source.line(&source.lines[1]).map(|l| (l.insn, l.file, l.line)), Some((1, "a.bpf.c", 8)));
        assert_eq!(source.line(&(0, 9, 1)), None);
        Ok(())
    }
}
