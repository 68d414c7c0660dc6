//! Asks the running kernel's verifier what it says to a linked program.

use skep_isa::errno::{EINVAL, EPERM};
use skep_isa::{
    AttachType, HelperId, Insn, KeyShape, MapFlags, MapType, ProgramType, helper, kfunc, op,
};
use skep_kernel::{self as kernel, LoadError, Map, Program, ProgramSpec};
use skep_object::btf::Kind;
use skep_object::{Btf, Linked, MapSpec};
use skep_testkit::vmlinux::with_functions;

/// What Linux says.
#[allow(dead_code, reason = "not all that share this file want words")]
#[derive(Debug)]
pub enum Verdict {
    Accept,
    /// The last lines of its log.
    Reject(String),
    /// It cannot be asked; why.
    Skip(String),
}

fn create(spec: &MapSpec, types: Option<(&kernel::Btf, &Btf)>) -> Result<Map, String> {
    if let KeyShape::Bytes { .. } = spec.keys {
        return Err("Linux has no maps with keys of any length".to_owned());
    }
    let plain =
        kernel::MapSpec::new(spec.map_type, spec.key_size(), spec.value_size, spec.max_entries)
            .flags(
                spec.flags.0
                    & (MapFlags::RDONLY_PROG | MapFlags::WRONLY_PROG | MapFlags::NO_PREALLOC),
            );
    let map = match (types, &spec.inner) {
        (_, Some(inner)) => create(inner, types)
            .and_then(|inner| Map::create(&plain.inner(&inner)).map_err(|e| e.to_string()))?,
        (Some((types, btf)), _) if spec.value_type_id != 0 => {
            let key = btf.find("unsigned int", |k| matches!(k, Kind::Int(_))).unwrap_or(0);
            let types = Some((types, [key, spec.value_type_id]));
            return Map::create(&kernel::MapSpec { types, ..plain }).map_err(|e| e.to_string());
        }
        _ => Map::create(&plain).map_err(|e| e.to_string())?,
    };
    if let Some(data) = &spec.data {
        let mut value = data.clone();
        value.resize(spec.value_size as usize, 0);
        map.update(&0u32.to_le_bytes(), &value, 0).ok();
    }
    if spec.frozen {
        map.freeze().ok();
    }
    Ok(map)
}

/// First slots of the functions, when there are callbacks: then the kernel wants types.
fn functions(insns: &[Insn]) -> Vec<u32> {
    let start = |at: usize| (at as i64 + 1 + i64::from(insns[at].imm)) as u32;
    let is_callback = |i: &Insn| i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC;
    if !insns.iter().any(is_callback) {
        return Vec::new();
    }
    let named = (0..insns.len())
        .filter(|at| is_callback(&insns[*at]) || insns[*at].is_local_call())
        .map(start);
    let mut starts: Vec<u32> = named.chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// A program as the kernel gets it, with the maps it refers to.
pub struct Prepared {
    prog_type: ProgramType,
    attach_type: Option<AttachType>,
    gpl: bool,
    sleepable: bool,
    insns: Vec<u8>,
    functions: Vec<u32>,
    types: Option<(kernel::Btf, Vec<[u32; 2]>)>,
    _maps: Vec<Map>,
}

/// The name of a kernel function.
fn kfunc_name(id: HelperId) -> Option<&'static str> {
    let helper = || helper::by_id(id).filter(|_| id >= helper::KFUNC_BASE);
    kfunc::by_id(id).map(|k| k.name).or_else(|| Some(helper()?.name))
}

impl Prepared {
    /// Makes the maps; an error says why the kernel cannot be asked. `types` is the section `.BTF`
    /// behind `prog.btf`.
    pub fn new(prog: &Linked, types: Option<&[u8]>) -> Result<Self, String> {
        let refers = |n: usize| {
            let pseudo =
                |i: &Insn| matches!(i.src(), op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE);
            prog.insns.iter().any(|i| i.is_ld_imm64() && pseudo(i) && i.imm as usize == n)
        };
        // In place of maps that nothing refers to something that can always be made.
        let dummy = MapSpec::new("unused", MapType::Array, 4, 4, 1);
        let specs =
            prog.maps.iter().enumerate().map(|(n, m)| if refers(n) { &m.spec } else { &dummy });
        let types =
            types.map(|bytes| kernel::Btf::load(bytes).map_err(|e| e.to_string())).transpose()?;
        let typed = types.as_ref().zip(prog.btf.as_deref());
        let maps: Vec<Map> = specs.map(|s| create(s, typed)).collect::<Result<_, _>>()?;
        let bytes: Vec<u8> = prog.insns.iter().flat_map(|i| i.to_bytes()).collect();
        let bytes = with_functions(&bytes, kfunc_name)
            .map_err(|name| format!("the kernel has no `{name}`"))?;
        let named = |f: &skep_object::Subprog| [f.start as u32, f.type_id];
        Ok(Self {
            prog_type: prog.prog_type,
            attach_type: prog.attach_type,
            gpl: prog.gpl,
            sleepable: prog.sleepable,
            insns: kernel::with_maps(&bytes, &maps.iter().collect::<Vec<_>>()),
            functions: functions(&prog.insns),
            types: types
                .map(|t| (t, prog.subprogs.iter().filter(|f| f.type_id != 0).map(named).collect())),
            _maps: maps,
        })
    }

    /// Loads the program; it goes when the result is dropped.
    pub fn load(&self, log: bool) -> Result<Program, LoadError> {
        Program::load(&self.spec(log))
    }

    /// Every step of the kernel's verifier, and whether it took the program; `None` when it cannot
    /// be asked.
    #[allow(dead_code, reason = "not all that share this file want it")]
    pub fn log(&self) -> Option<(bool, String)> {
        Program::verifier_log(&self.spec(false)).ok()
    }

    fn spec(&self, log: bool) -> ProgramSpec<'_> {
        let (attach_type, gpl, functions) = (self.attach_type, self.gpl, &*self.functions);
        let types = self.types.as_ref().filter(|(_, f)| !f.is_empty()).map(|(t, f)| (t, &**f));
        let flags = if self.sleepable { ProgramSpec::SLEEPABLE } else { 0 };
        ProgramSpec {
            attach_type,
            gpl,
            functions,
            types,
            log,
            flags,
            ..ProgramSpec::new(self.prog_type, &self.insns)
        }
    }
}

/// Loads a program into the kernel and lets it go again.
#[allow(dead_code, reason = "not all that share this file want words")]
pub fn ask(prog: &Linked, types: Option<&[u8]>) -> Verdict {
    let prepared = match Prepared::new(prog, types) {
        Ok(p) => p,
        Err(e) => return Verdict::Skip(e),
    };
    if prepared.load(false).is_ok() {
        return Verdict::Accept;
    }
    let Err(refused) = prepared.load(true) else { return Verdict::Accept };
    let words: Vec<&str> =
        refused.log.lines().rev().filter(|l| !l.starts_with("processed ")).take(2).collect();
    match refused.error.errno() {
        EPERM if refused.log.is_empty() => Verdict::Skip("bpf(2) is not permitted".to_owned()),
        EINVAL if refused.log.is_empty() => Verdict::Reject("EINVAL".to_owned()),
        _ => Verdict::Reject(words.into_iter().rev().collect::<Vec<_>>().join(" / ")),
    }
}
