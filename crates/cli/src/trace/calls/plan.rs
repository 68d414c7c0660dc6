//! What the program reads of a function's calls, and how that becomes values again.
//!
//! A [`Plan`] is the list of what `bpf/calls.bpf.c` does at entry and at return, and for each argument
//! where in the record its bytes are and what they mean.

use std::sync::Arc;

use skep::object::btf::{Kind, LongDouble, Type, TypeId, Value, ValueMember};
use skep::object::{Btf, Composite, MAX_WORDS, Part, Place, Prototype, Value as Param, ValueKind};
use skep::prototypes::hidden_word;

use super::condition::Rank;

/// The largest string that is read, and the pieces that structures are read in: `PIECE`.
const PIECE: usize = 120;
/// Bytes of the longest text that is shown as a whole: the piece ends with a zero byte, and one byte more
/// than these says that there is more.
const LONGEST_TEXT: usize = PIECE - 2;
/// Bytes of a record's data: `DATA`.
pub const DATA: usize = LAST_AT + 8 + PIECE;
const LAST_AT: usize = 1016;
/// Operations of a plan: `OPS`.
const OPS: usize = 24;
/// Bytes of an operation and of what stands in front of the first.
const OP_SIZE: usize = 16;
/// Bytes of a plan: `struct plan`.
pub const PLAN_SIZE: usize = HEAD + OPS * OP_SIZE;
const HEAD: usize = 8 + VARS * VAR_SIZE;
/// Variables of a condition: `VARS`.
pub const VARS: usize = 8;
const VAR_SIZE: usize = 16;
/// The word that stands for the result: `RESULT`.
pub const RESULT: u8 = 0xff;
/// The word that stands for its second word: `RESULT2`.
pub const SECOND_RESULT: u8 = 0xfd;
/// The word that stands for the place of the return address: `STACK`.
pub const STACK: u8 = 0xfe;
/// From there to the arguments on the stack.
pub const RETURN_ADDRESS: u64 = 8;
/// Words of the stack that a context has.
const STACK_WORDS: u8 = 6;
/// Structures behind pointers, and those that are passed in memory, are read up to here.
const DEEP: usize = 4 * PIECE;

/// Most members, and deepest nesting, of structures without any that has a place.
const EMPTY: usize = 4;

/// What types without names are called.
const ANONYMOUS: &str = "(anonymous)";
/// What pointers to members of classes are called.
const POINTER_TO_MEMBER: &str = "pointer to member";

/// Kinds of operations and variables, as in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Read {
    Word = 1,
    Text = 2,
    Bytes = 3,
    Vector = 4,
    Constant = 5,
    TextBehind = 6,
    Counted = 7,
}

/// A variable of the condition, as the program reads it.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    pub read: Read,
    /// What `offset` counts from.
    pub base: Base,
    /// The first bit in the byte at `offset`.
    pub first: u8,
    /// Of the number; of a text its most bytes, which are 1 to [`TEXT`](super::condition::TEXT).
    pub bits: u8,
    pub signed: bool,
    /// It is read at return.
    pub at_return: bool,
    /// Of a constant its value.
    pub offset: i64,
}

impl Var {
    /// What makes it more than an `int` in arithmetic.
    fn rank(&self) -> Option<Rank> {
        match (self.read, self.bits, self.signed) {
            (Read::Text | Read::TextBehind | Read::Counted, ..) => None,
            (Read::Constant, _, _) if i32::try_from(self.offset).is_ok() => None,
            (Read::Constant, _, true) if u32::try_from(self.offset).is_ok() => Some(Rank::Unsigned),
            (_, 33.., false) => Some(Rank::UnsignedLong),
            (_, 33.., true) => Some(Rank::Long),
            (_, 32, false) => Some(Rank::Unsigned),
            _ => None,
        }
    }
}

/// A pointer, or the number itself.
#[derive(Clone, Copy, Debug)]
pub enum Base {
    /// A word of the call.
    Word(u8),
    /// An earlier variable.
    Variable(u8),
}

/// What is said of a variable beside its first bit: `SIGNED`, `OF_VARIABLE`, `AT_END`.
const SIGNED: u8 = 1;
const OF_VARIABLE: u8 = 2;
const AT_END: u8 = 4;

#[derive(Clone, Copy, Debug)]
struct Op {
    read: Read,
    word: u8,
    at: usize,
    size: usize,
    offset: usize,
}

/// What is wanted of calls.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wanted {
    pub args: bool,
    pub result: bool,
    /// Structures behind pointers are read.
    pub deref: bool,
}

/// What is done for a function.
#[derive(Debug, Default)]
pub struct Plan {
    ops: Vec<Op>,
    /// Of them at entry.
    entry: usize,
    size: usize,
    args: Vec<Shown>,
    /// What the arguments are is known, and was asked for.
    known: bool,
    result: Option<Shown>,
    /// More arguments follow.
    pub variadic: bool,
    /// By their numbers; `None`: the function has not all variables of the condition.
    pub vars: Option<Vec<Var>>,
    /// What types of values mean.
    types: Option<Arc<Btf>>,
}

/// A value in a record.
#[derive(Debug)]
struct Shown {
    name: String,
    at: usize,
    how: How,
}

#[derive(Debug)]
enum How {
    Number {
        size: usize,
        signed: bool,
    },
    Float {
        size: usize,
    },
    /// A word, and in memory the number.
    FloatBehind {
        size: usize,
    },
    /// A pointer to a member function of C++: its address or place in a table, and an offset.
    MemberFunction,
    Char,
    /// A character of Rust.
    Unicode,
    Bool,
    Pointer,
    /// A word, and behind it the string it points to.
    Text,
    /// A word, its length, and behind them the text.
    Counted,
    /// An enumeration or a structure: its bytes.
    Typed {
        id: TypeId,
        size: usize,
    },
    /// Two words: a structure of Rust, and what is in its second word from this byte on.
    Pair {
        id: TypeId,
        size: usize,
        second: usize,
    },
    /// A word, and behind it the structure it points to, in pieces.
    Behind {
        id: TypeId,
        size: usize,
    },
    Hex {
        size: usize,
    },
    /// A structure without members, which is nowhere.
    Empty,
    /// It is nowhere that could be read.
    Nowhere,
}

impl Plan {
    /// Plans for a prototype; `types` finds what its names mean, where there are any.
    pub fn new(p: &Prototype, wanted: Wanted, types: &dyn Fn() -> Option<Arc<Btf>>) -> Self {
        let mut plan = Self { variadic: p.variadic && wanted.args, ..Self::default() };
        plan.known = wanted.args;
        if wanted.args {
            for (at, param) in p.params.iter().enumerate() {
                let words = words_of(p, at);
                let shown = match (p.vector(at), p.composite(at)) {
                    (Some(register), _) => plan.add_float(param, register),
                    (None, Some(Composite::Behind)) => match *words {
                        [word] => plan.add_behind(param, word, 0, types),
                        _ => plan.nowhere(param),
                    },
                    (None, Some(Composite::Stack(from))) if param.kind == ValueKind::Float => {
                        plan.add_float_behind(param, STACK, from + RETURN_ADDRESS)
                    }
                    (None, Some(Composite::Stack(from)))
                        if !matches!(param.kind, ValueKind::Struct | ValueKind::Union) =>
                    {
                        plan.add_far(param, from + RETURN_ADDRESS, wanted, types)
                    }
                    (None, Some(Composite::Stack(from))) => {
                        plan.add_behind(param, STACK, from + RETURN_ADDRESS, types)
                    }
                    (None, Some(Composite::Parts(parts))) => {
                        let reads = reads(parts, integer_words(p, at));
                        plan.add_parts(param, reads, None, types)
                    }
                    (None, Some(Composite::Pair { second, parts })) => {
                        let reads = reads(parts, integer_words(p, at));
                        plan.add_parts(param, reads, Some(*second), types)
                    }
                    _ => plan.add(param, &words, wanted, types),
                };
                plan.args.push(shown);
            }
        }
        plan.entry = plan.ops.len();
        if wanted.result && p.ret.kind != ValueKind::Void {
            let words: &[u8] = match p.ret_words() {
                [Place::Register(0)] => &[RESULT],
                [Place::Register(0), Place::Register(1)] => &[RESULT, SECOND_RESULT],
                _ => &[],
            };
            let shown = match (&p.ret.kind, p.ret_composite()) {
                (ValueKind::Float, _) => plan.add_float(&p.ret, 0),
                (_, Some(Composite::Behind)) => match hidden_word(p) {
                    Some(word) => plan.add_behind(&p.ret, word as u8, 0, types),
                    None => plan.nowhere(&p.ret),
                },
                (_, Some(Composite::Parts(parts))) => {
                    plan.add_parts(&p.ret, reads(parts, result_words(parts)), None, types)
                }
                (_, Some(Composite::Pair { second, parts })) => {
                    let reads = reads(parts, result_words(parts));
                    plan.add_parts(&p.ret, reads, Some(*second), types)
                }
                _ => plan.add(&p.ret, words, wanted, types),
            };
            plan.result = Some(shown);
        }
        let typed =
            |s: &Shown| matches!(s.how, How::Typed { .. } | How::Pair { .. } | How::Behind { .. });
        if plan.args.iter().chain(&plan.result).any(typed) {
            plan.types = types();
        }
        plan
    }

    fn add(
        &mut self,
        param: &Param,
        words: &[u8],
        wanted: Wanted,
        types: &dyn Fn() -> Option<Arc<Btf>>,
    ) -> Shown {
        let at = self.size;
        let named = || types().and_then(|btf| find(&btf, param));
        let size = param.size as usize;
        let mut how = match (&param.kind, words) {
            (ValueKind::Struct, []) => {
                match types().as_deref().and_then(|btf| has_members(btf, param)) {
                    Some(false) => How::Empty,
                    _ => How::Nowhere,
                }
            }
            (_, []) => How::Nowhere,
            (ValueKind::Int, _) => match param.text.as_str() {
                "char" if size == 1 => How::Char,
                "char" if size == 4 => How::Unicode,
                "_Bool" | "bool" => How::Bool,
                text if size <= 8 * words.len() => How::Number { size, signed: is_signed(text) },
                _ => How::Nowhere,
            },
            (ValueKind::Struct, [_, _]) if is_text(param) => How::Counted,
            (ValueKind::Struct, [_, _]) if param.text == POINTER_TO_MEMBER => How::MemberFunction,
            (ValueKind::Enum | ValueKind::Struct | ValueKind::Union, _) => match named() {
                Some((id, real)) if real == size => How::Typed { id, size },
                _ if param.kind == ValueKind::Enum => How::Number { size, signed: true },
                _ => How::Hex { size },
            },
            (ValueKind::Pointer(_), _) if param.text == "char *" => How::Text,
            (ValueKind::Pointer(Some(_)), _) if wanted.deref => {
                named().map_or(How::Pointer, |(id, size)| How::Behind { id, size })
            }
            (ValueKind::Pointer(_), _) => How::Pointer,
            _ => How::Nowhere,
        };
        let before = (self.ops.len(), self.size);
        let mut fits = words.iter().all(|w| self.push(Read::Word, *w, 0, 0));
        match (&how, words) {
            (How::Text, [word]) => fits = fits && self.push(Read::Text, *word, PIECE, 0),
            (How::Counted, [word, _]) => {
                fits = fits && self.push(Read::Counted, *word, PIECE, 0);
            }
            (How::Behind { size, .. }, [word]) => {
                fits = fits && self.push_pieces(*word, 0, *size);
            }
            _ => {}
        }
        if !fits {
            self.ops.truncate(before.0);
            self.size = before.1;
            how = How::Nowhere;
        }
        Shown { name: param.name.clone(), at, how }
    }

    fn nowhere(&self, param: &Param) -> Shown {
        Shown { name: param.name.clone(), at: self.size, how: How::Nowhere }
    }

    /// Adds a structure, so many bytes behind where a word points.
    fn add_behind(
        &mut self,
        param: &Param,
        word: u8,
        from: u64,
        types: &dyn Fn() -> Option<Arc<Btf>>,
    ) -> Shown {
        let nowhere = self.nowhere(param);
        let Some((id, size)) = types().and_then(|btf| find(&btf, param)) else {
            return nowhere;
        };
        let before = (self.ops.len(), self.size);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        if self.push(Read::Word, word, 0, 0) && self.push_pieces(word, from, size) {
            return Shown { how: How::Behind { id, size }, ..nowhere };
        }
        self.ops.truncate(before.0);
        self.size = before.1;
        nowhere
    }

    /// Adds a structure of which each eight bytes are read in a way of their own, or of a pair each value;
    /// `None`: some cannot be.
    fn add_parts(
        &mut self,
        param: &Param,
        reads: Option<Vec<(Read, u8)>>,
        second: Option<u64>,
        types: &dyn Fn() -> Option<Arc<Btf>>,
    ) -> Shown {
        let nowhere = self.nowhere(param);
        let found = types().and_then(|btf| find(&btf, param));
        let (Some((id, size)), Some(reads)) = (found, reads) else { return nowhere };
        let before = (self.ops.len(), self.size);
        if size <= 8 * reads.len() && reads.into_iter().all(|(read, at)| self.push(read, at, 0, 0))
        {
            let how = match second {
                None => How::Typed { id, size },
                Some(at) => How::Pair { id, size, second: at as usize },
            };
            return Shown { how, ..nowhere };
        }
        self.ops.truncate(before.0);
        self.size = before.1;
        nowhere
    }

    /// Reads what is behind a pointer, in pieces.
    fn push_pieces(&mut self, word: u8, from: usize, size: usize) -> bool {
        let pieces = (0..size.min(DEEP)).step_by(PIECE);
        pieces.into_iter().all(|offset| {
            let piece = (size - offset).min(PIECE);
            self.push(Read::Bytes, word, piece, from.saturating_add(offset))
        })
    }

    fn add_float(&mut self, param: &Param, register: u8) -> Shown {
        let (at, size) = (self.size, param.size as usize);
        let there = matches!(size, 4 | 8) && self.push(Read::Vector, register, 0, 0);
        let how = if there { How::Float { size } } else { How::Nowhere };
        Shown { name: param.name.clone(), at, how }
    }

    /// Adds a number, a pointer or an enumeration that no word has, so many bytes behind the return address.
    fn add_far(
        &mut self,
        param: &Param,
        from: u64,
        wanted: Wanted,
        types: &dyn Fn() -> Option<Arc<Btf>>,
    ) -> Shown {
        // As if there were words; what pointers lead to cannot be read then.
        let words = [STACK, STACK];
        let count = if param.size > 8 { 2 } else { 1 };
        let mut far = Self::default();
        let wanted = Wanted { deref: false, ..wanted };
        let shown = far.add(param, words.get(..count).unwrap_or_default(), wanted, types);
        let how = if let How::Text = shown.how { How::Pointer } else { shown.how };
        let (at, from) = (self.size, usize::try_from(from).unwrap_or(usize::MAX));
        if !self.push(Read::Bytes, STACK, 8 * count, from) {
            return self.nowhere(param);
        }
        // Behind the word that says whether it was read.
        Shown { at: at + 8, how, ..shown }
    }

    /// Adds a number that is so many bytes behind where a word points.
    fn add_float_behind(&mut self, param: &Param, word: u8, from: u64) -> Shown {
        let (at, size) = (self.size, param.size as usize);
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let is_one = matches!(size, 4 | 8) || param.text == "long double";
        let there = is_one && self.push(Read::Bytes, word, size, from);
        let how = if there { How::FloatBehind { size } } else { How::Nowhere };
        Shown { name: param.name.clone(), at, how }
    }

    fn push(&mut self, read: Read, word: u8, size: usize, offset: usize) -> bool {
        if self.ops.len() == OPS || self.size > LAST_AT {
            return false;
        }
        self.ops.push(Op { read, word, at: self.size, size, offset });
        self.size += 8 + size.next_multiple_of(8);
        true
    }

    /// Tells whether the arguments are known.
    pub fn knows_args(&self) -> bool {
        self.known
    }

    /// The arguments in a record's data, by name.
    pub fn args(&self, data: &[u8]) -> impl Iterator<Item = (&str, Option<Value>)> {
        let types = self.types.as_deref();
        self.args.iter().map(move |shown| (shown.name.as_str(), shown.value(data, types)))
    }

    /// The result in a record's data; `None` where there is none.
    pub fn result(&self, data: &[u8]) -> Option<Option<Value>> {
        self.result.as_ref().map(|shown| shown.value(data, self.types.as_deref()))
    }

    /// The plan as the program reads it.
    pub fn bytes(&self) -> Vec<u8> {
        let types = |vars: &Vec<Var>| {
            vars.iter().enumerate().fold(1, |all, (at, v)| all | v.rank().map_or(0, |r| r.of(at)))
        };
        let conditional = self.vars.as_ref().map_or(0, types);
        let mut out = vec![self.entry as u8, self.ops.len() as u8];
        out.extend((self.size.min(DATA) as u16).to_le_bytes());
        out.extend(conditional.to_le_bytes());
        for v in self.vars.iter().flatten() {
            let (base, of_variable) = match v.base {
                Base::Word(word) => (word, 0),
                Base::Variable(at) => (at, OF_VARIABLE),
            };
            let signed = if v.signed { SIGNED } else { 0 };
            let at_end = if v.at_return { AT_END } else { 0 };
            out.extend([v.read as u8, base, v.bits, signed | of_variable | at_end | v.first << 4]);
            out.extend([0; 4]);
            out.extend(v.offset.to_le_bytes());
        }
        out.resize(HEAD, 0);
        for op in &self.ops {
            out.extend([op.read as u8, op.word]);
            out.extend((op.at as u16).to_le_bytes());
            out.extend((op.size as u32).to_le_bytes());
            out.extend((op.offset as u64).to_le_bytes());
        }
        out.resize(PLAN_SIZE, 0);
        out
    }
}

/// The words that an argument takes, in the order of a context; none where one cannot be read.
pub fn words_of(p: &Prototype, param: usize) -> Vec<u8> {
    let all = p.words().iter().enumerate().filter(|(_, w)| w.param == param);
    let (mut words, mut good) = (Vec::new(), true);
    for (at, w) in all {
        let is_there = match w.place {
            Place::Register(_) => true,
            Place::Stack(word) => word < STACK_WORDS,
            Place::Vector => false,
        };
        good &= is_there && at < MAX_WORDS;
        words.push(at as u8);
    }
    if good { words } else { Vec::new() }
}

/// The words of an argument that are in integer registers or on the stack.
pub fn integer_words(p: &Prototype, param: usize) -> impl Iterator<Item = u8> {
    let all = p.words().iter().enumerate().take(MAX_WORDS);
    let is_there = |place| match place {
        Place::Register(_) => true,
        Place::Stack(word) => word < STACK_WORDS,
        Place::Vector => false,
    };
    let here = all.filter(move |(_, w)| w.param == param && is_there(w.place));
    here.map(|(at, _)| at as u8)
}

/// The words of a result that are in integer registers.
pub fn result_words(parts: &[Part]) -> impl Iterator<Item = u8> {
    let words = parts.iter().zip([RESULT, SECOND_RESULT]);
    words.filter(|(part, _)| **part == Part::Register).map(|(_, word)| word)
}

/// How the parts of a structure are read; `None`: some cannot be.
fn reads(parts: &[Part], mut words: impl Iterator<Item = u8>) -> Option<Vec<(Read, u8)>> {
    let read = |part: &Part| match part {
        Part::Vector(register) => Some((Read::Vector, *register)),
        Part::Register => Some((Read::Word, words.next()?)),
    };
    parts.iter().map(read).collect()
}

/// Tells whether a value is a text of Rust: a pointer, and a length.
pub fn is_text(value: &Param) -> bool {
    matches!(value.text.as_str(), "struct &str" | "struct &mut str")
}

/// Tells whether numbers of a type, by its name in C, C++ or Rust, may be below zero.
pub fn is_signed(text: &str) -> bool {
    !(text.contains("unsigned")
        || matches!(
            text,
            "_Bool"
                | "bool"
                | "u8"
                | "u16"
                | "u32"
                | "u64"
                | "u128"
                | "usize"
                | "char8_t"
                | "char16_t"
                | "char32_t"
        ))
}

/// Finds the structure, union or enumeration that a value is or points to. Of several types with its
/// name it is the one that the debug information means; where that is not said, none.
pub fn find(btf: &Btf, value: &Param) -> Option<(TypeId, usize)> {
    let (kind, name) = value.text.trim_end_matches(['*', '&', ' ']).split_once(' ')?;
    let is_called = |t: &Type, name: &str| {
        let fits = match kind {
            "struct" => matches!(t.kind, Kind::Struct(_)),
            "union" => matches!(t.kind, Kind::Union(_)),
            "enum" => matches!(t.kind, Kind::Enum(_) | Kind::Enum64(_)),
            _ => false,
        };
        fits && btf.string(t.name_off) == name
    };
    // The places may be those of another build.
    let real = if name == ANONYMOUS { "" } else { name };
    let meant = value.described_at.and_then(|place| btf.described_at(place));
    let meant = meant.filter(|id| btf.get(*id).is_ok_and(|t| is_called(t, real)));
    let id = meant.or_else(|| {
        let mut all = btf.types().filter(|(_, t)| is_called(t, name)).map(|(id, _)| id);
        all.next().filter(|_| all.next().is_none())
    })?;
    Some((id, usize::try_from(btf.size_of(id).ok()?).ok()?))
}

/// Tells whether a structure has members, or members that do; `None` where that is not known.
fn has_members(btf: &Btf, value: &Param) -> Option<bool> {
    fn has(btf: &Btf, id: TypeId, depth: usize) -> Option<bool> {
        let (Kind::Struct(c) | Kind::Union(c)) = &btf.resolve(id).ok()?.1.kind else {
            return Some(true);
        };
        if depth > EMPTY || c.members.len() > EMPTY {
            return None;
        }
        let mut members = c.members.iter();
        members.try_fold(false, |any, m| Some(any || has(btf, m.type_id, depth + 1)?))
    }
    has(btf, find(btf, value)?.0, 0)
}

impl Shown {
    /// Reads the value in a record's data.
    fn value(&self, data: &[u8], types: Option<&Btf>) -> Option<Value> {
        let word = |at: usize| {
            let bytes = data.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let bytes = |size: usize| data.get(self.at..self.at + size);
        if let How::Empty = self.how {
            return Some(Value::Struct(Vec::new()));
        }
        let first = word(self.at)?;
        Some(match &self.how {
            How::Nowhere | How::Empty => return None,
            How::Number { size: 16, signed } => {
                let all = bytes(16)?.try_into().ok()?;
                if *signed {
                    Value::Int128(i128::from_le_bytes(all))
                } else {
                    Value::Uint128(u128::from_le_bytes(all))
                }
            }
            How::Number { size, signed } => {
                let shift = 64 - 8 * (*size as u32).clamp(1, 8);
                if *signed {
                    Value::Int((((first << shift) as i64) >> shift).into())
                } else {
                    Value::Uint(((first << shift) >> shift).into())
                }
            }
            How::Float { size: 4 } => Value::of_f32(f32::from_bits(first as u32)),
            How::Float { .. } => Value::Float(f64::from_bits(first)),
            How::FloatBehind { size } => {
                let number = data.get(self.at + 8..self.at + 8 + size)?;
                match *size {
                    _ if first != 0 => return None,
                    4 => Value::of_f32(f32::from_le_bytes(number.try_into().ok()?)),
                    8 => Value::Float(f64::from_le_bytes(number.try_into().ok()?)),
                    _ => Value::LongDouble(LongDouble(*number.first_chunk()?)),
                }
            }
            How::MemberFunction => {
                let adj = Value::Int((word(self.at + 8)? as i64).into());
                let member = |name: &str, value| ValueMember { name: name.to_owned(), value };
                Value::Struct(vec![member("ptr", Value::Pointer(first)), member("adj", adj)])
            }
            How::Char => Value::Char(first as u8),
            How::Unicode => match char::from_u32(first as u32) {
                Some(c) => Value::Unicode(c),
                None => Value::Uint((first as u32).into()),
            },
            How::Bool => Value::Bool(first as u8 != 0),
            How::Pointer => Value::Pointer(first),
            How::Text => {
                let len = word(self.at + 8)? as i64;
                match usize::try_from(len) {
                    Ok(len) if (1..=PIECE).contains(&len) => {
                        // A text that fills the piece may have ended there: its last byte is what `…` stands for.
                        let (len, cut) =
                            if len == PIECE { (LONGEST_TEXT, "…") } else { (len - 1, "") };
                        let text = data.get(self.at + 16..self.at + 16 + len)?;
                        Value::Text(String::from_utf8_lossy(text).into_owned() + cut)
                    }
                    _ => Value::Pointer(first),
                }
            }
            How::Counted => {
                let len = usize::try_from(word(self.at + 8)?).unwrap_or(usize::MAX);
                if word(self.at + 16)? != 0 {
                    return Some(Value::Pointer(first));
                }
                let (shown, cut) = if len > PIECE { (LONGEST_TEXT, "…") } else { (len, "") };
                let text = data.get(self.at + 24..self.at + 24 + shown)?;
                // Not half a character.
                let whole = match str::from_utf8(text) {
                    Err(e) if e.error_len().is_none() && len > PIECE => e.valid_up_to(),
                    _ => shown,
                };
                Value::Text(String::from_utf8_lossy(text.get(..whole)?).into_owned() + cut)
            }
            How::Typed { id, size } => types?.decode(*id, bytes(*size)?).ok()?,
            How::Pair { id, size, second } => {
                let mut whole = bytes((*second).min(8))?.to_vec();
                whole.resize(*second, 0);
                let rest = size.checked_sub(*second)?;
                whole.extend(data.get(self.at + 8..self.at + 8 + rest)?);
                types?.decode(*id, &whole).ok()?
            }
            How::Hex { size } => Value::Bytes(bytes(*size)?.to_vec()),
            How::Behind { id, size } => {
                let mut whole = Vec::with_capacity(*size);
                let mut at = self.at + 8;
                for offset in (0..(*size).min(DEEP)).step_by(PIECE) {
                    let piece = (size - offset).min(PIECE);
                    if word(at)? != 0 {
                        return Some(Value::Pointer(first));
                    }
                    whole.extend(data.get(at + 8..at + 8 + piece)?);
                    at += 8 + piece.next_multiple_of(8);
                }
                let known = whole.len();
                whole.resize(*size, 0);
                let value = types?.decode(*id, &whole).ok()?;
                if known < *size { cut(value, types?, *id, known) } else { value }
            }
        })
    }
}

/// Leaves members out that were not read, also those of members.
fn cut(value: Value, btf: &Btf, id: TypeId, known: usize) -> Value {
    let Value::Struct(values) = value else { return value };
    let Ok((_, t)) = btf.resolve(id) else { return Value::Struct(values) };
    let (Kind::Struct(c) | Kind::Union(c)) = &t.kind else { return Value::Struct(values) };
    // A value may have fewer members than its type.
    let mut members = c.members.iter();
    let kept = values.into_iter().filter_map(|mut v| {
        let m = members.find(|m| btf.string(m.name_off) == v.name)?;
        let begin = m.bit_offset as usize / 8;
        let size = usize::try_from(btf.size_of(m.type_id).ok()?).ok()?;
        if begin.checked_add(size)? > known {
            let inside = matches!(v.value, Value::Struct(_)) && begin < known;
            v.value =
                Some(v.value).filter(|_| inside).map(|v| cut(v, btf, m.type_id, known - begin))?;
        }
        Some(v)
    });
    Value::Struct(kept.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of 119 bytes was shown with `…`, and nothing was behind it.
    #[test]
    fn an_ellipsis_says_that_there_is_more() {
        let shown = |text: &str| {
            // As `bpf_probe_read_user_str` reads it.
            let piece: String = text.chars().take(PIECE - 1).collect();
            let words = [1, piece.len() as u64 + 1];
            let mut data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            data.extend(piece.as_bytes());
            data.resize(16 + PIECE, 0);
            Shown { name: String::new(), at: 0, how: How::Text }.value(&data, None)
        };
        for len in [0, 1, LONGEST_TEXT] {
            let text = "x".repeat(len);
            assert_eq!(shown(&text), Some(Value::Text(text)));
        }
        for len in [LONGEST_TEXT + 1, LONGEST_TEXT + 2, 1000] {
            let wanted = "x".repeat(LONGEST_TEXT) + "…";
            assert_eq!(shown(&"x".repeat(len)), Some(Value::Text(wanted)), "{len}");
        }
    }
}
