//! From code with gaps to code: how long each jump is, and where everything lies.
//!
//! The generator writes straight code and notes *items* where something of variable length goes: jumps, calls of
//! helpers, padding. Here jumps start long and become short where they can, then the bytes are put together.

use super::enc::Enc;
use crate::fault::Site;

/// Most passes over all jumps to make them short.
const PASSES: usize = 16;

/// Where loops start: those that fit into a line of what processors keep decoded are to lie in one, or they run at half the speed on some.
const LOOP_ALIGN: usize = 16;
const LINE: usize = 32;

/// Something that code refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    /// An instruction slot.
    Insn(usize),
    /// A function's first machine instruction, by number.
    Func(usize),
    /// A place inside one instruction's code.
    Local(usize),
    /// The code that saves vector registers.
    SaveVectors,
}

#[derive(Clone, Copy)]
enum Item {
    Jump { cc: Option<u8>, to: Label, short: bool },
    Call { func: u64, near: bool },
    Align(usize),
    /// Padding before a loop that ends before this slot; [`Draft::finish`] makes an `Align` of it.
    Loop(usize),
}

/// A place between two bytes: how much straight code and how many items come before.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    raw: u32,
    items: u32,
}

impl Place {
    /// Code is bounded far below what these numbers hold.
    fn new(raw: usize, items: usize) -> Self {
        Self { raw: raw as u32, items: items as u32 }
    }
}

/// Code with gaps.
pub(super) struct Draft {
    pub enc: Enc,
    items: Vec<(usize, Item)>,
    insns: Vec<Place>,
    funcs: Vec<Place>,
    locals: Vec<Place>,
    save_vectors: Option<Place>,
    inner: Option<Place>,
    /// Loads that may fail, and where to continue then.
    faults: Vec<(Label, Label)>,
    /// Four-byte displacements inside straight code: where, items before, what they point to.
    refs: Vec<(Place, Label)>,
}

/// Code without gaps.
pub(super) struct Done {
    pub code: Vec<u8>,
    /// Where each slot went.
    pub insns: Vec<u32>,
    /// Where each function went.
    pub functions: Vec<usize>,
    /// Where the code that saves vector registers went.
    pub save_vectors: Option<usize>,
    /// Where the main function goes on once its frame is made.
    pub inner: Option<usize>,
    /// Loads that may fail, in order, and where to continue then.
    pub faults: Vec<Site>,
}

impl Draft {
    pub fn new(slots: usize) -> Self {
        Self {
            // About what programs take.
            enc: Enc::new(slots * 4),
            items: Vec::with_capacity(slots / 4 + 4),
            insns: vec![Place::default(); slots],
            funcs: Vec::new(),
            locals: Vec::new(),
            save_vectors: None,
            inner: None,
            faults: Vec::new(),
            refs: Vec::new(),
        }
    }

    pub fn here(&self) -> Place {
        Place::new(self.enc.len(), self.items.len())
    }

    /// Says that instruction slot `at` starts here.
    #[inline]
    pub fn insn(&mut self, at: usize) {
        let here = self.here();
        if let Some(place) = self.insns.get_mut(at) {
            *place = here;
        }
    }

    /// Says that the next function starts here.
    pub fn func(&mut self) {
        let here = self.here();
        self.funcs.push(here);
    }

    /// Makes a label that [`Draft::bind`] puts somewhere.
    pub fn local(&mut self) -> Label {
        self.locals.push(Place::default());
        Label::Local(self.locals.len() - 1)
    }

    /// Puts a label here.
    pub fn bind(&mut self, label: Label) {
        let here = self.here();
        if let Label::Local(n) = label
            && let Some(p) = self.locals.get_mut(n)
        {
            *p = here;
        }
    }

    /// Says that the instruction at one label may fail, and that another one is where to continue then.
    pub fn fault(&mut self, at: Label, to: Label) {
        self.faults.push((at, to));
    }

    /// Returns how many instructions may fail.
    pub fn faults(&self) -> usize {
        self.faults.len()
    }

    pub fn save_vectors(&mut self) {
        self.save_vectors = Some(self.here());
    }

    /// Says that the main function has made its frame.
    pub fn inner(&mut self) {
        self.inner = Some(self.here());
    }

    pub fn jump(&mut self, cc: Option<u8>, to: Label) {
        self.items.push((self.enc.len(), Item::Jump { cc, to, short: false }));
    }

    pub fn call_helper(&mut self, func: u64) {
        self.items.push((self.enc.len(), Item::Call { func, near: false }));
    }

    pub fn align(&mut self, to: usize) {
        self.items.push((self.enc.len(), Item::Align(to)));
    }

    /// Starts a loop that ends before slot `end`.
    pub fn align_loop(&mut self, end: usize) {
        self.items.push((self.enc.len(), Item::Loop(end)));
    }

    /// `call` of another part of this code.
    pub fn call(&mut self, to: Label) {
        let raw = self.enc.call();
        self.refs.push((Place::new(raw, self.items.len()), to));
    }

    /// `lea dst, [rip + …]` of another part of this code.
    pub fn address(&mut self, dst: u8, to: Label) {
        let raw = self.enc.lea_rip(dst);
        self.refs.push((Place::new(raw, self.items.len()), to));
    }

    /// Returns the most bytes the code can take, and the first helper it calls.
    pub fn bound(&self) -> (usize, u64) {
        let most = self.items.iter().map(|(_, i)| match i {
            Item::Jump { .. } => 6,
            Item::Call { .. } => 13,
            Item::Align(n) => *n - 1,
            Item::Loop(_) => LINE - 1,
        });
        let helper = self.items.iter().find_map(|(_, i)| if let Item::Call { func, .. } = i { Some(*func) } else { None });
        (self.enc.len() + most.sum::<usize>(), helper.unwrap_or(0))
    }

    /// Puts the code together for the address `base`. `reaches` tells which helpers a near call reaches.
    pub fn finish(mut self, base: u64, reaches: impl Fn(u64) -> bool) -> Done {
        for (n, (raw, item)) in self.items.iter_mut().enumerate() {
            match item {
                Item::Call { func, near } => *near = reaches(*func),
                Item::Loop(end) => {
                    let end = self.insns.get(*end).copied().unwrap_or(Place::new(self.enc.len(), n));
                    // Most items inside are short jumps.
                    let size = (end.raw as usize).saturating_sub(*raw) + 2 * (end.items as usize).saturating_sub(n + 1);
                    *item = Item::Align(if size <= LINE { LINE } else { LOOP_ALIGN });
                }
                _ => {}
            }
        }
        let to: Vec<Place> = self.items.iter().map(|(_, i)| if let Item::Jump { to, .. } = i { self.place(*to) } else { Place::default() }).collect();
        let mut before = Vec::with_capacity(self.items.len() + 1);
        self.measure(&mut before);
        // A program can be written so that each pass finds one more jump to shorten: what is left stays long.
        let mut passes = 0;
        while passes < PASSES && self.shorten(&to, &mut before) {
            passes += 1;
        }
        // Padding may have grown between a jump and its target when code before it shrank.
        passes = 0;
        while self.lengthen(&to, &before, passes >= PASSES) {
            self.measure(&mut before);
            passes += 1;
        }
        let code = self.assemble(&to, &before, base);
        let insns = self.insns.iter().map(|p| self.offset(*p, &before) as u32).collect();
        let at = |p: &Place| self.offset(*p, &before);
        let (save_vectors, inner) = (self.save_vectors.as_ref().map(at), self.inner.as_ref().map(at));
        let offset = |l: Label| self.offset(self.place(l), &before) as u32;
        let faults = self.faults.iter().map(|(from, to)| [offset(*from), offset(*to)]).collect();
        Done { faults, code, insns, functions: self.funcs.iter().map(at).collect(), save_vectors, inner }
    }

    /// Finds the bytes that all items before each item take, and at the end all of them.
    fn measure(&self, before: &mut Vec<u32>) {
        let mut sum = 0;
        before.clear();
        for (raw, item) in &self.items {
            before.push(sum);
            sum += item.size(*raw + sum as usize) as u32;
        }
        before.push(sum);
    }

    fn offset(&self, p: Place, before: &[u32]) -> usize {
        (p.raw + before.get(p.items as usize).copied().unwrap_or(0)) as usize
    }

    fn place(&self, l: Label) -> Place {
        let place = match l {
            Label::Insn(n) => self.insns.get(n).copied(),
            Label::Func(n) => self.funcs.get(n).copied(),
            Label::Local(n) => self.locals.get(n).copied(),
            Label::SaveVectors => self.save_vectors,
        };
        place.unwrap_or_default()
    }

    /// Returns the distance from the end of item `n`, which starts after `raw` bytes of straight code, to `to`.
    fn distance(&self, n: usize, raw: usize, to: Place, before: &[u32]) -> i64 {
        let end = raw + before.get(n + 1).copied().unwrap_or(0) as usize;
        self.offset(to, before) as i64 - end as i64
    }

    /// Makes jumps short that reach, and keeps the measure.
    fn shorten(&mut self, to: &[Place], before: &mut [u32]) -> bool {
        let (mut changed, mut sum) = (false, 0u32);
        for (n, ((raw, item), to)) in self.items.iter_mut().zip(to).enumerate() {
            let was = before.get(n).copied().unwrap_or(0);
            if let Some(b) = before.get_mut(n) {
                *b = sum;
            }
            let at = *raw as i64;
            if let Item::Jump { short: short @ false, cc, .. } = item {
                // What is before this item is measured anew, what is behind it is not.
                let there = i64::from(to.raw) + i64::from(before.get(to.items as usize).copied().unwrap_or(0));
                let size = if cc.is_some() { 6 } else { 5 };
                // A backward jump that becomes short gets nearer to its target by what it loses.
                let d = if to.items as usize > n { there - (at + i64::from(was) + size) } else { there - (at + i64::from(sum) + 2) };
                *short = i8::try_from(d).is_ok();
                changed |= *short;
            }
            sum += item.size(*raw + sum as usize) as u32;
        }
        if let Some(b) = before.last_mut() {
            *b = sum;
        }
        changed
    }

    /// Makes jumps long that do not reach, or all of them.
    fn lengthen(&mut self, to: &[Place], before: &[u32], all: bool) -> bool {
        let mut changed = false;
        for n in 0..self.items.len() {
            if let Some((raw, Item::Jump { cc, to: label, short: true })) = self.items.get(n).copied()
                && (all || to.get(n).is_some_and(|to| i8::try_from(self.distance(n, raw, *to, before)).is_err()))
            {
                self.items[n].1 = Item::Jump { cc, to: label, short: false };
                changed = true;
            }
        }
        changed
    }

    fn assemble(&self, to: &[Place], before: &[u32], base: u64) -> Vec<u8> {
        let total = self.enc.len() + before.last().map_or(0, |sum| *sum as usize);
        let mut out = Enc::new(total);
        let mut raw = 0;
        for (n, ((at, item), to)) in self.items.iter().zip(to).enumerate() {
            out.copy(&self.enc, raw..*at);
            raw = *at;
            match *item {
                Item::Jump { cc, short, .. } => {
                    let distance = self.distance(n, *at, *to, before);
                    if short { out.jump_short(cc, distance as i8) } else { out.jump_long(cc, distance as i32) }
                }
                Item::Call { func, near: true } => {
                    let end = base + out.len() as u64 + 5;
                    out.call_near(func.wrapping_sub(end) as i32);
                }
                Item::Call { func, near: false } => out.call_far(func),
                Item::Align(to) => out.pad(to),
                Item::Loop(_) => {}
            }
        }
        out.copy(&self.enc, raw..self.enc.len());
        for (p, to) in &self.refs {
            let at = self.offset(*p, before);
            let d = self.offset(self.place(*to), before) as i64 - (at as i64 + 4);
            out.set(at, d as i32);
        }
        out.into_code()
    }
}

impl Item {
    fn size(self, at: usize) -> usize {
        match self {
            Self::Jump { short: true, .. } => 2,
            Self::Jump { cc: Some(_), .. } => 6,
            Self::Jump { cc: None, .. } | Self::Call { near: true, .. } => 5,
            Self::Call { near: false, .. } => 13,
            Self::Align(to) => at.wrapping_neg() & (to - 1),
            Self::Loop(_) => 0,
        }
    }
}
