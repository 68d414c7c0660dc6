//! Which source lines of programs ran.

use std::collections::BTreeMap;
use std::fmt::Write;

use skep_object::Linked;
use skep_store::prog::Source;

use super::Runner;
use crate::load::LoadedProgram;

/// How often each source line of programs ran, from their instructions and what the object says of
/// lines (`-g`). A line counts as often as that instruction of it that ran most, among the first
/// ones of the pieces that the compiler made of it.
///
/// ```
/// use skep::test_run::{Coverage, Engine, Input};
///
/// let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");
/// let session = skep::Session::scratch()?;
/// let object = session.load(path)?;
/// let mut runner = object.program("first_bytes")?.runner(Engine::Interp)?;
/// runner.count_hits();
/// runner.test_run(&Input::data(&[0x60; 64])).expect("a packet that is long enough");
///
/// let mut coverage = Coverage::default();
/// coverage.add(&runner);
/// let (ran, lines) = coverage.lines();
/// assert!(ran > 0 && ran <= lines);
/// assert!(coverage.lcov("my test").starts_with("TN:my_test\nSF:"));
/// # Ok::<(), skep::Error>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct Coverage {
    files: BTreeMap<String, File>,
}

#[derive(Clone, Default, Debug)]
struct File {
    lines: BTreeMap<u32, u64>,
    /// First line, and how often it began.
    functions: BTreeMap<String, (u32, u64)>,
}

impl Coverage {
    /// Adds what a runner has counted ([`Runner::count_hits`]).
    pub fn add(&mut self, runner: &Runner) {
        let hits = runner.hits();
        self.add_source(runner.program().source(), |insn| hits.get(insn as usize).copied());
    }

    /// Adds the lines of a program that may never run: they count 0 so far.
    pub fn expect(&mut self, linked: &Linked) {
        self.add_source(&crate::convert::source(linked), |_| Some(0));
    }

    /// Adds the lines of a loaded program that may never run: they count 0 so far.
    pub fn expect_loaded(&mut self, program: &LoadedProgram) {
        self.add_source(program.program().source(), |_| Some(0));
    }

    fn add_source(&mut self, source: &Source, hits: impl Fn(u32) -> Option<u64>) {
        // The compiler makes several pieces of a line, which are no more runs of it.
        let mut these: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut functions = source.functions.iter().peekable();
        for (insn, file, line) in &source.lines {
            let Some(name) = source.files.get(*file as usize) else { continue };
            let n = hits(*insn).unwrap_or(0);
            let most = these.entry((*file, *line)).or_default();
            *most = n.max(*most);
            while let Some((start, function)) = functions.next_if(|(start, _)| start <= insn) {
                if start == insn {
                    let of = self.files.entry(name.clone()).or_default();
                    of.functions.entry(function.clone()).or_insert((*line, 0)).1 += n;
                }
            }
        }
        for ((file, line), n) in these {
            let Some(name) = source.files.get(file as usize) else { continue };
            *self.files.entry(name.clone()).or_default().lines.entry(line).or_default() += n;
        }
    }

    /// Returns how many lines ran, and how many there are.
    #[must_use]
    pub fn lines(&self) -> (usize, usize) {
        let all = || self.files.values().flat_map(|f| f.lines.values());
        (all().filter(|n| **n > 0).count(), all().count())
    }

    /// Writes it as lcov's `genhtml`, and most services and editors, read it (geninfo(1)). Files
    /// are named as the compiler named them.
    #[must_use]
    pub fn lcov(&self, test: &str) -> String {
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let test: String = test.chars().map(word).collect();
        let mut out = String::new();
        for (name, file) in &self.files {
            // Writing to a string does not fail.
            let _ = writeln!(out, "TN:{test}\nSF:{name}");
            for (function, (line, _)) in &file.functions {
                let _ = writeln!(out, "FN:{line},{function}");
            }
            for (function, (_, n)) in &file.functions {
                let _ = writeln!(out, "FNDA:{n},{function}");
            }
            let ran = file.functions.values().filter(|(_, n)| *n > 0).count();
            let _ = writeln!(out, "FNF:{}\nFNH:{ran}", file.functions.len());
            for (line, n) in &file.lines {
                let _ = writeln!(out, "DA:{line},{n}");
            }
            let ran = file.lines.values().filter(|n| **n > 0).count();
            let _ = writeln!(out, "LF:{}\nLH:{ran}\nend_of_record", file.lines.len());
        }
        out
    }
}
