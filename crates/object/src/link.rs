//! Linking: a function and all it calls become one run of instructions, references become numbers.

use crate::btf::CoreRelo;
use crate::linked::{Line, Linked, LinkedMap, Subprog};
use crate::program::{Code, Function, FunctionId, Program, Ref};
use crate::{LinkError, Object};
use skep_isa::sec::SecDef;
use skep_isa::{Insn, helper, op};
use std::collections::HashMap;

/// Longest source line that is kept, in characters; a line may be a whole generated file.
const MAX_TEXT: usize = 240;
/// Number of a call to a weak kernel function that is not on offer; the verifier refuses it where it can be reached.
const MISSING_KFUNC: i32 = i32::MAX;

impl Object {
    /// Makes a program ready for the verifier, as its section's name says.
    ///
    /// # Errors
    /// When the section's name is unknown, when the program refers to something that is not there, or when it needs
    /// CO-RE relocations.
    pub fn link(&self, program: usize) -> Result<Linked, LinkError> {
        let p = self.programs.get(program).ok_or(LinkError::NoProgram { index: program })?;
        let def = p.def.ok_or_else(|| LinkError::Section { program: p.name.clone(), section: p.section.clone() })?;
        self.link_as(program, def)
    }

    /// Makes a program ready for the verifier as if its section belonged to the given family.
    ///
    /// # Errors
    /// As [`link`](Self::link), whatever the section's name.
    pub fn link_as(&self, program: usize, def: &SecDef) -> Result<Linked, LinkError> {
        let p = self.programs.get(program).ok_or(LinkError::NoProgram { index: program })?;
        let mut linker = Linker {
            object: self,
            program: p,
            insns: Vec::new(),
            placed: Vec::new(),
            numbers: HashMap::new(),
            starts: Vec::new(),
            maps: Vec::new(),
        };
        linker.run()?;
        let (subprogs, lines) = (linker.subprogs(), linker.lines());
        let maps = linker.maps.iter().filter_map(|i| Some(LinkedMap { index: *i, spec: self.maps.get(*i)?.clone() })).collect();
        Ok(Linked {
            name: p.name.clone(),
            section: p.section.clone(),
            prog_type: def.prog,
            attach_type: def.attach,
            target: p.target.clone(),
            sleepable: def.sleepable,
            gpl: self.is_gpl(),
            insns: linker.insns,
            maps,
            subprogs,
            lines,
            btf: self.btf.clone(),
        })
    }
}

/// Puts one program together.
struct Linker<'a> {
    object: &'a Object,
    program: &'a Program,
    insns: Vec<Insn>,
    /// Functions in the order they were met.
    placed: Vec<FunctionId>,
    /// Where in `placed` a function stands.
    numbers: HashMap<FunctionId, usize>,
    /// First instruction of those functions whose code was copied.
    starts: Vec<usize>,
    /// Object's maps in the order they were met.
    maps: Vec<usize>,
}

/// A reference between functions, settled when all of them have their place.
struct Fixup {
    insn: usize,
    /// Index into `placed`.
    to: usize,
}

impl<'a> Linker<'a> {
    /// Places the main function, then whatever the placed ones refer to, until nothing new turns up.
    fn run(&mut self) -> Result<(), LinkError> {
        let mut fixups = Vec::new();
        self.place(self.program.function);
        while let Some(id) = self.placed.get(self.starts.len()).copied() {
            self.starts.push(self.insns.len());
            let Some((code, function)) = self.get(id) else { continue };
            self.refuse_core(code, function)?;
            let insns = self.insns.len() + function.len;
            if insns > op::MAX_INSNS {
                return Err(LinkError::TooLong { program: self.program.name.clone(), insns, limit: op::MAX_INSNS });
            }
            self.function(id, code, function, &mut fixups)?;
        }
        for Fixup { insn, to } in fixups {
            let start = self.starts.get(to).copied().unwrap_or(0);
            if let Some(i) = self.insns.get_mut(insn) {
                i.imm = (start as i64 - insn as i64 - 1) as i32;
            }
        }
        Ok(())
    }

    fn get(&self, id: FunctionId) -> Option<(&'a Code, &'a Function)> {
        let code = self.object.code.get(id.code)?;
        Some((code, code.functions.get(id.function)?))
    }

    /// Returns a function's number, a new one when it is met for the first time.
    fn place(&mut self, id: FunctionId) -> usize {
        *self.numbers.entry(id).or_insert_with(|| {
            self.placed.push(id);
            self.placed.len() - 1
        })
    }

    fn map(&mut self, index: usize) -> i32 {
        let at = self.maps.iter().position(|m| *m == index).unwrap_or_else(|| {
            self.maps.push(index);
            self.maps.len() - 1
        });
        at as i32
    }

    /// Copies a function's instructions and settles what they refer to outside of it.
    fn function(&mut self, id: FunctionId, code: &Code, function: &Function, fixups: &mut Vec<Fixup>) -> Result<(), LinkError> {
        let base = self.insns.len();
        self.insns.extend_from_slice(code.body(function));
        let mut at = base;
        while let Some(insn) = self.insns.get(at).copied() {
            let in_section = function.start + (at - base);
            let bad = |what: String| LinkError::Reloc { program: self.program.name.clone(), insn: in_section, what };
            let reference = code.refs.get(&in_section);
            let mut new = insn;
            let mut second = None;
            if insn.is_ld_imm64() {
                second = self.insns.get(at + 1).copied();
                let Some(high) = &mut second else { return Err(bad("64-bit immediate without its second half".to_owned())) };
                self.address(reference, &mut new, high, at, in_section, fixups)?;
            } else if insn.code == op::CALL {
                self.call(reference, &mut new, at, id, in_section, fixups)?;
            } else if let Some(Ref::Bad(what)) = reference {
                return Err(bad(what.clone()));
            }
            if let Some(slot) = self.insns.get_mut(at) {
                *slot = new;
            }
            if let (Some(slot), Some(high)) = (self.insns.get_mut(at + 1), second) {
                *slot = high;
            }
            at += if second.is_some() { 2 } else { 1 };
        }
        Ok(())
    }

    /// Settles a 64-bit immediate.
    fn address(
        &mut self,
        reference: Option<&Ref>,
        low: &mut Insn,
        high: &mut Insn,
        at: usize,
        in_section: usize,
        fixups: &mut Vec<Fixup>,
    ) -> Result<(), LinkError> {
        let program = &self.program.name;
        let bad = |what: String| LinkError::Reloc { program: program.clone(), insn: in_section, what };
        let Some(reference) = reference else {
            return if low.src() == 0 { Ok(()) } else { Err(bad(format!("64-bit immediate of kind {} without relocation", low.src()))) };
        };
        let dst = low.dst();
        let mut set = |pseudo: u8, first: i32, then: i32| {
            *low = Insn::new(op::LD_IMM64, dst, pseudo, 0, first);
            high.imm = then;
        };
        match reference {
            Ref::Map(map) => set(op::PSEUDO_MAP_IDX, self.map(*map), 0),
            Ref::Data { map, offset } => set(op::PSEUDO_MAP_IDX_VALUE, self.map(*map), *offset as i32),
            Ref::Code { code, insn } => {
                let to = self.callee(*code, *insn).ok_or_else(|| bad("address of a place where no function begins".to_owned()))?;
                set(op::PSEUDO_FUNC, 0, 0);
                fixups.push(Fixup { insn: at, to: self.place(to) });
            }
            // The address of a function serves to ask whether it exists (`bpf_ksym_exists`).
            Ref::Extern { name, .. } if helper::kfunc(name).is_some() => set(0, 1, 0),
            Ref::Extern { weak: true, .. } => set(0, 0, 0),
            Ref::Extern { name, .. } => return Err(self.missing(name, in_section)),
            Ref::Bad(what) => return Err(bad(what.clone())),
        }
        Ok(())
    }

    /// Settles a call.
    fn call(
        &mut self,
        reference: Option<&Ref>,
        insn: &mut Insn,
        at: usize,
        id: FunctionId,
        in_section: usize,
        fixups: &mut Vec<Fixup>,
    ) -> Result<(), LinkError> {
        let program = &self.program.name;
        let bad = |what: String| LinkError::Reloc { program: program.clone(), insn: in_section, what };
        let to = match reference {
            None if insn.src() == 0 => return Ok(()),
            None if insn.src() == op::PSEUDO_CALL => self.callee(id.code, in_section as i64 + i64::from(insn.imm) + 1),
            None => return Err(bad(format!("call of kind {} without relocation", insn.src()))),
            Some(Ref::Code { code, insn }) => self.callee(*code, *insn),
            Some(Ref::Extern { name, weak }) => {
                let imm = match helper::kfunc(name) {
                    Some(h) => h.id as i32,
                    None if *weak => MISSING_KFUNC,
                    None => return Err(self.missing(name, in_section)),
                };
                *insn = Insn { imm, ..insn.with_src(0) };
                return Ok(());
            }
            Some(Ref::Map(_) | Ref::Data { .. }) => return Err(bad("call of a variable".to_owned())),
            Some(Ref::Bad(what)) => return Err(bad(what.clone())),
        };
        let to = to.ok_or_else(|| bad("call of a place where no function begins".to_owned()))?;
        *insn = insn.with_src(op::PSEUDO_CALL);
        fixups.push(Fixup { insn: at, to: self.place(to) });
        Ok(())
    }

    fn callee(&self, code: usize, insn: i64) -> Option<FunctionId> {
        let function = self.object.code.get(code)?.function_at(insn)?;
        Some(FunctionId { code, function })
    }

    fn missing(&self, symbol: &str, insn: usize) -> LinkError {
        let kind = self.object.extern_kind(symbol);
        LinkError::Extern { program: self.program.name.clone(), insn, kind, symbol: symbol.to_owned() }
    }

    fn refuse_core(&self, code: &Code, function: &Function) -> Result<(), LinkError> {
        let Some((insn, relo)) = code.records(&code.core, function, |c| c.offset).next() else { return Ok(()) };
        let access = self.object.describe_core(relo);
        Err(LinkError::Core { program: self.program.name.clone(), insn: function.start + insn, access })
    }

    fn subprogs(&self) -> Vec<Subprog> {
        let subprog = |(id, start): (&FunctionId, &usize)| {
            let (_, f) = self.get(*id)?;
            Some(Subprog { start: *start, name: f.name.clone(), global: f.global, type_id: f.type_id })
        };
        self.placed.iter().zip(&self.starts).filter_map(subprog).collect()
    }

    fn lines(&self) -> Vec<Line> {
        let Some(btf) = &self.object.btf else { return Vec::new() };
        let mut out: Vec<Line> = Vec::new();
        for (id, start) in self.placed.iter().zip(&self.starts) {
            let Some((code, function)) = self.get(*id) else { continue };
            for (insn, l) in code.records(&code.lines, function, |l| l.offset) {
                let insn = start + insn;
                if out.last().is_some_and(|last| last.insn == insn) {
                    out.pop();
                }
                let short = |offset: u32| btf.string(offset).trim().chars().take(MAX_TEXT).collect();
                out.push(Line { insn, file: short(l.file_off), line: l.line, column: l.column, text: short(l.text_off) });
            }
        }
        out
    }
}

impl Object {
    /// Tells what an undefined symbol is, by the section its declaration names.
    fn extern_kind(&self, symbol: &str) -> &'static str {
        use crate::btf::Kind;
        let find = |section: &str| -> Option<&Kind> {
            let btf = self.btf.as_ref()?;
            let id = btf.find(section, |k| matches!(k, Kind::DataSec(_)))?;
            let Kind::DataSec(sec) = &btf.get(id).ok()?.kind else { return None };
            let var = sec.vars.iter().find(|v| btf.name(v.type_id) == symbol)?;
            Some(&btf.get(var.type_id).ok()?.kind)
        };
        match (find(".kconfig"), find(".ksyms")) {
            (Some(_), _) => "configuration value",
            (_, Some(Kind::Func(_))) => "kernel function",
            (_, Some(_)) => "kernel variable",
            _ => "external symbol",
        }
    }

    fn describe_core(&self, relo: &CoreRelo) -> String {
        const KINDS: &[&str] = &[
            "byte_off",
            "byte_sz",
            "field_exists",
            "signed",
            "lshift_u64",
            "rshift_u64",
            "local_type_id",
            "target_type_id",
            "type_exists",
            "type_size",
            "enumval_exists",
            "enumval_value",
            "type_matches",
        ];
        let kind = KINDS.get(relo.kind as usize).copied().unwrap_or("unknown");
        let Some(btf) = &self.btf else { return kind.to_owned() };
        format!("{kind} of `{}`, {}", btf.describe(relo.type_id), btf.string(relo.access_off).chars().take(MAX_TEXT).collect::<String>())
    }
}
