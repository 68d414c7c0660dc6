//! What can be said of a program without running it: every instruction well formed, every jump
//! inside its function, every instruction reachable; where states are worth storing, and which
//! registers are still read.

use crate::reject::Reason;
use skep_isa::{Insn, helper, kfunc, op};
use skep_object::Linked;

/// A rejection with its place.
pub type Fault = (usize, Reason);

/// A set of registers, one bit each.
pub type RegSet = u16;

const CALLER_SAVED: RegSet = 0x3f;

/// The shape of a program.
pub struct Cfg {
    /// First instruction of each function, ascending; the main program's is 0.
    pub funcs: Vec<usize>,
    /// Instructions where states are stored and compared.
    pub prune: Vec<bool>,
    /// Heads of loops that end by themselves: `may_goto` and calls of helpers that call back.
    pub heads: Vec<bool>,
    /// Registers read before written, from each instruction on.
    pub live: Vec<RegSet>,
    /// Stack that was never written may be read: it holds what is not known, as other stack does.
    pub lax: bool,
    /// Functions that may move the packet, themselves or by what they call.
    pub moves_packet: Vec<bool>,
    /// By function: whether it may sleep, or calls one that may.
    pub sleeps: Vec<bool>,
}

impl Cfg {
    /// Checks the program's shape.
    pub fn new(prog: &Linked) -> Result<Self, Fault> {
        let insns = &prog.insns;
        if insns.is_empty() {
            return Err((0, Reason::Empty));
        }
        if insns.len() > op::MAX_INSNS {
            return Err((0, Reason::TooManyInsns { count: insns.len(), limit: op::MAX_INSNS }));
        }
        let second = check_forms(prog)?;
        let funcs = find_funcs(prog, &second)?;
        let mut cfg = Self {
            funcs,
            prune: vec![false; insns.len()],
            heads: vec![false; insns.len()],
            live: vec![0; insns.len()],
            lax: false,
            moves_packet: Vec::new(),
            sleeps: Vec::new(),
        };
        cfg.check_jumps(insns, &second)?;
        cfg.check_reach(insns, &second)?;
        cfg.find_live(insns);
        cfg.find_effects(insns);
        Ok(cfg)
    }

    /// Index of the function that holds an instruction.
    #[must_use]
    pub fn func_of(&self, insn: usize) -> usize {
        self.funcs.partition_point(|f| *f <= insn).saturating_sub(1)
    }

    fn check_jumps(&mut self, insns: &[Insn], second: &[bool]) -> Result<(), Fault> {
        for (f, start) in self.funcs.iter().enumerate() {
            let end = self.funcs.get(f + 1).copied().unwrap_or(insns.len());
            let mut last = *start;
            for i in *start..end {
                if second[i] {
                    continue;
                }
                last = i;
                if let Some(to) = target(insns, i) {
                    let to = usize::try_from(to)
                        .ok()
                        .filter(|t| (*start..end).contains(t))
                        .ok_or((i, Reason::JumpOutOfRange { from: i, to }))?;
                    if second[to] {
                        return Err((i, Reason::JumpIntoLdImm64 { to: to - 1 }));
                    }
                    self.prune[to] = true;
                    self.prune[i] |= is_conditional(insns[i]);
                }
                self.heads[i] =
                    is_may_goto(insns[i]) || calls_back(insns[i]) || is_iter_next(insns[i]);
                if insns[i].is_local_call() {
                    self.prune[i] = true;
                    if let Some(after) = self.prune.get_mut(i + 1) {
                        *after = true;
                    }
                }
            }
            let ends = insns[last].code == op::EXIT
                || (target(insns, last).is_some() && !is_conditional(insns[last]));
            if !ends {
                return Err((last, Reason::FallsOff));
            }
            self.prune[*start] = true;
        }
        Ok(())
    }

    fn check_reach(&self, insns: &[Insn], second: &[bool]) -> Result<(), Fault> {
        let mut seen = vec![false; insns.len()];
        let mut work = vec![0usize];
        while let Some(i) = work.pop() {
            if std::mem::replace(&mut seen[i], true) {
                continue;
            }
            work.extend(successors(insns, i).into_iter().flatten());
            if insns[i].is_local_call() || is_func_address(insns[i]) {
                work.extend(usize::try_from(relative(i, insns[i].imm)).ok());
            }
        }
        match (0..insns.len()).find(|i| !seen[*i] && !second[*i]) {
            Some(insn) => Err((insn, Reason::Unreachable { insn })),
            None => Ok(()),
        }
    }

    /// Functions that do something which their callers must know of, themselves or by what they
    /// call.
    fn find_effects(&mut self, insns: &[Insn]) {
        let helper = |i: &Insn| helper::by_id(i.imm as u32).filter(|_| i.is_helper_call());
        let sleeps = |i: &Insn| {
            let kernel = kfunc::by_id(i.imm as u32).filter(|_| is_kfunc(*i));
            helper(i).is_some_and(|h| h.sleeps)
                || kernel.is_some_and(|k| k.flags.has(kfunc::KFlags::SLEEPABLE))
        };
        let edges = call_edges(insns, self);
        self.moves_packet = self.with_callers(insns, &edges, |i| {
            helper(i).is_some_and(|h| h.packet_effect == helper::PacketEffect::Moves)
        });
        self.sleeps = self.with_callers(insns, &edges, sleeps);
    }

    /// The functions in which such an instruction stands, and those that call them.
    fn with_callers(
        &self,
        insns: &[Insn],
        edges: &[(usize, usize)],
        which: impl Fn(&Insn) -> bool,
    ) -> Vec<bool> {
        let mut found = vec![false; self.funcs.len()];
        for (at, _) in insns.iter().enumerate().filter(|(_, i)| which(i)) {
            found[self.func_of(at)] = true;
        }
        // At most as many rounds as there are functions in a chain.
        for _ in 0..=op::MAX_CALL_FRAMES {
            for (from, to) in edges {
                found[*from] |= found[*to];
            }
        }
        found
    }

    /// Backwards data flow to a fixed point.
    fn find_live(&mut self, insns: &[Insn]) {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); insns.len()];
        for i in 0..insns.len() {
            for s in successors(insns, i).into_iter().flatten() {
                before[s].push(i as u32);
            }
        }
        let mut queued = vec![true; insns.len()];
        let mut work: Vec<u32> = (0..insns.len() as u32).collect();
        while let Some(i) = work.pop() {
            let i = i as usize;
            queued[i] = false;
            let after =
                successors(insns, i).into_iter().flatten().fold(0, |set, s| set | self.live[s]);
            let (read, written) = uses(insns[i]);
            let live = (after & !written) | read;
            if live != self.live[i] {
                self.live[i] = live;
                for b in &before[i] {
                    if !std::mem::replace(&mut queued[*b as usize], true) {
                        work.push(*b);
                    }
                }
            }
        }
    }
}

/// Which function calls which, callbacks too, in order of caller; each pair once.
#[must_use]
pub fn call_edges(insns: &[Insn], cfg: &Cfg) -> Vec<(usize, usize)> {
    let mut edges: Vec<(usize, usize)> = insns
        .iter()
        .enumerate()
        .filter(|(_, i)| i.is_local_call() || is_func_address(**i))
        .filter_map(|(at, i)| {
            Some((cfg.func_of(at), cfg.func_of(usize::try_from(relative(at, i.imm)).ok()?)))
        })
        .collect();
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// The chain of calls from function 0 that needs most stack: functions in the longest chain, bytes
/// of the largest. `None` when a function calls itself, directly or not.
#[must_use]
pub fn deepest_chain(edges: &[(usize, usize)], own: &[u32]) -> Option<(usize, u32)> {
    let round = |f: usize| own.get(f).map_or(0, |d| d.next_multiple_of(16));
    let callees = |f: usize| {
        let from = edges.partition_point(|e| e.0 < f);
        edges.iter().skip(from).take_while(move |e| e.0 == f).map(|e| e.1)
    };
    // Functions in the order in which they are left: callees come before callers.
    let mut done: Vec<Option<(usize, u32)>> = vec![None; own.len()];
    let mut open = vec![false; own.len()];
    let mut work = vec![(0usize, false)];
    while let Some((f, leaving)) = work.pop() {
        if leaving {
            let below = callees(f)
                .filter_map(|c| done.get(c).copied().flatten())
                .fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
            *done.get_mut(f)? = Some((below.0 + 1, below.1.saturating_add(round(f))));
            *open.get_mut(f)? = false;
            continue;
        }
        if done.get(f)?.is_some() {
            continue;
        }
        if std::mem::replace(open.get_mut(f)?, true) {
            return None;
        }
        work.push((f, true));
        for c in callees(f) {
            if *open.get(c)? {
                return None;
            }
            work.push((c, false));
        }
    }
    done.first().copied().flatten()
}

/// Where a relative distance leads.
#[must_use]
pub fn relative(insn: usize, distance: i32) -> i64 {
    insn as i64 + i64::from(distance) + 1
}

/// Tells whether this is a jump that may also fall through.
#[must_use]
pub fn is_conditional(i: Insn) -> bool {
    matches!(i.class(), op::JMP | op::JMP32) && !matches!(i.code & 0xf0, op::JA | 0x80 | 0x90)
}

/// Tells whether this is `may_goto`: it jumps when the loops of the program have run for too long.
#[must_use]
pub fn is_may_goto(i: Insn) -> bool {
    i.code == (op::JMP | op::JCOND)
}

/// Tells whether this calls a helper that calls a function of the program.
#[must_use]
pub fn calls_back(i: Insn) -> bool {
    i.is_helper_call()
        && helper::by_id(i.imm as u32).is_some_and(|h| h.args.contains(&helper::ArgType::Func))
}

/// Tells whether this calls a kernel function that only the verifier knows.
#[must_use]
pub fn is_kfunc(i: Insn) -> bool {
    i.is_helper_call() && kfunc::by_id(i.imm as u32).is_some()
}

/// Tells whether this asks an iterator for its next element.
#[must_use]
pub fn is_iter_next(i: Insn) -> bool {
    i.is_helper_call()
        && kfunc::by_id(i.imm as u32).is_some_and(|k| k.flags.has(kfunc::KFlags::ITER_NEXT))
}

fn is_func_address(i: Insn) -> bool {
    i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC
}

/// The instruction a jump leads to.
#[must_use]
pub fn target(insns: &[Insn], i: usize) -> Option<i64> {
    let insn = insns.get(i)?;
    match insn.code {
        c if c == (op::JMP | op::JA) => Some(relative(i, insn.off.into())),
        c if c == (op::JMP32 | op::JA) => Some(relative(i, insn.imm)),
        _ if is_conditional(*insn) => Some(relative(i, insn.off.into())),
        _ => None,
    }
}

/// The instructions that may follow inside the function.
fn successors(insns: &[Insn], i: usize) -> [Option<usize>; 2] {
    let insn = insns[i];
    let next = i + if insn.is_ld_imm64() { 2 } else { 1 };
    let next = (next < insns.len()).then_some(next);
    let jump = target(insns, i).and_then(|t| usize::try_from(t).ok()).filter(|t| *t < insns.len());
    match insn.code {
        op::EXIT => [None, None],
        _ if jump.is_some() && !is_conditional(insn) => [jump, None],
        _ => [next, jump],
    }
}

/// Registers an instruction reads and writes.
#[must_use]
pub fn uses(i: Insn) -> (RegSet, RegSet) {
    let (d, s) = (1 << i.dst(), 1 << i.src());
    match i.class() {
        op::LD => match i.code & 0xe0 {
            op::ABS => (1 << 6, CALLER_SAVED),
            op::IND => ((1 << 6) | s, CALLER_SAVED),
            _ => (0, d),
        },
        op::LDX => (s, d),
        op::ST => (d, 0),
        op::STX if i.code & 0xe0 == op::ATOMIC => match i.imm {
            op::ATOMIC_LOAD_ACQ => (s, d),
            op::ATOMIC_CMPXCHG => (d | s | 1, 1),
            n if n & op::ATOMIC_FETCH != 0 => (d | s, s),
            _ => (d | s, 0),
        },
        op::STX => (d | s, 0),
        op::ALU | op::ALU64 => {
            let src = if i.code & op::X != 0 && i.code & 0xf0 != op::END { s } else { 0 };
            match i.code & 0xf0 {
                op::MOV => (src, d),
                _ => (src | d, d),
            }
        }
        _ => match i.code {
            op::EXIT => (1, 0),
            op::CALL if is_kfunc(i) => {
                let args = kfunc::by_id(i.imm as u32).map_or(5, |k| k.args.len());
                (((1 << args) - 1) << 1, CALLER_SAVED)
            }
            op::CALL if i.src() == 0 => {
                let args = helper::by_id(i.imm as u32).map_or(5, helper::Helper::registers);
                (((1 << args) - 1) << 1, CALLER_SAVED)
            }
            op::CALL => (CALLER_SAVED & !1, CALLER_SAVED),
            _ if is_conditional(i) && i.code & 0xf0 != op::JCOND => {
                (d | if i.code & op::X != 0 { s } else { 0 }, 0)
            }
            _ => (0, 0),
        },
    }
}

/// Finds the functions: those the object names and those that are called.
fn find_funcs(prog: &Linked, second: &[bool]) -> Result<Vec<usize>, Fault> {
    let mut funcs: Vec<usize> =
        prog.subprogs.iter().map(|s| s.start).filter(|s| *s < prog.insns.len()).collect();
    funcs.push(0);
    for (i, insn) in prog.insns.iter().enumerate() {
        if !second[i] && (insn.is_local_call() || is_func_address(*insn)) {
            let to = relative(i, insn.imm);
            let at = usize::try_from(to)
                .ok()
                .filter(|t| *t < prog.insns.len())
                .ok_or((i, Reason::JumpOutOfRange { from: i, to }))?;
            funcs.push(at);
        }
    }
    funcs.sort_unstable();
    funcs.dedup();
    match funcs.iter().find(|f| second[**f]) {
        Some(f) => Err((*f, Reason::JumpIntoLdImm64 { to: f.saturating_sub(1) })),
        None => Ok(funcs),
    }
}

/// Checks each instruction's own fields; tells which slots are the second half of a 64-bit load.
fn check_forms(prog: &Linked) -> Result<Vec<bool>, Fault> {
    let insns = &prog.insns;
    let mut second = vec![false; insns.len()];
    let mut i = 0;
    while i < insns.len() {
        let insn = insns[i];
        check_form(insn).map_err(|r| (i, r))?;
        if insn.is_ld_imm64() {
            let Some(high) = insns.get(i + 1).filter(|h| h.code == 0 && h.regs == 0 && h.off == 0)
            else {
                return Err((i, Reason::BadLdImm64));
            };
            check_ld_imm64(prog, insn, *high).map_err(|r| (i, r))?;
            second[i + 1] = true;
            i += 1;
        }
        i += 1;
    }
    Ok(second)
}

fn check_ld_imm64(prog: &Linked, insn: Insn, high: Insn) -> Result<(), Reason> {
    let map = || {
        usize::try_from(insn.imm)
            .ok()
            .and_then(|n| prog.maps.get(n))
            .ok_or(Reason::NoSuchMap { index: insn.imm, maps: prog.maps.len() })
    };
    match insn.src() {
        0 => Ok(()),
        op::PSEUDO_FUNC if high.imm == 0 => Ok(()),
        op::PSEUDO_MAP_IDX if high.imm == 0 => map().map(|_| ()),
        op::PSEUDO_MAP_IDX_VALUE => {
            let spec = &map()?.spec;
            // Only arrays have a value whose address never changes (`map_direct_value_addr`).
            if spec.map_type != skep_isa::MapType::Array {
                return Err(Reason::NoDirectValue);
            }
            let off = high.imm as u32;
            if off >= spec.value_size.min(1 << 29) || spec.max_entries != 1 {
                return Err(Reason::BadDirectValue { off, size: spec.value_size });
            }
            Ok(())
        }
        op::PSEUDO_MAP_FD | op::PSEUDO_MAP_VALUE => {
            Err(Reason::Unsupported { what: "a map reference that is not linked" })
        }
        op::PSEUDO_BTF_ID => Err(Reason::Unsupported { what: "the address of a kernel variable" }),
        _ => Err(Reason::BadLdImm64),
    }
}

fn check_form(i: Insn) -> Result<(), Reason> {
    let unknown = Err(Reason::UnknownOpcode { code: i.code });
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let register = |reg: u8| {
        if reg as usize >= op::REGS { Err(Reason::NoSuchRegister { reg }) } else { Ok(()) }
    };
    let (dst, src) = (i.dst(), i.src());
    match i.class() {
        op::LD => match i.code {
            op::LD_IMM64 => {
                register(dst)?;
                reserved(i.off != 0, "BPF_LD_IMM64")
            }
            _ if matches!(i.code & 0xe0, op::ABS | op::IND) => {
                register(src)?;
                let bad = i.off != 0
                    || dst != 0
                    || i.code & 0x18 == op::DW
                    || (i.code & 0xe0 == op::ABS && src != 0);
                reserved(bad, "BPF_LD_[ABS|IND]")
            }
            _ => unknown,
        },
        op::LDX => {
            register(dst)?;
            register(src)?;
            match i.code & 0xe0 {
                op::MEM => {}
                op::MEMSX if i.code & 0x18 != op::DW => {}
                _ => return unknown,
            }
            reserved(i.imm != 0, "BPF_LDX")
        }
        op::ST => {
            register(dst)?;
            if i.code & 0xe0 != op::MEM {
                return unknown;
            }
            reserved(src != 0, "BPF_ST")
        }
        op::STX => {
            register(dst)?;
            register(src)?;
            match i.code & 0xe0 {
                op::MEM => reserved(i.imm != 0, "BPF_STX"),
                op::ATOMIC => check_atomic(i),
                _ => unknown,
            }
        }
        op::ALU | op::ALU64 => {
            register(dst)?;
            check_alu(i)
        }
        _ => check_jump(i),
    }
}

fn check_atomic(i: Insn) -> Result<(), Reason> {
    let size = i.code & 0x18;
    let plain = matches!(
        i.imm & !op::ATOMIC_FETCH,
        op::ATOMIC_ADD | op::ATOMIC_AND | op::ATOMIC_OR | op::ATOMIC_XOR
    );
    match i.imm {
        op::ATOMIC_LOAD_ACQ | op::ATOMIC_STORE_REL => Ok(()),
        _ if !plain && !matches!(i.imm, op::ATOMIC_XCHG | op::ATOMIC_CMPXCHG) => {
            Err(Reason::UnknownOpcode { code: i.code })
        }
        _ if !matches!(size, op::W | op::DW) => Err(Reason::UnknownOpcode { code: i.code }),
        _ => Ok(()),
    }
}

fn check_alu(i: Insn) -> Result<(), Reason> {
    let is64 = i.class() == op::ALU64;
    let by_reg = i.code & op::X != 0;
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let code = i.code & 0xf0;
    if code == op::END {
        let bad = i.src() != 0 || i.off != 0 || !matches!(i.imm, 16 | 32 | 64) || (is64 && by_reg);
        return reserved(bad, "BPF_END");
    }
    if code == op::NEG {
        return reserved(by_reg || i.src() != 0 || i.off != 0 || i.imm != 0, "BPF_NEG");
    }
    if by_reg {
        if i.src() as usize >= op::REGS {
            return Err(Reason::NoSuchRegister { reg: i.src() });
        }
    } else if i.src() != 0 {
        return Err(Reason::ReservedFields { what: "BPF_ALU" });
    }
    if code == op::MOV {
        if is64 && by_reg && i.off == op::ADDR_SPACE_CAST && matches!(i.imm, 1 | 0x1_0000) {
            return Err(Reason::Unsupported {
                what: "an arena (here a cast between address spaces)",
            });
        }
        let width_ok = match i.off {
            0 => true,
            8 | 16 => by_reg,
            32 => by_reg && is64,
            _ => false,
        };
        return reserved(!width_ok || (by_reg && i.imm != 0), "BPF_MOV");
    }
    if code > op::ARSH {
        return Err(Reason::UnknownOpcode { code: i.code });
    }
    let signed_form = matches!(code, op::DIV | op::MOD) && i.off == 1;
    reserved((by_reg && i.imm != 0) || (i.off != 0 && !signed_form), "BPF_ALU")?;
    if matches!(code, op::DIV | op::MOD) && !by_reg && i.imm == 0 {
        return Err(Reason::DivByZero);
    }
    let width = if is64 { 64 } else { 32 };
    if matches!(code, op::LSH | op::RSH | op::ARSH) && !by_reg && !(0..width).contains(&i.imm) {
        return Err(Reason::BadShift { amount: i.imm });
    }
    Ok(())
}

fn check_jump(i: Insn) -> Result<(), Reason> {
    let reserved =
        |bad: bool, what| if bad { Err(Reason::ReservedFields { what }) } else { Ok(()) };
    let (dst, src) = (i.dst(), i.src());
    let is32 = i.class() == op::JMP32;
    match i.code & 0xf0 {
        op::JA if is32 => reserved(i.code & op::X != 0 || i.regs != 0 || i.off != 0, "BPF_JA"),
        op::JA => reserved(i.code & op::X != 0 || i.regs != 0 || i.imm != 0, "BPF_JA"),
        op::JCOND if is_may_goto(i) => reserved(i.regs != 0 || i.imm != 0, "BPF_JCOND"),
        0x80 if i.code == op::CALL => match src {
            0 => reserved(dst != 0 || i.off != 0, "BPF_CALL"),
            op::PSEUDO_CALL => reserved(dst != 0 || i.off != 0, "BPF_CALL"),
            op::PSEUDO_KFUNC_CALL => {
                Err(Reason::Unsupported { what: "a kernel function that is not linked" })
            }
            _ => Err(Reason::ReservedFields { what: "BPF_CALL" }),
        },
        0x90 if i.code == op::EXIT => reserved(i.regs != 0 || i.off != 0 || i.imm != 0, "BPF_EXIT"),
        op::JEQ..=op::JSGE | op::JLT..=op::JSLE
            if i.code & 0xf0 != 0x80 && i.code & 0xf0 != 0x90 =>
        {
            if dst as usize >= op::REGS {
                return Err(Reason::NoSuchRegister { reg: dst });
            }
            if i.code & op::X != 0 {
                if src as usize >= op::REGS {
                    return Err(Reason::NoSuchRegister { reg: src });
                }
                reserved(i.imm != 0, "BPF_JMP")
            } else {
                reserved(src != 0, "BPF_JMP")
            }
        }
        _ => Err(Reason::UnknownOpcode { code: i.code }),
    }
}
