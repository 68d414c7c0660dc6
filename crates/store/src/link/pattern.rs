//! Which functions a pattern means: `name`, `glob*`, `lib:glob`, and what is left out.

use std::fmt;
use std::str::FromStr;

/// Matches `text` against a shell glob: `*` any run, `?` any one character, `[a-z]` and `[!a-z]`
/// sets, `\` quotes.
///
/// ```
/// assert!(skep_store::link::pattern::glob("sqlite3_*_int?", "sqlite3_bind_int4"));
/// ```
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    // Places are byte offsets of characters: nothing is allocated for each of a hundred thousand
    // names.
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some((c, after)) = char_at(text, j) {
        // Where the pattern goes on when its next piece matches this character.
        let step = match char_at(pattern, i) {
            Some(('*', next)) if next == pattern.len() => return true,
            Some(('*', next)) => {
                star = Some((next, j));
                i = next;
                continue;
            }
            Some(('?', next)) => Some(next),
            Some(('[', next)) => match set(pattern, next, c) {
                Some((true, end)) => Some(end),
                Some((false, _)) => None,
                None => (c == '[').then_some(next),
            },
            Some(('\\', next)) if next < pattern.len() => {
                char_at(pattern, next).filter(|p| p.0 == c).map(|p| p.1)
            }
            Some((p, next)) => (p == c).then_some(next),
            None => None,
        };
        match (step, star) {
            (Some(next), _) => (i, j) = (next, after),
            (None, Some((back, from))) => {
                // The star takes one character more.
                let from = char_at(text, from).map_or(text.len(), |f| f.1);
                (i, j) = (back, from);
                star = Some((back, from));
            }
            (None, None) => return false,
        }
    }
    pattern.get(i..).is_some_and(|rest| rest.bytes().all(|b| b == b'*'))
}

/// The character at a byte offset, and where the next one is.
fn char_at(text: &str, at: usize) -> Option<(char, usize)> {
    match *text.as_bytes().get(at)? {
        b @ 0..0x80 => Some((char::from(b), at + 1)),
        _ => text.get(at..)?.chars().next().map(|c| (c, at + c.len_utf8())),
    }
}

/// Matches one character against the set whose `[` ends at `start`: whether it is in it, and where
/// the set ends; `None` when it is not closed.
fn set(pattern: &str, start: usize, c: char) -> Option<(bool, usize)> {
    let first = char_at(pattern, start)?;
    let negated = matches!(first.0, '!' | '^');
    let start = if negated { first.1 } else { start };
    let mut i = start;
    let mut hit = false;
    loop {
        let (low, next) = char_at(pattern, i)?;
        if low == ']' && i > start {
            return Some((hit != negated, next));
        }
        let range = char_at(pattern, next)
            .filter(|dash| dash.0 == '-')
            .and_then(|dash| char_at(pattern, dash.1));
        match range.filter(|high| high.0 != ']') {
            Some((high, end)) => {
                hit |= (low..=high).contains(&c);
                i = end;
            }
            None => {
                hit |= low == c;
                i = next;
            }
        }
    }
}

/// One pattern: an optional module part and a function part, both globs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pattern {
    /// Matched against the module's file name or whole path; `None` is every module.
    pub module: Option<String>,
    /// Matched against the function's symbol, its aliases and its demangled name.
    pub function: String,
    /// How far behind the function's start the instruction is that is meant; 0: the function.
    pub offset: u64,
}

/// Tells why a pattern cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern `{text}` {why}")]
pub struct PatternError {
    /// The pattern.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl FromStr for Pattern {
    type Err = PatternError;

    /// Reads `function` or `module:function`; `+0x1c` behind it means an instruction inside. C++ names have `::` in them: only a single colon
    /// separates module and function.
    fn from_str(text: &str) -> Result<Self, PatternError> {
        let err = |why| PatternError { text: text.to_owned(), why };
        if text.is_empty() {
            return Err(err("is empty"));
        }
        let bytes = text.as_bytes();
        let single = (0..bytes.len()).find(|&i| {
            bytes[i] == b':' && (i == 0 || bytes[i - 1] != b':') && bytes.get(i + 1) != Some(&b':')
        });
        match single {
            None => Ok(Self::new(None, text)),
            Some(0) => Err(err("has no module before the colon")),
            Some(i) if i + 1 == text.len() => {
                Err(err("has no function after the colon (`module:*` means all)"))
            }
            Some(i) => Ok(Self::new(Some(text[..i].to_owned()), &text[i + 1..])),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            Some(m) => write!(f, "{m}:{}", self.function)?,
            None => f.write_str(&self.function)?,
        }
        if self.offset > 0 { write!(f, "+{:#x}", self.offset) } else { Ok(()) }
    }
}

impl Pattern {
    fn new(module: Option<String>, function: &str) -> Self {
        // `operator+` is no offset.
        let parted = function.rsplit_once('+').and_then(|(function, offset)| {
            let offset = match offset.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => offset.parse(),
            };
            Some((function, offset.ok()?)).filter(|(function, _)| !function.is_empty())
        });
        let (function, offset) = parted.unwrap_or((function, 0));
        Self { module, function: function.to_owned(), offset }
    }

    /// Splits a list at its commas, but not at those inside C++ names such as `f(int, char)` or of
    /// `\,`. A bracket without a partner stands for itself, as that of `operator<` does. A pattern
    /// without a module gets that of the pattern before it: `libc:malloc,free` are both of libc.
    ///
    /// ```
    /// use skep_store::link::Pattern;
    /// assert_eq!(Pattern::list("f, libc:malloc,free"), ["f", "libc:malloc", "libc:free"]);
    /// ```
    #[must_use]
    pub fn list(text: &str) -> Vec<String> {
        let commas = separators(text);
        let starts = std::iter::once(0).chain(commas.iter().map(|at| at + 1));
        let ends = commas.iter().copied().chain([text.len()]);
        let parts = starts.zip(ends).filter_map(|(start, end)| text.get(start..end));
        let mut module: Option<String> = None;
        let mut list = Vec::new();
        for part in parts.map(str::trim).filter(|t| !t.is_empty()) {
            match (part.parse::<Self>(), &module) {
                (Ok(Self { module: Some(m), .. }), _) => {
                    module = Some(m);
                    list.push(part.to_owned());
                }
                (Ok(_), Some(m)) => list.push(format!("{m}:{part}")),
                _ => list.push(part.to_owned()),
            }
        }
        list
    }

    /// Tells whether neither part has a wildcard, so that one function is meant.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.module.iter().chain([&self.function]).any(|part| part.contains(['*', '?', '[', '\\']))
    }

    /// Tells whether the module part matches a module with this path.
    ///
    /// `libc` and `libc.so.6` both mean `/usr/lib/x86_64-linux-gnu/libc.so.6`, and
    /// `/usr/lib/x86_64-linux-gnu/libc-2.31.so`, as older versions of glibc name their files.
    /// `libx.so.1` also means `libx.so.1.2.3`, the file behind that name.
    #[must_use]
    pub fn matches_module(&self, path: &str) -> bool {
        let Some(want) = &self.module else { return true };
        let file = path.rsplit('/').next().unwrap_or(path);
        let stem = file.split_once(".so").map_or(file, |(stem, _)| stem);
        let longer = file.strip_prefix(want.as_str()).is_some_and(|rest| rest.starts_with('.'));
        glob(want, path)
            || glob(want, file)
            || want == stem
            || longer && want.contains(".so")
            || old_glibc(stem).is_some_and(|(stem, name)| want == stem || glob(want, name))
    }

    /// Tells whether the function part matches one of a function's names.
    #[must_use]
    pub fn matches_function(&self, name: &str) -> bool {
        glob(&self.function, name)
    }
}

/// Operators of C++ whose signs are no brackets and no separators; longer ones first. An `operator,` is
/// one only in front of its parameters.
const OPERATORS: [&str; 16] = [
    " delete[]",
    " new[]",
    "->*",
    "<=>",
    "<<=",
    ">>=",
    "->",
    "<<",
    "<=",
    ">>",
    ">=",
    "()",
    "[]",
    ",(",
    "<",
    ">",
];

/// The length of the sign of an operator, when the text before it ends with `operator`.
fn operator_sign(before: &str, after: &str) -> Option<usize> {
    let scope = before.strip_suffix("operator")?;
    if scope.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let sign = OPERATORS.into_iter().find(|sign| after.starts_with(sign))?;
    Some(if sign == ",(" { 1 } else { sign.len() })
}

/// Where the commas are that part the patterns of a list.
fn separators(text: &str) -> Vec<usize> {
    let mut commas: Vec<usize> = Vec::new();
    // Brackets that are open, and how many commas were in front of each.
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut at = 0;
    while let Some((c, next)) = char_at(text, at) {
        let (before, after) = text.split_at(at);
        let from = at;
        at = next;
        match c {
            '\\' => at = char_at(text, next).map_or(next, |quoted| quoted.1),
            _ if let Some(sign) = operator_sign(before, after) => at = from + sign,
            // What is in a set stands for itself.
            '[' => at = set(text, next, c).map_or(next, |(_, end)| end),
            '(' | '<' => open.push((c, commas.len())),
            ')' | '>' => {
                let partner = if c == ')' { '(' } else { '<' };
                if let Some(depth) = open.iter().rposition(|(c, _)| *c == partner) {
                    // Those that were opened inside have no partners.
                    commas.truncate(open[depth].1);
                    open.truncate(depth);
                }
            }
            ',' => commas.push(from),
            _ => {}
        }
    }
    commas
}

/// The part before `.so`, and the name that programs ask for, of a library of glibc before 2.34:
/// `libc-2.31` is `libc` and `libc.so.6`.
fn old_glibc(stem: &str) -> Option<(&str, &'static str)> {
    const NAMES: [(&str, &str); 8] = [
        ("ld", "ld-linux-x86-64.so.2"),
        ("libc", "libc.so.6"),
        ("libdl", "libdl.so.2"),
        ("libm", "libm.so.6"),
        ("libpthread", "libpthread.so.0"),
        ("libresolv", "libresolv.so.2"),
        ("librt", "librt.so.1"),
        ("libutil", "libutil.so.1"),
    ];
    let (stem, version) = stem.rsplit_once('-')?;
    let is_version = version.strip_prefix("2.")?.bytes().all(|b| b.is_ascii_digit());
    NAMES.into_iter().find(|(known, _)| is_version && *known == stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_the_shell_does() {
        for (p, t, want) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            (r"\*", "*", true),
            (r"\*", "x", false),
            ("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("ns::f*", "ns::f(int)", true),
            ("*é?ü*", "né\u{20ac}üx", true),
            ("[à-é]*[!x]", "ç\u{20ac}", true),
            ("[à-é]?", "çx\u{20ac}", false),
            ("*x", "aéxéx", true),
            ("a*", "a", true),
            ("a*b*", "axbx", true),
            ("[a-]", "-", true),
            ("[!", "[!", true),
            ("\\", "\\", true),
        ] {
            assert_eq!(glob(p, t), want, "{p} {t}");
        }
    }

    #[test]
    fn a_single_colon_parts_module_and_function() -> Result<(), PatternError> {
        let p: Pattern = "libc.so.6:mem*".parse()?;
        assert_eq!((p.module.as_deref(), p.function.as_str()), (Some("libc.so.6"), "mem*"));
        let p: Pattern = "std::vector*".parse()?;
        assert_eq!((p.module, p.function.as_str()), (None, "std::vector*"));
        for (text, function, offset) in [
            ("f+0x1c", "f", 28),
            ("liba:f+12", "f", 12),
            ("f+0", "f", 0),
            ("operator+", "operator+", 0),
            ("ns::operator+(int)", "ns::operator+(int)", 0),
            ("f+x", "f+x", 0),
            ("+3", "+3", 0),
        ] {
            let p: Pattern = text.parse()?;
            assert_eq!((p.function.as_str(), p.offset), (function, offset), "{text}");
        }
        assert_eq!("liba:f+28".parse::<Pattern>()?.to_string(), "liba:f+0x1c");
        let p: Pattern = "libx.so:ns::f".parse()?;
        assert_eq!((p.module.as_deref(), p.function.as_str()), (Some("libx.so"), "ns::f"));
        assert!(
            "".parse::<Pattern>().is_err()
                && ":f".parse::<Pattern>().is_err()
                && "lib:".parse::<Pattern>().is_err()
        );
        Ok(())
    }

    #[test]
    fn lists_are_parted_at_commas_outside_of_names() {
        let list = |text: &str| Pattern::list(text).join(" | ");
        assert_eq!(list("libc:malloc,free"), "libc:malloc | libc:free");
        assert_eq!(list("a,b , c"), "a | b | c");
        assert_eq!(list("liba:x,libb:y,z"), "liba:x | libb:y | libb:z");
        assert_eq!(list("ns::f(int, char),g<a, b>::h"), "ns::f(int, char) | g<a, b>::h");
        assert_eq!(list("[a,b]x,y"), "[a,b]x | y");
        assert_eq!((list(","), list("")), (String::new(), String::new()));
        // What has no partner is no bracket.
        assert_eq!(list("op:operator<,area"), "op:operator< | op:area");
        assert_eq!(list("*f<*,*Q<*"), "*f<* | *Q<*");
        assert_eq!(list("fo(*,fs(*,f(int, g<a, b>)"), "fo(* | fs(* | f(int, g<a, b>)");
        assert_eq!(list("fo(*,fs(a, b<*),c"), "fo(* | fs(a, b<*) | c");
        assert_eq!(list("a>,b),c],d["), "a> | b) | c] | d[");
        assert_eq!(list("[(<],f,[!],],g"), "[(<] | f | [!],] | g");
        for operator in [
            "<",
            ">",
            "<<",
            ">>",
            "<=",
            ">=",
            "<=>",
            "<<=",
            ">>=",
            "->",
            "->*",
            "()",
            "[]",
            "-",
            " new[]",
            " delete[]",
            "()(int, a<b, c>)",
            "[](int, int)",
            "<<(a<b, c>&, int)",
            "< <int, long>(int, long)",
            ",(a, b)",
            "->() const",
        ] {
            let one = format!("ns::operator{operator}");
            assert_eq!(Pattern::list(&format!("{one},{one},f<a, b>")), [&one, &one, "f<a, b>"]);
        }
        assert_eq!(list("cooperator<a, b>,operators<a, b>"), "cooperator<a, b> | operators<a, b>");
        assert_eq!(list(r"operator\,,f\(a,b),é\é,c"), r"operator\, | f\(a | b) | é\é | c");
        assert!("f\\(a\\,*".parse::<Pattern>().is_ok_and(|p| p.matches_function("f(a, b)")));
        assert!(
            "a:b".parse::<Pattern>().is_ok_and(|p| p.is_plain())
                && "a*:b".parse::<Pattern>().is_ok_and(|p| !p.is_plain())
        );
    }

    #[test]
    fn a_module_goes_by_path_file_name_or_stem() {
        let p = |m: &str| Pattern::new(Some(m.to_owned()), "*");
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        assert!(
            p("libc").matches_module(path)
                && p("libc.so.6").matches_module(path)
                && p(path).matches_module(path)
        );
        assert!(p("libc*").matches_module(path) && !p("lib").matches_module(path));
        let old = "/lib/x86_64-linux-gnu/libc-2.31.so";
        for name in ["libc", "libc.so.6", "libc.so*", "libc-2.31", "libc-2.31.so", old] {
            assert!(p(name).matches_module(old), "{name}");
        }
        for name in ["lib", "libc.so.5", "libm", "libc-2", "libc-2.3"] {
            assert!(!p(name).matches_module(old), "{name}");
        }
        assert!(!p("libc").matches_module("/lib/libc-2.31a.so"));
        let long = "/usr/lib/libsqlite3.so.0.8.6";
        assert!(p("libsqlite3.so.0").matches_module(long) && p("libsqlite3").matches_module(long));
        assert!(!p("libsqlite3.so.0.8.60").matches_module(long));
        assert!(!p("libsqlite3.so.1").matches_module(long) && !p("libsql").matches_module(long));
    }
}
