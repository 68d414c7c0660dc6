//! A stored state as its instruction lists it: what spares most comparisons.

use crate::cfg::Cfg;
use crate::compare::{How, Ids, Where, difference, differs_at, same_place};
use crate::flow::Flow;
use crate::reg::Reg;
use crate::stack::Slot;
use crate::state::State;
use crate::turns::Since;

/// A stored state in the list of its instruction, with what spares most comparisons.
pub(super) struct Entry {
    pub point: u32,
    pub hits: u32,
    pub misses: u32,
    /// While unfinished it is compared for as long as it is kept, not only while it is one of the
    /// newest.
    pub landmark: bool,
    pub stage: Stage,
    /// [`place`](crate::compare::place) of the state.
    pub place: u64,
    pub apart: Apart,
}

/// What is known of what follows a stored state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Some paths through it go on.
    Open,
    /// All is proved safe.
    Done,
    /// It is known which numbers decide something there, too.
    Known,
}

/// Why a state did not match the last time; the next time it is likely the same.
#[derive(Clone, Copy)]
pub(super) enum Apart {
    /// Not known.
    No,
    /// This register of the running frame must hold that number.
    Number(u8, u64),
    /// The same of a slot of its stack.
    Spilled(u8, u64),
    /// It is here.
    At(Where),
}

impl Entry {
    /// Takes note of how far the paths through it have come.
    pub fn advance(&mut self, stage: Stage) {
        if self.stage != stage {
            // What had to be the same may be less, or decide nothing.
            (self.stage, self.apart) = (stage, Apart::No);
        }
    }

    /// Tells from the entry alone that the state does not match.
    pub fn is_apart(&self, cur: &State) -> bool {
        match self.apart {
            Apart::Number(reg, n) => cur.reg(reg).as_const() != Some(n),
            Apart::Spilled(slot, n) => cur
                .top()
                .stack
                .slots()
                .get(usize::from(slot))
                .is_none_or(|s| !s.is_number() || s.reg.as_const() != Some(n)),
            Apart::No | Apart::At(_) => false,
        }
    }

    /// As [`difference`], at first where it was the last time.
    pub fn compare(
        &mut self,
        old: &State,
        cur: &State,
        since: Since,
        (insn, cfg, flow, how): (usize, &Cfg, &Flow, How),
        ids: &mut Ids,
    ) -> Option<Where> {
        let depth = cur.depth();
        let round = match self.stage {
            Stage::Open => how == How::Same && since == Since::Turn,
            // What is behind it may lead back to where this path comes from: that way round takes a
            // turn for certain only if the old state has no more of them behind it.
            Stage::Done => !matches!(since, Since::Nothing | Since::Turn),
            Stage::Known => false,
        };
        if !same_place(old, cur) || round {
            return Some(Where::Other);
        }
        if let Apart::At(place) = self.apart
            && differs_at(place, old, cur, cfg, flow, how, ids)
        {
            return Some(place);
        }
        let place = difference(old, cur, insn, cfg, flow, how, ids)?;
        // A number in the running frame that decides something, or must be the same: that is for
        // as long as its stage is, unless only its id is another.
        let settled = |old: &Reg, cur: &Reg| {
            let n = old.as_const().filter(|n| cur.as_const() != Some(*n))?;
            (how != How::Enough || flow.is_precise(old.node)).then_some(n)
        };
        let (old, cur) = (old.top(), cur.top());
        let slots = |s: u8| {
            Some((
                old.stack.slots().get(usize::from(s))?,
                cur.stack.slots().get(usize::from(s)).unwrap_or(&Slot::UNINIT),
            ))
        };
        self.apart = match place {
            Where::Reg(frame, r) if usize::from(frame) == depth => {
                settled(&old.regs[usize::from(r)], &cur.regs[usize::from(r)])
                    .map(|n| Apart::Number(r, n))
            }
            Where::Slot(frame, s) if usize::from(frame) == depth => slots(s)
                .filter(|(o, _)| o.is_number())
                .and_then(|(o, c)| settled(&o.reg, &c.reg))
                .map(|n| Apart::Spilled(s, n)),
            _ => None,
        }
        .unwrap_or(Apart::At(place));
        Some(place)
    }
}
