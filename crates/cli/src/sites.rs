//! The functions that match a link's patterns: how many were attached, and why the others were not.

use std::collections::HashSet;

use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use skep::link::{AgentRecord, FunctionRecord, LinkState, Untraced};
use skep_proc::demangle::demangle;
use skep_sys::LEAST_STACK;

use crate::failure::{Failure, Result};
use crate::launch::{Outcome, Program};
use crate::printer::Printer;
use crate::report::{Skipped, file_name, skipped_lines};
use crate::unmatched;

/// A link's functions, summed up over all processes.
#[derive(Debug)]
pub struct Sites {
    /// Functions that matched.
    pub matched: usize,
    /// Those that were not attached.
    pub skipped: Vec<Skipped>,
    /// Those that were attached at their entry only.
    pub entry_only: Vec<Skipped>,
    /// Processes that took part.
    pub agents: Vec<AgentRecord>,
    /// Programs that ran without the agent.
    untraced: Vec<Untraced>,
    /// The link's patterns.
    patterns: Vec<String>,
}

impl Sites {
    /// Reads a link's state.
    pub fn new(state: &LinkState) -> Self {
        let with = |reason: fn(&FunctionRecord) -> &Option<String>| {
            let functions = state.functions.iter().filter_map(move |f| {
                let reason = reason(f).clone()?;
                Some(Skipped {
                    function: demangle(&f.name).into_owned(),
                    path: module_path(state, f.module).to_owned(),
                    reason,
                })
            });
            functions.collect()
        };
        Self {
            matched: state.functions.len(),
            skipped: with(|f| &f.skipped),
            entry_only: with(|f| if f.skipped.is_some() { &None } else { &f.entry_only }),
            agents: state.agents.clone(),
            untraced: state.untraced.clone(),
            patterns: state.spec.include.iter().map(|t| t.pattern.clone()).collect(),
        }
    }

    /// Functions that were attached.
    pub fn attached(&self) -> usize {
        self.matched.saturating_sub(self.skipped.len())
    }

    /// The longest time that attaching took in one of the processes.
    pub fn attach_ns(&self) -> u64 {
        self.agents.iter().map(|a| a.attach_ns).max().unwrap_or(0)
    }

    /// The longest time from the start of the agent to the program's own code.
    pub fn start_ns(&self) -> u64 {
        self.agents.iter().map(|a| a.start_ns).max().unwrap_or(0)
    }

    /// What the link was asked to attach to.
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// The `sites` object of reports.
    pub fn json(&self) -> Value {
        json!({
            "matched": self.matched,
            "attached": self.attached(),
            "skipped": self.skipped.iter().map(Skipped::json).collect::<Vec<_>>(),
            "entry_only": self.entry_only.iter().map(Skipped::json).collect::<Vec<_>>(),
        })
    }

    /// The `processes` list of reports.
    pub fn processes_json(&self) -> Value {
        let one = |a: &AgentRecord| json!({"pid": a.pid, "exe": a.exe, "attached": a.attached, "start_ns": a.start_ns, "attach_ns": a.attach_ns, "error": a.error});
        self.agents.iter().map(one).collect()
    }

    /// Tells whether no program or process is known that ran untraced.
    pub fn all_traced(&self) -> bool {
        self.untraced.is_empty()
    }

    /// The `not_traced` list of reports.
    pub fn not_traced_json(&self) -> Value {
        self.untraced.iter().map(|u| json!({"path": u.path, "reason": u.reason})).collect()
    }

    /// Says how many functions were found and attached. `what` goes in front when there are several
    /// links.
    pub fn note(&self, printer: Printer, what: &str, verbose: bool) {
        if self.matched > 0 {
            let of = if self.skipped.is_empty() {
                String::new()
            } else {
                format!(
                    ", {} skipped{}",
                    self.skipped.len(),
                    if verbose { "" } else { " (--verbose lists them)" }
                )
            };
            printer.note(&format!(
                "{what}{} of {} matching functions attached{of}",
                self.attached(),
                self.matched
            ));
            for line in skipped_lines(&self.skipped, verbose) {
                printer.note(&line);
            }
            if !self.entry_only.is_empty() {
                let names = if verbose { "" } else { " (--verbose lists them)" };
                printer.note(&format!(
                    "{what}{} of them are counted, not timed{names}",
                    self.entry_only.len()
                ));
                for line in skipped_lines(&self.entry_only, verbose) {
                    printer.note(&line);
                }
            }
        }
        for program in &self.untraced {
            printer.note(&format!("{what}not traced: `{}` {}", program.path, program.reason));
        }
        let mut told = HashSet::new();
        for agent in &self.agents {
            if let Some(error) = &agent.error
                && told.insert(error)
            {
                printer.warning(&format!(
                    "nothing was attached in `{}` (process {}): {error}",
                    file_name(&agent.exe),
                    agent.pid
                ));
            }
        }
    }

    /// Tells why nothing was attached; `None` when something was.
    pub fn failure(&self, program: &Program, outcome: &Outcome) -> Option<Failure> {
        if self.attached() > 0 {
            return None;
        }
        if self.agents.is_empty() {
            let failure = Failure::failed(format!("the agent did not start in `{}`", program.name));
            if let Some(error) = &outcome.untraced {
                return Some(Failure { hint: error.hint(), ..failure.because(error) });
            }
            if let Some(why) = small_stack().filter(|_| program.obstacle.is_none()) {
                return Some(
                    Failure::failed(format!("{}: {why}", failure.message))
                        .hint("raise the limit, as by `ulimit -s 8192`"),
                );
            }
            let early = if outcome.status.is_none() || outcome.interrupted.is_some() {
                "; it may have been stopped before that"
            } else {
                ""
            };
            let why = program
                .obstacle
                .clone()
                .unwrap_or_else(|| format!("it never loaded the preloaded library{early}"));
            return Some(Failure::failed(format!("{}: {why}", failure.message)).hint(
                "only x86-64 programs that run with the rights of their user can be traced",
            ));
        }
        self.unattached()
    }

    /// Tells why nothing was attached where the agent is, function by function before.
    pub fn unattached_with_reasons(&self, printer: Printer, verbose: bool) -> Option<Failure> {
        let failure = self.unattached()?;
        self.note(printer, "", verbose);
        Some(failure)
    }

    /// Tells why nothing was attached where the agent is.
    fn unattached(&self) -> Option<Failure> {
        if self.attached() > 0 {
            return None;
        }
        if let Some(agent) = self.agents.iter().find(|a| a.error.is_some())
            && self.agents.iter().all(|a| a.error.is_some())
        {
            return Some(Failure::failed(format!(
                "nothing was attached in `{}`",
                file_name(&agent.exe)
            )));
        }
        let patterns: Vec<String> = self.patterns.iter().map(|p| format!("`{p}`")).collect();
        if self.matched == 0 {
            let hint = if self.patterns.iter().any(|p| p.contains(['*', ':'])) {
                "give functions by symbol or demangled name, modules by file name, as in 'libc.so.6:mem*'"
            } else {
                "patterns match whole names: try one with `*` around it, quoted for the shell"
            };
            let unnamed = |a: &AgentRecord| unmatched::unnamed_program(&a.exe, &self.patterns);
            let (what, hint) = match self.agents.iter().find_map(unnamed) {
                Some((what, hint)) => (format!(": {what}"), hint),
                None => (String::new(), hint.to_owned()),
            };
            return Some(
                Failure::failed(format!("no function matches {}{what}", patterns.join(" or ")))
                    .hint(hint),
            );
        }
        let patterns = patterns.join(" or ");
        Some(Failure::failed(match self.matched {
            1 => format!("the one function that matches {patterns} could not be attached"),
            n => format!("none of the {n} functions that match {patterns} could be attached"),
        }))
    }
}

/// Returns the exit status after a command has run; `done` is what went wrong with its report, if
/// anything.
///
/// The status of the command has precedence: only if it is 0, the exit status says that something
/// else failed. A command that was stopped early may have matched nothing, and its status says that
/// it was stopped.
pub fn end(done: Result<Option<Failure>>, outcome: &Outcome, printer: Printer) -> Result<u8> {
    match done.unwrap_or_else(Some) {
        Some(failure) if outcome.code() == 0 => Err(failure),
        Some(failure) => {
            printer.failure(&failure);
            Ok(outcome.code())
        }
        None => Ok(outcome.code()),
    }
}

/// Finds the path of a module of a link.
pub fn module_path(state: &LinkState, index: u32) -> &str {
    state.modules.get(index as usize).map_or("?", String::as_str)
}

/// Why the agent stays out of programs that have the limit of this process for their stack.
fn small_stack() -> Option<String> {
    let limit = getrlimit(Resource::Stack).current.filter(|limit| *limit < LEAST_STACK)?;
    Some(format!(
        "its stack may grow to {} KiB, and the agent needs {}",
        limit >> 10,
        LEAST_STACK >> 10
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep::link::{Cookie, FunctionRecord, LinkSpec, LinkTarget};
    use std::time::Duration;

    fn state(functions: Vec<FunctionRecord>, agents: Vec<AgentRecord>) -> LinkState {
        let spec = LinkSpec {
            programs: Vec::new(),
            control: 1,
            cookie: Cookie::Index,
            entry_only: false,
            max_functions: 9,
            by_function: Vec::new(),
            include: LinkTarget::all(["nosuch"]),
            exclude: Vec::new(),
        };
        LinkState {
            spec,
            modules: vec!["/usr/lib/libx.so.1".to_owned()],
            functions,
            agents,
            untraced: Vec::new(),
            probes: Vec::new(),
            wants_mapped: false,
            mapped: Vec::new(),
        }
    }

    fn agent(error: Option<&str>) -> AgentRecord {
        AgentRecord {
            pid: 7,
            exe: "/bin/app".to_owned(),
            start_ns: 5,
            attach_ns: 3,
            attached: 0,
            error: error.map(str::to_owned),
        }
    }

    fn function(skipped: Option<&str>) -> FunctionRecord {
        FunctionRecord {
            module: 0,
            name: "_ZN2ns1fEi".to_owned(),
            vaddr: 16,
            size: 4,
            skipped: skipped.map(str::to_owned),
            entry_only: None,
        }
    }

    fn failure(state: &LinkState) -> Option<String> {
        let program = Program { name: "app".to_owned(), obstacle: None, is_followed: false };
        let outcome = Outcome {
            status: Some(std::process::ExitStatus::default()),
            interrupted: None,
            wall: Duration::ZERO,
            pid: 7,
            untraced: None,
        };
        Sites::new(state).failure(&program, &outcome).map(|f| f.message)
    }

    #[test]
    fn each_way_to_attach_nothing_has_its_message() {
        assert_eq!(
            failure(&state(vec![], vec![])).unwrap(),
            "the agent did not start in `app`: it never loaded the preloaded library"
        );
        assert_eq!(
            failure(&state(vec![], vec![agent(None)])).unwrap(),
            "no function matches `nosuch`"
        );
        assert_eq!(
            failure(&state(vec![], vec![agent(Some("no memory"))])).unwrap(),
            "nothing was attached in `app`"
        );
        assert_eq!(
            failure(&state(vec![function(Some("denied"))], vec![agent(None)])).unwrap(),
            "the one function that matches `nosuch` could not be attached"
        );
        assert_eq!(failure(&state(vec![function(None)], vec![agent(None)])), None);
    }

    #[test]
    fn programs_without_the_agent_are_named() {
        let untraced = vec![Untraced {
            path: "/bin/busybox".to_owned(),
            reason: "is statically linked".to_owned(),
        }];
        let sites = Sites::new(&LinkState { untraced, ..state(vec![], vec![]) });
        assert_eq!(
            sites.not_traced_json().to_string(),
            r#"[{"path":"/bin/busybox","reason":"is statically linked"}]"#
        );
    }

    #[test]
    fn the_json_has_the_promised_keys() {
        let counted =
            FunctionRecord { entry_only: Some("returns twice".to_owned()), ..function(None) };
        let sites = Sites::new(&state(
            vec![function(None), function(Some("denied: why")), counted],
            vec![agent(None)],
        ));
        assert_eq!(
            sites.json().to_string(),
            r#"{"matched":3,"attached":2,"skipped":[{"function":"ns::f(int)","module":"libx.so.1","reason":"denied: why"}],"entry_only":[{"function":"ns::f(int)","module":"libx.so.1","reason":"returns twice"}]}"#
        );
    }
}
