//! Which functions of which modules a link means: the same answer for the loader, which reads
//! files, and for targets.

use std::borrow::Cow;

use super::file::LinkSpec;
use super::pattern::{Pattern, PatternError};

/// The patterns of a link, read.
#[derive(Clone, Debug)]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

/// The patterns that concern one module.
#[derive(Debug)]
pub struct InModule<'a> {
    /// With their places in the list.
    include: Vec<(usize, &'a Pattern)>,
    exclude: Vec<&'a Pattern>,
}

impl Selection {
    /// Reads a link's patterns.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn new(spec: &LinkSpec) -> Result<Self, PatternError> {
        Self::of(spec.include.iter().map(|t| &t.pattern), &spec.exclude)
    }

    /// Reads lists of patterns.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn of<'p>(
        include: impl IntoIterator<Item = &'p String>,
        exclude: impl IntoIterator<Item = &'p String>,
    ) -> Result<Self, PatternError> {
        let include = include.into_iter().map(|p| p.parse()).collect::<Result<_, _>>()?;
        let exclude = exclude.into_iter().map(|p| p.parse()).collect::<Result<_, _>>()?;
        Ok(Self { include, exclude })
    }

    /// The patterns of functions that must match, in order.
    #[must_use]
    pub fn patterns(&self) -> &[Pattern] {
        &self.include
    }

    /// Picks the patterns for a module; `None` when no function of it can match. `main`: it is the
    /// program itself; `own`: it is the library with the agent, which patterns match only if they
    /// name its module.
    #[must_use]
    pub fn module(&self, path: &str, main: bool, own: bool) -> Option<InModule<'_>> {
        let concerns = |p: &&Pattern| {
            if p.module.is_none() && own {
                return false;
            }
            p.matches_module(path) || (main && p.module.as_deref() == Some("/proc/self/exe"))
        };
        let include: Vec<(usize, &Pattern)> =
            self.include.iter().enumerate().filter(|(_, p)| concerns(p)).collect();
        let exclude = self.exclude.iter().filter(concerns).collect();
        (!include.is_empty()).then_some(InModule { include, exclude })
    }
}

impl InModule<'_> {
    /// Tells whether a function is meant, and by which of the patterns first.
    #[must_use]
    pub fn function<'n>(
        &self,
        name: &str,
        aliases: impl Iterator<Item = &'n str> + Clone,
    ) -> Option<usize> {
        let whole = self.include.iter().copied().filter(|(_, p)| p.offset == 0);
        if self.exclude.is_empty()
            && let Some((at, _)) = whole.clone().next().filter(|(_, p)| p.matches_function(name))
        {
            // As most functions of most links.
            return Some(at);
        }
        let at = first(whole, name, aliases.clone())?;
        first(self.exclude.iter().map(|p| (0, *p)), name, aliases).is_none().then_some(at)
    }

    /// Lists the places inside a function that are meant: by which patterns, and how far behind its
    /// start.
    #[must_use]
    pub fn places<'n>(
        &self,
        name: &str,
        aliases: impl Iterator<Item = &'n str> + Clone,
    ) -> Vec<(usize, u64)> {
        let inside = self.include.iter().filter(|(_, p)| p.offset > 0);
        let is_meant = |(at, p): &(usize, &Pattern)| {
            first(std::iter::once((*at, *p)), name, aliases.clone()).is_some()
        };
        inside.filter(|place| is_meant(place)).map(|(at, p)| (*at, p.offset)).collect()
    }
}

fn first<'p, 'n>(
    patterns: impl Iterator<Item = (usize, &'p Pattern)> + Clone,
    name: &str,
    aliases: impl Iterator<Item = &'n str> + Clone,
) -> Option<usize> {
    let plain =
        |p: &Pattern| p.matches_function(name) || aliases.clone().any(|a| p.matches_function(a));
    if let Some((at, _)) = patterns.clone().find(|(_, p)| plain(p)) {
        return Some(at);
    }
    // Without a pattern there is nothing to demangle a million names for.
    patterns.clone().next()?;
    let Cow::Owned(name) = skep_proc::demangle::demangle(name) else { return None };
    // `ns::f` means `ns::f(int)` as well.
    let bare = skep_proc::demangle::bare(&name);
    let mut patterns = patterns;
    patterns.find(|(_, p)| p.matches_function(&name) || p.matches_function(bare)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_goes_by_its_names_and_by_the_module_it_is_in() {
        let list = |l: &[&str]| l.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let all = Selection::of(
            &list(&["libx:a*", "b", "ns::f", "/proc/self/exe:only"]),
            &list(&["ab", "liby:b"]),
        )
        .unwrap();
        let find = |path: &str, main, name: &str, aliases: &[&str]| {
            all.module(path, main, false)?.function(name, aliases.iter().copied())
        };
        assert_eq!(find("/lib/libx.so.1", false, "aa", &[]), Some(0));
        assert_eq!(find("/lib/libx.so.1", false, "ab", &[]), None, "left out");
        assert_eq!(find("/lib/liby.so", false, "aa", &[]), None);
        assert_eq!(find("/lib/liby.so", false, "x", &["b"]), None, "left out there");
        assert_eq!(find("/bin/p", true, "x", &["b"]), Some(1));
        assert_eq!(find("/bin/p", true, "_ZN2ns1fEi", &[]), Some(2));
        assert_eq!(
            (find("/bin/p", true, "only", &[]), find("/bin/p", false, "only", &[])),
            (Some(3), None)
        );
        let lambda = Selection::of(&list(&["main::{lambda(int)#2}::operator()"]), &[]).unwrap();
        let find = |name| lambda.module("/bin/p", true, false)?.function(name, [].into_iter());
        assert_eq!(find("_ZZ4mainENKUliE_clEi"), None);
        assert_eq!(find("_ZZ4mainENKUliE0_clEi"), Some(0));
        let some = Selection::of(&list(&["libx:a"]), &[]).unwrap();
        assert!(some.module("/bin/p", true, false).is_none(), "nothing there can match");
        assert!(all.module("/lib/libskep_preload.so", false, true).is_none());
    }
}
