//! Values with their types' names: what a key or a value of a map means.

use super::{BtfError, LongDouble};
use std::fmt;

/// One value, taken apart by its type. [`Btf::decode`](super::Btf::decode) makes it,
/// [`Btf::encode`](super::Btf::encode) turns it back.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A signed integer of up to eight bytes.
    Int(i128),
    /// An unsigned integer of up to eight bytes.
    Uint(u128),
    /// A signed integer of more.
    Int128(i128),
    /// An unsigned integer of more.
    Uint128(u128),
    /// A truth value of 0 or 1.
    Bool(bool),
    /// A single character of one byte.
    Char(u8),
    /// A character of Rust.
    Unicode(char),
    /// A floating-point number of four or eight bytes; of one of four, the number with the fewest digits that
    /// becomes it.
    Float(f64),
    /// A `long double` of x86.
    LongDouble(LongDouble),
    /// A value of an enumeration.
    Enum {
        /// The first name with this value, if any.
        name: Option<String>,
        /// The value; unsigned enumerations give non-negative ones.
        value: i128,
    },
    /// An address.
    Pointer(u64),
    /// An array of characters up to its zero byte.
    Text(String),
    /// An array.
    Array(Vec<Value>),
    /// A structure, or a union with every member's view of it.
    Struct(Vec<Member>),
    /// Bytes whose type says no more.
    Bytes(Vec<u8>),
}

/// One member of a structure or union.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// Its name; empty for anonymous structures and unions.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// Says why bytes do not make a value of a type, or a value does not make bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The type cannot be used.
    #[error(transparent)]
    Btf(#[from] BtfError),
    /// There are fewer bytes than the type has.
    #[error("`{ty}` takes {want} bytes, there are {have}")]
    Short {
        /// The type.
        ty: String,
        /// Its size.
        want: u64,
        /// What there is.
        have: u64,
    },
    /// The type is too large or too deep to be taken apart.
    #[error("`{ty}` is too large to be taken apart")]
    TooLarge {
        /// The type.
        ty: String,
    },
    /// The value is of another shape than the type.
    #[error("`{path}`: {value} is no `{ty}`")]
    Mismatch {
        /// Where in the value.
        path: String,
        /// What was given, in short.
        value: String,
        /// What is wanted.
        ty: String,
    },
    /// A text has more bytes than the array.
    #[error("`{path}`: {value} has {len} bytes, too many for `{ty}`")]
    LongText {
        /// Where in the value.
        path: String,
        /// The text, in short.
        value: String,
        /// How many bytes it has.
        len: usize,
        /// What is wanted.
        ty: String,
    },
    /// The structure has no such member.
    #[error("`{path}`: `{ty}` has no member `{member}`")]
    NoMember {
        /// Where in the value.
        path: String,
        /// The structure.
        ty: String,
        /// The name given.
        member: String,
    },
    /// The text is no such value.
    #[error("`{text}` is no `{ty}` (character {at})")]
    Text {
        /// The text, in short.
        text: String,
        /// Where in the text, in bytes.
        at: usize,
        /// What is wanted.
        ty: String,
    },
    /// The number does not fit.
    #[error("`{path}`: {value} does not fit `{ty}`")]
    Range {
        /// Where in the value.
        path: String,
        /// The number.
        value: i128,
        /// The type.
        ty: String,
    },
}

impl ValueError {
    /// Puts the name of the outermost value before the path.
    pub(crate) fn within(mut self, name: &str) -> Self {
        if let Self::Mismatch { path, .. }
        | Self::LongText { path, .. }
        | Self::NoMember { path, .. }
        | Self::Range { path, .. } = &mut self
        {
            *path = if path == "value" { name.to_owned() } else { format!("{name}{path}") };
        }
        self
    }

    /// Tells whether the message says where.
    pub(crate) fn has_path(&self) -> bool {
        matches!(
            self,
            Self::Mismatch { .. }
                | Self::LongText { .. }
                | Self::NoMember { .. }
                | Self::Range { .. }
        )
    }
}

impl Value {
    /// Finds a member of a structure by name, also inside its anonymous members.
    ///
    /// ```
    /// use skep_object::btf::{Value, ValueMember};
    /// let hit = Value::Struct(vec![ValueMember { name: "count".into(), value: Value::Uint(3) }]);
    /// assert_eq!(hit.get("count").and_then(Value::as_i128), Some(3));
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Struct(members) = self else { return None };
        members.iter().find_map(|m| match m.name.as_str() {
            "" => m.value.get(name),
            n => (n == name).then_some(&m.value),
        })
    }

    /// A number of four bytes as it is written: 0.1, not what is nearest to it in four bytes.
    ///
    /// ```
    /// use skep_object::btf::Value;
    /// assert_eq!(Value::of_f32(0.1), Value::Float(0.1));
    /// ```
    #[must_use]
    pub fn of_f32(x: f32) -> Self {
        let short = x.to_string().parse().unwrap_or(f64::from(x));
        Self::Float(if short as f32 == x { short } else { f64::from(x) })
    }

    /// Returns the number, when it is one that fits.
    #[must_use]
    pub fn as_i128(&self) -> Option<i128> {
        match self {
            Self::Int(n) | Self::Int128(n) | Self::Enum { value: n, .. } => Some(*n),
            Self::Uint(n) | Self::Uint128(n) => i128::try_from(*n).ok(),
            Self::Bool(b) => Some(i128::from(*b)),
            Self::Char(c) => Some(i128::from(*c)),
            Self::Unicode(c) => Some(i128::from(u32::from(*c))),
            Self::Pointer(p) => Some(i128::from(*p)),
            _ => None,
        }
    }

    /// Returns the text of a character array or the name of an enumeration's value.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(s) => Some(s),
            Self::Enum { name, .. } => name.as_deref(),
            _ => None,
        }
    }

    /// Walks the tree, parents first; `visit` gets the path (`.frames[3].sp`) of each value.
    pub fn walk(&self, visit: &mut impl FnMut(&str, &Self)) {
        self.walk_at(&mut String::new(), visit);
    }

    fn walk_at(&self, path: &mut String, visit: &mut impl FnMut(&str, &Self)) {
        visit(path, self);
        let here = path.len();
        match self {
            Self::Struct(members) => {
                for m in members {
                    if !m.name.is_empty() {
                        path.push('.');
                        path.push_str(&m.name);
                    }
                    m.value.walk_at(path, visit);
                    path.truncate(here);
                }
            }
            Self::Array(elems) => {
                for (i, e) in elems.iter().enumerate() {
                    path.push_str(&format!("[{i}]"));
                    e.walk_at(path, visit);
                    path.truncate(here);
                }
            }
            _ => {}
        }
    }
}

/// Writes a value on one line, in the manner of C initializers: `{ .count = 3, .comm = "cat" }`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) | Self::Int128(n) => write!(f, "{n}"),
            Self::Uint(n) | Self::Uint128(n) => write!(f, "{n}"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Char(c) => write!(f, "'{}'", c.escape_ascii()),
            Self::Unicode(c) => write!(f, "{c:?}"),
            // Not with hundreds of zeros.
            Self::Float(x)
                if x.is_finite() && (x.abs() >= 1e15 || (*x != 0.0 && x.abs() < 1e-5)) =>
            {
                write!(f, "{x:e}")
            }
            Self::Float(x) => write!(f, "{x}"),
            Self::LongDouble(x) => write!(f, "{x}"),
            Self::Enum { name: Some(name), .. } => f.write_str(name),
            Self::Enum { name: None, value } => write!(f, "{value}"),
            Self::Pointer(p) => write!(f, "{p:#x}"),
            Self::Text(s) => write!(f, "{s:?}"),
            Self::Array(elems) => {
                f.write_str("[")?;
                for (i, e) in elems.iter().enumerate() {
                    write!(f, "{}{e}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Struct(members) if members.is_empty() => f.write_str("{}"),
            Self::Struct(members) => {
                for (i, Member { name, value }) in members.iter().enumerate() {
                    f.write_str(if i == 0 { "{ " } else { ", " })?;
                    if name.is_empty() {
                        write!(f, "{value}")?
                    } else {
                        write!(f, ".{name} = {value}")?
                    }
                }
                f.write_str(" }")
            }
            Self::Bytes(bytes) => {
                f.write_str("0x")?;
                bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }
    }
}
