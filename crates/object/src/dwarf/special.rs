//! What copies, moves and destroys objects of a C++ class: it decides whether they are passed in
//! registers, or as the address of a copy.
//!
//! An object is passed by address if its class has a copy constructor, move constructor or
//! destructor that is not trivial, or if all of its copy and move constructors are deleted (Itanium
//! C++ ABI, [3.1.1](https://itanium-cxx-abi.github.io/cxx-abi/abi.html#non-trivial)). clang says
//! the outcome (`DW_AT_calling_convention`), GCC does not. What it writes (4.4 to 14):
//!
//! * every member function that is declared in the source. A constructor has the name of the class
//!   without template arguments; one that is a template has them, those of its own: it never copies.
//! * `DW_AT_defaulted` for `= default` in the class, which leaves the constructor as trivial as the
//!   members are, and `DW_AT_deleted` (both since GCC 7). What is defaulted outside of the class is
//!   declared like any other.
//! * constructors that the source does not declare only if they are used, with `DW_AT_artificial`.
//!   Whether there are some, and what they do, follows from what is declared and from the members.
//!   Those that would be deleted because of a member count as not deleted when GCC asks whether all
//!   are (seen with GCC 12; clang looks at the members).
//! * not which parameters have a default argument: `X(const X &, int)` may copy or not. The
//!   location of a parameter may tell, see [`by_location`].

use super::file::Entry;
use super::read::{flag, number};
use super::types::{MAX_DEPTH, Pos, Types, UnitEntry};
use gimli::{AttributeValue as Value, constants as dw};

/// How objects of a type are copied or moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// As bytes.
    Trivially,
    /// By code.
    ByCode,
    /// Not at all.
    Deleted,
}

/// What copies, moves and destroys objects of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Special {
    copy: How,
    /// As the copy constructor does it, where that is taken for want of another.
    moved: How,
    destroyed_by_code: bool,
    /// All that would copy or move is deleted; this is not so of what has such a member.
    refused: bool,
    /// It is not known whether one of the constructors copies.
    unsure: bool,
}

impl Special {
    /// Of numbers and pointers.
    pub const TRIVIAL: Self = Self {
        copy: How::Trivially,
        moved: How::Trivially,
        destroyed_by_code: false,
        refused: false,
        unsure: false,
    };
    /// Of `T &&`.
    pub const RVALUE_REFERENCE: Self = Self { copy: How::Deleted, ..Self::TRIVIAL };
    /// Of what is passed by address, as the compiler itself says.
    pub const BY_ADDRESS: Self = Self { copy: How::ByCode, moved: How::ByCode, ..Self::TRIVIAL };

    /// Tells whether an object is passed by address; `None` when it is not known.
    pub fn by_reference(self) -> Option<bool> {
        let yes = self.copy == How::ByCode
            || self.moved == How::ByCode
            || self.destroyed_by_code
            || self.refused;
        (yes || !self.unsure).then_some(yes)
    }

    /// The same of what also has another member or base class.
    pub fn and(self, other: Self) -> Self {
        Self {
            copy: self.copy.and(other.copy),
            moved: self.moved.and(other.moved),
            destroyed_by_code: self.destroyed_by_code || other.destroyed_by_code,
            refused: false,
            unsure: self.unsure || other.unsure,
        }
    }
}

impl How {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deleted, _) | (_, Self::Deleted) => Self::Deleted,
            (Self::ByCode, _) | (_, Self::ByCode) => Self::ByCode,
            _ => Self::Trivially,
        }
    }
}

/// What the source of a class says of a constructor, or of several that copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Declared {
    Deleted,
    Defaulted,
    Written,
}

/// The member functions of a class that matter.
#[derive(Clone, Copy, Default)]
pub(super) struct Methods {
    copy: Option<Declared>,
    moved: Option<Declared>,
    destructor: Option<Declared>,
    copy_assignment: bool,
    move_assignment: bool,
    /// Whether a constructor copies or moves depends on whether its other parameters have defaults.
    perhaps_copy: bool,
    perhaps_moved: bool,
    /// It has virtual functions or virtual bases.
    pub polymorphic: bool,
}

impl Methods {
    /// What copies, moves and destroys objects of the class, by what does so with its members and
    /// bases ([class.copy.ctor] of the standard of C++).
    pub fn special(&self, members: Special) -> Special {
        let of_members = |how: How| {
            if how == How::Trivially && self.polymorphic { How::ByCode } else { how }
        };
        let copied = of_members(members.copy);
        let no_copy = self.moved.is_some() || self.move_assignment;
        let copy = match self.copy {
            Some(declared) => declared.how(copied),
            None if no_copy => How::Deleted,
            None => copied,
        };
        // What is deleted because a member cannot be moved stands back behind the copy constructor.
        let moved = match of_members(members.moved) {
            How::Deleted => copy,
            how => how,
        };
        let no_move = self.copy.is_some()
            || self.copy_assignment
            || self.move_assignment
            || self.destructor.is_some();
        let moved = match self.moved {
            Some(declared) => declared.how(moved),
            None if no_move => copy,
            None => moved,
        };
        let undeclared = (self.copy.is_none() && !no_copy) || (self.moved.is_none() && !no_move);
        Special {
            copy,
            moved,
            destroyed_by_code: self.destructor == Some(Declared::Written)
                || members.destroyed_by_code,
            refused: copy == How::Deleted && moved == How::Deleted && !undeclared,
            // Beside a constructor with the reference alone, one whose other parameters may be left
            // out could not be called.
            unsure: (self.perhaps_copy && self.copy.is_none())
                || (self.perhaps_moved && self.moved.is_none())
                || members.unsure,
        }
    }
}

impl Declared {
    fn how(self, of_members: How) -> How {
        match self {
            Self::Deleted => How::Deleted,
            Self::Defaulted => of_members,
            Self::Written => How::ByCode,
        }
    }

    /// Of two constructors, the one that is not trivial counts, and one that can be called.
    fn or(self, other: Option<Self>) -> Self {
        match (self, other) {
            (Self::Written, _) | (_, Some(Self::Written)) => Self::Written,
            (Self::Defaulted, _) | (_, Some(Self::Defaulted)) => Self::Defaulted,
            _ => Self::Deleted,
        }
    }
}

/// What a parameter refers to.
enum Refers {
    Pointer(Pos),
    Lvalue(Pos),
    Rvalue(Pos),
}

impl<'s, 'a> Types<'s, 'a> {
    /// Takes note of a member function of a class, if it matters.
    pub(super) fn method(
        &mut self,
        method: &UnitEntry<'s, 'a>,
        class: &UnitEntry<'s, 'a>,
        out: &mut Methods,
    ) {
        let e = &method.entry;
        if !matches!(
            e.attr_value(dw::DW_AT_virtuality),
            None | Some(Value::Virtuality(dw::DW_VIRTUALITY_none))
        ) {
            out.polymorphic = true;
        }
        let in_class = u64::from(dw::DW_DEFAULTED_in_class.0);
        let declared = match number(e, dw::DW_AT_defaulted) {
            _ if flag(e, dw::DW_AT_deleted) || flag(e, dw::DW_AT_GNU_deleted) => Declared::Deleted,
            // What nobody declared is there anyway, unless it is deleted.
            _ if flag(e, dw::DW_AT_artificial) => return,
            Some(n) if n == in_class => Declared::Defaulted,
            _ => Declared::Written,
        };
        let name = method.text(dw::DW_AT_name).unwrap_or_default();
        let class_name = class.text(dw::DW_AT_name).unwrap_or_default();
        let class_name = class_name.split('<').next().unwrap_or_default();
        if name.starts_with('~') {
            out.destructor = Some(declared);
        } else if name == "operator=" {
            match self.refers_to_class(method, class) {
                Some((Refers::Rvalue(_), 2)) => out.move_assignment = true,
                Some((Refers::Lvalue(_), 2)) => out.copy_assignment = true,
                _ => {}
            }
        } else if name == class_name && !name.is_empty() {
            self.constructor(method, class, declared, out);
        }
    }

    fn constructor(
        &mut self,
        method: &UnitEntry<'s, 'a>,
        class: &UnitEntry<'s, 'a>,
        declared: Declared,
        out: &mut Methods,
    ) {
        let Some((refers, params)) = self.refers_to_class(method, class) else { return };
        let (place, perhaps) = match refers {
            Refers::Rvalue(_) => (&mut out.moved, &mut out.perhaps_moved),
            _ => (&mut out.copy, &mut out.perhaps_copy),
        };
        if params <= 2 {
            *place = Some(declared.or(*place));
        } else {
            *perhaps |= declared == Declared::Written;
        }
    }

    /// Says by which reference a member function takes an object of its own class, and how many
    /// parameters it has that are not known to have a default, `this` included.
    fn refers_to_class(
        &mut self,
        method: &UnitEntry<'s, 'a>,
        class: &UnitEntry<'s, 'a>,
    ) -> Option<(Refers, usize)> {
        if is_template(method) {
            return None;
        }
        let params = method.params()?.list;
        let refers = self.refers(params.get(1)?)?;
        let (Refers::Lvalue(to) | Refers::Rvalue(to)) = refers else { return None };
        // A class that is described in several places is what `this` points to.
        let is_own = to == class.pos()
            || matches!(self.refers(params.first()?), Some(Refers::Pointer(own)) if own == to);
        let optional = params.iter().skip(2).filter(|p| p.entry.has_attr(dw::DW_AT_default_value));
        is_own.then_some((refers, params.len() - optional.count()))
    }

    /// Finds what a pointer or reference refers to, without `const` and other names.
    fn refers(&mut self, param: &UnitEntry<'s, 'a>) -> Option<Refers> {
        let outer = self.unqualified(param)?;
        let refers = match outer.entry.tag() {
            dw::DW_TAG_pointer_type => Refers::Pointer,
            dw::DW_TAG_reference_type => Refers::Lvalue,
            dw::DW_TAG_rvalue_reference_type => Refers::Rvalue,
            _ => return None,
        };
        Some(refers(self.unqualified(&outer)?.pos()))
    }

    /// The type of an entry without `const`, `volatile` and other names for it.
    fn unqualified(&mut self, of: &UnitEntry<'s, 'a>) -> Option<UnitEntry<'s, 'a>> {
        let mut at = of.clone();
        for _ in 0..MAX_DEPTH {
            let pos = self.link(&at, dw::DW_AT_type)?;
            at = self.described(pos)?;
            if !matches!(
                at.entry.tag(),
                dw::DW_TAG_const_type | dw::DW_TAG_volatile_type | dw::DW_TAG_typedef
            ) {
                return Some(at);
            }
        }
        None
    }
}

/// Tells whether a function is an instance of a template of its own.
fn is_template(method: &UnitEntry<'_, '_>) -> bool {
    let is_argument = |tag| {
        matches!(
            tag,
            dw::DW_TAG_template_type_parameter
                | dw::DW_TAG_template_value_parameter
                | dw::DW_TAG_GNU_template_template_param
                | dw::DW_TAG_GNU_template_parameter_pack
        )
    };
    method.has_child(is_argument)
}

/// Tells by its location whether a parameter is passed by address: GCC follows the address then.
/// `None` when that does not say it, as with lists of locations.
pub(super) fn by_location(param: &Entry<'_>, encoding: gimli::Encoding) -> Option<bool> {
    use gimli::Operation as Op;
    let Some(Value::Exprloc(expression)) = param.attr_value(dw::DW_AT_location) else {
        return None;
    };
    let mut operations = expression.operations(encoding);
    let first = operations.next().ok()??;
    let second = operations.next().ok()?;
    match (first, second) {
        // In the frame, or where the frame has its address.
        (Op::FrameOffset { .. }, None) => Some(false),
        (Op::FrameOffset { .. }, Some(Op::Deref { .. })) => Some(true),
        (Op::Register { .. }, None | Some(Op::Piece { .. })) => Some(false),
        // Behind a register that is not the stack's.
        (Op::RegisterOffset { register, offset: 0, .. }, None)
            if !matches!(register, gimli::X86_64::RSP | gimli::X86_64::RBP) =>
        {
            Some(true)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_that_are_not_declared_follow_from_those_that_are() {
        let special = |m: Methods| m.special(Special::TRIVIAL);
        let by_reference = |m: Methods| special(m).by_reference();
        assert_eq!(by_reference(Methods::default()), Some(false));
        let copy = |d| Methods { copy: Some(d), ..Methods::default() };
        let moved = |d| Methods { moved: Some(d), ..Methods::default() };
        assert_eq!(by_reference(copy(Declared::Written)), Some(true));
        assert_eq!(by_reference(copy(Declared::Defaulted)), Some(false));
        assert_eq!(by_reference(copy(Declared::Deleted)), Some(true), "nothing moves it either");
        assert_eq!(by_reference(moved(Declared::Defaulted)), Some(false));
        assert_eq!(special(moved(Declared::Defaulted)).copy, How::Deleted);
        assert_eq!(by_reference(moved(Declared::Deleted)), Some(true), "nothing copies it either");
        let both = Methods { moved: Some(Declared::Deleted), ..copy(Declared::Defaulted) };
        assert_eq!(by_reference(both), Some(false));
        let assigned = Methods { move_assignment: true, ..Methods::default() };
        assert_eq!(by_reference(assigned), Some(true), "it has neither");
        let assigned = Methods { copy_assignment: true, ..Methods::default() };
        assert_eq!(by_reference(assigned), Some(false));
        assert_eq!(
            by_reference(Methods { polymorphic: true, ..Methods::default() }),
            Some(true),
            "the pointer to its virtual functions is not copied"
        );
        assert_eq!(by_reference(Methods { perhaps_copy: true, ..Methods::default() }), None);
        let beside = Methods { perhaps_copy: true, ..copy(Declared::Defaulted) };
        assert_eq!(by_reference(beside), Some(false));
    }

    #[test]
    fn members_that_cannot_be_copied_make_the_whole_so() {
        let only_moved = Methods { moved: Some(Declared::Defaulted), ..Methods::default() };
        let member = only_moved.special(Special::TRIVIAL);
        assert_eq!(Methods::default().special(member).by_reference(), Some(false));
        let copied = Methods { copy: Some(Declared::Defaulted), ..Methods::default() };
        assert_eq!(copied.special(member).by_reference(), Some(true), "its copying is deleted");
        let destroyed = Methods { destructor: Some(Declared::Defaulted), ..Methods::default() };
        let destroyed = destroyed.special(member);
        assert_eq!((destroyed.copy, destroyed.moved), (How::Deleted, How::Deleted));
        assert_eq!(destroyed.by_reference(), Some(false), "GCC does not look");
        assert_eq!(
            Methods::default().special(member.and(Special::BY_ADDRESS)).by_reference(),
            Some(true)
        );
    }
}
