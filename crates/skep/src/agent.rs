//! The target's side: finds its links in the environment, compiles their programs and hooks the functions they match.
//!
//! Runs once, in the constructor of the preloaded library, before the program's own code. Whatever goes wrong is written
//! into the link file for the loader to tell; the program runs on.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use skep_attach::sites::{self, Function, Module};
use skep_attach::{Engine, Hook, Position, RunFn};
use skep_maps::{Access, Map, slots::SlotTable};

use crate::clock;
use crate::dir::{Dir, ENV_DIR, ENV_LINKS, Kind};
use crate::link::{AgentRecord, Context, Cookie, Found, LinkFile, LinkSpec, Pattern, When, control};
use crate::prog::ProgramFile;
use crate::run::{self, Running};

/// Attaches every link the environment names. Does nothing when it names none.
pub fn start() {
    let _muted = skep_attach::mute();
    let Some(list) = std::env::var_os(ENV_LINKS) else { return };
    let Ok(dir) = Dir::open(&std::env::var_os(ENV_DIR).map_or_else(Dir::default_path, PathBuf::from)) else { return };
    let ids: Vec<u32> = list.to_string_lossy().split(',').filter_map(|s| s.trim().parse().ok()).collect();
    if ids.is_empty() {
        return;
    }
    let mut modules = None;
    for id in ids {
        let Ok(file) = LinkFile::open(&dir, id) else { continue };
        let began = Instant::now();
        let mut agent = AgentRecord {
            pid: std::process::id(),
            exe: std::fs::read_link("/proc/self/exe").map(|p| p.to_string_lossy().into_owned()).unwrap_or_default(),
            start_ns: 0,
            attach_ns: 0,
            attached: 0,
            error: None,
        };
        match attach(&dir, &file, &mut modules) {
            Ok((attached, nanos)) => (agent.attached, agent.attach_ns) = (attached, nanos),
            Err(e) => agent.error = Some(e.to_string()),
        }
        agent.start_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A loader that is gone reads nothing; the program must not care.
        drop(file.report(&agent));
        // The link is in use for as long as this process lives: the lock on its file stays.
        std::mem::forget(file);
    }
}

type AgentError = Box<dyn std::error::Error>;

/// The functions of the process, read once for all links.
type Modules = Vec<(Arc<Module>, String)>;

fn attach(dir: &Dir, file: &LinkFile, modules: &mut Option<Modules>) -> Result<(u32, u64), AgentError> {
    let spec = file.read()?.spec;
    let running: &'static Running = Box::leak(Box::new(load(dir, &spec)?));
    if modules.is_none() {
        *modules = Some(sites::scan()?.into_iter().map(|m| (Arc::clone(&m), m.path.to_string_lossy().into_owned())).collect());
    }
    let selection = Selection::new(&spec)?;
    let functions = selection.functions(modules.as_deref().unwrap_or_default());
    let found: Vec<Found> = functions.iter().map(found).collect();
    let indexes = file.register(&found)?;

    let hook = Hook {
        position: match spec.when {
            When::Entry => Position::Entry,
            When::Exit => Position::Exit,
            When::ModifyReturn => Position::ModifyReturn,
            When::Session => Position::Session,
        },
        run: match (spec.context, spec.when) {
            (Context::PtRegs, _) => run::registers as RunFn,
            (Context::Tracing, When::ModifyReturn) => run::modify_return,
            (Context::Tracing, _) => run::tracing,
        },
        data: std::ptr::from_ref(running).cast(),
        missed: running.missed(),
        wants_args: running.wants_args(),
    };
    let mut targets = Vec::with_capacity(functions.len());
    let mut skipped = Vec::new();
    for (function, &index) in functions.iter().zip(&indexes) {
        if index >= spec.max_functions {
            skipped.push((index, format!("more than {} functions in one link", spec.max_functions)));
        } else {
            let cookie = if spec.cookie == Cookie::Index { u64::from(index) } else { 0 };
            targets.push((index, function, cookie));
        }
    }
    let refs: Vec<(&Function, u64)> = targets.iter().map(|(_, f, cookie)| (*f, *cookie)).collect();
    let began = Instant::now();
    let attachment = Engine::get()?.attach(&refs, &[hook]);
    let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut attached = 0;
    for ((index, ..), result) in targets.iter().zip(&attachment.results) {
        match result {
            Ok(()) => attached += 1,
            Err(why) => skipped.push((*index, why.to_string())),
        }
    }
    if !skipped.is_empty() {
        file.skip(&skipped)?;
    }
    Ok((attached, nanos))
}

/// Opens and compiles what a link runs.
fn load(dir: &Dir, spec: &LinkSpec) -> Result<Running, AgentError> {
    SlotTable::open_or_create(dir.path())?.install();
    let open = |id: u32| -> Result<Arc<Map>, AgentError> { Ok(Arc::new(Map::open(&dir.object(Kind::Map, id), Access::ReadWrite)?)) };
    let control_map = open(spec.control)?;
    let word = |i| run::control_word(&control_map, i).load(std::sync::atomic::Ordering::Relaxed);
    clock::start(word(control::RATE));
    if let Ok(id @ 1..) = u32::try_from(word(control::LOG)) {
        crate::helpers::set_log(Box::leak(Box::new(Map::open(&dir.object(Kind::Map, id), Access::ReadWrite)?)));
    }
    let program = ProgramFile::open(dir, spec.program)?;
    let maps = program.program.maps.iter().map(|id| open(*id)).collect::<Result<_, _>>()?;
    let running = Running::new(&program.program, maps, control_map)?;
    std::mem::forget(program);
    Ok(running)
}

fn found(function: &Function) -> Found {
    Found {
        module: function.module.path.to_string_lossy().into_owned(),
        name: function.name.clone(),
        vaddr: function.addr.wrapping_sub(function.module.bias),
        size: function.size,
        skipped: None,
    }
}

/// The patterns of a link, read.
struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl Selection {
    fn new(spec: &LinkSpec) -> Result<Self, AgentError> {
        let read = |list: &[String]| list.iter().map(|p| p.parse()).collect::<Result<Vec<Pattern>, _>>();
        Ok(Self { include: read(&spec.include)?, exclude: read(&spec.exclude)? })
    }

    /// Lists the functions that match; a module whose symbols cannot be read has none.
    fn functions(&self, modules: &[(Arc<Module>, String)]) -> Vec<Function> {
        let mut all = Vec::new();
        let mut seen = HashSet::new();
        for (module, path) in modules {
            let include: Vec<&Pattern> = self.include.iter().filter(|p| in_module(p, module, path)).collect();
            if include.is_empty() {
                continue;
            }
            let exclude: Vec<&Pattern> = self.exclude.iter().filter(|p| in_module(p, module, path)).collect();
            let Ok(functions) = module.functions() else { continue };
            all.extend(functions.into_iter().filter(|f| matches(&include, f) && !matches(&exclude, f) && seen.insert(f.addr)));
        }
        all
    }
}

fn in_module(pattern: &Pattern, module: &Module, path: &str) -> bool {
    pattern.matches_module(path) || (module.is_main() && pattern.module.as_deref() == Some("/proc/self/exe"))
}

fn matches(patterns: &[&Pattern], function: &Function) -> bool {
    let plain = |p: &&Pattern| p.matches_function(&function.name) || function.aliases.iter().any(|a| p.matches_function(a));
    if patterns.iter().any(plain) {
        return true;
    }
    let name = skep_proc::demangle::demangle(&function.name);
    if name == function.name {
        return false;
    }
    // `ns::f` means `ns::f(int)` as well.
    let bare = name.split('(').next().unwrap_or(&name);
    patterns.iter().any(|p| p.matches_function(&name) || p.matches_function(bare))
}
