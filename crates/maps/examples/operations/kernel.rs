//! The same loop as a BPF program in the kernel.

use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::Duration;

use skep_isa::{MapType, ProgramType, text};
use skep_kernel::{
    Map, MapSpec, PerfReader, Program, ProgramSpec, RingReader, TestRun, possible_cpus, with_maps,
};

use crate::{Case, Op, Part, Result, Side};

/// Keys a run of the program goes through: the kernel's verifier walks the loop.
const ROUNDS: u32 = 256;

/// Fills what was reserved and submits it.
const RESERVED: &str = "jeq %r0, 0, skip
    ldxdw %r1, [%r10-8]
    stxdw [%r0], %r1
    mov %r1, %r0
    mov %r2, 0
    call 132";

/// What a map holds descriptors of.
enum Named {
    Nothing,
    Map(Map),
    Program(Program),
    ControlGroup(std::fs::File),
}

/// Bytes of a perf event's ring: all samples of a pass.
const PERF_RING: usize = 1 << 18;

/// Finds a control group of version 2.
pub fn control_group() -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    fields.find(|f| f.get(2) == Some(&"cgroup2")).and_then(|f| f.get(1).map(Into::into))
}

/// A map with its keys, in maps of the kernel.
pub struct Kernel {
    map: Map,
    map_type: MapType,
    /// What a user stores: for maps of maps and the like, a descriptor.
    stored: Vec<u8>,
    _named: Named,
    perf: Option<Mutex<PerfReader>>,
    key: usize,
    keys: Map,
    others: Map,
    stride: usize,
    count: u32,
    value: u32,
    entries: u32,
}

fn array(value_size: usize, value: &[u8]) -> Result<Map> {
    let map = Map::create(&MapSpec::new(MapType::Array, 4, value_size as u32, 1))?;
    map.update(&[0; 4], value, 0)?;
    Ok(map)
}

impl Kernel {
    /// Makes the case's map.
    pub fn new(case: &Case) -> Result<Self> {
        let (value_size, max_entries) = match case.map_type {
            MapType::Ringbuf => (0, case.entries()),
            MapType::PerfEventArray => (4, possible_cpus()? as u32),
            _ => (case.value, case.entries()),
        };
        let spec =
            MapSpec::new(case.map_type, case.key, value_size, max_entries).flags(case.flags());
        let named = match case.map_type {
            _ if case.outer() => Named::Map(array(8, &[0; 8])?),
            MapType::ProgArray => {
                let bytes: Vec<u8> =
                    text::assemble("mov %r0, 0\nexit")?.iter().flat_map(|i| i.to_bytes()).collect();
                Named::Program(Program::load(&ProgramSpec::new(ProgramType::SocketFilter, &bytes))?)
            }
            MapType::CgroupArray => Named::ControlGroup(std::fs::File::open(
                control_group().ok_or("no control groups of version 2")?,
            )?),
            _ => Named::Nothing,
        };
        let map = if let Named::Map(inner) = &named {
            Map::create(&spec.inner(inner))
        } else {
            Map::create(&spec)
        }?;
        let stored = match &named {
            Named::Nothing => {
                vec![case.value(); map.user_value_size() / case.value().len().max(1)].concat()
            }
            Named::Map(map) => map.fd().to_ne_bytes().to_vec(),
            Named::Program(program) => program.fd().to_ne_bytes().to_vec(),
            Named::ControlGroup(file) => file.as_raw_fd().to_ne_bytes().to_vec(),
        };
        let perf = if case.map_type == MapType::PerfEventArray {
            Some(Mutex::new(PerfReader::new(&map, PERF_RING)?))
        } else {
            None
        };
        let (keys, others) = (case.all_keys(false), case.all_keys(true));
        Ok(Self {
            map,
            map_type: case.map_type,
            stored,
            _named: named,
            perf,
            key: case.key as usize,
            keys: array(keys.len(), &keys)?,
            others: array(others.len(), &others)?,
            stride: case.stride(),
            count: case.keys,
            value: case.value,
            entries: case.entries(),
        })
    }

    /// The program: `ROUNDS` keys from the place in the map of the thread's own on, and how often
    /// the result was as wanted.
    fn program(&self, op: Op, state: &Map) -> Result<Program> {
        let (call, prepare, good) = match op {
            Op::Lookup(true) => (1, "", "jeq %r0, 0, skip"),
            Op::Lookup(false) => (1, "", "jne %r0, 0, skip"),
            Op::Overwrite | Op::Insert => {
                (2, "mov %r3, %r10\nadd %r3, -128\nmov %r4, 0", "jne %r0, 0, skip")
            }
            Op::Delete => (3, "", "jne %r0, 0, skip"),
            Op::Push => (87, "mov %r3, 0", "jne %r0, 0, skip"),
            Op::Pop => (88, "mov %r2, %r10\nadd %r2, -128", "jne %r0, 0, skip"),
            Op::Peek => (89, "", "jne %r0, 0, skip"),
            Op::Reserve => {
                (131, "ldxdw %r3, [%r2]\nstxdw [%r10-8], %r3\nmov %r2, 8\nmov %r3, 0", RESERVED)
            }
            Op::Output if self.map_type == MapType::PerfEventArray => {
                (25, "mov %r4, %r2\nmov %r5, 8\nmov32 %r3, -1", "jne %r0, 0, skip")
            }
            Op::Output => (
                130,
                if self.value == 8 { "mov %r3, 8\nmov %r4, 0" } else { "mov %r3, 64\nmov %r4, 0" },
                "jne %r0, 0, skip",
            ),
            Op::ReadMany | Op::StoreMany => return Err("not the kernel's".into()),
            Op::StackId | Op::Read | Op::Store | Op::Remove | Op::Append | Op::Take => {
                return Err("not a program's".into());
            }
            Op::Consume | Op::Through => return Err("done by a consumer".into()),
        };
        let zero: String = (0..self.value.div_ceil(8))
            .map(|i| format!("stdw [%r10-{}], 1\n", 128 - 8 * i))
            .collect();
        let (shift, mask) = (self.stride.trailing_zeros(), self.count - 1);
        let invoke = match call {
            25 => "lddw %r2, map 0\nldxdw %r1, [%r10-16]\ncall 25".to_owned(),
            _ => format!("lddw %r1, map 0\ncall {call}"),
        };
        let source = format!(
            "stxdw [%r10-16], %r1
             stw [%r10-4], 0
             {zero}
             mov %r2, %r10
             add %r2, -4
             lddw %r1, map 1
             call 1
             jeq %r0, 0, out
             mov %r6, %r0
             mov %r2, %r10
             add %r2, -4
             lddw %r1, map 2
             call 1
             jeq %r0, 0, out
             mov %r7, %r0
             ldxdw %r8, [%r7]
             mov %r9, 0
             next:
             mov %r2, %r8
             and %r2, {mask}
             lsh %r2, {shift}
             add %r2, %r6
             {prepare}
             {invoke}
             {good}
             ldxdw %r1, [%r7+8]
             add %r1, 1
             stxdw [%r7+8], %r1
             skip:
             add %r8, 1
             add %r9, 1
             jlt %r9, {ROUNDS}, next
             stxdw [%r7], %r8
             out:
             mov %r0, 0
             exit"
        );
        let insns = text::assemble(&source)?;
        let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
        let keys = if op == Op::Lookup(false) { &self.others } else { &self.keys };
        let bytes = with_maps(&bytes, &[&self.map, keys, state]);
        Ok(Program::load(&ProgramSpec {
            log: true,
            ..ProgramSpec::new(self.program_type(), &bytes)
        })?)
    }
}

impl Kernel {
    /// Socket filters, but only XDP programs look into tables of devices, and only others than both
    /// have events.
    fn program_type(&self) -> ProgramType {
        match self.map_type {
            MapType::Devmap | MapType::DevmapHash | MapType::Xskmap => ProgramType::Xdp,
            MapType::PerfEventArray => ProgramType::SchedCls,
            _ => ProgramType::SocketFilter,
        }
    }

    /// A user's operations on the keys of a part.
    fn as_user(&self, op: Op, part: usize, threads: usize) -> Result<Part<'_>> {
        let keys = self.keys.lookup(&[0; 4])?;
        let each = keys.len() / threads;
        Ok(Box::new(move || {
            for key in keys[each * part..each * (part + 1)].chunks_exact(self.stride) {
                let key = &key[..self.key];
                let done = match op {
                    Op::Read => self.map.lookup(key).map(drop),
                    Op::Store => self.map.update(key, &self.stored, 0),
                    Op::Append => self.map.update(key, &self.stored, 0),
                    Op::Take => self.map.lookup_and_delete(key).map(drop),
                    _ => self.map.delete(key),
                };
                done.map_err(|e| e.to_string())?;
            }
            Ok(None)
        }))
    }
}

/// What the kernel says a full map takes.
pub fn memory(case: &Case) -> Result<u64> {
    let side = Kernel::new(case)?;
    side.part(case.filling().ok_or("no case for memory")?, 0, 1)?()?;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", side.map.fd()))?;
    let line = text.lines().find_map(|l| l.strip_prefix("memlock:")).ok_or("no line `memlock`")?;
    Ok(line.trim().parse()?)
}

/// Maps that are filled to see what one takes: some megabytes, beside which what others allocate
/// meanwhile is little.
const MAPS: u64 = 16;

/// What a full map really takes in the kernel: how much more slab, per-CPU and `vmalloc` pages
/// there are when `MAPS` of them are full, divided by that. `memlock` is computed from sizes
/// instead, and leaves out what an element is rounded up to, what the allocator keeps in store, and
/// the inner nodes of tries.
pub fn taken(case: &Case) -> Result<u64> {
    let filling = case.filling().ok_or("no case for memory")?;
    // Also makes what there is once for all.
    Kernel::new(case)?.part(filling, 0, 1)?()?;
    let before = settled()?;
    let mut maps = Vec::new();
    for _ in 0..MAPS {
        let side = Kernel::new(case)?;
        side.part(filling, 0, 1)?()?;
        // Its keys are maps too.
        maps.push(side.map);
    }
    Ok(settled()?.saturating_sub(before) / MAPS)
}

/// Bytes of the kernel's pages of those kinds, when they do not change any more: maps are freed
/// some time after their last user went.
fn settled() -> Result<u64> {
    let mut last = u64::MAX;
    loop {
        let now = pages()? * 4096;
        if now.abs_diff(last) < 64 << 10 {
            return Ok(now);
        }
        last = now;
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn pages() -> Result<u64> {
    // Each processor keeps a part of the counts to itself until asked.
    std::fs::read("/proc/sys/vm/stat_refresh").ok();
    let number = |text: &str, name: &str| -> Result<u64> {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .ok_or_else(|| format!("no line `{name}`"))?;
        Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?)
    };
    let (stat, info) =
        (std::fs::read_to_string("/proc/vmstat")?, std::fs::read_to_string("/proc/meminfo")?);
    Ok(number(&stat, "nr_slab_unreclaimable ")?
        + (number(&info, "Percpu")? + number(&info, "VmallocUsed")?) / 4)
}

impl Side for Kernel {
    fn part(&self, op: Op, part: u32, threads: u32) -> Result<Part<'_>> {
        let mine = self.count / threads;
        if matches!(op, Op::Read | Op::Store | Op::Remove | Op::Append | Op::Take) {
            return self.as_user(op, part as usize, threads as usize);
        }
        let state = array(16, &[u64::from(mine * part).to_ne_bytes(), [0; 8]].concat())?;
        let program = self.program(op, &state)?;
        Ok(Box::new(move || {
            let run = TestRun { data_in: &[0; 64], repeat: mine / ROUNDS, ..TestRun::default() };
            let ran = program.test_run(&run).map_err(|e| e.to_string())?;
            let after = state.lookup(&[0; 4]).map_err(|e| e.to_string())?;
            // The test runs of programs that see packets begin with milliseconds of something else.
            let took = Duration::from_nanos(u64::from(ran.duration) * u64::from(run.repeat));
            let took = (self.program_type() != ProgramType::SocketFilter).then_some(took);
            let count = after[8..].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            if count == u64::from(mine) {
                Ok(took)
            } else {
                Err(format!("{op:?}: only {count} of {mine} did what they should"))
            }
        }))
    }

    fn consumer(&self, records: u32) -> Result<Part<'_>> {
        if let Some(perf) = &self.perf {
            return Ok(Box::new(move || {
                let mut perf = perf.lock().map_err(|e| e.to_string())?;
                let count = perf.drain(|sample, rest| {
                    std::hint::black_box((sample, rest));
                });
                if count == u64::from(records) {
                    Ok(None)
                } else {
                    Err(format!("{count} samples of {records}"))
                }
            }));
        }
        let mut reader = RingReader::new(&self.map, self.entries)?;
        Ok(Box::new(move || {
            let mut left = u64::from(records);
            while left > 0 {
                left -= reader.drain(|record| {
                    std::hint::black_box(record);
                });
            }
            Ok(None)
        }))
    }
}
