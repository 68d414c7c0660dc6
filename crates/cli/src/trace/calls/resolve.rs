//! What is read of each function's calls: its prototype, and the variables of the condition.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use skep::link::Types;
use skep::object::{Btf, Prototype};
use skep::prototypes::{Catalog, Listed};

use super::condition::{Condition, Start, Variable};
use super::plan::{Plan, Wanted};
use super::prototypes::Declared;
use super::variable::find_all;
use crate::args::TraceArgs;
use crate::failure::{Failure, Result};

/// What is known before the command starts.
pub struct Resolved {
    /// By number; the first is for functions whose types are not known, also of libraries that are
    /// opened later.
    pub plans: Vec<Plan>,
    /// What the processes are told.
    pub types: Types,
    /// Functions whose arguments are not known, by address and name, and why.
    pub unknown: Vec<(u64, String, String)>,
}

impl Resolved {
    /// Looks at the functions that the patterns mean.
    pub fn new(
        catalog: &Catalog,
        patterns: &[String],
        exclude: &[String],
        args: &TraceArgs,
        condition: Option<&Condition>,
    ) -> Result<Self> {
        let wanted = Wanted {
            args: args.args || args.deref || (condition.is_some() && !args.ret),
            result: args.ret || (condition.is_some() && !args.args),
            deref: args.deref,
        };
        let variables = condition.map_or(&[][..], |c| &c.variables);
        let mut out =
            Self { plans: vec![Plan::default()], types: Types::default(), unknown: Vec::new() };
        if !wanted.args && !wanted.result && condition.is_none() {
            return Ok(out);
        }
        let declared = Declared::read(&args.prototypes)?;
        let listed =
            catalog.list(patterns, exclude).map_err(|e| Failure::environment(e.to_string()))?;
        let read: RefCell<HashMap<usize, Option<Arc<Btf>>>> = RefCell::default();
        if condition.is_some()
            && let Some(plan) = out.plans.first_mut()
        {
            let registers = find_all(variables, None, &|| None).into_iter();
            plan.vars = registers.map(|found| found.map(|found| found.var)).collect();
        }
        let mut numbers = Vec::new();
        // Variables that no function has.
        let mut lacks = vec![true; variables.len()];
        let mut listed: Vec<Listed> = listed;
        for f in &mut listed {
            f.prototype = prototype(catalog, &declared, f);
            let types = || {
                let mut all = read.borrow_mut();
                all.entry(f.module).or_insert_with(|| catalog.types(f.module)).clone()
            };
            let known = f.prototype.as_deref().ok();
            if let (Err(why), true) = (&f.prototype, wanted.args) {
                out.unknown.push((f.vaddr, f.name.clone(), why.clone()));
            }
            let found = find_all(variables, known, &types);
            lacks.iter_mut().zip(&found).for_each(|(lacks, found)| *lacks &= found.is_none());
            let Some(known) = known else {
                numbers.push(0);
                continue;
            };
            let mut plan = Plan::new(known, wanted, &types);
            if condition.is_some() {
                plan.vars = found.into_iter().map(|found| found.map(|found| found.var)).collect();
            }
            numbers.push(out.plans.len() as u32);
            out.plans.push(plan);
        }
        // Registers are an answer where something may have no types.
        let untyped = listed.is_empty() || args.allow_unmatched || numbers.contains(&0);
        let mut plans = out.plans.iter().skip(usize::from(!untyped));
        if let Some(condition) = condition
            && plans.all(|p| p.vars.is_none())
        {
            return Err(nothing_fits(condition, &lacks, &listed));
        }
        let told = listed.iter().zip(&numbers).filter(|(_, n)| **n > 0);
        out.types = catalog.number(told.map(|(f, n)| (f, *n)));
        Ok(out)
    }
}

fn prototype(catalog: &Catalog, declared: &Declared, f: &Listed) -> Result<Arc<Prototype>, String> {
    let demangled = skep_proc::demangle::demangle(&f.name);
    let plain = skep_proc::demangle::bare(&demangled);
    let names: Vec<&str> =
        [f.name.as_str(), plain].into_iter().chain(f.aliases.iter().map(String::as_str)).collect();
    if let Some(own) = declared.own(&names) {
        return Ok(Arc::clone(own));
    }
    f.prototype.clone().or_else(|why| {
        let known = catalog.path(f.module).and_then(|path| declared.known(path, &names));
        known.map(Arc::clone).ok_or(why)
    })
}

/// `lacks`: for each variable, whether no function has it.
fn nothing_fits(condition: &Condition, lacks: &[bool], listed: &[Listed]) -> Failure {
    let text = &condition.text;
    let failure = Failure::environment(format!(
        "--if: no function that is to be traced has all that `{text}` names"
    ));
    let missing = condition.variables.iter().zip(lacks).find(|(_, lacks)| **lacks);
    let missing = missing.map(|(v, _)| format!("none has `{}`; ", condition.name_of(v)));
    let missing = missing.unwrap_or_default();
    let starts = |p: &Prototype| {
        let has = |v: &&Variable| matches!(&v.start, Start::Name(name) if p.params.iter().any(|param| param.name == *name));
        condition.variables.iter().filter(has).count()
    };
    let known = listed.iter().filter_map(|f| Some((f, f.prototype.as_ref().ok()?)));
    // The first one that has most of them.
    let nearest = known.rev().max_by_key(|(_, p)| starts(p));
    match (nearest, listed.first()) {
        (Some((f, p)), _) => {
            let params: Vec<String> =
                p.params.iter().map(|v| format!("{} {}", v.text, v.name)).collect();
            let name = skep_proc::demangle::demangle(&f.name);
            failure.hint(format!(
                "{missing}`{}` has ({}), and `ret` is {}",
                skep_proc::demangle::bare(&name),
                params.join(", "),
                p.ret.text
            ))
        }
        (None, Some(f)) => {
            let why = f.prototype.as_ref().err().map_or("", String::as_str);
            failure.hint(format!(
                "the arguments of `{}` are not known ({why}): `arg0` to `arg5` are its registers, and `--prototype` declares it",
                f.name
            ))
        }
        (None, None) => failure.hint(
            "libraries that are opened later have no types: `arg0` to `arg5` are registers there",
        ),
    }
}
