//! `skep map dump --filter OBJECT`: a BPF program says of every element whether it is printed.
//!
//! The program is of type `syscall`; its context is the element, the key first and the value at the
//! next multiple of eight bytes, so a C structure of both describes it:
//!
//! ```c
//! struct element { __u32 pid; __u32 :32; __u64 count; };
//! SEC("syscall") int busy(struct element *e) { return e->count > 100; }
//! ```
//!
//! Where keys are byte strings, a key is its length in four bytes, and then as many bytes as the
//! longest has.
//!
//! 0 leaves the element out, 2 ends the dump, anything else prints it. It is verified and compiled
//! as any other program.

use std::path::Path;

use skep::dir::Scratch;
use skep::isa::{KeyShape, ProgramType};
use skep::load::Loader;
use skep::maps::Verdict;
use skep::test_run::{Engine, Input, Runner};

use crate::failure::{FAILED, Failure, Result};
use crate::objects;
use crate::rejection;

/// A program ready to look at elements.
#[derive(Debug)]
pub struct Filter {
    runner: Runner,
    keys: KeyShape,
    value_at: usize,
    element: Vec<u8>,
}

impl Filter {
    /// Loads `OBJECT` or `OBJECT:PROGRAM` for elements of these sizes.
    pub fn load(text: &str, keys: KeyShape, value_size: usize) -> Result<Self> {
        let (path, wanted) = match text.rsplit_once(':') {
            Some((path, program)) if !Path::new(text).exists() => (path, Some(program)),
            _ => (text, None),
        };
        let object = objects::parse(Path::new(path))?;
        let fits = |p: &&skep::object::Program| {
            p.def.is_some_and(|d| d.prog == ProgramType::Syscall)
                && wanted.is_none_or(|name| p.name == name)
        };
        let programs: Vec<_> = object.programs.iter().filter(fits).collect();
        let program = match (programs.as_slice(), wanted) {
            ([one], _) => one,
            ([], Some(name)) => {
                return Err(Failure::failed(format!(
                    "`{path}` has no program `{name}` of type syscall"
                )));
            }
            ([], None) => {
                return Err(Failure::failed(format!("`{path}` has no program of type syscall"))
                    .hint("define the filter in `SEC(\"syscall\")`"));
            }
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|p| p.name.as_str()).collect();
                return Err(Failure::failed(format!(
                    "`{path}` has several filters: {}",
                    names.join(", ")
                ))
                .hint(format!("choose one with `{path}:PROGRAM`")));
            }
        };
        let scratch = Scratch::create()?;
        let loaded = Loader::new(scratch.dir())
            .autoload_only(&program.name)
            .load(&object)
            .map_err(|e| rejection::load_failure(e, path))?;
        let runner = Runner::new(scratch.dir(), &loaded, &program.name, Engine::Jit)
            .map_err(|e| Failure { status: FAILED, ..Failure::from(e) })?;
        let value_at = keys.cell_size().next_multiple_of(8);
        let (reads, size) =
            (runner.program().ctx_read() as usize, value_at + value_size.next_multiple_of(8));
        if reads > size {
            return Err(Failure::failed(format!(
                "filter `{}` reads {reads} bytes, but an element of the map has {size}",
                program.name
            )));
        }
        Ok(Self { runner, keys, value_at, element: vec![0; size] })
    }

    /// Asks the program.
    pub fn verdict(&mut self, key: &[u8], value: &[u8]) -> Verdict {
        self.element.fill(0);
        if let Some((cell, rest)) = self.element.split_at_mut_checked(self.value_at) {
            if let Some(cell) = cell.get_mut(..self.keys.cell_size()) {
                self.keys.write_cell(cell, key);
            }
            if let Some(part) = rest.get_mut(..value.len()) {
                part.copy_from_slice(value);
            }
        }
        match self.runner.test_run(&Input::ctx(&self.element)).map(|done| done.retval) {
            Ok(0) => Verdict::Skip,
            Ok(2) | Err(_) => Verdict::Stop,
            Ok(_) => Verdict::Keep,
        }
    }
}
