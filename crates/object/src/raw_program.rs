//! Programs that come as instructions, as `bpf(BPF_PROG_LOAD)` is given them, not in an object
//! file: maps are handles, functions and source lines are records in the kernel's layouts.

use crate::btf::{FuncInfo, Kind, LineInfo, Linkage, TypeId};
use crate::linked::{Line, Linked, LinkedMap, Subprog};
use crate::object::is_gpl_compatible;
use crate::{Btf, RawProgramError};
use skep_isa::{AttachType, HelperId, Insn, ProgramType, op};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A program as instructions, with what the kernel is told beside them (`union bpf_attr`).
///
/// ```
/// use skep_isa::{Insn, MapType, ProgramType, op};
/// use skep_object::{Handles, Linked, LinkedMap, MapSpec, RawProgram};
///
/// /// One map, which the program knows as 7.
/// struct Counts;
/// impl Handles for Counts {
///     fn map(&self, handle: i32) -> Option<LinkedMap> {
///         let spec = MapSpec::new("counts", MapType::Array, 4, 8, 1);
///         (handle == 7).then_some(LinkedMap { index: 0, spec })
///     }
/// }
///
/// let [low, high] = Insn::ld_imm64(1, op::PSEUDO_MAP_FD, 7);
/// let insns = [low, high, Insn::mov64_imm(0, 0), Insn::exit()];
/// let raw = RawProgram::new("count", ProgramType::Kprobe, &insns);
/// let linked = Linked::from_instructions(&raw, &Counts)?;
/// assert_eq!(linked.maps[0].spec.name, "counts");
/// # Ok::<(), skep_object::RawProgramError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RawProgram<'a> {
    /// `prog_name`.
    pub name: &'a str,
    /// `prog_type`.
    pub prog_type: ProgramType,
    /// `expected_attach_type`: with the program type it says what the context is.
    pub attach_type: Option<AttachType>,
    /// The name of what it is attached to (`attach_btf_id`).
    pub target: Option<&'a str>,
    /// The program may sleep (`BPF_F_SLEEPABLE`).
    pub sleepable: bool,
    /// `license`.
    pub license: &'a str,
    /// `insns`.
    pub insns: &'a [Insn],
    /// `fd_array`: what [`PSEUDO_MAP_IDX`](op::PSEUDO_MAP_IDX) and
    /// [`PSEUDO_MAP_IDX_VALUE`](op::PSEUDO_MAP_IDX_VALUE) count in.
    pub handles: &'a [i32],
    /// The types behind `prog_btf_fd`.
    pub btf: Option<Arc<Btf>>,
    /// `func_info`: which function begins at which instruction.
    pub func_info: Records<'a>,
    /// `line_info`: which source line begins at which instruction.
    pub line_info: Records<'a>,
}

/// An array of records whose size is given beside it, so that it can grow.
#[derive(Clone, Copy, Default, Debug)]
pub struct Records<'a> {
    /// The records, one behind the other.
    pub bytes: &'a [u8],
    /// Bytes in one; what is longer than known must be zero.
    pub size: u32,
}

/// What the handles of a [`RawProgram`] mean.
pub trait Handles {
    /// Finds a map; its [`index`](LinkedMap::index) is whatever the caller knows it by.
    fn map(&self, handle: i32) -> Option<LinkedMap>;

    /// Finds a kernel function by its type in the kernel's BTF, or in that of the module behind the
    /// handle `module`.
    fn kernel_function(&self, type_id: TypeId, module: Option<i32>) -> Option<HelperId> {
        let _ = (type_id, module);
        None
    }
}

/// There are no handles: for programs that refer to nothing.
impl Handles for () {
    fn map(&self, _handle: i32) -> Option<LinkedMap> {
        None
    }
}

impl<'a> RawProgram<'a> {
    /// Describes a program under the GPL that refers to nothing; everything else can be set
    /// afterwards.
    #[must_use]
    pub fn new(name: &'a str, prog_type: ProgramType, insns: &'a [Insn]) -> Self {
        Self {
            name,
            prog_type,
            attach_type: None,
            target: None,
            sleepable: false,
            license: "GPL",
            insns,
            handles: &[],
            btf: None,
            func_info: Records::default(),
            line_info: Records::default(),
        }
    }
}

impl Linked {
    /// Makes a program ready for the verifier that comes as instructions. Their shape is the
    /// verifier's business; here it is checked what they and the records refer to.
    ///
    /// # Errors
    /// When a handle is unknown, or `func_info` or `line_info` do not go with the instructions or
    /// the types.
    pub fn from_instructions(
        raw: &RawProgram<'_>,
        handles: &dyn Handles,
    ) -> Result<Self, RawProgramError> {
        let most = op::MAX_INSNS;
        if raw.insns.is_empty() || raw.insns.len() > most {
            return Err(RawProgramError::Length { insns: raw.insns.len(), most });
        }
        let mut insns = raw.insns.to_vec();
        let maps = settle(&mut insns, raw, handles)?;
        let starts = function_starts(&insns);
        Ok(Self {
            name: raw.name.to_owned(),
            section: String::new(),
            prog_type: raw.prog_type,
            attach_type: raw.attach_type,
            target: raw.target.map(str::to_owned),
            sleepable: raw.sleepable,
            gpl: is_gpl_compatible(raw.license),
            subprogs: subprogs(raw, &starts)?,
            lines: lines(raw, &starts)?,
            insns,
            maps,
            btf: raw.btf.clone(),
            misses: Vec::new(),
        })
    }
}

/// Turns handles of maps into indices, and types of kernel functions into helper numbers; the maps.
fn settle(
    insns: &mut [Insn],
    raw: &RawProgram<'_>,
    handles: &dyn Handles,
) -> Result<Vec<LinkedMap>, RawProgramError> {
    let mut known: Vec<i32> = Vec::new();
    let mut maps = Vec::new();
    let mut second = false;
    for (at, insn) in insns.iter_mut().enumerate() {
        if std::mem::take(&mut second) {
            continue;
        }
        second = insn.is_ld_imm64();
        if insn.is_ld_imm64() {
            let (handle, pseudo) = match insn.src() {
                op::PSEUDO_MAP_FD => (insn.imm, op::PSEUDO_MAP_IDX),
                op::PSEUDO_MAP_VALUE => (insn.imm, op::PSEUDO_MAP_IDX_VALUE),
                src @ (op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE) => {
                    (in_array(raw, at, insn.imm)?, src)
                }
                _ => continue,
            };
            let index = match known.iter().position(|h| *h == handle) {
                Some(index) => index,
                None => {
                    let map =
                        handles.map(handle).ok_or(RawProgramError::Map { insn: at, handle })?;
                    known.push(handle);
                    maps.push(map);
                    maps.len() - 1
                }
            };
            *insn = Insn { imm: index as i32, ..insn.with_src(pseudo) };
        } else if insn.code == op::CALL && insn.src() == op::PSEUDO_KFUNC_CALL {
            let module = match insn.off {
                0 => None,
                off => Some(in_array(raw, at, off.into())?),
            };
            let type_id = insn.imm as u32;
            let id = handles
                .kernel_function(type_id, module)
                .ok_or(RawProgramError::Function { insn: at, type_id })?;
            *insn = Insn { imm: id as i32, off: 0, ..insn.with_src(0) };
        }
    }
    Ok(maps)
}

fn in_array(raw: &RawProgram<'_>, insn: usize, index: i32) -> Result<i32, RawProgramError> {
    let found = usize::try_from(index).ok().and_then(|n| raw.handles.get(n));
    found.copied().ok_or(RawProgramError::Index { insn, index, handles: raw.handles.len() })
}

/// The first instructions of functions: 0, and what is called or has its address taken.
fn function_starts(insns: &[Insn]) -> Vec<usize> {
    let mut starts = BTreeSet::from([0]);
    let mut second = false;
    for (at, insn) in insns.iter().enumerate() {
        if std::mem::take(&mut second) {
            continue;
        }
        second = insn.is_ld_imm64();
        let names = insn.is_local_call() || (second && insn.src() == op::PSEUDO_FUNC);
        let to = at as i64 + 1 + i64::from(insn.imm);
        // A place outside the program is refused by the verifier.
        if let (true, Ok(to)) = (names, usize::try_from(to))
            && to < insns.len()
        {
            starts.insert(to);
        }
    }
    starts.into_iter().collect()
}

/// The functions with their names and types (kernel/bpf/verifier.c `check_btf_func`).
fn subprogs(raw: &RawProgram<'_>, starts: &[usize]) -> Result<Vec<Subprog>, RawProgramError> {
    const ARRAY: &str = "func_info";
    let infos = records(raw.func_info, ARRAY, |[offset, type_id]| FuncInfo { offset, type_id })?;
    if infos.is_empty() {
        return Ok(vec![Subprog { start: 0, name: raw.name.to_owned(), global: true, type_id: 0 }]);
    }
    let btf = raw.btf.as_deref().ok_or(RawProgramError::NoTypes { array: ARRAY })?;
    if infos.len() != starts.len() {
        return Err(RawProgramError::FunctionCount { given: infos.len(), found: starts.len() });
    }
    let subprog = |(n, (info, start)): (usize, (&FuncInfo, &usize))| {
        let bad = |what| RawProgramError::Record { array: ARRAY, record: n, what };
        if info.offset as usize != *start {
            return Err(bad("no function begins at its instruction"));
        }
        let Ok(Kind::Func(func)) = btf.get(info.type_id).map(|t| &t.kind) else {
            return Err(bad("its type is no function"));
        };
        if !matches!(btf.get(func.proto).map(|t| &t.kind), Ok(Kind::FuncProto(_))) {
            return Err(bad("its function has no prototype"));
        }
        Ok(Subprog {
            start: *start,
            name: btf.name(info.type_id).to_owned(),
            global: func.linkage == Linkage::Global,
            type_id: info.type_id,
        })
    };
    infos.iter().zip(starts).enumerate().map(subprog).collect()
}

/// The source lines (kernel/bpf/verifier.c `check_btf_line`).
fn lines(raw: &RawProgram<'_>, starts: &[usize]) -> Result<Vec<Line>, RawProgramError> {
    const ARRAY: &str = "line_info";
    let infos = records(raw.line_info, ARRAY, LineInfo::from_words)?;
    if infos.is_empty() {
        return Ok(Vec::new());
    }
    let btf = raw.btf.as_deref().ok_or(RawProgramError::NoTypes { array: ARRAY })?;
    let mut last = None;
    for (n, info) in infos.iter().enumerate() {
        let bad = |what| RawProgramError::Record { array: ARRAY, record: n, what };
        if last.is_some_and(|last| last >= info.offset) {
            return Err(bad("its instruction is not behind that of the record before it"));
        }
        last = Some(info.offset);
        match raw.insns.get(info.offset as usize) {
            None => return Err(bad("its instruction lies outside the program")),
            Some(i) if i.code == 0 => {
                return Err(bad("its instruction is the second half of another"));
            }
            Some(_) => {}
        }
        if !btf.has_string(info.file_off) || !btf.has_string(info.text_off) {
            return Err(bad("its strings lie outside those of the types"));
        }
    }
    let bare = starts.iter().find(|s| !infos.iter().any(|info| info.offset as usize == **s));
    if let Some(insn) = bare {
        return Err(RawProgramError::NoLine { insn: *insn });
    }
    Ok(infos.iter().map(|info| Line::new(btf, info.offset as usize, info)).collect())
}

/// Reads an array of records, of which `K` words are understood.
fn records<const K: usize, T>(
    of: Records<'_>,
    array: &'static str,
    each: impl Fn([u32; K]) -> T,
) -> Result<Vec<T>, RawProgramError> {
    /// Most bytes of a record (kernel/bpf/verifier.c `MAX_FUNCINFO_REC_SIZE`).
    const MOST: usize = 252;
    let size = of.size as usize;
    if of.bytes.is_empty() {
        return Ok(Vec::new());
    }
    if size < K * 4
        || size > MOST
        || !size.is_multiple_of(4)
        || !of.bytes.len().is_multiple_of(size)
    {
        return Err(RawProgramError::RecordSize { array, size, bytes: of.bytes.len() });
    }
    let read = |(n, record): (usize, &[u8])| {
        let (words, _) = record.as_chunks::<4>();
        let mut known = [0; K];
        for (word, bytes) in known.iter_mut().zip(words) {
            *word = u32::from_le_bytes(*bytes);
        }
        if words.iter().skip(K).any(|bytes| *bytes != [0; 4]) {
            let what = "what follows the known fields is not zero";
            return Err(RawProgramError::Record { array, record: n, what });
        }
        Ok(each(known))
    };
    of.bytes.chunks_exact(size).enumerate().map(read).collect()
}
