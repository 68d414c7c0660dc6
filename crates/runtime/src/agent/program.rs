//! A program of a link, as this process runs it.

use std::collections::HashMap;
use std::sync::Arc;

use skep_attach::sites::{Function, Module};
use skep_attach::{Hook, Position, RunFn};
use skep_isa::HelperId;
use skep_isa::ctx::tracing::MAX_ARGS;
use skep_isa::helper::id::{OVERRIDE_RETURN, SKEP_DETACH_FUNC, SKEP_SET_ERRNO};
use skep_store::link::types::{FunctionTypes, Known, ModuleTypes};
use skep_store::link::{Context, ENTRY_ONLY, FunctionAttachType, LinkProgram, Types};
use skep_sys::Unseeded;

use crate::run::{self, Running, Shown};

/// A program of a link, compiled as often as the link needed more room in its maps.
pub(super) struct ActiveProgram {
    pub spec: LinkProgram,
    /// What the loader knows of functions.
    pub types: Types,
    /// By layout and the address of the program, what runs the program on functions whose context
    /// is made for them.
    shown: HashMap<(u32, usize), Arc<Shown>, Unseeded>,
    /// Compiled; the last one is for functions found from now on.
    pub running: Vec<Arc<Running>>,
    /// It may skip functions.
    overrides: bool,
    /// It sets `errno`.
    pub sets_errno: bool,
    /// It takes itself out of functions.
    pub detaches_by_function: bool,
}

impl ActiveProgram {
    pub(super) fn new(spec: LinkProgram, types: Types) -> Self {
        Self {
            spec,
            types,
            shown: HashMap::default(),
            running: Vec::new(),
            overrides: false,
            sets_errno: false,
            detaches_by_function: false,
        }
    }

    /// Takes a compiled program for functions found from now on.
    pub(super) fn take(&mut self, running: Running) {
        let calls = |id: HelperId| {
            running.program().insns().iter().any(|i| i.is_helper_call() && i.imm == id as i32)
        };
        self.overrides = self.spec.context == Context::PtRegs
            && self.spec.attach_type == FunctionAttachType::Entry
            && calls(OVERRIDE_RETURN);
        self.sets_errno = calls(SKEP_SET_ERRNO);
        self.detaches_by_function = calls(SKEP_DETACH_FUNC);
        self.running.push(Arc::new(running));
    }

    /// Finds what is known of functions; those of a module come together. It is nothing of those that the
    /// answer does not have.
    pub(super) fn known(&self, functions: &[Function]) -> Vec<Option<FunctionTypes>> {
        if self.types.is_empty() {
            return Vec::new();
        }
        let mut last: Option<(&Arc<Module>, Option<&ModuleTypes>)> = None;
        let find = |f: &'_ Function| -> Option<&ModuleTypes> {
            let id = f.module().file().build_id.as_ref().map_or(&[][..], |id| &id.0);
            self.types.module(&f.module().path().to_string_lossy(), id)
        };
        let mut out = Vec::with_capacity(functions.len());
        for f in functions {
            let types = match last {
                Some((module, types)) if Arc::ptr_eq(module, f.module()) => types,
                _ => find(f),
            };
            last = Some((f.module(), types));
            out.push(types.and_then(|t| t.function(f.addr().wrapping_sub(f.module().bias()))));
        }
        out
    }

    /// Finds the layout of a function of which this is known; `None`: it has no types. Fails with
    /// the reason why the program is not attached to it.
    pub(super) fn layout(&self, known: Option<FunctionTypes>) -> Result<Option<u32>, String> {
        match (known.map(|f| f.known), &self.types.unknown) {
            (Some(Known::Layout(layout)), _) => Ok(Some(layout)),
            (Some(Known::Misfit(why)), _) => {
                Err(self.types.reasons.get(why as usize).cloned().unwrap_or_default())
            }
            (None, Some(why)) => Err(why.clone()),
            (None, None) => Ok(None),
        }
    }

    /// How many argument words the trampoline shows: those of the prototype, or all where they are
    /// put in order afterwards.
    pub(super) fn nr_args(&self, known: FunctionTypes) -> Option<u8> {
        let Known::Layout(layout) = known.known else { return None };
        let words = &self.types.layouts.get(layout as usize)?.words;
        let plain = words.iter().zip(0..).all(|(w, at)| *w == at);
        Some(if plain { words.len().min(MAX_ARGS) as u8 } else { MAX_ARGS as u8 })
    }

    /// Makes the hook for functions of a layout; without, for those whose types are not known.
    /// `entry_only`: the link takes functions that cannot be hooked at their return.
    pub(super) fn hook(
        &mut self,
        running: &Arc<Running>,
        layout: Option<u32>,
        entry_only: bool,
    ) -> Hook {
        let known = layout.and_then(|i| Some((i, self.types.layouts.get(i as usize)?)));
        let wants = if known.is_some_and(|(_, k)| k.wants_stack()) {
            MAX_ARGS as u8
        } else {
            running.wants_args()
        };
        let position = self.position();
        let Some((index, known)) = known.filter(|(_, k)| !k.direct) else {
            let run = match (self.spec.context, self.spec.attach_type) {
                (Context::PtRegs, _) if self.overrides => run::registers_override as RunFn,
                (Context::PtRegs, _) => run::registers,
                (Context::Tracing, FunctionAttachType::ModifyReturn) => run::modify_return,
                (Context::Tracing, _) => run::tracing,
            };
            // SAFETY: these take a `Running`, which lives until the hook is drained (`ActiveLink`);
            // its program was verified for this context at this position (`load`).
            let hook = unsafe { Hook::new(position, run, Arc::as_ptr(running).cast()) };
            let hook = counted(hook, running, entry_only).wants_args(wants);
            return match running.direct().filter(|_| self.spec.context == Context::Tracing) {
                // SAFETY: what `run::tracing` and `run::modify_return` call when the link is on and the
                // thread has a slot; `running` lives as long as the hook.
                Some(call) => unsafe { hook.calls_directly(call) },
                None => hook,
            };
        };
        let shown = self
            .shown
            .entry((index, Arc::as_ptr(running).addr()))
            .or_insert_with(|| Arc::new(Shown::new(Arc::clone(running), known)));
        let run = if self.spec.attach_type == FunctionAttachType::ModifyReturn {
            run::shown_modify_return
        } else {
            run::shown as RunFn
        };
        // SAFETY: these take a `Shown`, which lives as long as its program, see above; that was
        // verified for this context at this position (`load`).
        let hook = unsafe { Hook::new(position, run, Arc::as_ptr(shown).cast()) };
        counted(hook, running, entry_only).wants_args(wants)
    }

    /// Makes the hook for places inside functions, or says why the program cannot be there.
    pub(super) fn hook_inside(&self, running: &Arc<Running>) -> Result<Hook, &'static str> {
        match (self.spec.context, self.spec.attach_type) {
            (Context::PtRegs, FunctionAttachType::Entry) => {}
            (Context::PtRegs, _) => return Err("a place inside a function does not return"),
            (Context::Tracing, _) => {
                return Err("inside functions only uprobe and usdt programs run");
            }
        }
        let data = Arc::as_ptr(running).cast();
        // SAFETY: it takes a `Running`, which lives until the hook is drained (`ActiveLink`); its
        // program was verified for registers (`load`), and the frame is one of such a place.
        let hook = unsafe { Hook::new(Position::Entry, run::registers_inside, data) };
        Ok(counted(hook, running, false))
    }

    /// Makes the hook of a session program for the entry of functions that cannot be hooked at
    /// their return.
    pub(super) fn entry_hook(&self, running: &Arc<Running>) -> Hook {
        let data = Arc::as_ptr(running).cast();
        // SAFETY: it takes a `Running`, which lives until the hook is drained (`ActiveLink`); the
        // program is a session's, was verified for this context (`load`), and gets a session's
        // word.
        let hook = unsafe { Hook::new(Position::Entry, run::session_at_entry, data) };
        counted(hook, running, true).wants_args(running.wants_args())
    }

    fn position(&self) -> Position {
        match self.spec.attach_type {
            FunctionAttachType::Entry if self.overrides => Position::ModifyReturn,
            FunctionAttachType::Entry => Position::Entry,
            FunctionAttachType::Exit => Position::Exit,
            FunctionAttachType::ModifyReturn => Position::ModifyReturn,
            FunctionAttachType::Session => Position::Session,
        }
    }
}

/// Finds what tells where `errno` is, in the C library, or in a program that it is linked into.
pub(super) fn find_errno(modules: &[Arc<Module>]) {
    let mut all = modules.iter().filter_map(|m| m.function_named("__errno_location").ok()?);
    if let Some(found) = all.next() {
        // SAFETY: the C library's function of this name.
        unsafe { skep_helpers::set_errno_location(found.addr() as usize) };
    }
}

fn counted(hook: Hook, running: &Running, entry_only: bool) -> Hook {
    // SAFETY: words of the control map, which has that many and lives as long as the program.
    let hook = unsafe { hook.counts_missed_at(running.missed()) };
    hook.without_return(if entry_only { ENTRY_ONLY } else { 0 })
}
