//! The access at fault: which register, how many bytes, and who says how many.

use skep_isa::helper::ArgType;
use skep_isa::kfunc::KArg;
use skep_isa::{Insn, KeyShape, helper, kfunc, op};
use skep_object::{Linked, MapSpec};

use crate::check::spec;
use crate::reg::{Kind, Reg};
use crate::state::State;

/// Who says how many bytes are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    /// The instruction.
    Insn,
    /// A number in a register.
    Register(u8),
    /// The map, whose keys are as long.
    Key,
    /// The map, whose values are as long.
    Value,
    /// The function that is called.
    Fixed,
}

/// One access to memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// From the address in the register.
    pub off: i64,
    pub bytes: u64,
    pub size: Size,
}

impl Access {
    /// What an instruction does with the memory behind `reg`.
    pub fn of(prog: &Linked, state: &State, insn: Insn, reg: u8) -> Option<Self> {
        match insn.class() {
            op::LDX | op::ST | op::STX => Self::by_insn(insn, reg),
            _ if insn.is_helper_call() => Self::by_call(prog, state, insn.imm as u32, reg),
            _ => None,
        }
    }

    fn by_insn(insn: Insn, reg: u8) -> Option<Self> {
        let atomic = insn.class() == op::STX && insn.code & 0xe0 == op::ATOMIC;
        let loads = insn.class() == op::LDX || atomic && insn.imm == op::ATOMIC_LOAD_ACQ;
        let base = if loads { insn.src() } else { insn.dst() };
        let bytes = match insn.code & 0x18 {
            op::B => 1,
            op::H => 2,
            op::W => 4,
            _ => 8,
        };
        (base == reg).then_some(Self { off: insn.off.into(), bytes, size: Size::Insn })
    }

    fn by_call(prog: &Linked, state: &State, id: u32, reg: u8) -> Option<Self> {
        let at = usize::from(reg).checked_sub(1)?;
        let access = |bytes, size| Some(Self { off: 0, bytes, size });
        let behind = || {
            let max = state.reg(reg + 1).val.r64.umax;
            access(max, Size::Register(reg + 1))
        };
        if let Some(kfunc) = kfunc::by_id(id) {
            return match kfunc.args.get(at)? {
                KArg::Mem | KArg::MemOrNull | KArg::MemWrite => behind(),
                KArg::Fixed(n) => access(u64::from(*n), Size::Fixed),
                _ => None,
            };
        }
        let args = helper::by_id(id)?.args;
        let map = || {
            args.iter()
                .position(|a| *a == ArgType::ConstMapPtr)
                .and_then(|n| map_of(prog, state.reg(n as u8 + 1)))
        };
        match args.get(at)? {
            ArgType::MapKey => match map()?.keys {
                KeyShape::Fixed(size) => access(size.into(), Size::Key),
                KeyShape::Bytes { .. } => None,
            },
            ArgType::MapValue | ArgType::MapValueOrNull | ArgType::UninitMapValue => {
                access(map()?.value_size.into(), Size::Value)
            }
            ArgType::FixedMem(n) | ArgType::FixedMemWrite(n) => access(u64::from(*n), Size::Fixed),
            ArgType::UninitLong => access(8, Size::Fixed),
            ArgType::Mem
            | ArgType::MemOrNull
            | ArgType::MemWrite
            | ArgType::UninitMem
            | ArgType::UninitMemOrNull => behind(),
            _ => None,
        }
    }

    /// Why so many bytes, when the instruction does not say it.
    pub fn why_so_many(&self, state: &State) -> Option<String> {
        let n = self.bytes;
        match self.size {
            Size::Insn => None,
            Size::Register(reg) if state.reg(reg).as_const().is_some() => {
                Some(format!("the size in R{reg} is {n}"))
            }
            Size::Register(reg) => Some(format!("the size in R{reg} may be {n}")),
            Size::Key => Some(format!("a key of the map has {n}")),
            Size::Value => Some(format!("a value of the map has {n}")),
            Size::Fixed => Some(format!("the function that is called takes {n}")),
        }
    }
}

fn map_of<'p>(prog: &'p Linked, r: &Reg) -> Option<&'p MapSpec> {
    if let Kind::Map(map) = r.kind { spec(prog, map) } else { None }
}
