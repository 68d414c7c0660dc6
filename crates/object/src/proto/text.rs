//! Prototypes out of C declarations, for functions that have no debug information.

use super::{Class, Prototype, Type, ValueKind};

/// Typedefs of C and POSIX, and what they are on this machine.
const TYPEDEFS: &[(&str, &str, u64)] = &[
    ("size_t", "unsigned long", 8),
    ("ssize_t", "long", 8),
    ("ptrdiff_t", "long", 8),
    ("intptr_t", "long", 8),
    ("uintptr_t", "unsigned long", 8),
    ("off_t", "long", 8),
    ("off64_t", "long", 8),
    ("time_t", "long", 8),
    ("clock_t", "long", 8),
    ("suseconds_t", "long", 8),
    ("ino_t", "unsigned long", 8),
    ("dev_t", "unsigned long", 8),
    ("nfds_t", "unsigned long", 8),
    ("pthread_t", "unsigned long", 8),
    ("pid_t", "int", 4),
    ("clockid_t", "int", 4),
    ("wchar_t", "int", 4),
    ("id_t", "unsigned int", 4),
    ("uid_t", "unsigned int", 4),
    ("gid_t", "unsigned int", 4),
    ("mode_t", "unsigned int", 4),
    ("useconds_t", "unsigned int", 4),
    ("socklen_t", "unsigned int", 4),
    ("wint_t", "unsigned int", 4),
    ("int8_t", "signed char", 1),
    ("uint8_t", "unsigned char", 1),
    ("int16_t", "short", 2),
    ("uint16_t", "unsigned short", 2),
    ("int32_t", "int", 4),
    ("uint32_t", "unsigned int", 4),
    ("int64_t", "long", 8),
    ("uint64_t", "unsigned long", 8),
];

impl Prototype {
    /// Reads a declaration as in a header: `ssize_t write(int fd, const void *buf, size_t count)`.
    ///
    /// Numbers, enumerations, the typedefs of C and POSIX, and pointers to whatever are known.
    /// Structures are behind pointers only, and what points to functions is written as `void *`.
    ///
    /// # Errors
    /// When it is no such declaration: what is wrong with it.
    ///
    /// ```
    /// let write = skep_object::Prototype::parse("ssize_t write(int fd, const void *, size_t count)")?;
    /// assert_eq!((write.name.as_str(), write.params.len()), ("write", 3));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(declaration: &str) -> Result<Self, String> {
        let text = declaration.trim().trim_end_matches(';').trim_end();
        let (head, rest) = text.split_once('(').ok_or("it has no parameters in parentheses")?;
        let list = rest.strip_suffix(')').ok_or("it does not end with `)`")?;
        if list.contains(['(', ')', '[', ']', '{']) {
            return Err("write arrays and what points to functions as `void *`".to_owned());
        }
        let (ret, name) = parameter(head)?;
        if name.is_empty() {
            return Err("it has no type before its name, or no name".to_owned());
        }
        let mut params = Vec::new();
        let mut variadic = false;
        let all: Vec<&str> = match list.trim() {
            "" | "void" => Vec::new(),
            list => list.split(',').map(str::trim).collect(),
        };
        for (at, one) in all.iter().enumerate() {
            if *one == "..." && at + 1 == all.len() {
                variadic = true;
                continue;
            }
            let (t, name) = parameter(one)?;
            if t.kind == ValueKind::Void {
                return Err(format!("`{one}` is no parameter"));
            }
            params.push((name.to_owned(), t));
        }
        Self::new(name, params, ret, variadic)
            .ok_or_else(|| "nobody can tell where its arguments are".to_owned())
    }
}

/// Takes a type and a name apart; the name may be missing.
fn parameter(text: &str) -> Result<(Type, &str), String> {
    let text = text.trim();
    let name_at = text
        .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '~' | '@')))
        .map_or(0, |at| at + 1);
    let (before, last) = text.split_at(name_at);
    // The last word belongs to the type where the type would have none otherwise.
    let typed = |before: &str| base(before).is_some();
    if typed(before) && base(&format!("{before} {last}")).is_none() {
        return base(before).map(|t| (t, last)).ok_or_else(|| unknown(text));
    }
    base(text).map(|t| (t, "")).ok_or_else(|| unknown(text))
}

fn unknown(text: &str) -> String {
    format!(
        "`{text}` has a type that is not known: numbers, `enum NAME`, the types of C and POSIX, and pointers are"
    )
}

/// Reads a type.
fn base(text: &str) -> Option<Type> {
    const QUALIFIERS: [&str; 6] =
        ["const", "volatile", "restrict", "__restrict", "extern", "static"];
    let (before, behind) = text.split_at(text.find('*').unwrap_or(text.len()));
    let stars = behind.matches('*').count();
    if !behind.split(['*', ' ']).all(|w| w.is_empty() || QUALIFIERS.contains(&w)) {
        return None;
    }
    let words: Vec<&str> =
        before.split_ascii_whitespace().filter(|w| !QUALIFIERS.contains(w)).collect();
    let is_name = |w: &&str| {
        w.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !w.starts_with(|c: char| c.is_ascii_digit())
    };
    if words.is_empty() || !words.iter().all(is_name) {
        return None;
    }
    if stars > 0 {
        return pointer(&words, stars);
    }
    match words.as_slice() {
        ["void"] => Some(Type::void()),
        ["enum", name] => {
            Some(Type::scalar(&format!("enum {name}"), ValueKind::Enum, 4, Class::Integer))
        }
        words => {
            let (text, size) = number(words)?;
            Some(match text {
                "float" | "double" => Type::scalar(text, ValueKind::Float, size, Class::Sse),
                _ => Type::scalar(text, ValueKind::Int, size, Class::Integer),
            })
        }
    }
}

fn pointer(words: &[&str], stars: usize) -> Option<Type> {
    let (to, named) = match words {
        [word @ ("struct" | "union"), name] => {
            (format!("{word} {name}"), (stars == 1).then(|| (*name).to_owned()))
        }
        ["enum", name] => (format!("enum {name}"), None),
        ["void"] => ("void".to_owned(), None),
        words => match number(words) {
            Some((text, _)) => (text.to_owned(), None),
            // A typedef of a structure, as `FILE`.
            None => match words {
                [one] => ((*one).to_owned(), None),
                _ => return None,
            },
        },
    };
    let text = format!("{to} {}", "*".repeat(stars));
    Some(Type::scalar(&text, ValueKind::Pointer(named), 8, Class::Integer))
}

/// The name and size of a type that is a number.
fn number(words: &[&str]) -> Option<(&'static str, u64)> {
    if let [one] = words
        && let Some((_, text, size)) = TYPEDEFS.iter().find(|(name, ..)| name == one)
    {
        return Some((text, *size));
    }
    let mut sorted = words.to_vec();
    sorted.sort_unstable();
    Some(match sorted.as_slice() {
        ["_Bool" | "bool"] => ("_Bool", 1),
        ["char"] => ("char", 1),
        ["char", "signed"] => ("signed char", 1),
        ["char", "unsigned"] => ("unsigned char", 1),
        ["short"] | ["int", "short"] => ("short", 2),
        ["short", "unsigned"] | ["int", "short", "unsigned"] => ("unsigned short", 2),
        ["int" | "signed"] | ["int", "signed"] => ("int", 4),
        ["unsigned"] | ["int", "unsigned"] => ("unsigned int", 4),
        ["long"] | ["int", "long"] | ["long", "long"] | ["int", "long", "long"] => ("long", 8),
        ["long", "unsigned"]
        | ["int", "long", "unsigned"]
        | ["long", "long", "unsigned"]
        | ["int", "long", "long", "unsigned"] => ("unsigned long", 8),
        ["float"] => ("float", 4),
        ["double"] => ("double", 8),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Place;

    #[test]
    fn declarations_are_read_as_in_headers() -> Result<(), String> {
        let p = Prototype::parse(
            "extern ssize_t pread(int, void *restrict buf, size_t n, off_t offset);",
        )?;
        assert_eq!((p.name.as_str(), p.ret.text.as_str(), p.ret.size), ("pread", "long", 8));
        let params: Vec<_> = p.params.iter().map(|v| (v.name.as_str(), v.text.as_str())).collect();
        assert_eq!(
            params,
            [("", "int"), ("buf", "void *"), ("n", "unsigned long"), ("offset", "long")]
        );
        let p = Prototype::parse("int printf(const char *format, ...)")?;
        assert!(p.variadic && p.params.len() == 1 && p.params[0].text == "char *");
        let p = Prototype::parse("void *malloc(size_t)")?;
        assert_eq!((p.name.as_str(), p.ret.text.as_str()), ("malloc", "void *"));
        let p = Prototype::parse("void ns::f(struct list **l, unsigned x, FILE *f)")?;
        assert_eq!((p.params[0].text.as_str(), p.params[1].size), ("struct list **", 4));
        assert_eq!(p.params[2].kind, ValueKind::Pointer(None));
        let p = Prototype::parse("double mix(double a, int n, struct point *p)")?;
        assert_eq!(p.words().iter().map(|w| w.param).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(p.words()[0].place, Place::Register(0));
        assert_eq!((p.vector(0), p.vector(1)), (Some(0), None));
        assert!(Prototype::parse("int getpid(void)")?.params.is_empty());
        Ok(())
    }

    #[test]
    fn what_is_no_declaration_is_told_so() {
        for wrong in [
            "",
            "f",
            "f(int)",
            "int f(int",
            "int f(struct point p)",
            "int f(int (*g)(void))",
            "int f(int a[])",
            "int f(..., int)",
            "int f(void, int)",
            "int f(int int int)",
            "int (f)",
            "int f(,)",
        ] {
            assert!(Prototype::parse(wrong).is_err(), "{wrong}: {:?}", Prototype::parse(wrong));
        }
    }
}
