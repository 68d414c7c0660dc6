//! Asks the running kernel's verifier what it says to a linked program.

use skep_isa::{Insn, MapFlags, MapType, op};
use skep_object::{Linked, MapSpec};
use skep_testkit::kernel::{self, Load, Map, Program};

const EPERM: i32 = 1;
const EINVAL: i32 = 22;

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

fn create(spec: &MapSpec) -> Result<Map, String> {
    let map = Map::create(kernel::MapSpec {
        map_type: spec.map_type as u32,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags.0 & (MapFlags::RDONLY_PROG | MapFlags::WRONLY_PROG | MapFlags::NO_PREALLOC),
    });
    let map = map.map_err(|e| format!("map create: {e}"))?;
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
    let named = (0..insns.len()).filter(|at| is_callback(&insns[*at]) || insns[*at].is_local_call()).map(start);
    let mut starts: Vec<u32> = named.chain([0]).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// A program as the kernel gets it, with the maps it refers to.
pub struct Prepared {
    prog_type: u32,
    attach_type: u32,
    gpl: bool,
    sleepable: bool,
    insns: Vec<u8>,
    functions: Vec<u32>,
    _maps: Vec<Map>,
}

impl Prepared {
    /// Makes the maps; an error says why the kernel cannot be asked.
    pub fn new(prog: &Linked) -> Result<Self, String> {
        let refers = |n: usize| {
            let pseudo = |i: &Insn| matches!(i.src(), op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE);
            prog.insns.iter().any(|i| i.is_ld_imm64() && pseudo(i) && i.imm as usize == n)
        };
        // In place of maps that nothing refers to something that can always be made.
        let dummy = MapSpec::new("unused", MapType::Array, 4, 4, 1);
        let specs = prog.maps.iter().enumerate().map(|(n, m)| if refers(n) { &m.spec } else { &dummy });
        let maps: Vec<Map> = specs.map(create).collect::<Result<_, _>>()?;
        if prog.insns.iter().any(|i| i.is_helper_call() && i.imm as u32 >= skep_isa::helper::KFUNC_BASE) {
            return Err("a kernel function".to_owned());
        }
        let bytes: Vec<u8> = prog.insns.iter().flat_map(|i| i.to_bytes()).collect();
        Ok(Self {
            prog_type: prog.prog_type as u32,
            attach_type: prog.attach_type.map_or(0, |a| a as u32),
            gpl: prog.gpl,
            sleepable: prog.sleepable,
            insns: kernel::with_maps(&bytes, &maps.iter().collect::<Vec<_>>()),
            functions: functions(&prog.insns),
            _maps: maps,
        })
    }

    /// Loads the program; it goes when the result is dropped.
    pub fn load(&self, log: bool) -> Result<Program, kernel::Refused> {
        Program::load(&self.as_load(log))
    }

    /// Every step of the kernel's verifier, and whether it took the program; `None` when it cannot be asked.
    #[allow(dead_code, reason = "not all that share this file want it")]
    pub fn log(&self) -> Option<(bool, String)> {
        Program::log_of(&self.as_load(false)).ok()
    }

    fn as_load(&self, log: bool) -> Load<'_> {
        let (attach_type, gpl, functions) = (self.attach_type, self.gpl, &*self.functions);
        // BPF_F_SLEEPABLE.
        let flags = if self.sleepable { 1 << 4 } else { 0 };
        Load { attach_type, gpl, functions, log, flags, ..Load::new(self.prog_type, &self.insns) }
    }
}

/// Loads a program into the kernel and lets it go again.
#[allow(dead_code, reason = "not all that share this file want words")]
pub fn ask(prog: &Linked) -> Verdict {
    let prepared = match Prepared::new(prog) {
        Ok(p) => p,
        Err(e) => return Verdict::Skip(e),
    };
    if prepared.load(false).is_ok() {
        return Verdict::Accept;
    }
    let Err(refused) = prepared.load(true) else { return Verdict::Accept };
    let words: Vec<&str> = refused.log.lines().rev().filter(|l| !l.starts_with("processed ")).take(2).collect();
    match refused.error.raw_os_error() {
        Some(EPERM) if refused.log.is_empty() => Verdict::Skip("bpf(2) is not permitted".to_owned()),
        Some(EINVAL) if refused.log.is_empty() => Verdict::Reject("EINVAL".to_owned()),
        _ => Verdict::Reject(words.into_iter().rev().collect::<Vec<_>>().join(" / ")),
    }
}
