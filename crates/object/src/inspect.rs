//! What an object says about the instructions of a program, for people who want to see it.

use crate::core;
use crate::program::Ref;
use crate::{Object, Program};

/// One thing that is put into an instruction when a program is linked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relocation {
    /// The instruction, counted from the function's first.
    pub insn: usize,
    /// What kind: `map`, `data`, `call`, `extern`, `core`, or `bad` for one that means nothing.
    pub kind: &'static str,
    /// What it refers to, in words.
    pub what: String,
}

impl Object {
    /// Lists the relocations of a program's own function in order of instruction; those of
    /// functions it calls are not among them.
    #[must_use]
    pub fn relocations(&self, program: &Program) -> Vec<Relocation> {
        let Some(code) = self.code.get(program.function.code) else { return Vec::new() };
        let Some(function) = code.functions.get(program.function.function) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        for (at, reference) in code.refs.range(function.start..function.start + function.len) {
            let (kind, what) = self.reference(reference);
            out.push(Relocation { insn: at - function.start, kind, what });
        }
        if let Some(btf) = &self.btf {
            let records = code.records(&code.core, function, |c| c.relo.offset);
            out.extend(records.map(|(insn, site)| Relocation {
                insn,
                kind: "core",
                what: core::describe(btf, &site.relo),
            }));
        }
        out.sort_by_cached_key(|r| r.insn as u64);
        out
    }

    /// Counts the instructions of a program's own function.
    #[must_use]
    pub fn own_insns(&self, program: &Program) -> usize {
        let function = self
            .code
            .get(program.function.code)
            .and_then(|c| c.functions.get(program.function.function));
        function.map_or(0, |f| f.len)
    }

    fn reference(&self, reference: &Ref) -> (&'static str, String) {
        let map = |index: &usize| self.maps.get(*index).map_or("?", |m| &m.name);
        match reference {
            Ref::Map(index) => ("map", map(index).to_owned()),
            Ref::Data { map: index, offset } => ("data", format!("{}+{offset}", map(index))),
            Ref::Code { code, insn } => {
                let section = self.code.get(*code);
                let function = section.and_then(|c| c.functions.get(c.function_at(*insn)?));
                ("call", function.map_or_else(|| format!("instruction {insn}"), |f| f.name.clone()))
            }
            Ref::Extern { name, weak } => {
                ("extern", if *weak { format!("{name} (weak)") } else { name.clone() })
            }
            Ref::Bad(what) => ("bad", what.clone()),
        }
    }
}
