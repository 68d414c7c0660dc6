//! Where arguments and results are, by Rust's own convention, of which nothing is promised: it is what
//! rustc does on x86-64 (compiler/rustc_ty_utils/src/abi.rs, `fn_abi_adjust_for_abi`; layouts in
//! compiler/rustc_abi/src/layout.rs), compared in tests with what programs say of themselves.
//!
//! A type is passed by what is in it: a number or pointer as itself, also inside of structures; two of
//! them as two arguments of their own; other bytes in an integer register where they fit into one, else
//! behind a pointer. Registers are used up one after the other, those of each kind for themselves, and
//! what is left goes to the stack.

use super::sysv::{Composite, Layout, Part, Place, Type};
use super::{MAX_WORDS, UNTYPED_WORDS as REGISTERS, ValueKind, Word};

/// Vector registers for arguments.
const VECTORS: usize = 8;
/// The first version that passes what varies between a number and a pointer (`Result<usize, Box<T>>`) as
/// two values (rust-lang/rust#121668).
const MERGES_POINTERS: u32 = 79;

/// How a value is passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    /// It has no bytes.
    Nothing,
    One(Scalar),
    /// Two values: the second is so many bytes behind the first.
    Two(Scalar, u64, Scalar),
    /// As so many bytes.
    Bytes,
}

/// What has no parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scalar {
    pub size: u64,
    pub align: u64,
    pub kind: ScalarKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScalarKind {
    Integer,
    Pointer,
    Float,
}

impl Scalar {
    pub fn new(size: u64, kind: ScalarKind) -> Self {
        Self { size, align: size.clamp(1, 16), kind }
    }

    fn is_float(&self) -> bool {
        self.kind == ScalarKind::Float
    }

    /// Of numbers of more than eight bytes it depends on the version where they are.
    fn is_simple(&self) -> bool {
        self.size <= 8 && !(self.is_float() && self.size < 4)
    }
}

/// A part of a structure, or of a variant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub at: u64,
    pub size: u64,
    pub align: u64,
    /// `None`: not known.
    pub passed: Option<Passed>,
}

/// A variant of an enumeration.
#[derive(Debug)]
pub(crate) struct Variant {
    /// It is the one without a number: of all others.
    pub rest: bool,
    pub fields: Vec<Field>,
}

/// Two values that fill a type of this size and alignment, if they do.
fn two(first: Scalar, at: u64, second: Scalar, size: u64, align: u64) -> Option<Passed> {
    let end = at.checked_add(second.size)?;
    let fits = at == first.size.next_multiple_of(second.align.max(1))
        && align == first.align.max(second.align)
        && size == end.next_multiple_of(align.max(1));
    Some(if fits { Passed::Two(first, at, second) } else { Passed::Bytes })
}

/// How a structure is passed, or the one variant of an enumeration; `None`: not known.
pub(crate) fn of_structure(size: u64, align: u64, fields: &[Field]) -> Option<Passed> {
    let mut filled: Vec<&Field> = fields.iter().filter(|f| f.size > 0).collect();
    filled.sort_by_key(|f| f.at);
    match *filled.as_slice() {
        _ if size == 0 => Some(Passed::Nothing),
        [] => Some(Passed::Bytes),
        [one] if one.at == 0 && one.size == size && one.align == align => match one.passed? {
            // `repr(C)` keeps it a structure, which is in an integer register then.
            Passed::One(scalar) if scalar.is_float() => None,
            passed => Some(passed),
        },
        [first, second] => match (first.passed?, second.passed?) {
            (Passed::One(a), Passed::One(b)) if first.at == 0 => two(a, second.at, b, size, align),
            _ => Some(Passed::Bytes),
        },
        _ => Some(Passed::Bytes),
    }
}

/// How a union is passed.
pub(crate) fn of_union(size: u64, align: u64, fields: &[Field]) -> Option<Passed> {
    let mut filled = fields.iter().filter(|f| f.size > 0);
    match (filled.next(), filled.next()) {
        (Some(one), None) => of_structure(size, align, &[*one]),
        _ => None,
    }
}

/// How an enumeration is passed whose variants have fields.
pub(crate) fn of_variants(
    size: u64,
    align: u64,
    tag: (u64, Scalar),
    variants: &[Variant],
    minor: u32,
) -> Option<Passed> {
    let filled = |v: &Variant| v.fields.iter().filter(|f| f.size > 0).copied().collect::<Vec<_>>();
    // Values that one variant cannot have stand for the others.
    if let Some(one) = variants.iter().find(|v| v.rest) {
        let others = variants.iter().filter(|v| !v.rest);
        return match others.map(filled).all(|f| f.is_empty()) {
            true => of_structure(size, align, &one.fields),
            false => Some(Passed::Bytes),
        };
    }
    let (tag_at, tag) = tag;
    let mut common: Option<(u64, Scalar)> = None;
    for fields in variants.iter().map(filled) {
        let field = match *fields.as_slice() {
            [] => continue,
            [one] => one,
            _ => return Some(Passed::Bytes),
        };
        let Passed::One(scalar) = field.passed? else { return Some(Passed::Bytes) };
        match &mut common {
            None => common = Some((field.at, scalar)),
            Some((at, before)) => {
                if (*at, before.size, before.is_float())
                    != (field.at, scalar.size, scalar.is_float())
                {
                    return Some(Passed::Bytes);
                }
                if before.kind != scalar.kind {
                    if minor < MERGES_POINTERS {
                        return None;
                    }
                    before.kind = ScalarKind::Integer;
                }
                before.align = before.align.max(scalar.align);
            }
        }
    }
    match common {
        _ if tag_at != 0 => Some(Passed::Bytes),
        None if tag.size == size => Some(Passed::One(tag)),
        None => Some(Passed::Bytes),
        Some((at, scalar)) => two(tag, at, scalar, size, align),
    }
}

/// Counts registers.
#[derive(Default)]
struct Used {
    integers: usize,
    vectors: usize,
    stack: usize,
}

impl Used {
    fn place(&mut self, float: bool) -> Place {
        let (used, all) = match float {
            true => (&mut self.vectors, VECTORS),
            false => (&mut self.integers, REGISTERS),
        };
        if *used < all {
            *used += 1;
            return if float { Place::Vector } else { Place::Register(*used as u8 - 1) };
        }
        self.stack += 1;
        match u8::try_from(self.stack - 1) {
            Ok(at) => Place::Stack(at),
            Err(_) => Place::Vector,
        }
    }

    /// Places a part of a pair.
    fn part(&mut self, scalar: Scalar) -> (Part, Place) {
        let register = self.vectors as u8;
        let place = self.place(scalar.is_float());
        (if place == Place::Vector { Part::Vector(register) } else { Part::Register }, place)
    }
}

/// Works out where the words of a function are; `None` for types of which it is not known.
pub(super) fn layout<'t>(params: impl Iterator<Item = &'t Type>, ret: &Type) -> Option<Layout> {
    let mut out = Layout::default();
    let mut used = Used::default();
    match if ret.kind == ValueKind::Void { Passed::Nothing } else { ret.passed? } {
        Passed::Nothing => {}
        Passed::One(scalar) if !scalar.is_simple() => {
            // Numbers of 16 bytes are in two registers, unless they have a decimal point.
            if scalar.is_float() || scalar.size != 16 {
                return None;
            }
            out.ret = vec![Place::Register(0), Place::Register(1)];
        }
        Passed::One(scalar) if scalar.is_float() => {}
        Passed::One(_) => out.ret.push(Place::Register(0)),
        Passed::Two(first, at, second) => {
            let mut results = Used::default();
            out.ret_composite = pair(first, at, second, &mut results, |place| out.ret.push(place))?;
        }
        Passed::Bytes if ret.size <= 8 => out.ret.push(Place::Register(0)),
        // Versions differ in whether these are returned in memory.
        Passed::Bytes if ret.size <= 16 => return None,
        Passed::Bytes => {
            used.integers = 1;
            out.ret_composite = Some(Composite::Behind);
        }
    }
    for (param, t) in params.enumerate() {
        let mut word = |at: u64, place: Place| out.words.push(Word { param, at, place });
        match t.passed? {
            Passed::Nothing => {}
            Passed::One(scalar) if !scalar.is_simple() => return None,
            Passed::One(scalar) if scalar.is_float() => {
                let register = used.vectors as u8;
                if used.place(true) == Place::Vector {
                    out.vectors.push((param, register));
                }
            }
            Passed::One(_) => word(0, used.place(false)),
            Passed::Two(first, at, second) => {
                let mut next = 0;
                let found = pair(first, at, second, &mut used, |place| {
                    word(next, place);
                    next = at;
                })?;
                out.composites.extend(found.map(|composite| (param, composite)));
            }
            Passed::Bytes => {
                word(0, used.place(false));
                if t.size > 8 {
                    out.composites.push((param, Composite::Behind));
                }
            }
        }
    }
    out.words.truncate(MAX_WORDS);
    Some(out)
}

/// Places two values; says where they are unless both are in words, each the half of 16 bytes.
fn pair(
    first: Scalar,
    at: u64,
    second: Scalar,
    used: &mut Used,
    mut word: impl FnMut(Place),
) -> Option<Option<Composite>> {
    if !first.is_simple() || !second.is_simple() {
        return None;
    }
    let parts = [first, second].map(|scalar| {
        let (part, place) = used.part(scalar);
        word(place);
        part
    });
    let is_plain = at == 8 && parts == [Part::Register; 2];
    Some((!is_plain).then_some(Composite::Pair { second: at, parts }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarKind::{Float, Integer, Pointer};

    fn scalar(size: u64, kind: ScalarKind) -> Scalar {
        Scalar { size, align: size, kind }
    }

    fn field(at: u64, size: u64, kind: ScalarKind) -> Field {
        Field { at, size, align: size, passed: Some(Passed::One(scalar(size, kind))) }
    }

    #[test]
    fn structures_are_passed_as_what_is_in_them() {
        let int = scalar(8, Integer);
        let of = of_structure;
        assert_eq!(of(0, 1, &[]), Some(Passed::Nothing));
        assert_eq!(of(8, 8, &[field(0, 8, Integer)]), Some(Passed::One(int)));
        assert_eq!(of(8, 8, &[field(0, 8, Float)]), None, "`repr(C)` is another thing");
        let slice = [field(0, 8, Pointer), field(8, 8, Integer)];
        let passed = Some(Passed::Two(scalar(8, Pointer), 8, int));
        assert_eq!(of(16, 8, &slice), passed);
        let within = Field { at: 0, size: 16, align: 8, passed };
        assert_eq!(of(16, 8, &[within]), passed);
        assert_eq!(of(24, 8, &[within, field(16, 8, Integer)]), Some(Passed::Bytes));
        let small = [field(0, 1, Integer), field(4, 4, Integer)];
        let want = Passed::Two(scalar(1, Integer), 4, scalar(4, Integer));
        assert_eq!(of(8, 4, &small), Some(want));
        assert_eq!(of(16, 8, &small), Some(Passed::Bytes), "more than the two");
        assert_eq!(of(8, 4, &[field(0, 2, Integer), field(6, 2, Integer)]), Some(Passed::Bytes));
        let three = [field(0, 2, Integer), field(2, 2, Integer), field(4, 2, Integer)];
        assert_eq!(of(6, 2, &three), Some(Passed::Bytes));
        let unknown = Field { passed: None, ..field(0, 8, Integer) };
        assert_eq!(of(8, 8, &[unknown]), None);
        assert_eq!(of(24, 8, &[unknown, unknown, unknown]), Some(Passed::Bytes));
    }

    #[test]
    fn variants_are_a_number_and_what_all_have_in_one_place() {
        let tag = (0, scalar(4, Integer));
        let variant = |fields: &[Field]| Variant { rest: false, fields: fields.to_vec() };
        let none = || variant(&[]);
        let of = |size, align, variants: &[Variant]| of_variants(size, align, tag, variants, 79);
        let two = Passed::Two(tag.1, 4, scalar(4, Integer));
        assert_eq!(of(8, 4, &[none(), variant(&[field(4, 4, Integer)])]), Some(two));
        assert_eq!(of(4, 4, &[none(), none()]), Some(Passed::One(tag.1)));
        let mixed = [variant(&[field(8, 8, Integer)]), variant(&[field(8, 8, Pointer)])];
        let long = (0, scalar(8, Integer));
        let want = Passed::Two(long.1, 8, scalar(8, Integer));
        assert_eq!(of_variants(16, 8, long, &mixed, 79), Some(want));
        assert_eq!(of_variants(16, 8, long, &mixed, 63), None, "an older rustc");
        let other = [variant(&[field(4, 4, Integer)]), variant(&[field(4, 4, Float)])];
        assert_eq!(of(8, 4, &other), Some(Passed::Bytes));
        let apart = [variant(&[field(4, 4, Integer)]), variant(&[field(4, 2, Integer)])];
        assert_eq!(of(8, 4, &apart), Some(Passed::Bytes));
        // `Option<&str>`: the pointer is never zero.
        let slice = [field(0, 8, Pointer), field(8, 8, Integer)];
        let some = Variant { rest: true, fields: slice.to_vec() };
        let want = Passed::Two(scalar(8, Pointer), 8, scalar(8, Integer));
        assert_eq!(of_variants(16, 8, long, &[none(), some], 79), Some(want));
        let some = Variant { rest: true, fields: slice.to_vec() };
        let more = variant(&[field(8, 4, Integer)]);
        assert_eq!(of_variants(16, 8, long, &[more, some], 79), Some(Passed::Bytes));
    }
}
