//! What is known about how functions are called: as C functions are, or by a convention of
//! a runtime's own.
//!
//! An exit hook puts a frame between a function and its caller. That is right for code that keeps
//! to the C ABI. Where a collector looks return addresses up in tables of its own, where stacks are
//! moved, or where code is jumped to instead of called, the program dies of such a frame. So a
//! frame needs evidence: unwind information that says how the function is entered, which all
//! compilers of C, C++, Rust and their like write. Runtimes that write it as well and still have
//! conventions of their own are in [`RUNTIMES`], one row each.
//!
//! An entry hook keeps all registers and leaves nothing on the stack. It is harmless to most code
//! that has none of the above, and a symbol with a size is evidence enough for it.

use skep_proc::elf::{Elf, Functions, Kind, SymbolSource};
use std::ops::Range;

mod checked;

/// How a function is called, which decides which hooks it can take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Convention {
    /// Called as C functions are: all hooks.
    C,
    /// Called by another convention, or nobody knows by which: entry hooks.
    EntryOnly(&'static str),
    /// As [`EntryOnly`](Self::EntryOnly), and the hook has to stand behind the check of the stack
    /// that the function begins with: only there is room on the stack, and only there a call
    /// passes once.
    BehindStackCheck {
        /// Why there is no more.
        why: &'static str,
        /// A function that calls nothing needs no check: those who call it leave room enough.
        leaf_functions: bool,
    },
    /// No hooks: they do harm, or nothing says that it is a function.
    NoHook(&'static str),
}

use Convention::{BehindStackCheck, EntryOnly, NoHook};

/// Beginnings of names in Go's own core, where functions without a check of the stack call each
/// other until it is used up, and run on stacks of other kinds. All other functions without a check
/// are called by functions with one, which leaves 800 bytes at least (`stackLimit` in Go's
/// runtime/stack.go, and its linker adds up all calls below). `type..` is how Go before 1.20 writes `type:`.
const GO_CORE: &[&str] = &[
    "runtime.",
    "runtime/",
    "internal/",
    "sync/atomic.",
    "syscall.",
    "reflect.",
    "type:",
    "type..",
    "go:",
];
/// How Go's linker ends the names of functions in assembly that code in Go calls. Its table of functions
/// has their names without it.
const GO_ASSEMBLY: &str = ".abi0";

/// What a file's tables say of the place where a function is said to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evidence {
    /// Unwind information says that the stack is here as at the start of a called function. It
    /// begins here, or there is a symbol with a size: a second entry.
    Unwind,
    /// Unwind information begins here, and tells of something else than a call.
    OtherUnwind,
    /// It is in the middle of a piece of code that has unwind information, and of a frame.
    Inside,
    /// A symbol with a size, without unwind information.
    Sized,
    /// A symbol without a size, without unwind information.
    Label,
}

impl Evidence {
    /// The rule for all code that no runtime claims.
    pub(crate) fn convention(self) -> Convention {
        match self {
            Self::Unwind => Convention::C,
            Self::OtherUnwind => {
                NoHook("its unwind information says that it is not entered by a call")
            }
            Self::Inside => NoHook("a place inside of another function"),
            Self::Sized => {
                EntryOnly("no unwind information says that it is called as C functions are")
            }
            Self::Label => {
                NoHook("neither a size nor unwind information says that it is a function")
            }
        }
    }
}

/// How a module is recognized.
enum Mark {
    /// A symbol in its code.
    Symbol(&'static str),
    /// A symbol in its code that begins and ends so.
    Around(&'static str, &'static str),
    /// No such symbol.
    NoneAround(&'static str, &'static str),
    /// A section.
    Section(&'static str),
    /// No symbols, and a program.
    StrippedProgram,
    /// A text among the constants of a program without symbols: the last resort, as it takes a
    /// search.
    Text(&'static str),
}

/// Constants that are searched for a text.
const CONSTANTS: u64 = 16 << 20;

/// Which of its functions are the runtime's own, and not C functions next to them.
enum Code {
    /// Those without unwind information.
    WithoutUnwind,
    /// Those whose name begins so.
    Named(&'static str),
    /// Those without unwind information whose name ends so.
    Suffixed(&'static str),
    /// Those between two labels of a unit: the name of one ends in the first word, that of the
    /// other in the second.
    Between(&'static str, &'static str),
    /// Those in a section.
    Section(&'static str),
    /// Those between two addresses, which are in a section behind so many bytes.
    ToldIn(&'static str, usize),
    /// Those that a function knows of that loads the address of this text ([`checked`]).
    ReadBeside(&'static str),
    /// All.
    Module,
}

/// A runtime, a compiler or a virtual machine with conventions of its own.
struct Runtime {
    /// All of these are there.
    marks: &'static [Mark],
    code: Code,
    hooks: Convention,
}

const GO: Convention = BehindStackCheck {
    why: "Go moves its stacks and looks at every return address",
    leaf_functions: true,
};
const HASKELL: Convention =
    NoHook("Haskell code is jumped to, and entered again after a collection");

/// A program that does this ends when its code is another than the one that was built.
const CHECKED: Convention = NoHook("the program compares this code with a checksum (FIPS 140)");
/// What says where BoringSSL's checked code begins, and a function that all its builds have.
const BORINGSSL_START: &str = "BORINGSSL_bcm_text_start";
const BORINGSSL_TEST: &str = "BORINGSSL_self_test";
/// Both, and a text in the code that checks.
const BORINGSSL: Code = Code::ReadBeside("FIPS integrity test");

/// The first row that claims a function counts.
const RUNTIMES: &[Runtime] = &[
    // BoringSSL, and AWS-LC, which puts a prefix before its names.
    Runtime {
        marks: &[Mark::Around("", BORINGSSL_START)],
        code: Code::Between(BORINGSSL_START, "BORINGSSL_bcm_text_end"),
        hooks: CHECKED,
    },
    Runtime {
        marks: &[Mark::NoneAround("", BORINGSSL_START), Mark::Around("", BORINGSSL_TEST)],
        code: BORINGSSL,
        hooks: CHECKED,
    },
    Runtime {
        marks: &[Mark::NoneAround("", BORINGSSL_TEST), Mark::StrippedProgram],
        code: BORINGSSL,
        hooks: CHECKED,
    },
    // wolfSSL.
    Runtime {
        marks: &[Mark::Symbol("wolfCrypt_FIPS_first")],
        code: Code::Between("wolfCrypt_FIPS_first", "wolfCrypt_FIPS_last"),
        hooks: CHECKED,
    },
    // OpenSSL 1.0.
    Runtime {
        marks: &[Mark::Symbol("FIPS_text_start")],
        code: Code::Between("FIPS_text_start", "FIPS_text_end"),
        hooks: CHECKED,
    },
    // Go from 1.24 on, behind a mark of 16 bytes, a checksum of 32 and an address.
    Runtime {
        marks: &[Mark::Section(".go.fipsinfo")],
        code: Code::ToldIn(".go.fipsinfo", 56),
        hooks: CHECKED,
    },
    // Go, linked by the system's linker (cgo). Stacks begin with 2 KiB, are moved when they grow,
    // and all return addresses on them are looked up. Functions that begin with no check of
    // the stack may run at its very end.
    Runtime { marks: &[Mark::Section(".go.buildinfo")], code: Code::WithoutUnwind, hooks: GO },
    Runtime { marks: &[Mark::Symbol("runtime.text")], code: Code::WithoutUnwind, hooks: GO },
    // V8 (node, Chromium): built-in functions of one blob, which each isolate may copy to where
    // calls are shorter: a jump out of the blob would go wrong in a copy. Frames are
    // found by the frame pointer and told apart by return addresses.
    Runtime {
        marks: &[Mark::Around("Builtins_", "Handler")],
        code: Code::Named("Builtins_"),
        hooks: NoHook("V8 may copy its built-in functions, and looks at every return address"),
    },
    // OCaml 5: stacks of a few hundred bytes that are moved when they grow.
    Runtime {
        marks: &[Mark::Around("caml", "code_begin"), Mark::Symbol("caml_runstack")],
        code: Code::Between("code_begin", "code_end"),
        hooks: NoHook("OCaml 5 code runs on small stacks which are moved"),
    },
    // OCaml up to 4.14: the thread's own stack; the collector looks return addresses up in
    // `caml_frametable`.
    Runtime {
        marks: &[Mark::Around("caml", "code_begin"), Mark::Symbol("caml_call_gc")],
        code: Code::Between("code_begin", "code_end"),
        hooks: EntryOnly("OCaml's collector looks at every return address"),
    },
    // Plug-ins of OCaml programs do not tell which version they are for.
    Runtime {
        marks: &[Mark::Around("caml", "code_begin")],
        code: Code::Between("code_begin", "code_end"),
        hooks: NoHook("OCaml's collector looks at every return address"),
    },
    // Stripped, and linked without `--export-dynamic`, which is not how OCaml links.
    Runtime {
        marks: &[Mark::NoneAround("caml", "code_begin"), Mark::Text("OCAMLRUNPARAM")],
        code: Code::Module,
        hooks: NoHook("a stripped OCaml program does not tell its own functions from C functions"),
    },
    // Haskell (GHC): code reached by jumps, with a stack of its own, and a table right before each
    // entry. A function that needs memory is entered again when it has it.
    Runtime {
        marks: &[Mark::Around("stg_ap_", "_fast")],
        code: Code::WithoutUnwind,
        hooks: HASKELL,
    },
    // A Haskell library has the run-time system in another one.
    Runtime { marks: &[Mark::Around("", "_info")], code: Code::Suffixed("_info"), hooks: HASKELL },
    // Images that mono has compiled ahead of time. It decodes the stubs in them that it patches,
    // and has unwind tables of its own.
    Runtime {
        marks: &[Mark::Symbol("jit_code_start"), Mark::Symbol("jit_code_end")],
        code: Code::Module,
        hooks: NoHook("mono reads and patches the code of its images"),
    },
    // .NET, compiled ahead of time.
    Runtime {
        marks: &[Mark::Section("__managedcode")],
        code: Code::Section("__managedcode"),
        hooks: NoHook(".NET's collector looks at every return address and changes them"),
    },
    // Java, compiled ahead of time by GraalVM.
    Runtime {
        marks: &[Mark::Symbol("__svm_code_section")],
        code: Code::WithoutUnwind,
        hooks: NoHook("GraalVM's collector looks at every return address"),
    },
    // Dart, compiled ahead of time.
    Runtime {
        marks: &[Mark::Symbol("_kDartIsolateSnapshotInstructions")],
        code: Code::Module,
        hooks: NoHook("Dart's collector looks at every return address"),
    },
];

impl Mark {
    /// How the names begin that it asks for, where it says that.
    fn head(&self) -> Option<[u8; 2]> {
        match *self {
            Self::Symbol(head) | Self::Around(head, _) | Self::NoneAround(head, _) => {
                head.as_bytes().first_chunk().copied()
            }
            Self::Section(_) | Self::StrippedProgram | Self::Text(_) => None,
        }
    }

    /// How they end, where it does not say how they begin.
    fn tail(&self) -> Option<[u8; 2]> {
        match *self {
            Self::Around("", tail) | Self::NoneAround("", tail) => {
                tail.as_bytes().last_chunk().copied()
            }
            _ => None,
        }
    }

    /// Tells whether it asks for this name.
    fn means(&self, name: &[u8]) -> bool {
        match *self {
            Self::Symbol(symbol) => name == symbol.as_bytes(),
            Self::Around(head, tail) | Self::NoneAround(head, tail) => {
                name.starts_with(head.as_bytes()) && name.ends_with(tail.as_bytes())
            }
            Self::Section(_) | Self::StrippedProgram | Self::Text(_) => false,
        }
    }

    /// `names`: those that a mark asks for.
    fn is_in(&self, elf: &Elf, symbols: &Functions, names: &[&[u8]]) -> bool {
        let is_stripped_program = || {
            let has = matches!(symbols.source(), SymbolSource::Symtab | SymbolSource::DebugFile(_));
            !has && elf.entry().is_some()
        };
        match *self {
            Self::Symbol(_) | Self::Around(..) => names.iter().any(|name| self.means(name)),
            Self::NoneAround(..) => !names.iter().any(|name| self.means(name)),
            Self::Section(name) => elf.section(name).is_some(),
            Self::StrippedProgram => is_stripped_program(),
            Self::Text(text) => {
                let constants =
                    elf.section(".rodata").filter(|s| is_stripped_program() && s.size <= CONSTANTS);
                let bytes = constants.and_then(|s| elf.section_data(s).ok()).unwrap_or_default();
                find(&bytes, text.as_bytes()).is_some()
            }
        }
    }
}

/// How names begin or end that marks ask for, and a bit for each pair of bytes: nearly all names are
/// passed over by that.
struct Ends {
    marks: Vec<([u8; 2], &'static Mark)>,
    known: Vec<u64>,
}

impl Ends {
    fn of(pair: impl Fn(&Mark) -> Option<[u8; 2]>) -> Self {
        let marks = RUNTIMES.iter().flat_map(|runtime| runtime.marks);
        let marks: Vec<_> = marks.filter_map(|mark| Some((pair(mark)?, mark))).collect();
        let mut known = vec![0; 1 << 10];
        for (pair, _) in &marks {
            let (word, bit) = Self::place(*pair);
            if let Some(known) = known.get_mut(word) {
                *known |= bit;
            }
        }
        Self { marks, known }
    }

    fn place(pair: [u8; 2]) -> (usize, u64) {
        let pair = u16::from_le_bytes(pair);
        (usize::from(pair >> 6), 1 << (pair & 63))
    }

    /// Tells whether a mark asks for a name, whose first or last bytes are `pair`.
    fn mean(&self, pair: Option<&[u8; 2]>, name: &[u8]) -> bool {
        let Some(pair) = pair else { return false };
        let (word, bit) = Self::place(*pair);
        self.known.get(word).is_some_and(|known| known & bit != 0)
            && self.marks.iter().any(|(of, mark)| of == pair && mark.means(name))
    }
}

/// Finds a text among bytes, of which most are passed over (Horspool's way): there may be many.
fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    let Some((last, before)) = text.split_last() else { return Some(0) };
    // How far on the text may be when its last byte is compared with another.
    let mut steps = [text.len(); 256];
    for (at, byte) in before.iter().enumerate() {
        steps[usize::from(*byte)] = before.len() - at;
    }
    let mut end = before.len();
    while let Some(byte) = bytes.get(end) {
        if byte == last && bytes.get(end - before.len()..end) == Some(before) {
            return Some(end - before.len());
        }
        end += steps[usize::from(*byte)];
    }
    None
}

/// The runtimes that have code in a file.
pub(crate) struct Conventions(Vec<(&'static Runtime, Vec<Range<u64>>)>);

impl Conventions {
    /// Looks for the marks. A stripped file may have none; then it has no symbols for code without
    /// unwind information either. (Go's mark is a section that `strip` leaves, like its table of
    /// functions.)
    pub(crate) fn of(elf: &Elf, symbols: &Functions) -> Self {
        let places = || {
            let of_functions =
                symbols.iter().flat_map(|f| f.symbols().map(move |s| (s.name, f.vaddr)));
            of_functions.chain(symbols.labels())
        };
        let (heads, tails) = (Ends::of(Mark::head), Ends::of(Mark::tail));
        let is_meant = |name: &&[u8]| {
            heads.mean(name.first_chunk(), name) || tails.mean(name.last_chunk(), name)
        };
        // Few of them: each mark looks at all.
        let names: Vec<&[u8]> = places().map(|(name, _)| name).filter(is_meant).collect();
        let there =
            RUNTIMES.iter().filter(|r| r.marks.iter().all(|m| m.is_in(elf, symbols, &names)));
        Self(there.map(|r| (r, r.code.ranges(elf, &places().collect::<Vec<_>>()))).collect())
    }

    /// Where code begins or ends that is not for those who hook what is beside it.
    pub(crate) fn edges(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(_, ranges)| ranges).flat_map(|range| [range.start, range.end])
    }

    /// Tells how the function at `vaddr` is called.
    pub(crate) fn tell(
        &self,
        vaddr: u64,
        name: &str,
        kind: Kind,
        evidence: Evidence,
    ) -> Convention {
        let claims = |(runtime, ranges): &&(&Runtime, Vec<Range<u64>>)| match runtime.code {
            Code::WithoutUnwind => evidence != Evidence::Unwind,
            Code::Named(head) => name.starts_with(head),
            Code::Suffixed(tail) => evidence != Evidence::Unwind && name.ends_with(tail),
            Code::Module => true,
            Code::Between(..) | Code::Section(_) | Code::ToldIn(..) | Code::ReadBeside(_) => {
                ranges.iter().any(|r| r.contains(&vaddr))
            }
        };
        let rule = evidence.convention();
        match (self.0.iter().find(claims), rule) {
            // A place that is no function stays one.
            (_, NoHook(_)) | (None, _) => rule,
            (Some((Runtime { hooks: BehindStackCheck { why, .. }, .. }, _)), _) => {
                let core = GO_CORE.iter().any(|head| name.starts_with(head))
                    || name.ends_with(GO_ASSEMBLY)
                    || kind == Kind::Assembly;
                BehindStackCheck { why, leaf_functions: !core && name.contains('.') }
            }
            (Some((runtime, _)), _) => runtime.hooks,
        }
    }
}

impl Code {
    fn ranges(&self, elf: &Elf, places: &[(&[u8], u64)]) -> Vec<Range<u64>> {
        match *self {
            Self::Section(name) => elf
                .sections()
                .iter()
                .filter(|s| s.name == name.as_bytes())
                .map(|s| s.vaddr..s.vaddr + s.size)
                .collect(),
            Self::Between(begin, end) => {
                let with = |tail: &'static str| {
                    places
                        .iter()
                        .filter_map(move |(n, at)| Some((n.strip_suffix(tail.as_bytes())?, *at)))
                };
                let mut ends: Vec<(&[u8], u64)> = with(end).collect();
                ends.sort_by_cached_key(|(_, at)| *at);
                let range = |(unit, from): (&[u8], u64)| {
                    // Nearly always the first one behind it.
                    let behind = ends.partition_point(|(_, at)| *at < from);
                    let (_, to) = ends.get(behind..)?.iter().find(|(of, _)| *of == unit)?;
                    Some(from..*to)
                };
                with(begin).filter_map(range).collect()
            }
            Self::ToldIn(section, behind) => {
                let data = elf.section(section).and_then(|s| elf.section_data(s).ok());
                let data = data.unwrap_or_default();
                let word = |at| data.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
                word(behind).zip(word(behind + 8)).map(|(from, to)| from..to).into_iter().collect()
            }
            Self::ReadBeside(text) => checked::read_beside(elf, text.as_bytes()),
            Self::WithoutUnwind | Self::Named(_) | Self::Suffixed(_) | Self::Module => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_wherever_it_is() {
        let naive = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).position(|w| w == text);
        let texts: [&[u8]; 6] = [b"a", b"ab", b"aab", b"abab", b"OCAMLRUNPARAM", b"bbbbbb"];
        let mut random = 1_u32;
        for round in 0..2000 {
            let mut bytes: Vec<u8> = (0..round % 40)
                .map(|_| {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"ab"[(random >> 31) as usize]
                })
                .collect();
            if round % 3 == 0 {
                bytes.splice(bytes.len() / 2..bytes.len() / 2, *b"xOCAMLRUNPARAM");
            }
            for text in texts {
                assert_eq!(find(&bytes, text), naive(&bytes, text), "{bytes:?} {text:?}");
            }
        }
        assert_eq!((find(b"", b""), find(b"", b"a")), (Some(0), None));
    }

    /// Names that no mark can mean are not looked at: each mark has to say how those begin or end that
    /// it does mean.
    #[test]
    fn names_are_passed_over_that_no_mark_means() {
        let (heads, tails) = (Ends::of(Mark::head), Ends::of(Mark::tail));
        let is_meant = |name: &str| {
            let name = name.as_bytes();
            heads.mean(name.first_chunk(), name) || tails.mean(name.last_chunk(), name)
        };
        for mark in RUNTIMES.iter().flat_map(|runtime| runtime.marks) {
            let name = match *mark {
                Mark::Symbol(name) => name.to_owned(),
                Mark::Around(head, tail) | Mark::NoneAround(head, tail) => format!("{head}x{tail}"),
                Mark::Section(_) | Mark::StrippedProgram | Mark::Text(_) => continue,
            };
            assert!(mark.means(name.as_bytes()) && is_meant(&name), "{name}");
            for other in
                [format!("x{name}x"), name[..2].to_owned(), name[name.len() - 2..].to_owned()]
            {
                assert!(!is_meant(&other), "{other}");
            }
        }
        for name in ["", "_", "main", "camlx", "stg_ap_x", "Builtins_x"] {
            assert!(!is_meant(name), "{name}");
        }
    }
}
