//! `--return`: calls that return something without running, beside whatever is traced.

use std::sync::Arc;

use serde::Serialize;
use skep::Dir;
use skep::dir::Kind;
use skep::link::{Link, LinkSpec, LinkTarget, describe};
use skep::load::Loader;
use skep::maps::Map;

use super::objects::{carried, own_failure};
use crate::args::{Fault, TraceArgs};
use crate::failure::{Failure, Result};
use crate::printer::Printer;
use crate::sites::Sites;
use crate::{rejection, unmatched};

/// The compiled `bpf/fault.bpf.c`, compressed by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fault.bpf.z"));
const NAME: &str = "fault.bpf.o";
/// `RULES`.
const RULES: usize = 64;
/// Bytes of `struct rule`.
const RULE_SIZE: usize = 40;

/// The link that changes what functions return.
pub struct Faults {
    pub link: Link,
    rules: Arc<Map>,
    /// What to pin while it runs.
    pub objects: Vec<(Kind, u32)>,
}

/// What came of one `--return`, in JSON.
#[derive(Serialize)]
pub struct Returned {
    pattern: String,
    value: i64,
    /// Calls of its functions.
    calls: u64,
    /// Of them, those that returned the value.
    returned: u64,
}

impl Faults {
    /// Loads the program and creates the link; `None` where nothing was asked for.
    pub fn load(dir: &Dir, args: &TraceArgs) -> Result<Option<Self>> {
        if args.faults.is_empty() {
            return Ok(None);
        }
        if args.faults.len() > RULES {
            return Err(Failure::environment(format!("--return: at most {RULES} at a time")));
        }
        let mut include = Vec::new();
        for (cookie, fault) in args.faults.iter().enumerate() {
            for pattern in patterns(fault)? {
                include.push(LinkTarget { pattern, cookie: cookie as u64 });
            }
        }
        let loaded = Loader::new(dir).load(&carried(OBJECT, NAME)?).map_err(own_failure)?;
        let damaged = || Failure::environment(format!("`{NAME}` is damaged"));
        let [program] = loaded.programs() else { return Err(damaged()) };
        let rules = Arc::clone(loaded.map("rules").ok_or_else(damaged)?);
        for (number, fault) in args.faults.iter().enumerate() {
            let error = args.errno.map_or(0, u64::from);
            let words = [fault.value as u64, args.every, 0, 0, error];
            let rule: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            rules
                .update(&(number as u32).to_le_bytes(), &rule, 0)
                .map_err(|e| Failure::environment(format!("cannot set `--return` up: {e}")))?;
        }
        let first: Vec<String> = include.iter().map(|t| t.pattern.clone()).collect();
        let described =
            describe(program, &first).map_err(|e| rejection::attach_failure(e, NAME))?;
        let spec = LinkSpec { include, max_functions: args.max_functions, ..described };
        let link = Link::create(dir, spec, None).map_err(own_failure)?;
        let control = link.read()?.spec.control;
        let objects = vec![
            (Kind::Map, rules.id()),
            (Kind::Map, control),
            (Kind::Program, program.id()),
            (Kind::Link, link.id()),
        ];
        Ok(Some(Self { link, rules, objects }))
    }

    /// What came of each rule.
    pub fn returned(&self, args: &TraceArgs) -> Vec<Returned> {
        let rule = |(number, fault): (usize, &Fault)| {
            let value = self.rules.lookup(&(number as u32).to_le_bytes()).unwrap_or_default();
            let word = |at: usize| {
                let bytes = value.get(8 * at..8 * at + 8).filter(|_| value.len() == RULE_SIZE);
                bytes.and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
            };
            Returned {
                pattern: fault.pattern.clone(),
                value: fault.value,
                calls: word(2),
                returned: word(3),
            }
        };
        args.faults.iter().enumerate().map(rule).collect()
    }

    /// Says what came of it.
    pub fn note(&self, args: &TraceArgs, printer: Printer) -> Result {
        let state = self.link.read()?;
        let sites = Sites::new(&state);
        if sites.attached() == 0 {
            printer.warning("--return: no function was found that it could be done for");
        }
        sites.note(printer, "--return: ", args.shown.report.verbose);
        for r in self.returned(args) {
            printer.note(&format!(
                "--return: {} of {} calls of `{}` returned {}",
                r.returned, r.calls, r.pattern, r.value
            ));
        }
        Ok(())
    }
}

/// The patterns of a rule.
fn patterns(fault: &Fault) -> Result<Vec<String>> {
    unmatched::patterns(std::slice::from_ref(&fault.pattern))
}

/// Fails unless the command has the functions, as for traced ones.
pub fn check(args: &TraceArgs) -> Result {
    for fault in &args.faults {
        unmatched::check(&args.command, &patterns(fault)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_as_large_as_their_reader_thinks() -> Result {
        let object = carried(OBJECT, NAME)?;
        let rules = object.maps.iter().find(|m| m.name == "rules").expect("a map");
        assert_eq!((rules.value_size as usize, rules.max_entries as usize), (RULE_SIZE, RULES));
        Ok(())
    }
}
