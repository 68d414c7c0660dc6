//! What the loader learned of the functions that a link may attach to: where their words are, and
//! which do not fit its program.
//!
//! Targets read no debug information. They look functions up here, by module and address; what is
//! not here has no types.

use crate::wire::{Reader, WireError, Writer};

/// A word that is in no general register, and is shown as 0.
pub const NOWHERE: u8 = 0xff;
/// Words of arguments in a frame: six registers, then six words of the stack.
const FRAME_WORDS: usize = skep_isa::ctx::tracing::MAX_ARGS;

/// Numbers of functions are below this.
pub const NUMBERS: u32 = 1 << 31;

/// The words of a context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Which word of the frame each argument word is: 0 to 5 in registers, 6 to 11 on the stack,
    /// or [`NOWHERE`].
    pub words: Vec<u8>,
    /// Where the words of the result are: 0 in rax, 1 in rdx, or [`NOWHERE`].
    pub ret: Vec<u8>,
    /// The frame itself is the context: words are where they belong, and the program reads no
    /// result before there is one.
    pub direct: bool,
}

/// What is known of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its words: an index into [`Types::layouts`].
    Layout(u32),
    /// The program does not fit the function: an index into [`Types::reasons`].
    Misfit(u32),
}

/// The functions of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleTypes {
    /// Its path.
    pub path: String,
    /// Its build id; empty when it has none.
    pub build_id: Vec<u8>,
    /// The functions by address in the file, sorted.
    pub functions: Vec<FunctionTypes>,
}

/// What is known of one function of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionTypes {
    /// Its address in the file.
    pub vaddr: u64,
    /// Its words.
    pub known: Known,
    /// What the loader calls it, below [`NUMBERS`]: bits 32 to 62 of its cookie where cookies are
    /// indexes. 0 where the loader has no name for it.
    pub number: u32,
}

/// What is known of the functions of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Types {
    /// Why functions that are not listed here are not attached to; `None`: they are, and programs
    /// see the words of the argument registers.
    pub unknown: Option<String>,
    /// Layouts that functions have.
    pub layouts: Vec<Layout>,
    /// Reasons why functions do not fit.
    pub reasons: Vec<String>,
    /// The files.
    pub modules: Vec<ModuleTypes>,
}

impl Layout {
    /// Tells whether words of the caller's stack are needed.
    #[must_use]
    pub fn wants_stack(&self) -> bool {
        self.words.iter().any(|w| (6..NOWHERE).contains(w))
    }
}

impl ModuleTypes {
    /// Looks a function up.
    #[must_use]
    pub fn function(&self, vaddr: u64) -> Option<FunctionTypes> {
        let at = self.functions.binary_search_by_key(&vaddr, |f| f.vaddr).ok()?;
        self.functions.get(at).copied()
    }
}

impl Types {
    /// Tells whether nothing is said of any function.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.unknown.is_none() && self.modules.is_empty()
    }

    /// Finds a module: by path, unless another file has taken its place, or by build id.
    #[must_use]
    pub fn module(&self, path: &str, build_id: &[u8]) -> Option<&ModuleTypes> {
        let same = |m: &&ModuleTypes| {
            if m.build_id.is_empty() || build_id.is_empty() {
                m.path == path
            } else {
                m.build_id == build_id
            }
        };
        self.modules.iter().find(same)
    }

    pub(super) fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.u32(u32::from(self.unknown.is_some())).str(self.unknown.as_deref().unwrap_or_default());
        w.u32(self.layouts.len() as u32);
        for l in &self.layouts {
            w.bytes(&l.words).bytes(&l.ret).u32(u32::from(l.direct));
        }
        w.u32(self.reasons.len() as u32);
        for r in &self.reasons {
            w.str(r);
        }
        w.u32(self.modules.len() as u32);
        for m in &self.modules {
            w.str(&m.path).bytes(&m.build_id).u32(m.functions.len() as u32);
            for f in &m.functions {
                let (kind, index) = match f.known {
                    Known::Layout(i) => (0, i),
                    Known::Misfit(i) => (1, i),
                };
                w.u64(f.vaddr).u32(kind).u32(index).u32(f.number);
            }
        }
        w
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let wrong = |what| WireError { at: 0, what };
        let there = r.u32("what becomes of unknown functions")? != 0;
        let unknown = r.str("reason")?;
        let mut out = Self { unknown: there.then(|| unknown.to_owned()), ..Self::default() };
        for _ in 0..r.count(12, "layouts")? {
            let (words, ret) =
                (r.bytes("argument words")?.to_vec(), r.bytes("result words")?.to_vec());
            let good = words.len() <= FRAME_WORDS
                && ret.len() <= 2
                && words.iter().all(|w| usize::from(*w) < FRAME_WORDS || *w == NOWHERE)
                && ret.iter().all(|w| matches!(*w, 0 | 1 | NOWHERE));
            if !good {
                return Err(wrong("words of a frame"));
            }
            out.layouts.push(Layout { words, ret, direct: r.u32("kind of layout")? != 0 });
        }
        for _ in 0..r.count(4, "reasons")? {
            out.reasons.push(r.str("reason")?.to_owned());
        }
        for _ in 0..r.count(12, "modules")? {
            let (path, build_id) =
                (r.str("module path")?.to_owned(), r.bytes("build id")?.to_vec());
            let mut functions = Vec::new();
            for _ in 0..r.count(20, "functions")? {
                let vaddr = r.u64("address")?;
                let known = match (r.u32("kind")?, r.u32("index")?) {
                    (0, i) if (i as usize) < out.layouts.len() => Known::Layout(i),
                    (1, i) if (i as usize) < out.reasons.len() => Known::Misfit(i),
                    _ => return Err(wrong("a layout or a reason")),
                };
                let number = r.u32("number")?;
                if number >= NUMBERS {
                    return Err(wrong("a function's number"));
                }
                functions.push(FunctionTypes { vaddr, known, number });
            }
            out.modules.push(ModuleTypes { path, build_id, functions });
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Types {
        Types {
            unknown: Some("no types".to_owned()),
            layouts: vec![
                Layout { words: vec![0, 1, 6, NOWHERE], ret: vec![0, 1], direct: false },
                Layout { words: vec![0; FRAME_WORDS], ret: vec![NOWHERE], direct: true },
            ],
            reasons: vec!["it returns nothing".to_owned()],
            modules: vec![
                ModuleTypes {
                    path: "/a".to_owned(),
                    build_id: vec![1, 2],
                    functions: vec![
                        FunctionTypes { vaddr: 16, known: Known::Layout(0), number: 7 },
                        FunctionTypes { vaddr: 32, known: Known::Misfit(0), number: 0 },
                    ],
                },
                ModuleTypes { path: "/b".to_owned(), build_id: Vec::new(), functions: Vec::new() },
            ],
        }
    }

    #[test]
    fn they_come_back_from_their_bytes() {
        let mut w = Writer::default();
        types().encode(&mut w);
        let bytes = w.finish();
        assert_eq!(Types::decode(&mut Reader::new(&bytes)), Ok(types()));
        for n in 0..bytes.len() {
            assert!(Types::decode(&mut Reader::new(&bytes[..n])).is_err(), "cut at {n}");
        }
    }

    #[test]
    fn words_that_a_frame_does_not_have_are_damage() {
        for (words, ret) in
            [(vec![12], vec![]), (vec![0; 13], vec![]), (vec![], vec![2]), (vec![], vec![0; 3])]
        {
            let mut w = Writer::default();
            Types { layouts: vec![Layout { words, ret, direct: true }], ..Types::default() }
                .encode(&mut w);
            assert!(Types::decode(&mut Reader::new(&w.finish())).is_err());
        }
    }

    #[test]
    fn layouts_and_reasons_that_are_not_there_are_damage() {
        for (known, good) in [
            (Known::Layout(1), true),
            (Known::Layout(2), false),
            (Known::Misfit(0), true),
            (Known::Misfit(1), false),
        ] {
            let mut w = Writer::default();
            let mut types = types();
            types.modules[0].functions = vec![FunctionTypes { vaddr: 16, known, number: 0 }];
            types.encode(&mut w);
            let decoded = Types::decode(&mut Reader::new(&w.finish()));
            assert_eq!(decoded.is_ok(), good, "{known:?}");
        }
    }

    #[test]
    fn a_file_that_took_the_place_of_another_has_no_types() {
        let types = types();
        let paths = |path, id: &[u8]| types.module(path, id).map(|m| m.path.as_str());
        assert_eq!(paths("/a", &[1, 2]), Some("/a"));
        assert_eq!(paths("/a", &[9]), None);
        assert_eq!(paths("/elsewhere/a", &[1, 2]), Some("/a"));
        assert_eq!(
            (paths("/b", &[]), paths("/b", &[3]), paths("/c", &[])),
            (Some("/b"), Some("/b"), None)
        );
        assert_eq!(types.modules[0].function(32).map(|f| f.known), Some(Known::Misfit(0)));
        assert_eq!(types.modules[0].function(17), None);
    }
}
