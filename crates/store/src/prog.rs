//! Program files: verified instructions, and what is needed to run them elsewhere.
//!
//! A [`Program`] is the proof on its way: it comes out of the verifier, in a loader, or out of a
//! file that this user wrote, and nothing about it can be changed. A target compiles what is in a
//! file without verifying again, because file and directory belong to the same user and are closed
//! to all others (`docs/trust.md`).
//!
//! The proof is about certain maps: those that the loader made for the program.
//! [`Program::with_maps`] finds out whether it is given these, and only [`WithMaps`] can be compiled.

use std::sync::Arc;

use skep_isa::{AttachType, Insn, ProgramType};
use skep_maps::Map;

use crate::dir::{Dir, Kind};
use crate::record::{FileKind, RecordError, RecordFile};
use crate::wire::{Reader, WireError, Writer};

const KIND: FileKind = FileKind { number: 2, name: "program", restarts: false };
const TAG: u32 = 1;
const TAG_SOURCE: u32 = 2;
const TAG_GENERATIONS: u32 = 3;

/// A verified program as it stands in its file.
///
/// It comes from a loader, which verifies it, or from [`ProgramFile::open`]. It shows what it is
/// made of, and nothing of that can be changed:
///
/// ```
/// fn first(program: &skep_store::prog::Program) -> Option<&skep_isa::Insn> {
///     program.insns().first()
/// }
/// ```
///
/// ```compile_fail,E0616
/// fn first(program: &mut skep_store::prog::Program) -> Option<&mut skep_isa::Insn> {
///     program.insns.first_mut()
/// }
/// ```
///
/// Nor can one be put together by hand, or from another one:
///
/// ```compile_fail,E0451
/// fn other(program: skep_store::prog::Program) -> skep_store::prog::Program {
///     skep_store::prog::Program { insns: vec![skep_isa::Insn::exit()], ..program }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    name: String,
    section: String,
    prog_type: ProgramType,
    attach_type: Option<AttachType>,
    /// Ids of the maps that `PSEUDO_MAP_IDX` immediates index.
    maps: Vec<u32>,
    /// [`Map::generation`] of each of them.
    generations: Vec<u64>,
    ctx_read: u32,
    insns: Vec<Insn>,
    source: Source,
}

/// What a loader knows of a program that it verified.
#[derive(Debug, Clone)]
pub struct ProgramParts {
    /// The C function's name.
    pub name: String,
    /// The section it came from.
    pub section: String,
    /// Its type.
    pub prog_type: ProgramType,
    /// Its attach type, when the section fixed one.
    pub attach_type: Option<AttachType>,
    /// How many bytes of the context it may read, from the first.
    pub ctx_read: u32,
    /// The instructions.
    pub insns: Vec<Insn>,
    /// Names and lines.
    pub source: Source,
}

/// Says that maps are not those that a program was verified with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("map {} of its list is not the one that the program was verified with", self.index)]
pub struct OtherMap {
    /// The place in the program's list.
    pub index: usize,
}

/// A program and the maps it was verified with, open in this process.
#[derive(Clone, Copy, Debug)]
pub struct WithMaps<'a> {
    program: &'a Program,
    maps: &'a [Arc<Map>],
}

impl<'a> WithMaps<'a> {
    /// Returns the program.
    #[must_use]
    pub fn program(self) -> &'a Program {
        self.program
    }

    /// Returns the maps, in order of its list.
    #[must_use]
    pub fn maps(self) -> &'a [Arc<Map>] {
        self.maps
    }
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
///
/// ```compile_fail,E0616
/// fn change(file: &mut skep_store::prog::ProgramFile, other: skep_store::prog::Program) {
///     file.program = other;
/// }
/// ```
///
/// ```
/// fn look(file: &skep_store::prog::ProgramFile) -> (u32, &skep_store::prog::Program) {
///     (file.id(), file.program())
/// }
/// ```
#[derive(Debug)]
pub struct ProgramFile {
    id: u32,
    program: Program,
    _file: RecordFile,
}

impl Program {
    /// Takes a program that was verified, to run with these maps: those of its list, in order.
    ///
    /// # Safety
    /// The verifier accepted the instructions, as a program of this type and attach type, with maps
    /// like these, and found that they read no more than `ctx_read` bytes of the context.
    #[must_use]
    pub unsafe fn new(parts: ProgramParts, maps: &[&Map]) -> Self {
        let ProgramParts { name, section, prog_type, attach_type, ctx_read, insns, source } = parts;
        Self {
            name,
            section,
            prog_type,
            attach_type,
            maps: maps.iter().map(|m| m.id()).collect(),
            generations: maps.iter().map(|m| m.generation()).collect(),
            ctx_read,
            insns,
            source,
        }
    }

    /// Returns the C function's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the section it came from.
    #[must_use]
    pub fn section(&self) -> &str {
        &self.section
    }

    /// Returns its type.
    #[must_use]
    pub fn prog_type(&self) -> ProgramType {
        self.prog_type
    }

    /// Returns its attach type, when the section fixed one.
    #[must_use]
    pub fn attach_type(&self) -> Option<AttachType> {
        self.attach_type
    }

    /// Returns the ids of the maps that `PSEUDO_MAP_IDX` immediates index.
    #[must_use]
    pub fn maps(&self) -> &[u32] {
        &self.maps
    }

    /// Returns how many bytes of the context it may read, from the first.
    #[must_use]
    pub fn ctx_read(&self) -> u32 {
        self.ctx_read
    }

    /// Returns the instructions.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.insns
    }

    /// Returns names and lines, for profilers.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Checks that `maps` are those that the program was verified with, each in its place: the same
    /// file, not only the same id.
    ///
    /// # Errors
    /// The first that is not.
    pub fn with_maps<'a>(&'a self, maps: &'a [Arc<Map>]) -> Result<WithMaps<'a>, OtherMap> {
        let want = self.maps.iter().copied().zip(self.generations.iter().copied());
        let is = maps.iter().map(|m| (m.id(), m.generation()));
        if want.clone().eq(is.clone()) {
            return Ok(WithMaps { program: self, maps });
        }
        let same = want.zip(is).take_while(|(want, is)| want == is).count();
        Err(OtherMap { index: same })
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.str(&self.name).str(&self.section);
        w.u32(self.prog_type as u32)
            .u32(self.attach_type.map_or(u32::MAX, |a| a as u32))
            .u32(self.ctx_read);
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
        let prog_type =
            ProgramType::from_raw(r.u32("program type")?).ok_or(unknown("a known program type"))?;
        let attach_type = match r.u32("attach type")? {
            u32::MAX => None,
            n => Some(AttachType::from_raw(n).ok_or(unknown("a known attach type"))?),
        };
        let ctx_read = r.u32("context size")?;
        let maps =
            (0..r.count(4, "map ids")?).map(|_| r.u32("map id")).collect::<Result<_, _>>()?;
        let insns = Insn::decode(r.bytes("instructions")?).ok_or(unknown("whole instructions"))?;
        Ok(Self {
            name,
            section,
            prog_type,
            attach_type,
            maps,
            generations: Vec::new(),
            ctx_read,
            insns,
            source: Source::default(),
        })
    }

    fn encode_generations(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.generations.len() as u32);
        for generation in &self.generations {
            w.u64(*generation);
        }
        w.finish()
    }

    fn decode_generations(&self, bytes: &[u8]) -> Result<Vec<u64>, WireError> {
        let mut r = Reader::new(bytes);
        let all: Vec<u64> = (0..r.count(8, "generations")?)
            .map(|_| r.u64("generation"))
            .collect::<Result<_, _>>()?;
        if all.len() == self.maps.len() {
            Ok(all)
        } else {
            Err(WireError { at: 0, what: "a generation for each map" })
        }
    }

    /// Writes the program as a new object.
    ///
    /// # Errors
    /// When no id can be taken or the file cannot be written.
    pub fn store(self, dir: &Dir) -> Result<ProgramFile, crate::Error> {
        let id = dir.next_id(Kind::Program)?;
        let records = [
            (TAG, self.encode()),
            (TAG_SOURCE, self.source.encode()),
            (TAG_GENERATIONS, self.encode_generations()),
        ];
        let file = RecordFile::create(&dir.object(Kind::Program, id), KIND, &records)?;
        Ok(ProgramFile { id, program: self, _file: file })
    }
}

impl ProgramFile {
    /// Returns the object's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns what it holds.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Opens the program with this id. What the file says is trusted as the verifier's word.
    ///
    /// # Errors
    /// When there is none, its file belongs to another user or is open to others, is damaged, or of
    /// another version.
    pub fn open(dir: &Dir, id: u32) -> Result<Self, RecordError> {
        let file = RecordFile::open(&dir.object(Kind::Program, id), KIND)?;
        let damaged = |what| file.damaged(WireError { at: 0, what });
        let records = file.read()?;
        let (_, payload) = records
            .iter()
            .find(|(tag, _)| *tag == TAG)
            .ok_or_else(|| damaged("a program record"))?;
        let mut program = Program::decode(payload).map_err(|e| file.damaged(e))?;
        let (_, payload) = records
            .iter()
            .find(|(tag, _)| *tag == TAG_GENERATIONS)
            .ok_or_else(|| damaged("which maps its ids mean"))?;
        program.generations = program.decode_generations(payload).map_err(|e| file.damaged(e))?;
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
            generations: Vec::new(),
            ctx_read: 48,
            insns: vec![Insn::mov64_imm(0, 0), Insn::exit()],
            source: Source::default(),
        };
        assert_eq!(Program::decode(&p.encode())?, p);
        let whole = Program { generations: vec![u64::MAX, 7], ..p.clone() };
        assert_eq!(p.decode_generations(&whole.encode_generations())?, [u64::MAX, 7]);
        assert!(
            Program { maps: vec![3], ..p }.decode_generations(&whole.encode_generations()).is_err()
        );
        let source = Source {
            functions: vec![(0, "count".to_owned())],
            files: vec!["a.bpf.c".to_owned()],
            lines: vec![(0, 0, 7), (1, 0, 8)],
        };
        assert_eq!(Source::decode(&source.encode())?, source);
        Ok(())
    }

    #[test]
    fn a_program_comes_back_from_its_file() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-prog-{}-file", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let program = Program {
            name: "count".to_owned(),
            section: "xdp".to_owned(),
            prog_type: ProgramType::Xdp,
            attach_type: None,
            maps: vec![3],
            generations: vec![1 << 40],
            ctx_read: 24,
            insns: vec![Insn::mov64_imm(0, 2), Insn::exit()],
            source: Source { functions: vec![(0, "count".to_owned())], ..Source::default() },
        };
        let stored = program.clone().store(&dir)?;
        assert_eq!((stored.id(), stored.program()), (1, &program));
        assert_eq!(ProgramFile::open(&dir, 1)?.program(), &program);
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }
    #[test]
    fn the_first_map_that_is_another_is_named() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-prog-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir(&path)?;
        let def = skep_maps::MapDef::new(skep_isa::MapType::Array, 4, 8, 1);
        let make = |id| Map::create(&path, id, &def).map(Arc::new);
        let maps = [make(1)?, make(2)?, make(3)?];
        let program = Program {
            name: String::new(),
            section: String::new(),
            prog_type: ProgramType::Xdp,
            attach_type: None,
            maps: maps.iter().map(|map| map.id()).collect(),
            generations: maps.iter().map(|map| map.generation()).collect(),
            ctx_read: 0,
            insns: vec![Insn::mov64_imm(0, 0), Insn::exit()],
            source: Source::default(),
        };
        let [one, two, three] = maps;
        assert!(program.with_maps(&[one.clone(), two.clone(), three.clone()]).is_ok());
        let index = |maps: &[Arc<Map>]| program.with_maps(maps).err().map(|other| other.index);
        assert_eq!(index(&[one.clone(), two.clone(), two.clone()]), Some(2));
        assert_eq!(index(&[two.clone(), one.clone(), three.clone()]), Some(0));
        assert_eq!(index(&[one.clone(), two.clone()]), Some(2));
        assert_eq!(index(&[one, two, three.clone(), three]), Some(3));
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }

    /// When a probe runs follows from its section; that it has a session's word, from its proof.
    /// Where the two differ, it is no program on functions.
    #[test]
    fn a_probe_is_a_session_by_section_and_by_proof() {
        use crate::link::attach_type::of;
        use crate::link::{Context, FunctionAttachType};
        let runs = |section: &str, attach_type| {
            of(&Program {
                name: String::new(),
                section: section.to_owned(),
                prog_type: ProgramType::Kprobe,
                attach_type,
                maps: Vec::new(),
                generations: Vec::new(),
                ctx_read: 0,
                insns: vec![Insn::mov64_imm(0, 0), Insn::exit()],
                source: Source::default(),
            })
        };
        let session = Some(AttachType::TraceUprobeSession);
        for (section, attach_type, when) in [
            ("uprobe/libc:malloc", None, Some(FunctionAttachType::Entry)),
            ("uprobe.multi.s/libc:*", None, Some(FunctionAttachType::Entry)),
            ("uretprobe/libc:malloc", None, Some(FunctionAttachType::Exit)),
            ("uprobe.session/libc:*", session, Some(FunctionAttachType::Session)),
            ("uprobe.session/libc:*", None, None),
            ("uprobe/libc:malloc", session, None),
            ("kprobe/vfs_read", None, None),
        ] {
            let when = when.map(|when| (when, Context::PtRegs));
            assert_eq!(runs(section, attach_type), when, "{section} {attach_type:?}");
        }
    }
}
