//! The kernel's side: objects of `benches/chain/bpf` in the kernel, and their test runs.

use skep::isa::MapFlags;
use skep::object::{InnerValue, MapSpec as Spec, Object};
use skep_kernel::{Map, MapSpec, Program, ProgramSpec, TestRun, TestRunResult, with_maps};

use crate::{Result, mark};

/// The maps of an object, and programs that use them.
pub struct Loaded {
    maps: Vec<(Spec, Map)>,
    object: Object,
}

fn spec(map: &Spec) -> MapSpec<'static> {
    MapSpec::new(map.map_type, map.key_size(), map.value_size, map.max_entries)
        .flags(map.flags.0 & !MapFlags::MMAPABLE)
}

fn create(of: &Spec) -> Result<Map> {
    let map = match &of.inner {
        Some(inner) => Map::create(&spec(of).inner(&Map::create(&spec(inner))?))?,
        None => Map::create(&spec(of))?,
    };
    if let Some(data) = &of.data {
        let mut value = data.clone();
        value.resize(of.value_size as usize, 0);
        map.update(&[0; 4], &value, 0)?;
        if of.frozen {
            map.freeze()?;
        }
    }
    Ok(map)
}

impl Loaded {
    /// Makes the maps of an object in the kernel; maps in maps get theirs.
    pub fn new(object: Object) -> Result<Self> {
        let maps = object.maps.iter().map(|of| Ok((of.clone(), create(of)?)));
        let maps = maps.collect::<Result<Vec<_>>>()?;
        for (of, map) in &maps {
            for (key, value) in &of.values {
                let InnerValue::Map(inner) = value else { continue };
                map.update(&key.to_ne_bytes(), &maps[*inner].1.fd().to_ne_bytes(), 0)?;
            }
        }
        Ok(Self { maps, object })
    }

    /// Finds a map by its name, or by its section's for global variables.
    pub fn map(&self, name: &str) -> Result<&Map> {
        let found = self.maps.iter().find(|(of, _)| of.name == name);
        Ok(&found.ok_or_else(|| format!("no map `{name}`"))?.1)
    }

    /// Loads a program.
    pub fn program(&self, name: &str) -> Result<Program> {
        let found = self.object.program(name).ok_or_else(|| format!("no program `{name}`"))?;
        let linked = self.object.link(found)?;
        let used: Vec<&Map> = linked.maps.iter().map(|used| &self.maps[used.index].1).collect();
        let bytes: Vec<u8> = linked.insns.iter().flat_map(|insn| insn.to_bytes()).collect();
        let insns = with_maps(&bytes, &used);
        let starts: Vec<u32> = match linked.subprogs.len() {
            1 => Vec::new(),
            _ => linked.subprogs.iter().map(|s| s.start as u32).collect(),
        };
        let spec = ProgramSpec {
            gpl: linked.gpl,
            functions: &starts,
            log: true,
            ..ProgramSpec::new(linked.prog_type, &insns)
        };
        Ok(Program::load(&spec)?)
    }

    /// Puts a program into a program array.
    pub fn set_program(&self, map: &str, index: u32, program: &Program) -> Result<()> {
        Ok(self.map(map)?.update(&index.to_ne_bytes(), &program.fd().to_ne_bytes(), 0)?)
    }

    /// Runs a program that notes the time in two of its runs: nanoseconds of one run.
    pub fn time(&self, program: &Program, packet: &[u8], runs: u32, want: u32) -> Result<f64> {
        time(self.map(".bss")?, program, packet, runs, want)
    }
}

/// The same; `globals` are the program's global variables.
pub fn time(globals: &Map, program: &Program, packet: &[u8], runs: u32, want: u32) -> Result<f64> {
    let size = globals.lookup(&[0; 4])?.len();
    globals.update(&[0; 4], &mark::begin(size, runs), 0)?;
    let done = run(program, packet, runs)?;
    mark::check(done.retval, want)?;
    mark::each(&globals.lookup(&[0; 4])?, runs)
}

/// Runs a program on a packet.
pub fn run(program: &Program, packet: &[u8], repeat: u32) -> Result<TestRunResult> {
    let room = packet.len() + 256;
    let run = TestRun { data_in: packet, data_out: room, repeat, ..TestRun::default() };
    Ok(program.test_run(&run)?)
}
