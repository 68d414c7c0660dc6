//! Whether a program's accesses to its context fit a function.
//!
//! Only what a program reads counts, as in the kernel (`btf_check_func_part_match` of the series
//! that brought links to many functions).

use super::{Place, Prototype, Value, ValueKind, Word};

/// Bytes of the context that a program reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Access {
    /// The first.
    pub off: u32,
    /// How many.
    pub size: u32,
}

/// Why a program does not fit a function. The texts go on after the function's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are named after what the message says")]
pub enum Mismatch {
    #[error("doesn't have {n}-th argument: {}", has(*.arguments, *.ret))]
    NoArgument { n: usize, arguments: usize, ret: Option<usize> },
    #[error("returns nothing, and ctx[{word}] would be its result")]
    NoResult { word: usize },
    #[error("returns `{text}`, which is in no general register: ctx[{word}] does not hold it")]
    FloatResult { word: usize, text: String },
    #[error("returns `{text}` through memory: ctx[{word}] does not hold it")]
    MemoryResult { word: usize, text: String },
    #[error("has its result only when it has returned: ctx[{word}] does not hold it at entry")]
    ResultAtEntry { word: usize },
    #[error("has a part of {what} in no general register: ctx[{word}] does not hold it")]
    Vector { word: usize, what: String },
    #[error("has {what}, of {size} bytes: there is nothing at byte {byte} of it")]
    Padding { what: String, size: u64, byte: u64 },
    #[error("has {what} at ctx[{word}], where `{first}` has {other}")]
    Other { word: usize, what: String, first: String, other: String },
    #[error("is not known by its types, and without them ctx[{word}] is no argument and no result")]
    Untyped { word: usize },
}

fn has(arguments: usize, ret: Option<usize>) -> String {
    let words = if arguments == 1 { "1 word".to_owned() } else { format!("{arguments} words") };
    match ret {
        Some(at) => format!("its arguments are {words}, and its result is ctx[{at}]"),
        None => format!("its arguments are {words}"),
    }
}

impl Mismatch {
    /// Says what to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Untyped { .. } => {
                "read arguments with `bpf_get_func_arg(ctx, n, &v)` and the result with `bpf_get_func_ret(ctx, &v)`, or give types: \
                 compile the traced program with `-g`, or name a file that has them with `--btf-from`"
            }
            Self::ResultAtEntry { .. } => {
                "programs of `fexit` and `fsession` sections run when there is a result"
            }
            Self::NoResult { .. } | Self::FloatResult { .. } | Self::MemoryResult { .. } => {
                "leave the result out; what rax holds after the function is read with `bpf_get_func_ret(ctx, &v)`"
            }
            _ => {
                "the arguments of `BPF_PROG` are those of the function, in order, and behind them its result; \
                 `bpf_get_func_arg(ctx, n, &v)` and `bpf_get_func_ret(ctx, &v)` fit any function"
            }
        }
    }
}

impl Access {
    /// Checks an access to the context of a function whose types are not known: only the six words
    /// of registers are there.
    ///
    /// # Errors
    /// When it goes beyond them.
    pub fn check_untyped(self) -> Result<(), Mismatch> {
        let last = self.off.saturating_add(self.size.max(1) - 1) / 8;
        if (last as usize) < super::UNTYPED_WORDS {
            Ok(())
        } else {
            Err(Mismatch::Untyped { word: last as usize })
        }
    }

    /// The words that it touches.
    pub fn words(self) -> impl Iterator<Item = usize> {
        let last = self.off.saturating_add(self.size.max(1) - 1) / 8;
        (self.off / 8..=last).map(|w| w as usize)
    }
}

/// What a word is to a function.
enum Role<'a> {
    Argument(&'a Word, &'a Value),
    /// Which word of the result.
    Result(usize),
}

impl Prototype {
    fn role(&self, word: usize) -> Option<Role<'_>> {
        match self.words().get(word) {
            Some(w) => Some(Role::Argument(w, self.params.get(w.param)?)),
            None => {
                let n = word - self.words().len();
                (n < self.ret_words().len()).then_some(Role::Result(n))
            }
        }
    }

    /// Tells whether a word is the function's result, or a part of it.
    #[must_use]
    pub fn is_result(&self, word: usize) -> bool {
        matches!(self.role(word), Some(Role::Result(_)))
    }

    /// Checks that a context shows what a program reads of it. `returns`: the program runs when the
    /// function returns, too.
    ///
    /// # Errors
    /// What the function does not have.
    pub fn check(&self, access: Access, returns: bool) -> Result<(), Mismatch> {
        access.words().try_for_each(|word| {
            let first = if word as u32 == access.off / 8 { access.off % 8 } else { 0 };
            self.check_word(word, first.into(), returns)
        })
    }

    fn check_word(&self, word: usize, first: u64, returns: bool) -> Result<(), Mismatch> {
        let words = self.words().len();
        let (place, at, value) = match self.role(word) {
            Some(Role::Argument(w, value)) => (Some(w.place), w.at, value),
            Some(Role::Result(_)) if !returns => return Err(Mismatch::ResultAtEntry { word }),
            Some(Role::Result(n)) => (self.ret_words().get(n).copied(), n as u64 * 8, &self.ret),
            None if word == words && returns => {
                let text = self.ret.text.clone();
                return Err(match self.ret.kind {
                    ValueKind::Void => Mismatch::NoResult { word },
                    ValueKind::Struct | ValueKind::Union => Mismatch::MemoryResult { word, text },
                    _ => Mismatch::FloatResult { word, text },
                });
            }
            None => {
                let ret = (returns && !self.ret_words().is_empty()).then_some(words);
                return Err(Mismatch::NoArgument { n: word + 1, arguments: words, ret });
            }
        };
        // The frame has six words of the stack; an argument may be behind them.
        let shown = !matches!(place, Some(Place::Vector))
            && !matches!(place, Some(Place::Stack(n)) if n >= 6);
        if !shown {
            return Err(Mismatch::Vector { word, what: self.describe(word) });
        }
        if at + first >= value.size {
            return Err(Mismatch::Padding {
                what: self.describe(word),
                size: value.size,
                byte: at + first,
            });
        }
        Ok(())
    }

    /// Says in words what stands at a word.
    fn describe(&self, word: usize) -> String {
        match self.role(word) {
            Some(Role::Argument(w, v)) if v.name.is_empty() => {
                format!("argument {} (`{}`)", w.param + 1, v.text)
            }
            Some(Role::Argument(w, v)) => {
                format!("argument {} `{}` (`{}`)", w.param + 1, v.name, v.text)
            }
            Some(Role::Result(_)) => format!("its result (`{}`)", self.ret.text),
            None => "nothing".to_owned(),
        }
    }

    /// Checks that what a program reads is to this function what it is to `first`. `strictly`: of
    /// the same type too, by the kernel's rules; otherwise one number is as good as another.
    ///
    /// # Errors
    /// The first word that is something else.
    pub fn check_like(&self, first: &Self, access: Access, strictly: bool) -> Result<(), Mismatch> {
        for word in access.words() {
            let same = match (first.role(word), self.role(word)) {
                (Some(Role::Argument(a, x)), Some(Role::Argument(b, y))) => {
                    a.at == b.at && alike(x, y, strictly)
                }
                (Some(Role::Result(n)), Some(Role::Result(m))) => {
                    n == m && alike(&first.ret, &self.ret, strictly)
                }
                (None, _) => true,
                _ => false,
            };
            if !same {
                let (what, other) = (self.describe(word), first.describe(word));
                return Err(Mismatch::Other { word, what, first: first.name.clone(), other });
            }
        }
        Ok(())
    }
}

/// Tells whether two types are the same to a program that reads them.
fn alike(a: &Value, b: &Value, strictly: bool) -> bool {
    let composite = |v: &Value| matches!(v.kind, ValueKind::Struct | ValueKind::Union);
    if !strictly && !composite(a) && !composite(b) {
        return true;
    }
    if a.text == b.text && a.size == b.size {
        return true;
    }
    match (&a.kind, &b.kind) {
        (ValueKind::Int, ValueKind::Int) | (ValueKind::Enum, ValueKind::Enum) => a.size == b.size,
        (ValueKind::Pointer(Some(x)), ValueKind::Pointer(Some(y))) => x == y,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Class, Type};
    use super::*;

    fn int(size: u64) -> Type {
        Type::scalar(if size == 4 { "int" } else { "long" }, ValueKind::Int, size, Class::Integer)
    }

    fn double() -> Type {
        Type::scalar("double", ValueKind::Float, 8, Class::Sse)
    }

    fn pointer(to: &str) -> Type {
        Type::scalar(
            &format!("struct {to} *"),
            ValueKind::Pointer(Some(to.to_owned())),
            8,
            Class::Integer,
        )
    }

    fn function(name: &str, params: &[Type], ret: Type) -> Prototype {
        let params = params
            .iter()
            .zip(["a", "b", "c", "d"])
            .map(|(t, n)| (n.to_owned(), t.clone()))
            .collect();
        Prototype::new(name, params, ret, false).unwrap()
    }

    fn check(f: &Prototype, off: u32, size: u32, returns: bool) -> String {
        f.check(Access { off, size }, returns).map_or_else(|e| e.to_string(), |()| "ok".to_owned())
    }

    #[test]
    fn each_word_is_an_argument_the_result_or_nothing() {
        let add = function("add", &[int(4), int(8)], int(4));
        assert_eq!(
            check(&add, 0, 8, true),
            "ok",
            "upper bits are the register's, as in the kernel"
        );
        assert_eq!(check(&add, 0, 4, true), "ok");
        assert_eq!(check(&add, 16, 8, true), "ok");
        assert_eq!(check(&add, 0, 24, true), "ok", "what a helper is given");
        assert_eq!(
            check(&add, 4, 4, true),
            "has argument 1 `a` (`int`), of 4 bytes: there is nothing at byte 4 of it"
        );
        assert_eq!(
            check(&add, 24, 8, true),
            "doesn't have 4-th argument: its arguments are 2 words, and its result is ctx[2]"
        );
        assert_eq!(
            check(&add, 16, 8, false),
            "has its result only when it has returned: ctx[2] does not hold it at entry"
        );
        assert_eq!(
            check(&add, 24, 8, false),
            "doesn't have 4-th argument: its arguments are 2 words"
        );
        let scale = function("scale", &[double(), int(4)], double());
        assert_eq!(check(&scale, 0, 4, true), "ok");
        assert_eq!(
            check(&scale, 8, 8, true),
            "returns `double`, which is in no general register: ctx[1] does not hold it"
        );
        let stop = function("stop", &[int(4)], Type::void());
        assert_eq!(check(&stop, 8, 8, true), "returns nothing, and ctx[1] would be its result");
        assert_eq!(
            check(&stop, 8, 8, false),
            "doesn't have 2-th argument: its arguments are 1 word"
        );
    }

    #[test]
    fn only_what_is_read_must_be_the_same() {
        let f = function("f", &[int(4), pointer("p"), int(8)], int(4));
        let like = |other: &Prototype, off, strictly| {
            other.check_like(&f, Access { off, size: 8 }, strictly).err()
        };
        let g = function("g", &[pointer("p"), pointer("p"), int(8)], int(4));
        assert!(
            like(&g, 8, true).is_none()
                && like(&g, 16, true).is_none()
                && like(&g, 24, true).is_none()
        );
        assert_eq!(
            like(&g, 0, true).unwrap().to_string(),
            "has argument 1 `a` (`struct p *`) at ctx[0], where `f` has argument 1 `a` (`int`)"
        );
        assert!(like(&g, 0, false).is_none(), "a number is a number");
        let h = function("h", &[int(4), pointer("q")], int(4));
        assert!(like(&h, 0, true).is_none() && like(&h, 8, true).is_some());
        assert_eq!(
            like(&h, 16, false).unwrap().to_string(),
            "has its result (`int`) at ctx[2], where `f` has argument 3 `c` (`long`)"
        );
    }
}
