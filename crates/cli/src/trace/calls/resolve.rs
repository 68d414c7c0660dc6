//! What is read of each function's calls: its prototype, and where the variables of the condition are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use skep::link::Types;
use skep::object::btf::{Kind, Member, TypeId};
use skep::object::{Btf, Place, Prototype, ValueKind};
use skep::prototypes::{Catalog, Listed};

use super::condition::{Condition, Path, Start, Variable};
use super::plan::{Base, Plan, RESULT, Read, Var, Wanted, find, is_signed, is_text, words_of};
use super::prototypes::Declared;
use crate::args::TraceArgs;
use crate::failure::{Failure, Result};

/// Registers of arguments.
const REGISTERS: u8 = 6;
/// Deepest nesting of members without names.
const MAX_DEPTH: u32 = 16;

/// What is known before the command starts.
pub struct Resolved {
    /// By number; the first is for functions of which nothing is read.
    pub plans: Vec<Plan>,
    /// What the processes are told.
    pub types: Types,
    /// Which variables of the condition are wide and unsigned.
    pub unsigned: Vec<bool>,
    /// Functions whose arguments are not known, by address and name, and why.
    pub unknown: Vec<(u64, String, String)>,
}

/// How a variable of the condition is found.
#[derive(Clone, Copy)]
struct Found {
    var: Var,
    /// The structure that it points to.
    to: Option<TypeId>,
}

impl Found {
    /// Tells whether it is as wide as can be and unsigned.
    fn is_wide(&self) -> bool {
        self.var.bits == 64 && !self.var.signed
    }
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
        let mut out = Self {
            plans: vec![Plan::default()],
            types: Types::default(),
            unsigned: vec![false; variables.len()],
            unknown: Vec::new(),
        };
        if !wanted.args && !wanted.result && condition.is_none() {
            return Ok(out);
        }
        let declared = Declared::read(&args.prototypes)?;
        let listed =
            catalog.list(patterns, exclude).map_err(|e| Failure::environment(e.to_string()))?;
        let read: RefCell<HashMap<usize, Option<Arc<Btf>>>> = RefCell::default();
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
            let mut plan = known.map(|p| Plan::new(p, wanted, &types)).unwrap_or_default();
            if let (Err(why), true) = (&f.prototype, wanted.args) {
                out.unknown.push((f.vaddr, f.name.clone(), why.clone()));
            }
            let found = find_all(variables, known, &types);
            lacks.iter_mut().zip(&found).for_each(|(lacks, found)| *lacks &= found.is_none());
            let found: Option<Vec<Found>> = found.into_iter().collect();
            if let (Some(found), Some(_)) = (found, condition) {
                out.unsigned.iter_mut().zip(&found).for_each(|(u, found)| *u |= found.is_wide());
                plan.vars = Some(found.into_iter().map(|found| found.var).collect());
            }
            let number = if known.is_some() || plan.vars.is_some() {
                out.plans.push(plan);
                (out.plans.len() - 1) as u32
            } else {
                0
            };
            numbers.push(number);
        }
        if let Some(condition) = condition
            && out.plans.iter().all(|p| p.vars.is_none())
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
        (None, None) => failure.hint("libraries that are opened later have no types"),
    }
}

/// Finds the variables of a condition in a function; `None`: it does not have that one.
fn find_all(
    variables: &[Variable],
    p: Option<&Prototype>,
    types: &dyn Fn() -> Option<Arc<Btf>>,
) -> Vec<Option<Found>> {
    let mut out: Vec<Option<Found>> = Vec::with_capacity(variables.len());
    for v in variables {
        let found = match &v.start {
            Start::Name(name) => {
                named(v, name, p, types).or_else(|| constant(v, name, p?, &*types()?))
            }
            Start::Variable(at) => out.get(*at).copied().flatten().and_then(|before| {
                let base = Base::Variable(u8::try_from(*at).ok()?);
                behind(v, base, before.var.at_return, before.to?, &*types()?)
            }),
        };
        out.push(found);
    }
    out
}

/// Finds a variable that begins with the name of an argument or `ret`.
fn named(
    v: &Variable,
    name: &str,
    p: Option<&Prototype>,
    types: &dyn Fn() -> Option<Arc<Btf>>,
) -> Option<Found> {
    let number = name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
    let at_return = name == "ret";
    let (word, param) = match p {
        None if at_return => (RESULT, None),
        None => (u8::try_from(number?).ok().filter(|n| *n < REGISTERS)?, None),
        Some(p) if at_return => {
            let there = p.ret_words().first() == Some(&Place::Register(0))
                && (p.ret.size <= 8 || is_text(&p.ret));
            (RESULT, Some(Some(&p.ret).filter(|_| there)?))
        }
        Some(p) => {
            let at = p.params.iter().position(|param| param.name == name).or(number)?;
            let param = p.params.get(at)?;
            match *words_of(p, at) {
                [word] => (word, Some(param)),
                [word, _] if is_text(param) && p.composite(at).is_none() => (word, Some(param)),
                _ => return None,
            }
        }
    };
    let base = Base::Word(word);
    let pointer = param.is_none_or(|p| matches!(p.kind, ValueKind::Pointer(_)));
    let var = |read: Read, bits: u64, signed: bool| {
        let (first, bits) = (0, bits as u8);
        Some(Found { var: Var { read, base, first, bits, signed, at_return, offset: 0 }, to: None })
    };
    match (&v.path, param) {
        (Path::Whole, Some(param)) if v.text && is_text(param) => var(Read::Counted, 64, false),
        (Path::Whole, _) if v.text => var(Read::Text, 64, false).filter(|_| pointer),
        (Path::Whole, None) => var(Read::Word, 64, true),
        (Path::Whole, Some(param)) => match param.kind {
            ValueKind::Int => var(Read::Word, param.size.clamp(1, 8) * 8, is_signed(&param.text)),
            ValueKind::Enum => var(Read::Word, param.size.clamp(1, 8) * 8, true),
            ValueKind::Pointer(_) => var(Read::Word, 64, false),
            _ => None,
        },
        (Path::Behind, Some(param)) if pointer && !v.text => {
            let to = param.text.strip_suffix(['*', '&'])?.trim_end();
            if to.ends_with('*') {
                return var(Read::Bytes, 64, false);
            }
            var(Read::Bytes, number_size(to)? * 8, is_signed(to))
        }
        (Path::Member(_), Some(param)) if pointer => {
            let btf = types()?;
            let (id, _) = find(&btf, param)?;
            behind(v, base, at_return, id, &btf)
        }
        _ => None,
    }
}

/// Finds a member of the structure that `base` points to.
fn behind(v: &Variable, base: Base, at_return: bool, id: TypeId, btf: &Btf) -> Option<Found> {
    let Path::Member(name) = &v.path else { return None };
    let (at, member) = member(btf, id, name, 0)?;
    let (_, t) = btf.resolve(member.type_id).ok()?;
    let size = btf.size_of(member.type_id).ok()?;
    let bits = if member.bitfield > 0 { u64::from(member.bitfield) } else { size.checked_mul(8)? };
    let (offset, first) = (i32::try_from(at / 8).ok()?, (at % 8) as u8);
    let var = |read: Read, bits: u64, signed: bool| {
        let bits = u8::try_from(bits).ok().filter(|bits| bits + first <= 64)?;
        Some(Found { var: Var { read, base, first, bits, signed, at_return, offset }, to: None })
    };
    match &t.kind {
        Kind::Array(_) if v.text => var(Read::Text, 64, false),
        Kind::Ptr(_) if v.text => var(Read::TextBehind, 64, false),
        _ if v.text => None,
        Kind::Int(i) => var(Read::Bytes, bits, i.signed),
        Kind::Enum(e) | Kind::Enum64(e) => var(Read::Bytes, bits, e.signed),
        Kind::Ptr(to) => var(Read::Bytes, 64, false).map(|found| Found { to: Some(*to), ..found }),
        _ => None,
    }
}

/// Finds a constant of an enumeration: of one that an argument has, else of any that all agree about.
fn constant(v: &Variable, name: &str, p: &Prototype, btf: &Btf) -> Option<Found> {
    if v.path != Path::Whole || v.text {
        return None;
    }
    let value_in = |id: TypeId| match &btf.resolve(id).ok()?.1.kind {
        Kind::Enum(e) | Kind::Enum64(e) => {
            e.values.iter().find(|value| btf.string(value.name_off) == name).map(|v| v.value)
        }
        _ => None,
    };
    let of_param = p.params.iter().chain([&p.ret]).find_map(|param| {
        let is_enum = param.kind == ValueKind::Enum;
        value_in(find(btf, param).filter(|_| is_enum)?.0)
    });
    let value = of_param.or_else(|| {
        let mut all = btf.types().filter_map(|(id, _)| value_in(id));
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    })?;
    let (signed, bits) = (value < 0, 32);
    let offset =
        if signed { i32::try_from(value).ok()? } else { u32::try_from(value).ok()?.cast_signed() };
    let (read, base, first, at_return) = (Read::Constant, Base::Word(0), 0, false);
    Some(Found { var: Var { read, base, first, bits, signed, at_return, offset }, to: None })
}

/// Finds a member, `a` or `a.b`, also in members without names: its offset in bits, and itself.
pub fn member<'b>(btf: &'b Btf, id: TypeId, name: &str, depth: u32) -> Option<(u64, &'b Member)> {
    let (_, t) = btf.resolve(id).ok()?;
    let (Kind::Struct(c) | Kind::Union(c)) = &t.kind else { return None };
    if depth > MAX_DEPTH {
        return None;
    }
    let (first, rest) = name.split_once('.').map_or((name, None), |(a, b)| (a, Some(b)));
    c.members.iter().find_map(|m| {
        let at = u64::from(m.bit_offset);
        let inside = |name| {
            let (inner, found) = member(btf, m.type_id, name, depth + 1)?;
            Some((at.checked_add(inner)?, found))
        };
        match (btf.string(m.name_off), rest) {
            (found, None) if found == first => Some((at, m)),
            (found, Some(rest)) if found == first => inside(rest),
            ("", _) => inside(name),
            _ => None,
        }
    })
}

/// Bytes of a number by its type's name.
fn number_size(text: &str) -> Option<u64> {
    Some(match text {
        "char" | "signed char" | "unsigned char" | "_Bool" | "bool" | "u8" | "i8" => 1,
        "short" | "short int" | "unsigned short" | "short unsigned int" | "u16" | "i16" => 2,
        "int" | "unsigned int" | "u32" | "i32" => 4,
        "long"
        | "long int"
        | "unsigned long"
        | "long unsigned int"
        | "long long int"
        | "long long"
        | "unsigned long long"
        | "long long unsigned int"
        | "u64"
        | "i64"
        | "usize"
        | "isize" => 8,
        _ => return None,
    })
}
