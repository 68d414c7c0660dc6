//! Which functions a program fits, and where their words are.

use std::collections::HashMap;
use std::sync::Arc;

use skep_isa::AttachType;
use skep_object::{Access, Mismatch, Place, Prototype};
use skep_verifier::Attached;

use super::Catalog;
use super::module::{Answer, ModuleFile};
use skep_store::link::types::{FunctionTypes, Known, Layout, ModuleTypes, NOWHERE, Types};
use skep_store::link::{Pattern, PatternError, Selection};

/// What a program reads, and where it is going to be attached.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    /// What is read of the context, by the program and by those that tail calls lead to.
    pub reads: &'a [Access],
    pub attach: AttachType,
    /// Patterns of functions, and of those that are left out.
    pub include: &'a [String],
    pub exclude: &'a [String],
}

/// What came of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Resolved {
    /// What targets have to know.
    pub types: Types,
    /// What the user should know: one line, and what to do about it.
    pub note: Option<(String, &'static str)>,
}

/// Why a program cannot be attached: what the verifier is told of the function, and why that does
/// not fit.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub attached: Attached,
    pub function: String,
    pub why: Mismatch,
}

/// A function that the patterns mean.
struct Candidate<'c> {
    pattern: usize,
    module: usize,
    vaddr: u64,
    name: &'c str,
    /// `None`: it is not in the debug information.
    answer: Option<Answer>,
}

impl Candidate<'_> {
    /// Its prototype, by the name that the patterns mean rather than that in the source.
    fn named(&self, p: &Arc<Prototype>) -> Arc<Prototype> {
        let name = skep_proc::demangle::demangle(self.name);
        if p.name == name {
            return Arc::clone(p);
        }
        let mut p = Prototype::clone(p);
        p.name = name.into_owned();
        Arc::new(p)
    }
}

/// Tells whether a pattern names one function.
fn is_exact(pattern: &Pattern) -> bool {
    !pattern.function.contains(['*', '?', '[', '\\'])
}

impl Catalog {
    /// Compares a program with the functions it is going to be attached to.
    ///
    /// # Errors
    /// When a pattern cannot be read.
    pub(crate) fn resolve(
        &self,
        ask: &Ask<'_>,
    ) -> Result<Result<Resolved, Box<Refusal>>, PatternError> {
        let selection = Selection::of(ask.include, ask.exclude)?;
        Ok(Resolver { ask, modules: self.modules(), patterns: selection.patterns() }
            .resolve(&selection))
    }
}

struct Resolver<'r> {
    ask: &'r Ask<'r>,
    modules: &'r [ModuleFile],
    patterns: &'r [Pattern],
}

/// Whether a function fits.
enum Fit {
    Typed,
    /// By its registers, for want of types.
    Untyped,
    No(Mismatch),
}

impl<'r> Resolver<'r> {
    /// The functions in the order in which the patterns name them, the program's own first; and
    /// whether there are others that are never attached to.
    fn candidates(&self, selection: &Selection) -> (Vec<Candidate<'r>>, bool) {
        let (mut all, mut others) = (Vec::new(), false);
        for (index, module) in self.modules.iter().enumerate() {
            let Some(patterns) =
                selection.module(&module.path.to_string_lossy(), module.main, false)
            else {
                continue;
            };
            let meant = module.functions().iter().filter_map(|f| {
                let pattern = patterns.function(&f.name, f.aliases.iter().map(String::as_str))?;
                Some((pattern, f))
            });
            let (resolvers, meant): (Vec<_>, Vec<_>) = meant.partition(|(_, f)| f.resolver);
            others |= !resolvers.is_empty();
            if meant.is_empty() {
                continue;
            }
            let wanted: Vec<_> = meant.iter().map(|(_, f)| *f).collect();
            let mut answers = module.prototypes(&wanted);
            all.extend(meant.into_iter().map(|(pattern, f)| Candidate {
                pattern,
                module: index,
                vaddr: f.vaddr,
                name: &f.name,
                answer: answers.remove(&f.vaddr),
            }));
        }
        all.sort_by_key(|c| (c.pattern, c.module, c.vaddr));
        (all, others)
    }

    /// The program runs when functions return, too.
    fn returns(&self) -> bool {
        !matches!(self.ask.attach, AttachType::TraceFentry | AttachType::TraceFentryMulti)
    }

    /// The program runs before there is a result, and may read it.
    fn reads_early(&self) -> bool {
        use AttachType as A;
        matches!(
            self.ask.attach,
            A::TraceFsession | A::TraceFsessionMulti | A::ModifyReturn | A::ModifyReturnMulti
        )
    }

    fn has_words(&self, p: &Prototype) -> Result<(), Mismatch> {
        self.ask.reads.iter().try_for_each(|a| p.check(*a, self.returns()))
    }

    fn fit(&self, c: &Candidate<'_>, first: Option<&Arc<Prototype>>) -> Fit {
        let like = |p: &Prototype| {
            let strictly = self.patterns.iter().all(is_exact);
            let first = first?;
            self.ask.reads.iter().find_map(|a| p.check_like(first, *a, strictly).err())
        };
        match &c.answer {
            Some(Ok(p)) => match self.has_words(p).err().or_else(|| like(p)) {
                Some(why) => Fit::No(why),
                None => Fit::Typed,
            },
            _ => self.untyped(first).map_or_else(Fit::No, |()| Fit::Untyped),
        }
    }

    /// Whether the program can do without types: what it reads are registers, and not the result of
    /// functions that have types.
    fn untyped(&self, first: Option<&Arc<Prototype>>) -> Result<(), Mismatch> {
        self.ask.reads.iter().try_for_each(|a| a.check_untyped())?;
        let result = |word: &usize| first.is_some_and(|f| f.is_result(*word));
        match self.ask.reads.iter().flat_map(|a| a.words()).find(result) {
            Some(word) => Err(Mismatch::Untyped { word }),
            None => Ok(()),
        }
    }

    fn resolve(&self, selection: &Selection) -> Result<Resolved, Box<Refusal>> {
        let (candidates, others) = self.candidates(selection);
        let proto =
            |c: &Candidate<'_>| c.answer.as_ref().and_then(|a| a.as_ref().ok()).map(|p| c.named(p));
        let first = candidates.iter().filter_map(proto).find(|p| self.has_words(p).is_ok());
        let fits: Vec<Fit> = candidates.iter().map(|c| self.fit(c, first.as_ref())).collect();
        if let Some(refusal) = self.refusal(&candidates, &fits, first.as_ref()) {
            return Err(Box::new(refusal));
        }
        let mut out = Table::default();
        for (c, fit) in candidates.iter().zip(&fits) {
            match (fit, &c.answer) {
                (Fit::Typed, Some(Ok(p))) => out.fits(c, self.layout(p)),
                // What is not there goes by `unknown`.
                (Fit::No(why), Some(Ok(_))) => {
                    out.misfit(c, format!("does not fit the program: it {why}"))
                }
                (Fit::No(why), Some(Err(reason))) => {
                    out.misfit(c, format!("does not fit the program: it {why} ({reason})"))
                }
                _ => {}
            }
        }
        let unknown = self
            .untyped(first.as_ref())
            .err()
            .map(|why| format!("does not fit the program: it {why}"));
        let types = out.finish(self.modules, unknown);
        Ok(Resolved {
            types,
            note: if others && candidates.is_empty() {
                None
            } else {
                self.note(&candidates, &fits)
            },
        })
    }

    /// Finds what makes it pointless to start: a function that was named and does not fit, or not
    /// one that fits.
    fn refusal(
        &self,
        candidates: &[Candidate<'_>],
        fits: &[Fit],
        first: Option<&Arc<Prototype>>,
    ) -> Option<Refusal> {
        let refuse = |which: &dyn Fn(&Candidate<'_>) -> bool| {
            let mut none = None;
            for (c, fit) in candidates.iter().zip(fits).filter(|(c, _)| which(c)) {
                let Fit::No(why) = fit else { return None };
                none = none.or(Some((c, why)));
            }
            none.map(|(c, why)| {
                let attached = match &c.answer {
                    Some(Ok(p)) => Attached::Typed { prototype: c.named(p), first: first.cloned() },
                    _ => Attached::Untyped { function: c.name.to_owned() },
                };
                Refusal { attached, function: c.name.to_owned(), why: why.clone() }
            })
        };
        let exact = self
            .patterns
            .iter()
            .enumerate()
            .filter(|(_, p)| is_exact(p))
            .find_map(|(i, _)| refuse(&|c| c.pattern == i));
        exact.or_else(|| refuse(&|_| true)).or_else(|| {
            // Libraries that are opened later have no types.
            let why = self.untyped(first).err().filter(|_| candidates.is_empty())?;
            let function = self.ask.include.join(",");
            Some(Refusal {
                attached: Attached::Untyped { function: function.clone() },
                function,
                why,
            })
        })
    }

    fn layout(&self, p: &Prototype) -> Layout {
        let Layout { words, ret, direct } = layout(p);
        let read =
            |n: usize| self.ask.reads.iter().flat_map(|a| a.words()).any(|w| w == words.len() + n);
        Layout { direct: direct && !read(1) && !(read(0) && self.reads_early()), words, ret }
    }

    /// A program that runs at return reads its result behind the arguments. Without types nobody
    /// can tell it whether it does.
    fn note(&self, candidates: &[Candidate<'_>], fits: &[Fit]) -> Option<(String, &'static str)> {
        let word =
            self.ask.reads.iter().flat_map(|a| a.words()).max().filter(|_| self.returns())?;
        let untyped: Vec<_> = candidates
            .iter()
            .zip(fits)
            .filter(|(_, f)| matches!(f, Fit::Untyped))
            .map(|(c, _)| c)
            .collect();
        let Some(first) = untyped.first() else {
            let names = self.ask.include.join("`, `");
            let text = format!(
                "the types of `{names}` are not known before it is loaded; ctx[0] to ctx[{word}] are registers there, not results"
            );
            return (candidates.is_empty() && !self.modules.is_empty())
                .then(|| (text, Mismatch::Untyped { word }.hint()));
        };
        let others = match untyped.len() - 1 {
            0 => String::new(),
            1 => " and of another function".to_owned(),
            n => format!(" and of {n} other functions"),
        };
        let why = match &first.answer {
            Some(Err(why)) => format!(": {why}"),
            _ => {
                let module = self.modules.get(first.module);
                module.and_then(|m| m.without_types()).map(|w| format!(": {w}")).unwrap_or_default()
            }
        };
        let text = format!(
            "the types of `{}`{others} are not known{why}; ctx[0] to ctx[{word}] are registers there, not results",
            first.name
        );
        Some((text, Mismatch::Untyped { word }.hint()))
    }
}

/// The words of a function for a program that asks for them by number.
pub(super) fn layout(p: &Prototype) -> Layout {
    let word = |p: &Place| match p {
        Place::Register(n) => *n,
        Place::Stack(n) if *n < 6 => 6 + n,
        _ => NOWHERE,
    };
    let words: Vec<u8> = p.words().iter().map(|w| word(&w.place)).collect();
    let ret: Vec<u8> = p.ret_words().iter().map(word).collect();
    let direct =
        words.iter().zip(0..).all(|(w, at)| *w == at) && matches!(ret.first(), None | Some(0));
    Layout { words, ret, direct }
}

/// What targets have to know, as it is put together.
#[derive(Default)]
pub(super) struct Table {
    layouts: Vec<Layout>,
    reasons: Vec<String>,
    layout_of: HashMap<Layout, u32>,
    reason_of: HashMap<String, u32>,
    /// Module, address, words and number.
    functions: Vec<(usize, FunctionTypes)>,
}

impl Table {
    fn fits(&mut self, c: &Candidate<'_>, layout: Layout) {
        self.add(c.module, c.vaddr, layout, 0);
    }

    /// Adds a function of a module with its words and its number.
    pub fn add(&mut self, module: usize, vaddr: u64, layout: Layout, number: u32) {
        let layouts = &mut self.layouts;
        let index = *self.layout_of.entry(layout).or_insert_with_key(|layout| {
            layouts.push(layout.clone());
            layouts.len() as u32 - 1
        });
        let known = Known::Layout(index);
        self.functions.push((module, FunctionTypes { vaddr, known, number }));
    }

    fn misfit(&mut self, c: &Candidate<'_>, reason: String) {
        let reasons = &mut self.reasons;
        let index = *self.reason_of.entry(reason).or_insert_with_key(|reason| {
            reasons.push(reason.clone());
            reasons.len() as u32 - 1
        });
        let known = Known::Misfit(index);
        self.functions.push((c.module, FunctionTypes { vaddr: c.vaddr, known, number: 0 }));
    }

    pub fn finish(mut self, modules: &[ModuleFile], unknown: Option<String>) -> Types {
        self.functions.sort_unstable_by_key(|(module, f)| (*module, f.vaddr));
        let mut out =
            Types { unknown, layouts: self.layouts, reasons: self.reasons, modules: Vec::new() };
        for of_one in self.functions.chunk_by(|a, b| a.0 == b.0) {
            let Some(module) = of_one.first().and_then(|f| modules.get(f.0)) else { continue };
            out.modules.push(ModuleTypes {
                path: module.path.to_string_lossy().into_owned(),
                build_id: module.build_id(),
                functions: of_one.iter().map(|(_, f)| *f).collect(),
            });
        }
        out
    }
}
