//! The same loop as a BPF program in the kernel.

use skep_isa::{MapType, text};
use skep_testkit::kernel::{Load, Map, MapSpec, Program, RingReader, TestRun, with_maps};

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

/// A map with its keys, in maps of the kernel.
pub struct Kernel {
    map: Map,
    /// What a user stores: for maps of maps, the descriptor of `inner`.
    stored: Vec<u8>,
    _inner: Option<Map>,
    key: usize,
    keys: Map,
    others: Map,
    stride: usize,
    count: u32,
    value: u32,
    entries: u32,
}

fn array(value_size: usize, value: &[u8]) -> Result<Map> {
    let map = Map::create(MapSpec { map_type: 2, key_size: 4, value_size: value_size as u32, max_entries: 1, flags: 0 })?;
    map.update(&[0; 4], value, 0)?;
    Ok(map)
}

impl Kernel {
    /// Makes the case's map.
    pub fn new(case: &Case) -> Result<Self> {
        let spec = MapSpec {
            map_type: case.map_type as u32,
            key_size: case.key,
            value_size: if case.map_type == MapType::Ringbuf { 0 } else { case.value },
            max_entries: case.entries(),
            flags: case.flags(),
        };
        let inner = if case.outer() { Some(array(8, &[0; 8])?) } else { None };
        let map = inner.as_ref().map_or_else(|| Map::create(spec), |inner| Map::create_outer(spec, inner))?;
        let stored = inner.as_ref().map_or_else(|| case.value(), |inner| inner.fd().to_ne_bytes().to_vec());
        let (keys, others) = (case.all_keys(false), case.all_keys(true));
        Ok(Self {
            map,
            stored,
            _inner: inner,
            key: case.key as usize,
            keys: array(keys.len(), &keys)?,
            others: array(others.len(), &others)?,
            stride: case.stride(),
            count: case.keys,
            value: case.value,
            entries: case.entries(),
        })
    }

    /// The program: `ROUNDS` keys from the place in the map of the thread's own on, and how often the result was as wanted.
    fn program(&self, op: Op, state: &Map) -> Result<Program> {
        let (call, prepare, good) = match op {
            Op::Lookup(true) => (1, "", "jeq %r0, 0, skip"),
            Op::Lookup(false) => (1, "", "jne %r0, 0, skip"),
            Op::Overwrite | Op::Insert => (2, "mov %r3, %r10\nadd %r3, -128\nmov %r4, 0", "jne %r0, 0, skip"),
            Op::Delete => (3, "", "jne %r0, 0, skip"),
            Op::Push => (87, "mov %r3, 0", "jne %r0, 0, skip"),
            Op::Pop => (88, "mov %r2, %r10\nadd %r2, -128", "jne %r0, 0, skip"),
            Op::Peek => (89, "", "jne %r0, 0, skip"),
            Op::Reserve => (131, "ldxdw %r3, [%r2]\nstxdw [%r10-8], %r3\nmov %r2, 8\nmov %r3, 0", RESERVED),
            Op::Output => (130, if self.value == 8 { "mov %r3, 8\nmov %r4, 0" } else { "mov %r3, 64\nmov %r4, 0" }, "jne %r0, 0, skip"),
            Op::StackId | Op::Read | Op::Store | Op::Remove => return Err("not a program's".into()),
            Op::Consume | Op::Through => return Err("done by a consumer".into()),
        };
        let zero: String = (0..self.value.div_ceil(8)).map(|i| format!("stdw [%r10-{}], 1\n", 128 - 8 * i)).collect();
        let (shift, mask) = (self.stride.trailing_zeros(), self.count - 1);
        let source = format!(
            "stw [%r10-4], 0
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
             lddw %r1, map 0
             call {call}
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
        Ok(Program::load(&Load { log: true, ..Load::new(1, &bytes) })?)
    }
}

impl Kernel {
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
                    _ => self.map.delete(key),
                };
                done.map_err(|e| e.to_string())?;
            }
            Ok(())
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

/// Maps that are filled to see what one takes: some megabytes, beside which what others allocate meanwhile is little.
const MAPS: u64 = 16;

/// What a full map really takes in the kernel: how much more slab, per-CPU and `vmalloc` pages there are when `MAPS` of them are
/// full, divided by that. `memlock` is computed from sizes instead, and leaves out what an element is rounded up to, what the
/// allocator keeps in store, and the inner nodes of tries.
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

/// Bytes of the kernel's pages of those kinds, when they do not change any more: maps are freed some time after their last user went.
fn settled() -> Result<u64> {
    let mut last = u64::MAX;
    loop {
        let now = pages()? * 4096;
        if now.abs_diff(last) < 64 << 10 {
            return Ok(now);
        }
        last = now;
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
}

fn pages() -> Result<u64> {
    // Each processor keeps a part of the counts to itself until asked.
    std::fs::read("/proc/sys/vm/stat_refresh").ok();
    let number = |text: &str, name: &str| -> Result<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix(name)).ok_or_else(|| format!("no line `{name}`"))?;
        Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?)
    };
    let (stat, info) = (std::fs::read_to_string("/proc/vmstat")?, std::fs::read_to_string("/proc/meminfo")?);
    Ok(number(&stat, "nr_slab_unreclaimable ")? + (number(&info, "Percpu")? + number(&info, "VmallocUsed")?) / 4)
}

impl Side for Kernel {
    fn part(&self, op: Op, part: u32, threads: u32) -> Result<Part<'_>> {
        let mine = self.count / threads;
        if matches!(op, Op::Read | Op::Store | Op::Remove) {
            return self.as_user(op, part as usize, threads as usize);
        }
        let state = array(16, &[u64::from(mine * part).to_ne_bytes(), [0; 8]].concat())?;
        let program = self.program(op, &state)?;
        Ok(Box::new(move || {
            let run = TestRun { data_in: &[0; 64], repeat: mine / ROUNDS, ..TestRun::default() };
            let after = program.test_run(&run).and_then(|_| state.lookup(&[0; 4])).map_err(|e| e.to_string())?;
            let count = after[8..].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
            if count == u64::from(mine) { Ok(()) } else { Err(format!("{op:?}: only {count} of {mine} did what they should")) }
        }))
    }

    fn consumer(&self, records: u32) -> Result<Part<'_>> {
        let mut reader = RingReader::new(&self.map, self.entries)?;
        Ok(Box::new(move || {
            let mut left = u64::from(records);
            while left > 0 {
                left -= reader.drain(|record| {
                    std::hint::black_box(record);
                });
            }
            Ok(())
        }))
    }
}
