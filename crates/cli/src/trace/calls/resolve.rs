//! What is read of each function's calls: its prototype, and where the variables of the condition are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use skep::link::Types;
use skep::object::btf::{Kind, TypeId};
use skep::object::{Btf, Place, Prototype, ValueKind};
use skep::prototypes::{Catalog, Listed};

use super::condition::{Condition, Path, Variable};
use super::plan::{Plan, RESULT, Read, Var, Wanted, find, is_signed, words_of};
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

/// How a variable of the condition is found, and whether it is as wide as can be and unsigned.
type Found = (Var, bool);

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
            let found: Option<Vec<Found>> =
                variables.iter().map(|v| variable(v, known, &types)).collect();
            if let (Some(found), Some(_)) = (found, condition) {
                out.unsigned.iter_mut().zip(&found).for_each(|(u, (_, wide))| *u |= wide);
                plan.vars = Some(found.into_iter().map(|(v, _)| v).collect());
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
            return Err(nothing_fits(condition, &listed));
        }
        let told = listed.iter().zip(&numbers).filter(|(_, n)| **n > 0);
        out.types = catalog.number(told.map(|(f, n)| (f, *n)));
        Ok(out)
    }
}

fn prototype(catalog: &Catalog, declared: &Declared, f: &Listed) -> Result<Arc<Prototype>, String> {
    let demangled = skep_proc::demangle::demangle(&f.name);
    let plain = demangled.split('(').next().unwrap_or_default();
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

fn nothing_fits(condition: &Condition, listed: &[Listed]) -> Failure {
    let text = &condition.text;
    let failure = Failure::environment(format!(
        "--if: no function that is to be traced has all that `{text}` names"
    ));
    let known = listed.iter().find_map(|f| Some((f, f.prototype.as_ref().ok()?)));
    match (known, listed.first()) {
        (Some((f, p)), _) => {
            let params: Vec<String> =
                p.params.iter().map(|v| format!("{} {}", v.text, v.name)).collect();
            failure.hint(format!(
                "`{}` has ({}), and `ret` is {}",
                f.name,
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

/// Finds a variable in a function; `None`: it does not have it.
fn variable(
    v: &Variable,
    p: Option<&Prototype>,
    types: &dyn Fn() -> Option<Arc<Btf>>,
) -> Option<Found> {
    let number = v.name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok());
    let (word, param) = match p {
        None if v.name == "ret" => (RESULT, None),
        None => (u8::try_from(number?).ok().filter(|n| *n < REGISTERS)?, None),
        Some(p) if v.name == "ret" => {
            let there = p.ret_words().first() == Some(&Place::Register(0)) && p.ret.size <= 8;
            (RESULT, Some(Some(&p.ret).filter(|_| there)?))
        }
        Some(p) => {
            let at = p.params.iter().position(|param| param.name == v.name).or(number)?;
            let [word] = *words_of(p, at) else { return None };
            (word, Some(p.params.get(at)?))
        }
    };
    let pointer = param.is_none_or(|p| matches!(p.kind, ValueKind::Pointer(_)));
    let whole = |bits: u64, signed: bool| {
        let var = Var { read: Read::Word, word, bits: bits as u8, signed, offset: 0 };
        (var, !signed && bits == 64)
    };
    let behind = |offset: u64, read: Read, bits: u64, signed: bool| {
        let offset = i32::try_from(offset).ok()?;
        Some((Var { read, word, bits: bits as u8, signed, offset }, !signed && bits == 64))
    };
    match (&v.path, param) {
        (Path::Whole, _) if v.text => behind(0, Read::Text, 64, false).filter(|_| pointer),
        (Path::Whole, None) => Some(whole(64, true)),
        (Path::Whole, Some(param)) => match param.kind {
            ValueKind::Int => Some(whole(param.size.clamp(1, 8) * 8, is_signed(&param.text))),
            ValueKind::Enum => Some(whole(param.size.clamp(1, 8) * 8, true)),
            ValueKind::Pointer(_) => Some(whole(64, false)),
            _ => None,
        },
        (Path::Behind, Some(param)) if pointer && !v.text => {
            let to = param.text.strip_suffix(['*', '&'])?.trim_end();
            if to.ends_with('*') {
                return behind(0, Read::Bytes, 64, false);
            }
            let size = number_size(to)?;
            behind(0, Read::Bytes, size * 8, is_signed(to))
        }
        (Path::Member(name), Some(param)) => {
            let btf = types()?;
            let (id, _) = find(&btf, param.text.trim_end_matches(['*', '&', ' ']))?;
            let (offset, member) = member(&btf, id, name, 0)?;
            let (_, t) = btf.resolve(member).ok()?;
            let size = btf.size_of(member).ok()?;
            let fits = matches!(size, 1 | 2 | 4 | 8);
            match &t.kind {
                Kind::Array(_) if v.text => behind(offset, Read::Text, 64, false),
                _ if v.text || !fits => None,
                Kind::Int(i) => behind(offset, Read::Bytes, size * 8, i.signed),
                Kind::Enum(e) | Kind::Enum64(e) => behind(offset, Read::Bytes, size * 8, e.signed),
                Kind::Ptr(_) => behind(offset, Read::Bytes, 64, false),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Finds a member, `a` or `a.b`, also in members without names: its offset in bytes, and its type.
pub fn member(btf: &Btf, id: TypeId, name: &str, depth: u32) -> Option<(u64, TypeId)> {
    let (_, t) = btf.resolve(id).ok()?;
    let (Kind::Struct(c) | Kind::Union(c)) = &t.kind else { return None };
    if depth > MAX_DEPTH {
        return None;
    }
    let (first, rest) = name.split_once('.').map_or((name, None), |(a, b)| (a, Some(b)));
    c.members.iter().find_map(|m| {
        let at = u64::from(m.bit_offset) / 8;
        match (btf.string(m.name_off), rest) {
            (found, None) if found == first && m.bitfield == 0 => Some((at, m.type_id)),
            (found, Some(rest)) if found == first => {
                member(btf, m.type_id, rest, depth + 1).map(|(inner, id)| (at + inner, id))
            }
            ("", _) => member(btf, m.type_id, name, depth + 1).map(|(inner, id)| (at + inner, id)),
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
