//! The whole log: every step of the walk with what it changed, laid out as the kernel does at log
//! level 2.
//!
//! Lines are written one step late, as what an instruction did is known when the next one is
//! reached. What the kernel says of its own methods (`mark_precise: …`, `live stack update …`, `SCC
//! …`) has no counterpart here.

use crate::cfg::{Cfg, uses};
use crate::reg::Kind;
use crate::show::{Contents, Names};
use crate::state::State;
use skep_isa::{Insn, op, text};
use std::fmt::{Arguments, Write};

/// Is told of a walk while it goes on.
pub(crate) trait Watch {
    /// Whether it does anything.
    fn is_there(&self) -> bool {
        true
    }
    /// An instruction is reached in a state.
    fn reach(&mut self, insn: usize, state: &State);
    /// The path ends here: this was walked before, in the same or a wider state.
    fn safe(&mut self, _insn: usize) {}
    /// The path put aside at `from` is next.
    fn resume(&mut self, _from: usize) {}
    /// A global function is walked from here on: its index and first instruction.
    fn function(&mut self, _func: usize, _start: usize) {}
    /// All paths of the global function were walked.
    fn proved(&mut self, _func: usize, _start: usize) {}
}

/// Shows the states to nobody.
pub(crate) struct Nobody;

impl Watch for Nobody {
    fn is_there(&self) -> bool {
        false
    }

    fn reach(&mut self, _: usize, _: &State) {}
}

/// Shows the states to a closure.
pub(crate) struct Observed<'a, 'b>(pub(crate) &'a mut crate::Observer<'b>);

impl Watch for Observed<'_, '_> {
    fn reach(&mut self, insn: usize, state: &State) {
        (self.0)(insn, state);
    }
}

/// How a path came to an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Arrival {
    /// From the instruction before.
    On,
    /// As the first of a function.
    First,
    /// Put aside at that instruction.
    From(usize),
}

/// An instruction not written yet.
struct Step {
    insn: usize,
    state: State,
    arrival: Arrival,
}

/// Writes the log.
pub(crate) struct Trace<'a> {
    out: &'a mut dyn Write,
    names: Names<'a>,
    /// First instructions of the functions.
    funcs: Vec<usize>,
    step: Option<Step>,
    arrival: Arrival,
    /// File and number of the source line written last.
    line: Option<(&'a str, u32)>,
    /// Nobody wants more.
    closed: bool,
}

impl<'a> Trace<'a> {
    /// Writes the log's head.
    pub(crate) fn new(out: &'a mut dyn Write, names: Names<'a>, cfg: &Cfg) -> Self {
        let mut t = Self {
            out,
            names,
            funcs: cfg.funcs.clone(),
            step: None,
            arrival: Arrival::First,
            line: None,
            closed: false,
        };
        for (n, start) in cfg.funcs.iter().enumerate() {
            t.print(format_args!("func#{n} @{start}\n"));
        }
        t.print(format_args!("Live regs before insn:\n"));
        for (at, line) in text::lines(&names.prog.insns) {
            let live = cfg.live.get(at).copied().unwrap_or_default();
            let regs: String = ('0'..='9')
                .enumerate()
                .map(|(r, digit)| if live & (1 << r) != 0 { digit } else { '.' })
                .collect();
            t.print(format_args!("    {at:3}: {regs} ({:02x}) {line}\n", line.insn.code));
        }
        t
    }

    fn print(&mut self, text: Arguments<'_>) {
        // A log that cannot be written makes no program unsafe.
        self.closed |= self.closed || self.out.write_fmt(text).is_err();
    }

    /// Writes what is left, and what comes after the walk.
    pub(crate) fn finish(mut self, text: Arguments<'_>) {
        self.flush(None);
        self.print(text);
    }

    /// Writes the last step; `after` is the state it led to.
    fn flush(&mut self, after: Option<&State>) {
        let Some(Step { insn, state, arrival }) = self.step.take().filter(|_| !self.closed) else {
            return;
        };
        let prog = self.names.prog;
        self.show_start(insn, &state, arrival);
        if let Some(l) = prog.line(insn).filter(|l| self.line != Some((&l.file, l.line))) {
            self.line = Some((&l.file, l.line));
            let file = l.file.rsplit('/').next().unwrap_or_default();
            self.print(format_args!("; {} @ {file}:{}\n", l.text.trim(), l.line));
        }
        let Some(&code) = prog.insns.get(insn) else { return };
        let line = text::Line { insn: code, next: prog.insns.get(insn + 1).copied() };
        let line = format!("{insn}: ({:02x}) {line}", code.code);
        match after {
            Some(after) if after.frames.len() == state.frames.len() => {
                let changed = self.changed(code, &state, after);
                if code.is_local_call() {
                    let start =
                        usize::try_from(crate::cfg::relative(insn, code.imm)).unwrap_or_default();
                    let (func, name, next) =
                        (self.func_of(start), self.function_name(start), insn + 1);
                    self.print(format_args!("{line}\nFunc#{func} ('{name}') is global and assumed valid.\n{next}:{changed}\n"));
                } else if changed.is_empty() {
                    self.print(format_args!("{line}\n"));
                } else {
                    // The kernel's column: 38, or two more than the line and then the next of a
                    // raster of 8.
                    let column = (line.len() + 5).max(40).next_multiple_of(8) - 2;
                    self.print(format_args!("{line:column$};{changed}\n"));
                }
            }
            Some(after) => {
                self.print(format_args!("{line}\n"));
                self.change_frame(insn, code, &state, after);
            }
            None => self.print(format_args!("{line}\n")),
        }
    }

    fn function_name(&self, start: usize) -> &'a str {
        self.names.prog.subprog(start).map_or("", |s| s.name.as_str())
    }

    fn func_of(&self, start: usize) -> usize {
        self.funcs.iter().position(|s| *s == start).unwrap_or_default()
    }

    /// The whole state, where a path begins or goes on.
    fn show_start(&mut self, insn: usize, state: &State, arrival: Arrival) {
        let contents = self.all(state, state.depth());
        match arrival {
            Arrival::On => {}
            Arrival::First => self.print(format_args!("{insn}:{contents}\n")),
            Arrival::From(from) => {
                self.print(format_args!("\nfrom {from} to {insn}:{contents}\n{insn}:{contents}\n"))
            }
        }
    }

    fn all<'s>(&self, state: &'s State, frame: usize) -> Contents<'s>
    where
        'a: 's,
    {
        Contents { state, frame, before: None, names: self.names }
    }

    /// Registers and stack that the instruction looked at or changed.
    fn changed(&self, code: Insn, before: &State, after: &State) -> String {
        let (read, written) = uses(code);
        let frame = after.depth();
        let base = match code.class() {
            op::LDX => Some(code.src()),
            op::ST | op::STX => Some(code.dst()),
            _ => None,
        };
        let touched = base
            .map(|r| before.reg(r))
            .filter(|r| r.kind == Kind::Stack(frame as u8))
            .and_then(|r| {
                let off = i64::from(r.off) + r.val.as_const()? as i64 + i64::from(code.off);
                usize::try_from((-1 - off) / 8).ok().filter(|_| off < 0)
            });
        Contents {
            state: after,
            frame,
            before: Some((before.top(), read | written, touched)),
            names: self.names,
        }
        .to_string()
    }

    /// A call or return between functions of the program.
    fn change_frame(&mut self, insn: usize, code: Insn, before: &State, after: &State) {
        let (from, to) = (self.all(before, before.depth()), self.all(after, after.depth()));
        if after.depth() > before.depth() {
            self.print(format_args!(
                "caller:\n{}\ncallee:\n{to}\n",
                self.all(after, before.depth())
            ));
            self.arrival = Arrival::First;
        } else if code.code == op::EXIT {
            let back = before.top().ret;
            self.print(format_args!("returning from callee:\n{from}\nto caller at {back}:\n{to}\n\nfrom {insn} to {back}:{to}\n"));
        }
    }
}

impl Watch for Trace<'_> {
    fn reach(&mut self, insn: usize, state: &State) {
        self.flush(Some(state).filter(|_| self.arrival == Arrival::On));
        if !self.closed {
            self.step = Some(Step {
                insn,
                state: state.clone(),
                arrival: std::mem::replace(&mut self.arrival, Arrival::On),
            });
        }
    }

    fn safe(&mut self, insn: usize) {
        let Some(step) = self.step.take() else { return };
        match step.arrival {
            Arrival::From(from) => self.print(format_args!("\nfrom {from} to {insn}: safe\n")),
            _ => self.print(format_args!("{insn}: safe\n")),
        }
    }

    fn resume(&mut self, from: usize) {
        self.flush(None);
        self.arrival = Arrival::From(from);
    }

    fn function(&mut self, func: usize, start: usize) {
        self.flush(None);
        let name = self.function_name(start);
        self.print(format_args!("Validating {name}() func#{func}...\n"));
        self.arrival = Arrival::First;
    }

    fn proved(&mut self, func: usize, start: usize) {
        self.flush(None);
        let name = self.function_name(start);
        self.print(format_args!(
            "Func#{func} ('{name}') is safe for any args that match its prototype\n"
        ));
    }
}
