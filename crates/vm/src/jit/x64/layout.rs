//! From code with gaps to code: how long each jump is, and where everything lies.
//!
//! The generator writes straight code and notes *items* where something of variable length goes:
//! jumps, calls of helpers, padding. Here jumps start short and become long where they must, then
//! the bytes are put together.

use super::enc::Enc;
use crate::fault::Site;

/// Most passes over all jumps that make only those long that do not reach.
const PASSES: usize = 16;

/// Where loops start: those that fit into a line of what processors keep decoded are to lie in one,
/// or they run at half the speed on some.
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

/// Something of variable length.
#[derive(Clone, Copy)]
struct Item {
    /// How much straight code comes before.
    raw: u32,
    /// Its length, unless it is padding.
    len: u32,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Jump(Option<u8>, Label),
    Call(u64),
    Align(usize),
    /// Padding before a loop that ends before this slot; [`CodeWithGaps::finish`] makes an `Align` of it.
    Loop(usize),
}

/// Bytes of a short jump, of `jmp` and `jcc` over any distance, of `call` where a displacement
/// reaches, and where not.
const SHORT: u32 = 2;
const JMP: u32 = 5;
const JCC: u32 = 6;
const NEAR: u32 = 5;
const FAR: u32 = 13;

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
pub(super) struct CodeWithGaps {
    pub enc: Enc,
    items: Vec<Item>,
    insns: Vec<Place>,
    funcs: Vec<Place>,
    locals: Vec<Place>,
    /// Slots and functions of the programs before the one that is being written.
    slots_before: usize,
    funcs_before: usize,
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

impl CodeWithGaps {
    pub fn new(slots: usize) -> Self {
        Self {
            // About what programs take.
            enc: Enc::new(slots * 4),
            items: Vec::with_capacity(slots / 4 + 4),
            insns: vec![Place::default(); slots],
            funcs: Vec::new(),
            locals: Vec::new(),
            slots_before: 0,
            funcs_before: 0,
            save_vectors: None,
            inner: None,
            faults: Vec::new(),
            refs: Vec::new(),
        }
    }

    /// Begins another program, of this many slots, behind what is there. Labels of slots and
    /// functions mean its own from now on.
    pub fn begin(&mut self, slots: usize) {
        (self.slots_before, self.funcs_before) = (self.insns.len(), self.funcs.len());
        self.insns.resize(self.insns.len() + slots, Place::default());
    }

    /// Returns a label of the program that is being written as one of all programs.
    fn of_all(&self, label: Label) -> Label {
        match label {
            Label::Insn(n) => Label::Insn(n + self.slots_before),
            Label::Func(n) => Label::Func(n + self.funcs_before),
            other => other,
        }
    }

    pub fn here(&self) -> Place {
        Place::new(self.enc.len(), self.items.len())
    }

    /// Says that instruction slot `at` starts here.
    #[inline]
    pub fn insn(&mut self, at: usize) {
        let here = self.here();
        if let Some(place) = self.insns.get_mut(self.slots_before + at) {
            *place = here;
        }
    }

    /// Says that the next function starts here.
    pub fn func(&mut self) {
        let here = self.here();
        self.funcs.push(here);
    }

    /// Makes a label that [`CodeWithGaps::bind`] puts somewhere.
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

    /// Says that the instruction at one label may fail, and that another one is where to continue
    /// then.
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

    fn item(&mut self, len: u32, what: What) {
        self.items.push(Item { raw: self.enc.len() as u32, len, what });
    }

    pub fn jump(&mut self, cc: Option<u8>, to: Label) {
        self.item(SHORT, What::Jump(cc, self.of_all(to)));
    }

    pub fn call_helper(&mut self, func: u64) {
        self.item(FAR, What::Call(func));
    }

    pub fn align(&mut self, to: usize) {
        self.item(0, What::Align(to));
    }

    /// Starts a loop that ends before slot `end`.
    pub fn align_loop(&mut self, end: usize) {
        self.item(0, What::Loop(self.slots_before + end));
    }

    /// `call` of another part of this code.
    pub fn call(&mut self, to: Label) {
        let raw = self.enc.call();
        self.refs.push((Place::new(raw, self.items.len()), self.of_all(to)));
    }

    /// `lea dst, [rip + …]` of another part of this code.
    pub fn address(&mut self, dst: u8, to: Label) {
        let raw = self.enc.lea_rip(dst);
        self.refs.push((Place::new(raw, self.items.len()), self.of_all(to)));
    }

    /// Returns the most bytes the code can take, and the first helper it calls.
    pub fn bound(&self) -> (usize, u64) {
        let most = self.items.iter().map(|i| match i.what {
            What::Align(n) => n - 1,
            What::Loop(_) => LINE - 1,
            What::Jump(cc, _) => long(cc) as usize,
            What::Call(_) => FAR as usize,
        });
        let helper = self
            .items
            .iter()
            .find_map(|i| if let What::Call(func) = i.what { Some(func) } else { None });
        (self.enc.len() + most.sum::<usize>(), helper.unwrap_or(0))
    }

    /// Puts the code together for the address `base`. `reaches` tells which helpers a near call
    /// reaches.
    pub fn finish(mut self, base: u64, reaches: impl Fn(u64) -> bool) -> Done {
        for (n, item) in self.items.iter_mut().enumerate() {
            match item.what {
                What::Call(func) if reaches(func) => item.len = NEAR,
                What::Loop(end) => {
                    let end = self.insns.get(end).copied().unwrap_or(Place::new(self.enc.len(), n));
                    // Most items inside are short jumps.
                    let size = end.raw.saturating_sub(item.raw)
                        + SHORT * end.items.saturating_sub(n as u32 + 1);
                    item.what = What::Align(if size as usize <= LINE { LINE } else { LOOP_ALIGN });
                }
                _ => {}
            }
        }
        let place = |i: &Item| {
            if let What::Jump(_, to) = i.what { self.place(to) } else { Place::default() }
        };
        let to: Vec<Place> = self.items.iter().map(place).collect();
        let mut before = Vec::with_capacity(self.items.len() + 1);
        self.measure(&mut before);
        // A program can be written so that each pass finds one more jump to lengthen: then all
        // become long.
        let mut passes = 0;
        while self.lengthen(&to, &mut before, passes >= PASSES) {
            passes += 1;
        }
        let code = self.assemble(&to, &before, base);
        let insns = self.insns.iter().map(|p| self.offset(*p, &before) as u32).collect();
        let at = |p: &Place| self.offset(*p, &before);
        let (save_vectors, inner) =
            (self.save_vectors.as_ref().map(at), self.inner.as_ref().map(at));
        let offset = |l: Label| self.offset(self.place(l), &before) as u32;
        let faults = self.faults.iter().map(|(from, to)| [offset(*from), offset(*to)]).collect();
        Done {
            faults,
            code,
            insns,
            functions: self.funcs.iter().map(at).collect(),
            save_vectors,
            inner,
        }
    }

    /// Finds the bytes that all items before each item take, and at the end all of them.
    fn measure(&self, before: &mut Vec<u32>) {
        let mut sum = 0;
        before.clear();
        for item in &self.items {
            before.push(sum);
            sum += item.len(sum);
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

    /// Returns the distance from the end of item `n` to `to`.
    fn distance(&self, n: usize, raw: u32, to: Place, before: &[u32]) -> i64 {
        let end = raw + before.get(n + 1).copied().unwrap_or(0);
        self.offset(to, before) as i64 - i64::from(end)
    }

    /// Makes jumps long that do not reach, or all of them, and keeps the measure.
    fn lengthen(&mut self, to: &[Place], before: &mut [u32], all: bool) -> bool {
        let (mut changed, mut sum) = (false, 0u32);
        for (n, (item, to)) in self.items.iter_mut().zip(to).enumerate() {
            let was = before.get(n).copied().unwrap_or(0);
            if let Some(b) = before.get_mut(n) {
                *b = sum;
            }
            if let Item { raw, len: SHORT, what: What::Jump(cc, _) } = *item {
                // What is before this item is measured anew, what is behind it is not.
                let there = to.raw + before.get(to.items as usize).copied().unwrap_or(0);
                let end = raw + SHORT + if to.items as usize > n { was } else { sum };
                if all || i8::try_from(there.wrapping_sub(end) as i32).is_err() {
                    item.len = long(cc);
                    changed = true;
                }
            }
            sum += item.len(sum);
        }
        if let Some(b) = before.last_mut() {
            *b = sum;
        }
        changed
    }

    fn assemble(&self, to: &[Place], before: &[u32], base: u64) -> Vec<u8> {
        let total = self.enc.len() + before.last().map_or(0, |sum| *sum as usize);
        let mut out = Enc::new(total);
        let mut raw = 0;
        for (n, (item, to)) in self.items.iter().zip(to).enumerate() {
            let at = item.raw as usize;
            out.copy(&self.enc, raw..at);
            raw = at;
            match item.what {
                What::Jump(cc, _) => {
                    let distance = self.distance(n, item.raw, *to, before);
                    if item.len == SHORT {
                        out.jump_short(cc, distance as i8)
                    } else {
                        out.jump_long(cc, distance as i32)
                    }
                }
                What::Call(func) if item.len == NEAR => {
                    let end = base + out.len() as u64 + u64::from(NEAR);
                    out.call_near(func.wrapping_sub(end) as i32);
                }
                What::Call(func) => out.call_far(func),
                What::Align(to) => out.pad(to),
                What::Loop(_) => {}
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
    /// Returns its length when all items before it take `sum` bytes.
    fn len(&self, sum: u32) -> u32 {
        if let What::Align(to) = self.what {
            (self.raw + sum).wrapping_neg() & (to as u32 - 1)
        } else {
            self.len
        }
    }
}

fn long(cc: Option<u8>) -> u32 {
    if cc.is_some() { JCC } else { JMP }
}
