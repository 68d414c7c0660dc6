//! The lines of a verifier log (Linux 6.18, level 2), each with what it may hold.

use std::collections::BTreeMap;

/// What a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shape {
    /// Where a function begins.
    Function,
    /// Registers alive before an instruction, and the head of their table.
    Live,
    /// A source line.
    Source,
    /// An instruction.
    Insn,
    /// An instruction and what it looked at or changed.
    Changed,
    /// A state: of an instruction, or of a frame.
    State,
    /// A path that was put aside.
    From,
    /// The same, and it need not be walked.
    FromSafe,
    /// The path joins one that was walked.
    Safe,
    /// `caller:`, `callee:`.
    Call,
    /// `returning from callee:`, `to caller at`.
    Return,
    /// Of global functions.
    Global,
    /// What the kernel says of its own methods.
    Method,
    /// Why a program is refused.
    Reason,
    /// The last line.
    Summary,
    /// Before a path that was put aside.
    Blank,
}

type Rest<'a> = Result<&'a str, &'a str>;

fn word<'a>(s: &'a str, word: &str) -> Rest<'a> {
    s.strip_prefix(word).ok_or(s)
}

fn decimal(s: &str) -> Rest<'_> {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    if end == 0 { Err(s) } else { Ok(&s[end..]) }
}

fn hex(s: &str) -> Rest<'_> {
    let rest = word(s, "0x")?;
    let end = rest.find(|c: char| !matches!(c, '0'..='9' | 'a'..='f')).unwrap_or(rest.len());
    if end == 0 { Err(s) } else { Ok(&rest[end..]) }
}

fn number(s: &str) -> Rest<'_> {
    hex(s).or_else(|_| decimal(s.strip_prefix('-').unwrap_or(s)))
}

fn name(s: &str) -> Rest<'_> {
    let end =
        s.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(s.len());
    if end == 0 { Err(s) } else { Ok(&s[end..]) }
}

fn nothing(s: &str) -> Result<(), &str> {
    if s.is_empty() { Ok(()) } else { Err(s) }
}

const NUMBERS: [&str; 19] = [
    "smin",
    "smax",
    "umin",
    "umax",
    "smin32",
    "smax32",
    "umin32",
    "umax32",
    "ref_obj_id",
    "ks",
    "vs",
    "off",
    "r",
    "sz",
    "imm",
    "id",
    "dynptr_id",
    "ref_id",
    "depth",
];

/// `id=1,smin=umin=3,var_off=(0x0; 0xff))`: what follows the opening bracket.
fn parts(mut s: &str) -> Rest<'_> {
    loop {
        if let Some(rest) = s.strip_prefix("var_off=") {
            s = match hex(rest) {
                Ok(rest) => rest,
                Err(_) => word(hex(word(hex(word(rest, "(")?)?, "; ")?)?, ")")?,
            };
        } else if let Some(rest) = s
            .strip_prefix("map=")
            .or_else(|| s.strip_prefix("type="))
            .or_else(|| s.strip_prefix("state="))
        {
            s = name(rest)?;
        } else if let Some(rest) = s.strip_prefix("non_own_ref") {
            s = rest;
        } else if !s.starts_with(')') {
            let mut known = false;
            while let Some((_, rest)) = s.split_once('=').filter(|(key, _)| NUMBERS.contains(key)) {
                (s, known) = (rest, true);
            }
            s = number(s).ok().filter(|_| known).ok_or(s)?;
            // A number that is known to be another and a constant.
            if s.starts_with('+') || s.starts_with("-") {
                s = number(s.strip_prefix('+').unwrap_or(s))?;
            }
        }
        match s.strip_prefix(',') {
            Some(rest) => s = rest,
            None => return word(s, ")"),
        }
    }
}

/// What a register holds.
fn value(s: &str) -> Rest<'_> {
    let s = s.strip_prefix('P').unwrap_or(s);
    if let Ok(rest) = number(s) {
        return Ok(rest);
    }
    if let Some(rest) = s.strip_prefix("fp") {
        let rest = rest.strip_prefix('[').map_or(Ok(rest), |r| word(decimal(r)?, "]"))?;
        return number(rest).or_else(|_| parts(word(rest, "(")?));
    }
    parts(word(name(s)?, "(")?)
}

/// What lies in eight bytes of stack.
fn slot(s: &str) -> Rest<'_> {
    let marks =
        s.find(|c: char| !matches!(c, '?' | 'm' | '0' | 'r' | 'd' | 'i')).unwrap_or(s.len());
    let whole = marks == 8 && s[8..].chars().next().is_none_or(|c| c == ' ');
    if whole {
        return Ok(&s[8..]);
    }
    // Bytes above what was spilled: up to seven, and a zero may be of either.
    let above = s.find(|c: char| !matches!(c, '?' | 'm' | '0')).unwrap_or(s.len());
    let whole = |rest: &&str| rest.is_empty() || rest.starts_with(' ');
    (0..=above.min(7)).find_map(|n| value(&s[n..]).ok().filter(whole)).ok_or(s)
}

/// ` frame1: R0=… fp-8=… refs=1,2 cb`.
fn contents(mut s: &str) -> Result<(), &str> {
    if let Some(rest) = s.strip_prefix(" frame") {
        s = word(decimal(rest)?, ":")?;
    }
    while let Some(rest) = s.strip_prefix(' ') {
        s = if let Some(rest) = rest.strip_prefix('R') {
            value(word(decimal(rest)?, "=")?)?
        } else if let Some(rest) = rest.strip_prefix("fp-") {
            slot(word(decimal(rest)?, "=")?)?
        } else if let Some(rest) = rest.strip_prefix("refs=") {
            let mut s = decimal(rest)?;
            while let Some(rest) = s.strip_prefix(',') {
                s = decimal(rest)?;
            }
            s
        } else {
            rest.strip_prefix("cb").or_else(|| rest.strip_prefix("async_cb")).ok_or(rest)?
        };
    }
    nothing(s)
}

/// The registers of a line's state by name, without ids, which are counted differently, and names
/// of maps, which the kernel was not told.
pub fn registers(state: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut s = state;
    while let Some(at) = s.find(" R") {
        let rest = &s[at + 1..];
        let Some((name, rest)) = rest.split_once('=') else { break };
        let end = value(rest).map_or(rest.len(), |left| rest.len() - left.len());
        let (text, left) = rest.split_at(end);
        out.insert(name.to_owned(), without_ids(text.strip_prefix('P').unwrap_or(text)));
        s = left;
    }
    out
}

fn without_ids(value: &str) -> String {
    let Some((kind, parts)) = value.split_once('(') else { return value.to_owned() };
    let left: Vec<&str> = parts
        .trim_end_matches(')')
        .split(',')
        .filter(|p| !["id=", "ref_obj_id=", "map="].iter().any(|own| p.starts_with(own)))
        .collect();
    format!("{kind}({})", left.join(","))
}

/// `(b7) r0 = 0`, perhaps with a state behind it.
fn insn(s: &str) -> Result<Shape, &str> {
    let rest = word(s, "(")?;
    let code = rest.get(..2).filter(|c| c.chars().all(|c| c.is_ascii_hexdigit())).ok_or(rest)?;
    let rest = word(&rest[code.len()..], ") ")?;
    match rest.split_once(" ;") {
        Some((text, state)) if text.len() < rest.len() => contents(state).map(|()| Shape::Changed),
        _ => Ok(Shape::Insn),
    }
}

/// The number of an instruction, and what follows its colon.
fn numbered(s: &str) -> Result<Shape, &str> {
    let rest = word(decimal(s)?, ":")?;
    match rest {
        " safe" => Ok(Shape::Safe),
        _ if rest.starts_with(" (") => insn(&rest[1..]),
        _ => contents(rest).map(|()| Shape::State),
    }
}

fn from(s: &str) -> Result<Shape, &str> {
    let rest = word(decimal(word(decimal(s)?, " to ")?)?, ":")?;
    if rest == " safe" { Ok(Shape::FromSafe) } else { contents(rest).map(|()| Shape::From) }
}

fn live(s: &str) -> Result<Shape, &str> {
    let rest = word(decimal(s.trim_start())?, ": ")?;
    let regs = rest
        .get(..10)
        .filter(|r| r.bytes().zip(b'0'..).all(|(c, digit)| c == b'.' || c == digit))
        .ok_or(rest)?;
    insn(word(&rest[regs.len()..], " ")?).map(|_| Shape::Live)
}

/// Tells what a line is, or where it stops being one of a verifier's log.
pub fn shape(line: &str) -> Result<Shape, &str> {
    let methods = ["mark_precise: frame", "frame ", "frame0 ", "SCC ", "arg#0 ", "("];
    if line.is_empty() {
        return Ok(Shape::Blank);
    }
    if methods.iter().any(|m| line.starts_with(m)) {
        return Ok(Shape::Method);
    }
    if let Some(rest) = line.strip_prefix("func#") {
        return nothing(decimal(word(decimal(rest)?, " @")?)?).map(|()| Shape::Function);
    }
    if let Some(rest) = line.strip_prefix("from ") {
        return from(rest);
    }
    if let Some(rest) = line.strip_prefix("; ") {
        let at = rest.rfind(" @ ").ok_or(rest)?;
        let (file, number) = rest[at + 3..].rsplit_once(':').ok_or(rest)?;
        return nothing(decimal(number)?)
            .map(|()| Shape::Source)
            .and_then(|s| if file.is_empty() { Err(rest) } else { Ok(s) });
    }
    if let Some(rest) = line.strip_prefix("processed ") {
        let mut s = word(decimal(word(decimal(rest)?, " insns (limit ")?)?, ")")?;
        for key in [" max_states_per_insn ", " total_states ", " peak_states ", " mark_read "] {
            s = decimal(word(s, key)?)?;
        }
        return nothing(s).map(|()| Shape::Summary);
    }
    if let Some(rest) = line.strip_prefix("to caller at ") {
        return word(decimal(rest)?, ":").and_then(nothing).map(|()| Shape::Return);
    }
    if let Some(rest) = line.strip_prefix("Validating ") {
        return word(decimal(word(name(rest)?, "() func#")?)?, "...")
            .and_then(nothing)
            .map(|()| Shape::Global);
    }
    if let Some(rest) = line.strip_prefix("Func#") {
        let rest = word(name(word(decimal(rest)?, " ('")?)?, "') is ")?;
        let ends = ["global and assumed valid.", "safe for any args that match its prototype"];
        return if ends.contains(&rest) { Ok(Shape::Global) } else { Err(rest) };
    }
    match line {
        "Live regs before insn:" => Ok(Shape::Live),
        "caller:" | "callee:" => Ok(Shape::Call),
        "returning from callee:" => Ok(Shape::Return),
        _ if line.starts_with("  ") => {
            // A loop's number may stand before.
            live(line).or_else(|_| live(decimal(line.trim_start())?))
        }
        _ if line.starts_with(' ') => contents(line).map(|()| Shape::State),
        _ => numbered(line),
    }
}
