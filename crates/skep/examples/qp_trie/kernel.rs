//! The kernel's hash map, whose keys are as long as the longest and filled up with zeros, as its
//! users must do.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use skep::isa::{MapFlags, MapType};
use skep::object::{MapSpec as Spec, Object};
use skep_kernel::{Map, MapSpec, Program, ProgramSpec, TestRun, with_maps};

use crate::program::{self, Maps, OPERATIONS, Side};
use crate::{Orders, Result, best, tell};

/// Measures the memory of a map, reading it by batches, and programs.
pub fn run(orders: &Orders) -> Result<()> {
    let object = program::object(Maps::Padded, orders)?;
    measure_map(&object, orders)?;
    program::measure(&Kernel::load(&object)?, orders)
}

fn spec(map: &Spec) -> MapSpec<'static> {
    MapSpec::new(map.map_type, map.key_size(), map.value_size, map.max_entries)
        .flags(map.flags.0 & !MapFlags::MMAPABLE)
}

fn measure_map(object: &Object, orders: &Orders) -> Result<()> {
    let n = orders.len();
    let of_hash = object.maps.iter().find(|map| map.map_type == MapType::Hash);
    let spec = spec(of_hash.ok_or("no hash in the object")?);
    // Also makes what there is once for all.
    drop(Map::create(&spec)?);
    let before = settled()?;
    let map = Map::create(&spec)?;
    let mut padded = vec![0; map.key_size()];
    for (i, key) in (0u32..).zip(orders.insert.iter()) {
        padded[..key.len()].copy_from_slice(key);
        padded[key.len()..].fill(0);
        map.update(&padded, &i.to_ne_bytes(), 0)?;
    }
    println!("taken {}", settled()?.saturating_sub(before) as f64 / n as f64);
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.fd()))?;
    let line = text.lines().find_map(|l| l.strip_prefix("memlock:")).ok_or("no line `memlock`")?;
    println!("memory {}", line.trim().parse::<f64>()? / n as f64);
    let took = best(orders, || {
        let mut read = 0;
        let all = map.walk(|_, _, count| {
            read += count;
            true
        });
        assert!(all.is_ok() && read == n, "{all:?}: {read} of {n}");
    });
    tell("walk", took, &orders.file);
    Ok(())
}

/// Bytes of the kernel's pages for maps, when they do not change any more: what was freed goes some
/// time later.
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

/// Pages of slabs, of per-CPU memory and of `vmalloc`.
fn pages() -> Result<u64> {
    // Each processor keeps a part of the counts to itself until asked.
    std::fs::read("/proc/sys/vm/stat_refresh").ok();
    let number = |text: &str, name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let line = line.ok_or_else(|| format!("no line `{name}`"))?;
        Ok(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?)
    };
    let (stat, info) =
        (std::fs::read_to_string("/proc/vmstat")?, std::fs::read_to_string("/proc/meminfo")?);
    Ok(number(&stat, "nr_slab_unreclaimable ")?
        + (number(&info, "Percpu")? + number(&info, "VmallocUsed")?) / 4)
}

/// Programs in the kernel.
struct Kernel {
    maps: BTreeMap<usize, Map>,
    keys: usize,
    result: usize,
    programs: BTreeMap<&'static str, Program>,
}

impl Kernel {
    fn load(object: &Object) -> Result<Self> {
        let named = |name: &str| {
            let place = object.maps.iter().position(|map| map.name == name);
            place.ok_or_else(|| format!("no map `{name}` in the object"))
        };
        let program = |operation: &str| {
            let name = Maps::Padded.program(operation);
            object.program(&name).ok_or_else(|| format!("no program `{name}` in the object"))
        };
        let (mut maps, mut programs) = (BTreeMap::new(), BTreeMap::new());
        for operation in OPERATIONS {
            let linked = object.link(program(operation)?)?;
            for used in &linked.maps {
                if let Entry::Vacant(place) = maps.entry(used.index) {
                    place.insert(create(&object.maps[used.index])?);
                }
            }
            let used: Vec<&Map> = linked.maps.iter().map(|used| &maps[&used.index]).collect();
            let bytes: Vec<u8> = linked.insns.iter().flat_map(|insn| insn.to_bytes()).collect();
            let insns = with_maps(&bytes, &used);
            let starts: Vec<u32> = linked.subprogs.iter().map(|s| s.start as u32).collect();
            let spec = ProgramSpec {
                gpl: linked.gpl,
                flags: if linked.sleepable { ProgramSpec::SLEEPABLE } else { 0 },
                functions: &starts,
                log: true,
                ..ProgramSpec::new(linked.prog_type, &insns)
            };
            programs.insert(operation, Program::load(&spec)?);
        }
        Ok(Self { maps, keys: named("keys")?, result: named(".bss")?, programs })
    }
}

fn create(of: &Spec) -> Result<Map> {
    let map = Map::create(&spec(of))?;
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

impl Side for Kernel {
    fn set_keys(&self, cells: &[u8], cell_size: usize) -> Result<()> {
        let keys = &self.maps[&self.keys];
        for (i, cell) in (0u32..).zip(cells.chunks_exact(cell_size)) {
            keys.update(&i.to_ne_bytes(), cell, 0)?;
        }
        Ok(())
    }

    fn run(&self, operation: &str) -> Result<(Duration, u64)> {
        let program = &self.programs[operation];
        let began = Instant::now();
        program.test_run(&TestRun::default())?;
        let took = began.elapsed();
        Ok((took, program::counted(&self.maps[&self.result].lookup(&[0; 4])?)))
    }
}
