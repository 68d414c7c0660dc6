//! Readable names: Rust (legacy and v0) and C++ (Itanium).

#[cfg(feature = "users")]
mod common;

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// Longer names are shown as they are; the longest ones that compilers were seen to make are a
/// tenth of it.
const MAX_MANGLED: usize = 64 << 10;
/// A short name can stand for an enormous one (each back reference may double it), so output is
/// bounded too.
const MAX_PLAIN: usize = 64 << 10;

/// Makes a name readable: Rust without its hash, C++ with its parameters. Other names come back as
/// they are.
///
/// ```
/// use skep_proc::demangle::demangle;
/// assert_eq!(demangle("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
/// assert_eq!(demangle("_ZN3foo3barEi"), "foo::bar(int)");
/// assert_eq!(demangle("main"), "main");
/// ```
pub fn demangle(name: &str) -> Cow<'_, str> {
    plain(name, false).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Makes a name readable and short: as [`demangle`], but C++ without parameters and return type.
///
/// Overloads get equal names.
///
/// ```
/// assert_eq!(skep_proc::demangle::short("_ZN3foo3barEi"), "foo::bar");
/// ```
pub fn short(name: &str) -> Cow<'_, str> {
    plain(name, true).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Cuts the parameters off a demangled name of C++, with the qualifiers behind them. Other names come back
/// as they are.
///
/// ```
/// assert_eq!(skep_proc::demangle::bare("foo::bar(int) const"), "foo::bar");
/// ```
pub fn bare(name: &str) -> &str {
    let Some(close) = name.rfind(')') else { return name };
    let (list, behind) = name.split_at(close + 1);
    if !behind.split(' ').all(is_behind_parameters) {
        return name;
    }
    let mut depth = 0_usize;
    let open = list.bytes().rposition(|b| {
        match b {
            b')' => depth += 1,
            b'(' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    });
    match open.and_then(|open| name.get(..open)) {
        Some("") | None => name,
        Some(before) if is_operator(before) => name,
        Some(before) => before,
    }
}

/// Qualifiers, and what says that the compiler made a copy: `[clone .cold]`.
fn is_behind_parameters(word: &str) -> bool {
    matches!(word, "" | "const" | "const&" | "const&&" | "volatile" | "&" | "&&" | "[clone")
        || (word.starts_with('.') && word.ends_with(']'))
}

/// Tells whether parentheses behind this belong to the name `operator()`.
fn is_operator(before: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || !b.is_ascii();
    before.strip_suffix("operator").is_some_and(|scope| !scope.bytes().last().is_some_and(inside))
}

fn plain(name: &str, short: bool) -> Option<String> {
    #[cfg(feature = "users")]
    if !short && let Some(text) = usual(name) {
        return Some(text);
    }
    if !(name.starts_with("_Z") || name.starts_with("_R")) || name.len() > MAX_MANGLED {
        return None;
    }
    let mut out = Bounded(String::new());
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form leaves the hash out.
        write!(out, "{rust:#}").ok()?;
        return Some(out.0);
    }
    // After the name: what the compiler split off or specialized (`.cold`, `.constprop.0`). The
    // short form would lose it.
    let (name, suffix) =
        if short { name.split_at(name.find('.').unwrap_or(name.len())) } else { (name, "") };
    let parse = ParseOptions::default().recursion_limit(96);
    let (symbol, tail) = BorrowedSymbol::with_tail_and_options(name.as_bytes(), &parse).ok()?;
    if !(tail.is_empty() || tail.starts_with(b".")) {
        return None;
    }
    let mut options = DemangleOptions::new().recursion_limit(192);
    if short {
        options = options.no_params().no_return_type();
    }
    symbol.structured_demangle(&mut out, &options).ok()?;
    out.write_str(str::from_utf8(tail).ok()?).ok()?;
    out.write_str(suffix).ok()?;
    Some(out.0)
}

/// C++ names that have nothing unusual, in a tenth of the time.
#[cfg(feature = "users")]
fn usual(name: &str) -> Option<String> {
    let rest = name.strip_prefix("_Z")?;
    if name.len() > 4096 || is_rust(name) {
        return None;
    }
    common::demangle(rest)
}

/// Names of Rust end with a hash of 17 letters, but for what compilers add behind a dot; dots are in
/// them too.
#[cfg(feature = "users")]
fn is_rust(name: &str) -> bool {
    let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    let hash =
        |end: usize| name.get(end.checked_sub(20)?..end)?.strip_prefix("17h")?.strip_suffix('E');
    ends.filter_map(hash).any(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A string that refuses to grow beyond the bound.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.0.len() + s.len() > MAX_PLAIN {
            return Err(fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names() {
        for (mangled, long, brief) in [
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo", "mycrate::foo"),
            ("_ZN7mycrate3foo17h05af221e174051e9E.llvm.123", "mycrate::foo", "mycrate::foo"),
            (
                "_ZN70_$LT$alloc..vec..Vec$LT$T$C$A$GT$$u20$as$u20$core..ops..drop..Drop$GT$4drop17hfe26f79f344485feE",
                "<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop",
                "",
            ),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
                "",
            ),
            ("_Z3addii", "add(int, int)", "add"),
            ("_ZN1A1bEv.cold", "A::b() [clone .cold]", "A::b.cold"),
            ("_ZTV3Foo", "vtable for Foo", "{vtable(Foo)}"),
            ("_Zli3_kmy", "operator\"\" _km(unsigned long long)", ""),
            ("_Z", "_Z", "_Z"),
            ("_Zfoo!", "_Zfoo!", "_Zfoo!"),
            ("main", "main", "main"),
            ("", "", ""),
        ] {
            assert_eq!(demangle(mangled), long);
            if !brief.is_empty() {
                assert_eq!(short(mangled), brief);
            }
        }
    }

    /// Names were cut at their first parenthesis: lambdas got one name, and templates lost their ends.
    #[test]
    fn names_lose_their_parameters_and_nothing_else() {
        for (name, wanted) in [
            ("ns::f(int, char*)", "ns::f"),
            ("ns::f()", "ns::f"),
            ("f(void (*)(int), std::function<void (int)>)", "f"),
            ("(anonymous namespace)::g(int)", "(anonymous namespace)::g"),
            ("ns::(anonymous namespace)::h()", "ns::(anonymous namespace)::h"),
            ("C::operator()(int) const", "C::operator()"),
            ("C::operator()() const &", "C::operator()"),
            ("C::cooperator(int)", "C::cooperator"),
            ("operator<(A const&, A const&)", "operator<"),
            (
                "std::ostream& operator<< <int>(std::ostream&, A<int> const&)",
                "std::ostream& operator<< <int>",
            ),
            ("C::operator->() const", "C::operator->"),
            ("C::operator void (*)(int)()", "C::operator void (*)(int)"),
            ("operator new(unsigned long)", "operator new"),
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
            ("main::{lambda(int)#2}::_FUN(int)", "main::{lambda(int)#2}::_FUN"),
            ("f(int)::{lambda()#1}::operator()() const", "f(int)::{lambda()#1}::operator()"),
            ("void run<void (*)(int)>(void (*)(int), int)", "void run<void (*)(int)>"),
            ("void run<&(f(int))>()", "void run<&(f(int))>"),
            (
                "std::function<void (int)>::operator()(int) const",
                "std::function<void (int)>::operator()",
            ),
            ("S<(Color)1>::get() volatile", "S<(Color)1>::get"),
            ("f[abi:cxx11](int)", "f[abi:cxx11]"),
            ("A::b() [clone .cold]", "A::b"),
            ("A::b(int) const [clone .part.0] [clone .isra.0]", "A::b"),
            // No parameters at the end.
            ("main", "main"),
            ("", ""),
            ("vtable for Foo", "vtable for Foo"),
            ("guard variable for f(int)::x", "guard variable for f(int)::x"),
            ("C::operator()", "C::operator()"),
            ("run<void (*)(int)>", "run<void (*)(int)>"),
            ("main::{lambda(int)#1}", "main::{lambda(int)#1}"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("<fn(u8) -> u8 as a::B<(u8, u8)>>::c", "<fn(u8) -> u8 as a::B<(u8, u8)>>::c"),
            ("main.(*T).Method", "main.(*T).Method"),
            (")", ")"),
            ("f)(", "f)("),
        ] {
            assert_eq!(bare(name), wanted);
        }
    }

    /// All names of Rust in this program. What the compiler adds to copies is left out by binutils.
    #[cfg(feature = "users")]
    #[test]
    fn names_of_rust_are_those_of_binutils() {
        let nm = |flag: &str| {
            let program = std::env::current_exe().ok()?;
            let output = std::process::Command::new("nm").args(["-p", flag]).arg(program).output();
            let text = String::from_utf8(output.ok()?.stdout).ok()?;
            Some(text.lines().filter_map(|line| line.get(19..)).map(str::to_owned).collect())
        };
        let (names, plain): (Vec<String>, Vec<String>) = match (nm("--no-demangle"), nm("-C")) {
            (Some(names), Some(plain)) => (names, plain),
            _ => return skep_testkit::skip::skip("needs binutils"),
        };
        let mut with_dots = 0;
        for (name, theirs) in names.iter().zip(&plain).filter(|(name, _)| is_rust(name)) {
            with_dots += usize::from(name.contains(".."));
            let ours = demangle(name);
            let digits = |c: char| c.is_ascii_digit();
            let copy = ours.trim_end_matches(digits).strip_suffix('.');
            assert!(ours == *theirs || copy == Some(theirs), "{name}: {ours}, not {theirs}");
        }
        assert!(with_dots > 100, "{with_dots}");
    }

    #[test]
    fn a_bomb_stays_small() {
        // Every substitution names the two before it: 2^n in plain text.
        let mut name = "_Z1fSt4pairIiiE".to_owned();
        for i in 0..30u32 {
            let digit = char::from_digit(i, 36).unwrap().to_ascii_uppercase();
            name.push_str(&format!("St4pairIS{digit}_S{digit}_E"));
        }
        assert!(demangle(&name).len() <= MAX_PLAIN);
    }

    #[test]
    fn any_bytes_are_survived() {
        let seeds = [
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_RNvMs_NtCs4fqI2P2rA04_5alloc3vecINtB4_3VechE4push",
            "_ZN7mycrate3foo17h05af221e174051e9E",
        ];
        let mut state = 1u64;
        let mut next = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for _ in 0..3000 {
            let mut name = seeds[next(seeds.len())].as_bytes().to_vec();
            for _ in 0..1 + next(4) {
                let at = 2 + next(name.len() - 2);
                match next(3) {
                    0 => name[at] = b' ' + next(95) as u8,
                    1 => name.insert(at, b"SIEN_0179TsBR."[next(14)]),
                    _ => drop(name.remove(at)),
                }
            }
            let name = String::from_utf8(name).unwrap();
            assert!(demangle(&name).len() <= MAX_PLAIN && short(&name).len() <= MAX_PLAIN);
        }
    }
}
