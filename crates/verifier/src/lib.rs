//! Proves that a program is safe to run without run-time checks, or says why it cannot.
//!
//! [`verify`] takes a [`Linked`] program and walks all its paths over *states*, each of which
//! describes a set of machine states: what every register and stack byte may hold. A load, store,
//! call or exit is accepted only if it is safe in all of them. The result is a [`Verified`], which
//! nothing else can make, or a [`Rejection`] in the kernel's words with source line and path.
//!
//! What can be trusted afterwards: memory is only touched inside the context, the program's own
//! stack, map values, records and memory lent by helpers; no register or stack byte is read before
//! it was written (what a helper was given room to fill counts as written); every loop ends;
//! helpers get what their rows in [`skep_isa::helper`] ask for; ring buffer records are released.
//! What is not promised: anything about the numbers in maps, which other processes write; and that a
//! loop ends whose every turn has a loop of another kind in it (an iterator, `bpf_loop`), which is so
//! in Linux, too.
//!
//! How it works, file by file: [`tnum`] and [`range`] and [`scalar`] describe numbers; [`reg`],
//! [`stack`] and [`state`] describe machine states; [`mod@cfg`] looks at the program's shape;
//! `check` walks; [`prune`] ends paths that were walked before in the same or a wider state, as
//! [`compare`] finds, and [`flow`] tells which numbers matter for that. `explain` says more of a
//! fault than its reason, and decides nothing.
#![forbid(unsafe_code)]

pub mod cfg;
mod check;
pub mod compare;
mod explain;
pub mod fields;
pub mod flow;
mod kept;
mod log;
pub mod prune;
pub mod range;
pub mod reg;
mod reject;
pub mod scalar;
mod show;
mod slice;
pub mod stack;
pub mod state;
pub mod tnum;
mod trace;
pub mod turns;

pub use kept::KeptProofs;
pub use reject::{Reason, Rejection, Step};

use explain::{Explanation, Fault};
use skep_isa::{AttachType, HelperId, Insn, ProgramType};
use skep_object::{Access, Btf, Linked, Prototype};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Settings of [`verify`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// 0: only the reason; 1 or more: [`Rejection::path`] is the shortest one and tells what
    /// registers held, [`Rejection::log`] and [`Verified::log`] hold the path and the
    /// statistics.
    pub log_level: u32,
    /// Most instructions looked at, over all paths.
    pub limit: u32,
    /// Refuse loads and stores that are not aligned to their size, not only atomic ones and those
    /// of the stack.
    pub strict_alignment: bool,
    /// Let programs read stack bytes they never wrote, as the kernel does for privileged programs
    /// since Linux 6.3.
    pub allow_uninit_stack: bool,
    /// Refuse what would tell addresses: pointers stored where others read them, returned,
    /// compared or taken apart. The kernel's rule for users without privileges.
    pub strict: bool,
    /// When to end paths at states that were walked before.
    pub prune: Prune,
    /// Refuse helpers that cannot be called here ([`Helper::refused`](skep_isa::Helper::refused)),
    /// not only those that the kernel does not have: for programs that will run, not only be
    /// judged.
    pub offered_only: bool,
    /// Numbers of processors lie below this (`nr_cpu_ids`). With `offered_only`, less than
    /// [`PROCESSORS`] counts as that.
    pub processors: u32,
    /// Types of the kernel or program that tracing programs look into; without them its objects
    /// are numbers.
    pub target: Option<Arc<Btf>>,
    /// What is known of the function that a tracing program is attached to.
    pub attached: Attached,
}

/// As many processors as `bpf_get_smp_processor_id` can tell apart outside the kernel: it has the
/// number from where the kernel leaves it for processes, in twelve bits
/// (arch/x86/include/asm/segment.h `VDSO_CPUNODE_BITS`).
pub const PROCESSORS: u32 = 1 << 12;

/// What is known of the function that a tracing program is attached to, and so of the words in its
/// context.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Attached {
    /// It is not judged what the words are: any of the context may be read.
    #[default]
    Anything,
    /// Nothing: only the words of the registers may be read.
    Untyped {
        /// Its name.
        function: String,
    },
    /// Its prototype: what it does not have may not be read.
    Typed {
        /// The prototype.
        prototype: Arc<Prototype>,
        /// The first of several functions, to which the words that are read must be the same.
        first: Option<Arc<Prototype>>,
    },
}

impl Attached {
    fn check(&self, access: Access, returns: bool) -> Result<(), Reason> {
        let (function, why) = match self {
            Self::Anything => return Ok(()),
            Self::Untyped { function } => (function, access.check_untyped()),
            Self::Typed { prototype, first } => {
                let like = || {
                    first.as_ref().map_or(Ok(()), |first| prototype.check_like(first, access, true))
                };
                (&prototype.name, prototype.check(access, returns).and_then(|()| like()))
            }
        };
        why.map_err(|why| Reason::Function { function: function.clone(), why })
    }
}

/// Tells how eagerly paths are ended at states that were walked before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Prune {
    /// Walk everything, for those who compare.
    Never,
    /// Store states where that pays.
    #[default]
    Usual,
    /// Store a state wherever paths may meet, as the kernel does with `BPF_F_TEST_STATE_FREQ`:
    /// finds mistakes in the comparison of states with small programs.
    Always,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_level: 1,
            limit: 1_000_000,
            strict_alignment: false,
            allow_uninit_stack: false,
            strict: false,
            prune: Prune::Usual,
            offered_only: false,
            processors: PROCESSORS,
            target: None,
            attached: Attached::Anything,
        }
    }
}

/// What the walk learned about a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Info {
    /// Instructions looked at, over all paths.
    pub processed: u32,
    /// Stack bytes of the longest chain of calls, each frame rounded up to 16.
    pub stack_depth: u32,
    /// Highest context byte touched, plus one.
    pub max_ctx_read: u32,
    /// What a tracing program reads of its context.
    pub ctx_reads: BTreeSet<Access>,
    /// The program stores to the context.
    pub ctx_write: bool,
    /// Helpers called.
    pub helpers: BTreeSet<HelperId>,
    /// First instruction and stack bytes of each function, the main program first.
    pub subprogs: Vec<(usize, u32)>,
    /// Instructions that load a packet pointer from the context and must be turned into 64-bit
    /// loads.
    pub packet_loads: BTreeSet<usize>,
    /// Loads from objects of the target that may not be there: they must yield 0 rather than
    /// fault.
    pub object_loads: BTreeSet<usize>,
    /// Most states kept at one instruction.
    pub max_states_per_insn: usize,
    /// States kept over the whole walk.
    pub total_states: usize,
    /// Most states kept at a time.
    pub peak_states: usize,
    /// Calls between functions, by index into `subprogs`.
    pub calls: BTreeSet<(usize, usize)>,
}

/// A program that was proved safe. Only [`verify`] makes one, now or before ([`KeptProofs`]): it is the proof.
///
/// ```
/// use skep_isa::{Insn, ProgramType};
/// use skep_object::Linked;
///
/// let insns = vec![Insn::mov64_imm(0, 0), Insn::exit()];
/// let prog = Linked::from_insns("nothing", ProgramType::Kprobe, insns);
/// let proof = skep_verifier::verify(&prog, &skep_verifier::Options::default())?;
/// assert_eq!(proof.info().processed, 2);
/// # Ok::<(), skep_verifier::Rejection>(())
/// ```
#[derive(Clone, Debug)]
pub struct Verified {
    prog: Linked,
    info: Info,
    log: String,
}

impl Verified {
    fn new(prog: &Linked, info: Info, opts: &Options) -> Self {
        let mut log = String::new();
        if opts.log_level > 0 {
            log::write_summary(&mut log, &info, opts.limit);
        }
        Self { prog: prog.clone(), info, log }
    }

    /// Returns the instructions.
    #[must_use]
    pub fn insns(&self) -> &[Insn] {
        &self.prog.insns
    }

    /// Returns the program type.
    #[must_use]
    pub fn prog_type(&self) -> ProgramType {
        self.prog.prog_type
    }

    /// Returns the attach type.
    #[must_use]
    pub fn attach_type(&self) -> Option<AttachType> {
        self.prog.attach_type
    }

    /// Returns the program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.prog.name
    }

    /// Returns the program that was proved safe.
    #[must_use]
    pub fn linked(&self) -> &Linked {
        &self.prog
    }

    /// Returns what the walk learned.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Returns the log: the statistics line, as the kernel ends its own.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}

/// Sees every instruction with the state before it, in the order of the walk.
pub type Observer<'a> = dyn FnMut(usize, &state::State) + 'a;

/// Proves a program safe or says why it is refused. Never panics, and ends after at most
/// [`Options::limit`] instructions.
#[allow(
    clippy::result_large_err,
    reason = "made once a program, and rejections are read, not passed through layers"
)]
pub fn verify(prog: &Linked, opts: &Options) -> Result<Verified, Rejection> {
    judge(prog, opts, &mut trace::Nobody)
}

/// As [`verify`], and shows every step to `observer`.
#[allow(clippy::result_large_err, reason = "as for `verify`")]
pub fn verify_observed(
    prog: &Linked,
    opts: &Options,
    observer: &mut Observer<'_>,
) -> Result<Verified, Rejection> {
    judge(prog, opts, &mut trace::Observed(observer))
}

/// As [`verify`], and writes every step to `out` in the layout of the kernel's log at level 2, to
/// the statistics line. When `out` fails, the log ends there; the verdict is the same.
///
/// ```
/// use skep_isa::{Insn, ProgramType};
/// use skep_object::Linked;
///
/// let insns = vec![Insn::mov64_imm(0, 7), Insn::exit()];
/// let prog = Linked::from_insns("nothing", ProgramType::Kprobe, insns);
/// let mut log = String::new();
/// skep_verifier::verify_logged(&prog, &skep_verifier::Options::default(), &mut log)?;
/// assert!(log.contains("\n0: R1=ctx() R10=fp0\n0: (b7) r0 = 7 "));
/// assert!(log.contains(" ; R0=7\n1: (95) exit\nprocessed 2 insns "));
/// # Ok::<(), skep_verifier::Rejection>(())
/// ```
#[allow(clippy::result_large_err, reason = "as for `verify`")]
pub fn verify_logged(
    prog: &Linked,
    opts: &Options,
    out: &mut dyn std::fmt::Write,
) -> Result<Verified, Rejection> {
    let names = show::Names { prog, target: opts.target.as_deref() };
    let Ok(cfg) = cfg::Cfg::new(prog) else {
        let verdict = verify(prog, opts);
        if let Err(r) = &verdict {
            // A program without a shape has no steps.
            let mut text = String::new();
            log::write_reason(&mut text, &r.reason, r.logged.as_deref(), &r.info, opts.limit);
            out.write_str(&text).ok();
        }
        return verdict;
    };
    let mut trace = trace::Trace::new(out, names, &cfg);
    let verdict = judge(prog, opts, &mut trace);
    let mut text = String::new();
    match &verdict {
        Ok(proof) => log::write_summary(&mut text, proof.info(), opts.limit),
        Err(r) => log::write_reason(&mut text, &r.reason, r.logged.as_deref(), &r.info, opts.limit),
    }
    trace.finish(format_args!("{text}"));
    verdict
}

#[allow(clippy::result_large_err, reason = "as for `verify`")]
fn judge(
    prog: &Linked,
    opts: &Options,
    watch: &mut dyn trace::Watch,
) -> Result<Verified, Rejection> {
    let fault = |(insn, reason): cfg::Fault| {
        let at = u32::try_from(insn).unwrap_or(0);
        rejection(
            prog,
            opts,
            insn,
            reason,
            log::steps(prog, &[at]),
            Explanation::default(),
            &Info::default(),
        )
    };
    let begin = |turns| {
        let cfg = cfg::Cfg::new(prog).map_err(fault)?;
        Ok(check::Walk::new(prog, opts, cfg).with_turns(turns))
    };
    let mut turns = check::TURNS[0];
    let mut walk = begin(turns)?;
    let mut verdict = walk.run(&mut trace::Nobody);
    for more in check::TURNS.into_iter().skip(1) {
        if verdict.is_ok() || !walk.has_lost() {
            break;
        }
        let mut again = begin(more)?;
        match again.run(&mut trace::Nobody) {
            Ok(()) => (walk, verdict, turns) = (again, Ok(()), more),
            Err(reason) if reason.is_of_effort() => break,
            // What is said of the first walk is shorter, and as true.
            Err(_) => {}
        }
    }
    if watch.is_there() {
        // Who watches is shown the walk that decides.
        walk = begin(turns)?;
        verdict = walk.run(watch);
    }
    match verdict {
        Ok(()) => Ok(Verified::new(prog, walk.into_info(), opts)),
        Err(reason) => {
            let again = || {
                cfg::Cfg::new(prog)
                    .ok()
                    .map(|cfg| check::Walk::new(prog, opts, cfg))
                    .filter(|_| opts.log_level > 0)
            };
            let route = again()
                .and_then(|mut w| w.shortest(&walk, &reason))
                .unwrap_or_else(|| walk.route());
            let mut steps = log::steps(prog, &route.trail);
            let mut explained = Explanation::default();
            if let Some(again) = again() {
                let last = log::add_registers(
                    &mut steps,
                    show::Names { prog, target: opts.target.as_deref() },
                    &route,
                    &reason,
                    again,
                );
                slice::mark(&mut steps, &reason);
                if let Some(state) = &last {
                    let layout = walk.layout();
                    explained =
                        Fault { prog, reason: &reason, steps: &steps, state, layout }.explain();
                }
            }
            Err(rejection(prog, opts, walk.insn(), reason, steps, explained, walk.info()))
        }
    }
}

fn rejection(
    prog: &Linked,
    opts: &Options,
    insn: usize,
    reason: Reason,
    steps: Vec<Step>,
    explained: Explanation,
    info: &Info,
) -> Rejection {
    let mut text = String::new();
    if opts.log_level > 0 {
        log::write_steps(&mut text, prog, &steps);
        log::write_reason(&mut text, &reason, explained.logged.as_deref(), info, opts.limit);
    }
    Rejection {
        program: prog.name.clone(),
        insn,
        line: prog.line(insn).cloned(),
        hint: prog
            .missing(insn)
            .map(reject::missing)
            .or(explained.hint)
            .or_else(|| reject::hint(&reason)),
        detail: explained.detail,
        logged: explained.logged,
        reason,
        steps,
        log: text,
        info: info.clone(),
    }
}
