//! Linking: a function and all it calls become one run of instructions, references become numbers.

use crate::core::{self, CoreError, CoreTarget, Relocator};
use crate::linked::{Line, Linked, LinkedMap, Missing, Subprog};
use crate::program::{Code, CoreSite, Function, FunctionId, Program, Ref};
use crate::{LinkError, Object, kconfig};
use skep_isa::sec::SecDef;
use skep_isa::{Insn, ProgramType, helper, kfunc, op};
use std::collections::{HashMap, HashSet};

/// Helper number of a call to a weak kernel function that is not on offer; libbpf's number. The
/// verifier refuses it where it can be reached.
pub const POISON_KFUNC: i32 = 2_002_000_000;

/// Says how a program is to be linked; the default is what its section says, without types to fit
/// to.
#[derive(Clone, Copy, Default, Debug)]
pub struct LinkOptions<'a> {
    /// Take the program as one of this family, whatever its section is called.
    pub def: Option<&'static SecDef>,
    /// The types that CO-RE relocations are resolved against.
    pub target: Option<&'a CoreTarget>,
    /// Also link kernel functions that only the verifier knows ([`kfunc`]): for programs that are
    /// judged, not run.
    pub known_kfuncs: bool,
}

impl Object {
    /// Makes a program ready for the verifier, as its section's name says.
    ///
    /// # Errors
    /// When the section's name is unknown, when the program refers to something that is not there,
    /// or when it needs CO-RE relocations.
    pub fn link(&self, program: usize) -> Result<Linked, LinkError> {
        self.link_with(program, &LinkOptions::default())
    }

    /// Makes a program ready for the verifier.
    ///
    /// # Errors
    /// When the section's name is unknown and no family is given, when the program refers to
    /// something that is not there, or when it needs CO-RE relocations and there are no types
    /// to fit it to.
    pub fn link_with(
        &self,
        program: usize,
        options: &LinkOptions<'_>,
    ) -> Result<Linked, LinkError> {
        let p = self.programs.get(program).ok_or(LinkError::NoProgram { index: program })?;
        let def = options.def.or(p.def).ok_or_else(|| LinkError::Section {
            program: p.name.clone(),
            section: p.section_meant().to_owned(),
        })?;
        if def.prog == ProgramType::StructOps {
            let what = "`struct_ops` programs take the place of functions in the kernel, there is nothing like it outside";
            return Err(LinkError::Unsupported {
                program: p.name.clone(),
                section: p.section_meant().to_owned(),
                what,
            });
        }
        let mut linker = Linker {
            object: self,
            program: p,
            relocator: self
                .btf
                .as_ref()
                .map(|btf| Relocator::new(btf, options.target, self.core_sites(p))),
            insns: Vec::new(),
            placed: Vec::new(),
            starts: HashMap::new(),
            open: Vec::new(),
            maps: Vec::new(),
            misses: Vec::new(),
            known_kfuncs: options.known_kfuncs,
        };
        linker.run()?;
        let (subprogs, lines) = (linker.subprogs(), linker.lines());
        let maps = linker
            .maps
            .iter()
            .filter_map(|i| Some(LinkedMap { index: *i, spec: self.maps.get(*i)?.clone() }))
            .collect();
        Ok(Linked {
            name: p.name.clone(),
            section: p.section_meant().to_owned(),
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
            misses: linker.misses,
        })
    }
}

/// Puts one program together.
struct Linker<'a> {
    object: &'a Object,
    program: &'a Program,
    /// Does CO-RE relocations; only objects with types have any.
    relocator: Option<Relocator<'a>>,
    insns: Vec<Insn>,
    /// The functions with their first instruction, in order.
    placed: Vec<(FunctionId, usize)>,
    starts: HashMap<FunctionId, usize>,
    /// Functions whose instructions are being settled: the innermost last. Placed functions are
    /// settled at once, before the rest of their caller, so that the order is libbpf's.
    open: Vec<Open<'a>>,
    /// Object's maps in the order they were met.
    maps: Vec<usize>,
    /// What is not there, by instruction.
    misses: Vec<(usize, Missing)>,
    known_kfuncs: bool,
}

/// A function whose instructions are being settled.
#[derive(Clone, Copy)]
struct Open<'a> {
    id: FunctionId,
    code: &'a Code,
    function: &'a Function,
    /// Its first instruction.
    base: usize,
    /// The next one to be settled.
    at: usize,
}

impl Open<'_> {
    /// Number of the next instruction in its section.
    fn in_section(&self) -> usize {
        self.function.start + (self.at - self.base)
    }
}

impl<'a> Linker<'a> {
    /// Places the main function and settles every instruction of it and of those it leads to.
    fn run(&mut self) -> Result<(), LinkError> {
        self.place(self.program.function)?;
        while let Some(open) = self.open.last_mut() {
            let here = *open;
            if here.at >= here.base + here.function.len {
                self.open.pop();
                continue;
            }
            let wide = self.insns.get(here.at).is_some_and(|i| i.is_ld_imm64());
            open.at += if wide { 2 } else { 1 };
            self.settle(&here)?;
        }
        Ok(())
    }

    /// Returns where a function starts; one that is met for the first time is copied to the end.
    fn place(&mut self, id: FunctionId) -> Result<usize, LinkError> {
        if let Some(start) = self.starts.get(&id) {
            return Ok(*start);
        }
        let base = self.insns.len();
        let Some((code, function)) = self.get(id) else { return Ok(base) };
        let insns = base + function.len;
        if insns > op::MAX_INSNS {
            return Err(LinkError::TooLong {
                program: self.program.name.clone(),
                insns,
                limit: op::MAX_INSNS,
            });
        }
        self.insns.extend_from_slice(code.body(function));
        self.relocate(code, function, base)?;
        self.placed.push((id, base));
        self.starts.insert(id, base);
        self.open.push(Open { id, code, function, base, at: base });
        Ok(base)
    }

    fn get(&self, id: FunctionId) -> Option<(&'a Code, &'a Function)> {
        let code = self.object.code.get(id.code)?;
        Some((code, code.functions.get(id.function)?))
    }

    fn map(&mut self, index: usize) -> i32 {
        let at = self.maps.iter().position(|m| *m == index).unwrap_or_else(|| {
            self.maps.push(index);
            self.maps.len() - 1
        });
        at as i32
    }

    /// Settles one instruction.
    fn settle(&mut self, here: &Open<'_>) -> Result<(), LinkError> {
        let Some(insn) = self.insns.get(here.at).copied() else { return Ok(()) };
        let reference = here.code.refs.get(&here.in_section());
        if insn.is_ld_imm64() {
            let last = here.base + here.function.len;
            let high = self.insns.get(here.at + 1).copied().filter(|_| here.at + 1 < last);
            let Some(high) = high else {
                return Err(self.bad(here, "64-bit immediate without its second half"));
            };
            let new = self.address(here, reference, [insn, high])?;
            if let Some(slots) = self.insns.get_mut(here.at..).and_then(|s| s.first_chunk_mut()) {
                *slots = new;
            }
        } else if insn.code == op::CALL {
            let new = self.call(here, reference, insn)?;
            if let Some(slot) = self.insns.get_mut(here.at) {
                *slot = new;
            }
        } else if let Some(Ref::Bad(what)) = reference {
            return Err(self.bad(here, what));
        }
        Ok(())
    }

    fn bad(&self, here: &Open<'_>, what: impl Into<String>) -> LinkError {
        LinkError::Reloc {
            program: self.program.name.clone(),
            insn: here.in_section(),
            what: what.into(),
        }
    }

    /// Settles a 64-bit immediate.
    fn address(
        &mut self,
        here: &Open<'_>,
        reference: Option<&Ref>,
        [low, high]: [Insn; 2],
    ) -> Result<[Insn; 2], LinkError> {
        let with = |pseudo: u8, first: i32, then: i32| {
            [Insn { imm: first, ..low.with_src(pseudo) }, Insn { imm: then, ..high }]
        };
        Ok(match reference {
            None if low.src() == 0 => [low, high],
            None => {
                return Err(self.bad(
                    here,
                    format!("64-bit immediate of kind {} without relocation", low.src()),
                ));
            }
            Some(Ref::Map(map)) => with(op::PSEUDO_MAP_IDX, self.map(*map), 0),
            Some(Ref::Data { map, offset }) => {
                with(op::PSEUDO_MAP_IDX_VALUE, self.map(*map), *offset as i32)
            }
            Some(Ref::Code { code, insn }) => {
                let to = self
                    .callee(*code, *insn)
                    .ok_or_else(|| self.bad(here, "address of a place where no function begins"))?;
                with(op::PSEUDO_FUNC, distance(here.at, self.place(to)?), 0)
            }
            Some(Ref::Extern { name, .. })
                if let Some(var) = self.object.kconfig.iter().find(|v| v.name == *name) =>
            {
                let map = self
                    .object
                    .maps
                    .iter()
                    .position(|m| m.section == kconfig::SECTION && m.is_global_data());
                let Some(map) = map.filter(|_| var.set || var.weak) else {
                    return Err(self.missing(name, here));
                };
                with(op::PSEUDO_MAP_IDX_VALUE, self.map(map), var.offset as i32)
            }
            // The address of a function serves to ask whether it exists (`bpf_ksym_exists`).
            Some(Ref::Extern { name, .. }) if self.kfunc(name).is_some() => with(0, 1, 0),
            Some(Ref::Extern { weak: true, .. }) => with(0, 0, 0),
            Some(Ref::Extern { name, .. }) => return Err(self.missing(name, here)),
            Some(Ref::Bad(what)) => return Err(self.bad(here, what)),
        })
    }

    /// Settles a call.
    fn call(
        &mut self,
        here: &Open<'_>,
        reference: Option<&Ref>,
        insn: Insn,
    ) -> Result<Insn, LinkError> {
        let to = match reference {
            None if insn.src() == 0 => return Ok(insn),
            None if insn.src() == op::PSEUDO_CALL => {
                self.callee(here.id.code, here.in_section() as i64 + i64::from(insn.imm) + 1)
            }
            None => {
                return Err(
                    self.bad(here, format!("call of kind {} without relocation", insn.src()))
                );
            }
            Some(Ref::Code { code, insn }) => self.callee(*code, *insn),
            Some(Ref::Extern { name, weak }) => {
                let imm = match self.kfunc(name) {
                    Some(id) => id as i32,
                    None if *weak => {
                        self.misses.push((here.at, Missing::Function(name.clone())));
                        POISON_KFUNC
                    }
                    None => return Err(self.missing(name, here)),
                };
                return Ok(Insn { imm, ..insn.with_src(0) });
            }
            Some(Ref::Map(_) | Ref::Data { .. }) => {
                return Err(self.bad(here, "call of a variable"));
            }
            Some(Ref::Bad(what)) => return Err(self.bad(here, what)),
        };
        let to = to.ok_or_else(|| self.bad(here, "call of a place where no function begins"))?;
        Ok(Insn { imm: distance(here.at, self.place(to)?), ..insn.with_src(op::PSEUDO_CALL) })
    }

    /// Number of a kernel function that may be called; a flavour behind three underscores names the
    /// same one.
    fn kfunc(&self, name: &str) -> Option<helper::HelperId> {
        let name = name.split("___").next().unwrap_or(name);
        let offered = helper::kfunc(name).map(|h| h.id);
        offered.or_else(|| {
            kfunc::by_name(name).filter(|(_, k)| k.offered || self.known_kfuncs).map(|(id, _)| id)
        })
    }

    fn callee(&self, code: usize, insn: i64) -> Option<FunctionId> {
        let function = self.object.code.get(code)?.function_at(insn)?;
        Some(FunctionId { code, function })
    }

    fn missing(&self, symbol: &str, here: &Open<'_>) -> LinkError {
        let kind = self.object.extern_kind(symbol);
        LinkError::Extern {
            program: self.program.name.clone(),
            insn: here.in_section(),
            kind,
            symbol: symbol.to_owned(),
        }
    }

    /// Does the CO-RE relocations of a function whose copy begins at `base`.
    fn relocate(&mut self, code: &Code, function: &Function, base: usize) -> Result<(), LinkError> {
        let Some(relocator) = &self.relocator else { return Ok(()) };
        for (insn, site) in code.records(&code.core, function, |c| c.relo.offset) {
            let relo = &site.relo;
            let Some(insns) = self.insns.get_mut(base + insn..) else { continue };
            let whole = (relo.offset as usize).is_multiple_of(Insn::SIZE);
            let relocated = if whole {
                relocator.relocate(site, insns)
            } else {
                Err("relocation of no instruction".into())
            };
            let Err(e) = relocated else {
                if insns.first().is_some_and(|i| i.code == op::CALL && i.imm == core::POISON_CORE) {
                    self.misses.push((
                        base + insn,
                        Missing::Type(core::describe(relocator.local(), relo)),
                    ));
                }
                continue;
            };
            let access =
                self.object.btf.as_ref().map(|btf| core::describe(btf, relo)).unwrap_or_default();
            let (program, insn) = (self.program.name.clone(), function.start + insn);
            return Err(match e {
                CoreError::NoTarget => LinkError::CoreTarget { program, insn, access },
                CoreError::Other(what) => LinkError::Core { program, insn, access, what },
            });
        }
        Ok(())
    }

    fn subprogs(&self) -> Vec<Subprog> {
        let subprog = |(id, start): &(FunctionId, usize)| {
            let (_, f) = self.get(*id)?;
            Some(Subprog {
                start: *start,
                name: f.name.clone(),
                global: f.global,
                type_id: f.type_id,
            })
        };
        self.placed.iter().filter_map(subprog).collect()
    }

    fn lines(&self) -> Vec<Line> {
        let Some(btf) = &self.object.btf else { return Vec::new() };
        let mut out: Vec<Line> = Vec::new();
        for (id, start) in &self.placed {
            let Some((code, function)) = self.get(*id) else { continue };
            for (insn, l) in code.records(&code.lines, function, |l| l.offset) {
                let insn = start + insn;
                if out.last().is_some_and(|last| last.insn == insn) {
                    out.pop();
                }
                out.push(Line::new(btf, insn, l));
            }
        }
        out
    }
}

/// Distance of a jump from the instruction behind it.
fn distance(from: usize, to: usize) -> i32 {
    (to as i64 - from as i64 - 1) as i32
}

impl Object {
    /// Lists the CO-RE relocations in the order they are done, without those of other programs that
    /// are not loaded.
    fn core_sites(&self, program: &Program) -> Vec<CoreSite> {
        let others = self.programs.iter().filter(|p| !p.autoload && p.function != program.function);
        let idle: HashSet<FunctionId> = others.map(|p| p.function).collect();
        let mut out = Vec::new();
        for (number, code) in self.code.iter().enumerate() {
            let is_idle = |site: &&CoreSite| {
                let insn = site.relo.offset as usize / Insn::SIZE;
                let function = code.functions.partition_point(|f| f.start <= insn).checked_sub(1);
                function
                    .is_some_and(|function| idle.contains(&FunctionId { code: number, function }))
            };
            out.extend(code.core.iter().filter(|site| idle.is_empty() || !is_idle(site)).copied());
        }
        out.sort_unstable_by_key(|site| site.number);
        out
    }

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
}
