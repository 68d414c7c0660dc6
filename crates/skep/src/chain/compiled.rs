//! A graph with its programs, open and compiled.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use skep_isa::ProgramType;
use skep_maps::{Access, Map};
use skep_net::chain::{Graph, NodeId};
use skep_net::lookahead;
use skep_net::test_run::Errno;
use skep_runtime::compile;
use skep_runtime::prepare::expect_bad_loads;
use skep_runtime::tail::{Form, TailCalls};
use skep_store::chain::ChainFile;
use skep_store::dir::{Dir, Kind};
use skep_store::prog::{ProgramFile, WithMaps};
use skep_vm::chain::{Count, Counting, Interpreted, Plan, Unit};

use super::{ChainError, Result, convert};
use crate::test_run::{Engine, RunnerError};

/// What says which graph is to run.
pub(super) trait Origin: Send + Sync {
    /// Returns a number that is another one after each change.
    fn version(&self) -> Result<u64>;

    /// Returns the graph as it is now, and the type of its programs.
    fn graph(&self) -> Result<(Graph, ProgramType)>;

    /// Returns the id of the chain whose counters others may read; `None` when there is none.
    fn id(&self) -> Option<u32>;
}

impl Origin for ChainFile {
    fn version(&self) -> Result<u64> {
        Ok(self.length()?)
    }

    fn graph(&self) -> Result<(Graph, ProgramType)> {
        let spec = self.read()?;
        let prog_type = spec.prog_type;
        Ok((convert::to_graph(spec)?, prog_type))
    }

    fn id(&self) -> Option<u32> {
        Some(Self::id(self))
    }
}

/// A program of a chain, open with its maps.
pub(super) struct Part {
    pub calls: Option<Box<TailCalls>>,
    file: ProgramFile,
    maps: Vec<Arc<Map>>,
}

impl Part {
    fn open(dir: &Dir, id: u32, engine: Engine) -> Result<Self> {
        let file = ProgramFile::open(dir, id)?;
        let name = || file.program().name().to_owned();
        let open =
            |id: &u32| Map::open(&dir.object(Kind::Map, *id), Access::ReadWrite).map(Arc::new);
        let maps: Vec<_> = file
            .program()
            .maps()
            .iter()
            .map(open)
            .collect::<Result<_, _>>()
            .map_err(RunnerError::Slots)?;
        expect_bad_loads(file.program())
            .map_err(|source| RunnerError::Loads { program: name(), source })?;
        let form = match engine {
            Engine::Jit => Form::Code,
            Engine::Interp => Form::Interp,
        };
        let calls = TailCalls::of(
            file.program()
                .with_maps(&maps)
                .map_err(|source| RunnerError::Maps { program: name(), source })?,
            form,
            crate::helper,
        );
        Ok(Self { calls, file, maps })
    }

    pub fn verified(&self) -> Result<WithMaps<'_>> {
        let program = self.file.program();
        let name = || program.name().to_owned();
        let with = program.with_maps(&self.maps);
        Ok(with.map_err(|source| RunnerError::Maps { program: name(), source })?)
    }
}

/// Programs with their plan, ready to run. Has addresses of the parts that it was made of.
pub(super) enum Code {
    Jit(Unit),
    Interp(Interpreted),
}

impl Code {
    /// Compiles a plan with the program of each step.
    pub fn new(plan: &Plan, parts: &[Part], engine: Engine, count: Count) -> Result<Self> {
        match engine {
            Engine::Jit => {
                let with = parts
                    .iter()
                    .map(|p| Ok((p.verified()?, p.calls.as_deref())))
                    .collect::<Result<Vec<_>>>()?;
                Ok(Self::Jit(compile::chain(plan, &with, crate::helper, count)?))
            }
            Engine::Interp => {
                let programs = parts
                    .iter()
                    .map(|p| {
                        let program = || p.file.program().name().to_owned();
                        let with = p.verified()?;
                        compile::interpretable(with, p.calls.as_deref(), crate::helper)
                            .map_err(|source| RunnerError::Interp { program: program(), source })
                            .map_err(ChainError::from)
                    })
                    .collect::<Result<Vec<_>>>()?;
                let prog_type =
                    parts.first().map_or(ProgramType::Xdp, |p| p.file.program().prog_type());
                let options = compile::chain_options(prog_type, count);
                let chain = Interpreted::new(plan.clone(), programs, options);
                Ok(Self::Interp(chain.map_err(super::CompileError::from)?))
            }
        }
    }

    /// Runs the programs once.
    ///
    /// # Safety
    /// `ctx` is the kind of context that the programs were verified for.
    #[inline(always)]
    pub unsafe fn run(&self, ctx: *mut u8, counters: &[AtomicU64]) -> Result<u32, Errno> {
        match self {
            // SAFETY: the caller's promise; it was compiled from verified programs.
            Self::Jit(unit) => Ok(unsafe { unit.run(ctx, counters) }),
            // SAFETY: the caller's promise; it was made from verified programs.
            Self::Interp(chain) => unsafe { chain.run(ctx, counters) }.map_err(|_| Errno::EIO),
        }
    }
}

/// A graph that has programs, ready to run.
pub(super) struct Ready {
    /// Goes before what it has the addresses of.
    code: Code,
    /// The part of the first program that finds its lookups. As `code`.
    pub lookups: Option<skep_vm::Code>,
    pub plan: Plan,
    pub order: Vec<NodeId>,
    pub parts: Vec<Part>,
}

/// A graph at one revision. Not changed any more.
pub(super) struct Compiled {
    pub graph: Graph,
    pub ready: Option<Ready>,
    pub prog_type: ProgramType,
}

impl Compiled {
    pub fn new(dir: &Dir, origin: &dyn Origin, engine: Engine, count: Count) -> Result<Self> {
        let (graph, prog_type) = origin.graph()?;
        let ready = match graph.plan() {
            Some((plan, order)) => Some(Ready::new(dir, &graph, plan, order, engine, count)?),
            None => None,
        };
        Ok(Self { graph, ready, prog_type })
    }
}

impl Ready {
    fn new(
        dir: &Dir,
        graph: &Graph,
        plan: Plan,
        order: Vec<NodeId>,
        engine: Engine,
        count: Count,
    ) -> Result<Self> {
        let ids = order.iter().filter_map(|id| graph.node(*id)).map(|n| n.program.id);
        let parts = ids.map(|id| Part::open(dir, id, engine)).collect::<Result<Vec<_>>>()?;
        let code = Code::new(&plan, &parts, engine, count)?;
        let first = parts.first().filter(|_| engine == Engine::Jit);
        let lookups = first
            .map(Part::verified)
            .transpose()?
            .and_then(|first| compile::lookahead(first, lookahead::is_far, crate::helper));
        Ok(Self { code, lookups, plan, order, parts })
    }

    /// Returns the chain as machine code that adds to these counters; `None` when it is for the
    /// interpreter.
    #[inline]
    pub fn compiled<'a>(&'a self, counters: &'a [AtomicU64]) -> Option<Counting<'a>> {
        match &self.code {
            Code::Jit(unit) => Some(unit.counting(counters)),
            Code::Interp(_) => None,
        }
    }

    /// Runs the chain once.
    ///
    /// # Safety
    /// `ctx` is the kind of context that the programs were verified for.
    #[inline(always)]
    pub unsafe fn run(&self, ctx: *mut u8, counters: &[AtomicU64]) -> Result<u32, Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.code.run(ctx, counters) }
    }
}
