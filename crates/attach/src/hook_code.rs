//! Machine code made for one hook list: what a trampoline does between marking its thread and leaving,
//! for hooks that say what they change and read ([`DirectCall`]).
//!
//! The walk of a trampoline saves every register and fills the whole frame, as a hook may be anything.
//! Here only those registers are saved that the hooks change, and only those words of the frame are
//! written that they read; each hook is called directly, with its cookie from a known word.
//!
//! ```text
//! at_entry       entry trampolines, hook lists with entry hooks only
//! at_call[n]     exit trampolines for up to 8*n words of arguments on the stack, before the function
//! at_return[n]   the same, after it
//! ```
//!
//! Each piece finds rbp, r12 and rsp as the trampoline has them (`tramp/x64.s`), rax free, and all other
//! registers as they were in the program; it jumps back with them so. When a condition of a hook does
//! not hold, the piece jumps to the trampoline's walk, having changed nothing but rax.
//!
//! A thread runs a piece only while it is marked, between reading the hook list and the end of the
//! event. So the code is freed with its hook list, after a drain. It has no unwind information, no more
//! than programs have: who looks at a stack from a signal handler in there sees no further.

use crate::frame::{CTX, Frame, MAX_ARGS};
use crate::hook::{DirectCall, Position};
use crate::hook_list::{AttachedHook, COOKIES, Meta};
use crate::sys;
use crate::tramp::entry_points::{self as tramp, ExitLabels};
use crate::tramp::layout::{FRAME, X_IDS, X_SEQ, X_SESSIONS, X_SIZE, X_WORDS};
use skep_sys::thread_words;
use std::mem::offset_of;

/// Hooks before a function, and behind it, that code is made for.
const MOST: usize = 4;
const SIZE: u64 = 4096;

/// Where a hook list leads trampolines.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HookCode {
    pub(crate) at_entry: u64,
    pub(crate) at_call: [u64; 2],
    pub(crate) at_return: [u64; 2],
    /// The page with code of its own; 0: there is none.
    page: u64,
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RDI: u8 = 7;

/// Words of a [`Frame`] by number; see there.
const SESSION: usize = 0;
const IS_RETURN: usize = 1;
const COOKIE: usize = 2;
const IP: usize = 3;
const NR_ARGS: usize = 4;
const ARGS: usize = CTX / 8;
const RETURNED: usize = offset_of!(Frame, rax) / 8;
const STACK_POINTER: usize = offset_of!(Frame, rsp) / 8;
/// The first word that is only there after the function.
const AT_RETURN: usize = STACK_POINTER + 1;

/// Registers that a call may change, with their words before and after the function. rax is the
/// trampoline's.
const CALLED: [(u8, usize, usize); 8] = [
    (7, ARGS, AT_RETURN),
    (6, ARGS + 1, AT_RETURN + 1),
    (2, ARGS + 2, AT_RETURN + 2),
    (1, ARGS + 3, AT_RETURN + 3),
    (8, ARGS + 4, AT_RETURN + 4),
    (9, ARGS + 5, AT_RETURN + 5),
    (10, RETURNED + 1, RETURNED + 1),
    (11, RETURNED + 2, RETURNED + 2),
];
/// Words of the frame that code is made for: arguments, what stands below them, the stack pointer.
const READABLE: u64 = bits(0, ARGS + MAX_ARGS + 1) | 1 << STACK_POINTER;

const fn bits(from: usize, to: usize) -> u64 {
    (1 << to) - (1 << from)
}

/// One hook in a piece.
#[derive(Clone, Copy)]
struct Step {
    call: DirectCall,
    position: Position,
    /// Where the cookie is, from the function's metadata.
    cookie_at: i32,
    /// Number of the session.
    session: u8,
    seq: i32,
}

impl HookCode {
    /// Leads trampolines to their own walks.
    pub(crate) fn walks() -> Self {
        let [a, b] = tramp::EXIT_LABELS;
        Self {
            at_entry: tramp::entry_walk(),
            at_call: [address(a.walk), address(b.walk)],
            at_return: [address(a.walk_back), address(b.walk_back)],
            page: 0,
        }
    }

    /// Makes code for hooks whose cookies are in these words; walks where there can be none.
    pub(crate) fn new(entries: &[AttachedHook], words: &[usize]) -> Self {
        let walks = Self::walks();
        let Some(steps) = steps(entries, words) else { return walks };
        let Ok(page) = sys::map(0, SIZE, sys::PROT_READ | sys::PROT_WRITE) else { return walks };
        let mut out = Emitter { base: page, bytes: Vec::with_capacity(1024) };
        let mut code = Self { page, ..walks };
        if entries.iter().all(|e| !e.hook.position.needs_exit()) {
            code.at_entry = out.at_entry(&steps);
        } else {
            for (n, labels) in tramp::EXIT_LABELS.iter().enumerate() {
                let frame = ExitFrame { n: n as i32 * 64, labels };
                if let Some(to) = code.at_call.get_mut(n) {
                    *to = out.at_call(&steps, &frame);
                }
                let after = steps.iter().any(|s| s.is_after());
                if let Some(to) = code.at_return.get_mut(n).filter(|_| after) {
                    *to = out.at_return(&steps, &frame);
                }
            }
        }
        // SAFETY: new memory, which nobody knows yet, and the code fits.
        let done = out.bytes.len() as u64 <= SIZE
            && unsafe {
                std::ptr::copy_nonoverlapping(out.bytes.as_ptr(), page as *mut u8, out.bytes.len());
                sys::protect(page, SIZE, sys::PROT_READ | sys::PROT_EXEC).is_ok()
            };
        if done {
            return code;
        }
        // SAFETY: as above.
        unsafe { sys::unmap(page, SIZE) };
        walks
    }

    /// Frees the code.
    ///
    /// # Safety
    /// No thread is led there any more, or is in there.
    pub(crate) unsafe fn free(&self) {
        if self.page != 0 {
            // SAFETY: the caller's promise.
            unsafe { sys::unmap(self.page, SIZE) };
        }
    }
}

fn address(label: unsafe extern "C" fn()) -> u64 {
    label as usize as u64
}

/// The hooks as steps; `None` when code cannot be made for all of them.
fn steps(entries: &[AttachedHook], words: &[usize]) -> Option<Vec<Step>> {
    if entries.is_empty() || entries.len() > MOST {
        return None;
    }
    let exits = entries.iter().any(|e| Step::after(e.hook.position));
    let mut session = 0;
    let mut out = Vec::with_capacity(entries.len());
    for (e, word) in entries.iter().zip(words) {
        let call = e.hook.direct?;
        let position = e.hook.position;
        let known = call.reads & !READABLE == 0 && usize::from(e.hook.wants_args) <= 6;
        // Whether these are left out decides about exit hooks.
        if !known || (exits && position == Position::ModifyReturn) || *word >= COOKIES {
            return None;
        }
        let cookie_at = (offset_of!(Meta, cookies) + 8 * *word) as i32;
        out.push(Step { call, position, cookie_at, session, seq: i32::try_from(e.seq).ok()? });
        session += u8::from(position == Position::Session);
    }
    Some(out)
}

impl Step {
    fn after(position: Position) -> bool {
        matches!(position, Position::Exit | Position::Session)
    }

    fn is_after(&self) -> bool {
        Self::after(self.position)
    }

    fn is_before(&self) -> bool {
        self.position != Position::Exit
    }
}

/// The frame of an exit trampoline.
struct ExitFrame<'a> {
    /// Bytes of copied arguments.
    n: i32,
    labels: &'a ExitLabels,
}

impl ExitFrame<'_> {
    /// Where the [`Frame`] is, from rsp.
    fn frame(&self) -> i32 {
        self.n + X_SIZE as i32
    }

    fn own(&self, word: usize) -> i32 {
        self.n + word as i32
    }
}

/// A place in the code where the distance to another is to be written.
struct Gap(usize);

const E: u8 = 4;
const NE: u8 = 5;
const B: u8 = 2;

struct Emitter {
    base: u64,
    bytes: Vec<u8>,
}

/// The pieces.
impl Emitter {
    fn at_entry(&mut self, steps: &[Step]) -> u64 {
        let start = self.start();
        let walk = self.conditions(steps);
        let reads = self.save(steps, steps, 0, false);
        if reads >> STACK_POINTER & 1 != 0 {
            self.lea(RAX, RSP, FRAME as i32 + 8);
            self.store(RAX, 8 * STACK_POINTER as i32);
        }
        for step in steps {
            self.no_session(step, 0);
            self.call(step, 0);
        }
        self.restore(steps, 0, false);
        self.jump(tramp::entry_end());
        self.land_all(walk);
        self.jump(tramp::entry_walk());
        start
    }

    fn at_call(&mut self, steps: &[Step], at: &ExitFrame<'_>) -> u64 {
        let start = self.start();
        let f = at.frame();
        let before: Vec<Step> = steps.iter().filter(|s| s.is_before()).copied().collect();
        let walk = self.conditions(&before);
        self.save(&before, steps, f, false);
        let sessions = steps.iter().filter(|s| s.position == Position::Session).count();
        let exits = steps.iter().any(|s| s.position == Position::Exit);
        let seq = steps.iter().map(|s| s.seq).max().unwrap_or(0);
        let always = exits || sessions > 1;
        if always {
            self.store_imm(at.own(X_SESSIONS), 0);
        }
        let mut wants: Vec<(Gap, usize, Step)> = Vec::new();
        let mut skips: Vec<Gap> = Vec::new();
        for step in &before {
            match step.position {
                Position::Session => {
                    let word = at.own(X_WORDS) + 8 * i32::from(step.session);
                    self.lea(RAX, RSP, word);
                    self.store_imm(word, 0);
                    self.store(RAX, f);
                    self.call(step, f);
                    self.bytes.extend_from_slice(&[0x48, 0x83, 0xf8, 1]); // cmp rax, 1
                    wants.push((self.jump_if(NE), self.bytes.len(), *step));
                }
                Position::ModifyReturn => {
                    // The return value starts as 0, unless a register is still kept in its place.
                    self.no_session(step, f);
                    if step.call.reads & bits(ARGS + 6, ARGS + 7) != 0 {
                        self.store_imm(f + 8 * (ARGS as i32 + 6), 0);
                    }
                    self.call(step, f);
                    self.bytes.extend_from_slice(&[0x48, 0x85, 0xc0]); // test rax, rax
                    skips.push(self.jump_if(NE));
                }
                _ => {
                    self.no_session(step, f);
                    self.call(step, f);
                }
            }
        }
        let to = if !exits && sessions == 0 { at.labels.jump } else { at.labels.call };
        if always {
            self.will_return(at, seq);
            if exits {
                self.store_imm(f + 16, 1);
            } else {
                self.load(RAX, RSP, at.own(X_SESSIONS));
                self.store(RAX, f + 16);
            }
        } else if sessions == 1 {
            self.store_imm(f + 16, 0);
        }
        let end = self.bytes.len();
        self.restore(&before, f, false);
        self.jump(address(to));
        for (gap, back, step) in wants {
            self.land(gap);
            let back = if always {
                // or qword ptr [rsp + X_SESSIONS], 1 << session
                self.memory(&[0x83], 1, RSP, at.own(X_SESSIONS));
                self.bytes.push(1 << step.session);
                back
            } else {
                self.store_imm(at.own(X_SESSIONS), 1 << step.session);
                self.will_return(at, seq);
                self.store_imm(f + 16, 1);
                end
            };
            self.store_imm(at.own(X_IDS) + 8 * i32::from(step.session), step.seq);
            let to = self.base + back as u64;
            self.jump(to);
        }
        if !skips.is_empty() {
            self.land_all(skips);
            self.restore(&before, f, false);
            self.jump(address(at.labels.skip));
        }
        self.land_all(walk);
        self.jump(address(at.labels.walk));
        start
    }

    fn at_return(&mut self, steps: &[Step], at: &ExitFrame<'_>) -> u64 {
        let start = self.start();
        let f = at.frame();
        let after: Vec<Step> = steps.iter().filter(|s| s.is_after()).copied().collect();
        let mut walk = self.conditions(&after);
        // cmp dword ptr [rsp + X_SESSIONS + 4], 0: a tail call, which the walk ends.
        self.memory_short(&[0x83], 7, RSP, at.own(X_SESSIONS) + 4);
        self.bytes.push(0);
        walk.push(self.jump_if(NE));
        let reads = self.save(&after, &[], f, true);
        if reads & bits(ARGS, ARGS + MAX_ARGS + 1) != 0 {
            self.load(RCX, RSP, f + 8 * NR_ARGS as i32);
            self.load(RAX, RSP, f + 8 * RETURNED as i32);
            // mov [rsp + rcx*8 + disp32], rax
            self.bytes.extend_from_slice(&[0x48, 0x89, 0x84, 0xcc]);
            self.bytes.extend_from_slice(&(f + CTX as i32).to_le_bytes());
        }
        for step in &after {
            let mut others = Vec::new();
            if step.position == Position::Session {
                // test byte ptr [rsp + X_SESSIONS], 1 << session
                self.memory_short(&[0xf6], 0, RSP, at.own(X_SESSIONS));
                self.bytes.push(1 << step.session);
                others.push(self.jump_if(E));
                self.compare(at.own(X_IDS) + 8 * i32::from(step.session), step.seq);
                others.push(self.jump_if(NE));
                self.lea(RAX, RSP, at.own(X_WORDS) + 8 * i32::from(step.session));
                self.store(RAX, f);
            } else {
                // It was attached while the function ran.
                self.compare(at.own(X_SEQ), step.seq);
                others.push(self.jump_if(B));
                self.no_session(step, f);
            }
            self.call(step, f);
            self.land_all(others);
        }
        self.restore(&after, f, true);
        self.jump(address(at.labels.end));
        self.land_all(walk);
        self.jump(address(at.labels.walk_back));
        start
    }
}

/// Their parts.
impl Emitter {
    /// Begins a piece.
    fn start(&mut self) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(64), 0xcc);
        self.base + self.bytes.len() as u64
    }

    /// What must hold for all steps; the gaps are jumps from where it does not.
    fn conditions(&mut self, steps: &[Step]) -> Vec<Gap> {
        let mut out = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            let earlier = steps.get(..n).unwrap_or_default();
            let (word, value) = step.call.word;
            if earlier.iter().all(|e| e.call.word != step.call.word) {
                self.mov_imm(RAX, word as u64);
                self.bytes.extend_from_slice(&[0x48, 0x83, 0x38, value]); // cmp qword ptr [rax], value
                out.push(self.jump_if(NE));
            }
            let Some((word, offset)) = step.call.thread_word else { continue };
            if earlier.iter().all(|e| e.call.thread_word != step.call.thread_word) {
                self.mov_imm(RAX, word as u64);
                self.bytes.extend_from_slice(&[0x48, 0x8b, 0x00]); // mov rax, [rax]
                self.bytes.extend_from_slice(&[0x48, 0x85, 0xc0]); // test rax, rax
                out.push(self.jump_if(E));
                let segment = if thread_words::by_gs() { 0x65 } else { 0x64 };
                // cmp fs:[offset], rax
                self.bytes.extend_from_slice(&[segment, 0x48, 0x39, 0x04, 0x25]);
                self.bytes.extend_from_slice(&offset.to_le_bytes());
                out.push(self.jump_if(NE));
            }
        }
        out
    }

    /// Writes the words that hooks read, and those of registers that the calls of `steps` change.
    /// `all` may read what is written before the function. Returns what is read.
    fn save(&mut self, steps: &[Step], all: &[Step], f: i32, after: bool) -> u64 {
        let reads = steps.iter().chain(all).fold(0, |sum, s| sum | s.call.reads);
        let changes = changes(steps, after);
        for (register, before, behind) in CALLED {
            if changes >> register & 1 != 0 || (!after && reads >> before & 1 != 0) {
                self.store(register, f + 8 * (if after { behind } else { before }) as i32);
            }
        }
        let reads_it = |word: usize| reads >> word & 1 != 0;
        if reads_it(IS_RETURN) {
            self.store_imm(f + 8 * IS_RETURN as i32, i32::from(after));
        }
        if !after {
            for (word, offset) in [(IP, offset_of!(Meta, ip)), (NR_ARGS, offset_of!(Meta, nr_args))]
            {
                if reads_it(word) {
                    self.load(RAX, RBP, offset as i32);
                    self.store(RAX, f + 8 * word as i32);
                }
            }
        }
        reads
    }

    fn restore(&mut self, steps: &[Step], f: i32, after: bool) {
        let changes = changes(steps, after);
        for (register, before, behind) in CALLED {
            if changes >> register & 1 != 0 {
                self.load(register, RSP, f + 8 * (if after { behind } else { before }) as i32);
            }
        }
    }

    /// Calls a hook.
    fn call(&mut self, step: &Step, f: i32) {
        if step.call.reads >> COOKIE & 1 != 0 {
            self.load(RAX, RBP, step.cookie_at);
            self.store(RAX, f + 8 * COOKIE as i32);
        }
        self.lea(RDI, RSP, f + CTX as i32);
        let to = step.call.run as usize as u64;
        match self.distance(to, 5) {
            Some(d) => self.rel(&[0xe8], d),
            None => {
                self.mov_imm(RAX, to);
                self.bytes.extend_from_slice(&[0xff, 0xd0]); // call rax
            }
        }
    }

    /// A hook without a session's word finds 0 for its address.
    fn no_session(&mut self, step: &Step, f: i32) {
        if step.call.reads >> SESSION & 1 != 0 {
            self.store_imm(f, 0);
        }
    }

    /// What the code behind the function needs, whatever hook list it finds then.
    fn will_return(&mut self, at: &ExitFrame<'_>, seq: i32) {
        self.load(RAX, RBP, offset_of!(Meta, nr_args) as i32);
        self.store(RAX, at.frame() + 8 * NR_ARGS as i32);
        self.store_imm(at.own(X_SEQ), seq);
    }
}

/// Registers that the calls of steps change, besides rax; and rdi, which is their argument.
fn changes(steps: &[Step], after: bool) -> u16 {
    let by_calls = steps.iter().fold(1 << RDI, |sum, s| sum | s.call.changes);
    // Where the result is put is found with rcx.
    by_calls | u16::from(after) << RCX
}

/// Instructions.
impl Emitter {
    /// `op` with a register or its extension and memory, 64 bits wide.
    fn memory(&mut self, op: &[u8], register: u8, base: u8, disp: i32) {
        self.bytes.push(0x48 | (register >> 3) << 2);
        self.memory_short(op, register, base, disp);
    }

    /// The same without a prefix.
    fn memory_short(&mut self, op: &[u8], register: u8, base: u8, disp: i32) {
        self.bytes.extend_from_slice(op);
        let short = i8::try_from(disp);
        let mode = if short.is_ok() { 0x40 } else { 0x80 };
        self.bytes.push(mode | (register & 7) << 3 | base);
        if base == RSP {
            self.bytes.push(0x24);
        }
        match short {
            Ok(short) => self.bytes.push(short as u8),
            Err(_) => self.bytes.extend_from_slice(&disp.to_le_bytes()),
        }
    }

    /// `mov [rsp + disp], register`
    fn store(&mut self, register: u8, disp: i32) {
        self.memory(&[0x89], register, RSP, disp);
    }

    /// `mov register, [base + disp]`
    fn load(&mut self, register: u8, base: u8, disp: i32) {
        self.memory(&[0x8b], register, base, disp);
    }

    fn lea(&mut self, register: u8, base: u8, disp: i32) {
        self.memory(&[0x8d], register, base, disp);
    }

    /// `mov qword ptr [rsp + disp], value`
    fn store_imm(&mut self, disp: i32, value: i32) {
        self.memory(&[0xc7], 0, RSP, disp);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// `cmp qword ptr [rsp + disp], value`
    fn compare(&mut self, disp: i32, value: i32) {
        self.memory(&[0x81], 7, RSP, disp);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    fn mov_imm(&mut self, register: u8, value: u64) {
        self.bytes.extend_from_slice(&[0x48, 0xb8 | register]);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// The distance to an address from behind an instruction of so many bytes.
    fn distance(&self, to: u64, len: u64) -> Option<i32> {
        let end = self.base + self.bytes.len() as u64 + len;
        i32::try_from(to.wrapping_sub(end) as i64).ok()
    }

    fn rel(&mut self, op: &[u8], distance: i32) {
        self.bytes.extend_from_slice(op);
        self.bytes.extend_from_slice(&distance.to_le_bytes());
    }

    fn jump(&mut self, to: u64) {
        match self.distance(to, 5) {
            Some(d) => self.rel(&[0xe9], d),
            None => {
                self.rel(&[0xff, 0x25], 0); // jmp [rip]
                self.bytes.extend_from_slice(&to.to_le_bytes());
            }
        }
    }

    /// A conditional jump to where [`land`](Self::land) says.
    fn jump_if(&mut self, condition: u8) -> Gap {
        self.rel(&[0x0f, 0x80 | condition], 0);
        Gap(self.bytes.len() - 4)
    }

    fn land(&mut self, Gap(at): Gap) {
        let distance = (self.bytes.len() - (at + 4)) as u32;
        if let Some(to) = self.bytes.get_mut(at..at + 4) {
            to.copy_from_slice(&distance.to_le_bytes());
        }
    }

    fn land_all(&mut self, gaps: Vec<Gap>) {
        gaps.into_iter().for_each(|gap| self.land(gap));
    }
}
