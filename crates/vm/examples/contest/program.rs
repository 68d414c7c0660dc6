//! One program of `benches/jit/bpf` on one engine.

use std::ffi::{CString, c_char, c_int, c_void};

use skep_isa::{HelperId, Insn, MapShape, MapType, ShapeKind, op};
use skep_kernel as kernel;
use skep_object::Object;
use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef, interp};

use crate::Result;
use crate::clock::{best, best_of_repeats};

const MEM_SIZE: usize = 2048;
const LOOKUP: HelperId = 1;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(module: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// What every program's `mem` holds: noise, the same for all, with some structure for those that
/// parse it.
fn contents() -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes: Vec<u8> = (0..MEM_SIZE)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as u8
        })
        .collect();
    // Packets for `parse`: most are IPv4 or IPv6, some with a VLAN tag, of the usual protocols.
    for (n, packet) in bytes[1024..].chunks_exact_mut(64).enumerate() {
        let at = if n % 3 == 1 {
            packet[12..14].copy_from_slice(&[0x81, 0]);
            16
        } else {
            12
        };
        packet[at..at + 2].copy_from_slice(match n % 4 {
            0 | 1 => &[8, 0],
            2 => &[0x86, 0xdd],
            _ => &[8, 6],
        });
        packet[at + 2] = 0x45;
        packet[at + 2 + if n % 4 == 2 { 6 } else { 9 }] = [6, 17, 6, 1][n / 4];
    }
    bytes
}

/// A linked program and the memory of its maps.
pub struct Program {
    name: String,
    pub insns: Vec<Insn>,
    specs: Vec<skep_object::MapSpec>,
    memory: Vec<Vec<u64>>,
}

/// `bpf_map_lookup_elem` for arrays of this process: the map is a pointer to its shape.
unsafe extern "C" fn lookup(map: u64, key: u64, _: u64, _: u64, _: u64) -> u64 {
    // SAFETY: the handle is a `MapShape` that lives as long as the program, the key a u32.
    let (shape, key) = unsafe { (&*(map as *const MapShape), *(key as *const u32)) };
    if key < shape.entries { shape.base + u64::from(key) * shape.stride } else { 0 }
}

fn helpers(id: HelperId) -> Option<HelperImpl> {
    (id == LOOKUP).then_some(HelperImpl { func: lookup, how: HelperCall::MapLookup })
}

impl Program {
    pub fn load(path: &str) -> Result<Self> {
        let object = Object::parse(&std::fs::read(path)?)?;
        let linked = object.link(0)?;
        let specs: Vec<_> = linked.maps.iter().map(|m| m.spec.clone()).collect();
        let mut memory = Vec::new();
        for spec in &specs {
            if spec.map_type != MapType::Array {
                return Err(format!("map `{}` is no array", spec.name).into());
            }
            let stride = spec.value_size.next_multiple_of(8) as usize;
            let mut words = vec![0u64; stride / 8 * spec.max_entries as usize];
            for (word, bytes) in words.iter_mut().zip(value(spec).as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            memory.push(words);
        }
        Ok(Self { name: linked.name.clone(), insns: linked.insns, specs, memory })
    }

    fn shapes(&self) -> Vec<MapShape> {
        let shape = |(spec, words): (&skep_object::MapSpec, &Vec<u64>)| MapShape {
            base: words.as_ptr() as u64,
            stride: u64::from(spec.value_size.next_multiple_of(8)),
            entries: spec.max_entries,
            kind: ShapeKind::Array,
        };
        self.specs.iter().zip(&self.memory).map(shape).collect()
    }

    fn map_refs(shapes: &[MapShape]) -> Vec<MapRef> {
        let handle = |s: &MapShape| std::ptr::from_ref(s) as u64;
        shapes.iter().map(|s| MapRef { handle: handle(s), value: s.base, shape: *s }).collect()
    }
}

/// The first value of a map: `mem`, constants, or nothing.
fn value(spec: &skep_object::MapSpec) -> Vec<u8> {
    let mut bytes = match &spec.data {
        Some(data) if spec.value_size as usize == MEM_SIZE && data.iter().all(|b| *b == 0) => {
            contents()
        }
        Some(data) => data.clone(),
        None => Vec::new(),
    };
    bytes.resize(spec.value_size.next_multiple_of(8) as usize, 0);
    bytes
}

/// Runs and prints.
pub fn run(engine: &str, object: &str, native: Option<&str>) -> Result<()> {
    let program = Program::load(object)?;
    let shapes = program.shapes();
    let maps = Program::map_refs(&shapes);
    let env = Env { maps: &maps, helper: &helpers };
    let null = std::ptr::null_mut();
    let (ns, result) = match engine {
        "skep" => {
            // SAFETY: the programs stay in their memory: the kernel's verifier says so, in the same
            // bench.
            let code = unsafe { Code::compile(&program.insns, &env) }?;
            let entry = code.entry();
            // SAFETY: as above.
            (best(|| unsafe { entry(null) }), unsafe { entry(null) })
        }
        "interp" => {
            let interp = interp::Program::new(&program.insns, &env)?;
            // SAFETY: as above.
            let run = || unsafe { interp.run([0; 5]) }.unwrap_or(0);
            (best(run), run())
        }
        "rbpf" => rbpf(&program, &maps)?,
        "native" => self::native(native.ok_or("which shared object?")?, &program.name)?,
        "kernel" => in_kernel(&program)?,
        _ => return Err(format!("no engine `{engine}`").into()),
    };
    println!("measured {ns} ns\nresult {:x}", result as u32);
    Ok(())
}

/// Writes the machine code.
pub fn dump(object: &str, file: &str) -> Result<()> {
    let program = Program::load(object)?;
    let shapes = program.shapes();
    let maps = Program::map_refs(&shapes);
    // SAFETY: what is compiled here is not run.
    let code = unsafe { Code::compile(&program.insns, &Env { maps: &maps, helper: &helpers }) }?;
    Ok(std::fs::write(file, code.machine_code())?)
}

fn rbpf(program: &Program, maps: &[MapRef]) -> Result<(f64, u64)> {
    let mut bytes = Vec::new();
    let mut upper = None;
    for i in &program.insns {
        let mut i = *i;
        if let Some(v) = upper.take() {
            i.imm = v;
        } else if i.is_ld_imm64() {
            let map = maps.get(i.imm as usize);
            let address = match i.src() {
                op::PSEUDO_MAP_IDX => map.map(|m| m.handle),
                op::PSEUDO_MAP_IDX_VALUE => map.map(|m| m.value),
                _ => None,
            };
            if let Some(a) = address {
                upper = Some((a >> 32) as i32);
                i = Insn { imm: a as i32, ..i.with_src(0) };
            }
        }
        bytes.extend(i.to_bytes());
    }
    let mut vm = rbpf::EbpfVmNoData::new(Some(&bytes))?;
    vm.register_helper(LOOKUP, |a, b, c, d, e| {
        // SAFETY: the program passes a map and a key.
        unsafe { lookup(a, b, c, d, e) }
    })?;
    vm.jit_compile()?;
    // SAFETY: the programs stay in their memory.
    let mut run = || unsafe { vm.execute_program_jit() }.unwrap_or(0);
    Ok((best(&mut run), run()))
}

fn native(module: &str, name: &str) -> Result<(f64, u64)> {
    const RTLD_NOW: c_int = 2;
    let (path, name) = (CString::new(module)?, CString::new(name)?);
    // SAFETY: strings that live; the module is one that the bench has just built.
    let (function, mem) = unsafe {
        let module = dlopen(path.as_ptr(), RTLD_NOW);
        if module.is_null() {
            return Err("the native module cannot be opened".into());
        }
        (dlsym(module, name.as_ptr()), dlsym(module, c"mem".as_ptr()))
    };
    if function.is_null() || mem.is_null() {
        return Err("the native module lacks a symbol".into());
    }
    // SAFETY: `mem` has this many bytes (prog.h), and nobody uses it yet.
    unsafe { std::slice::from_raw_parts_mut(mem.cast::<u8>(), MEM_SIZE) }
        .copy_from_slice(&contents());
    // SAFETY: every program is `int NAME(void *)`.
    let f: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { std::mem::transmute(function) };
    // SAFETY: as above; the programs do not look at their context.
    let run = || unsafe { f(std::ptr::null_mut()) } as u64;
    Ok((best(run), run()))
}

fn in_kernel(program: &Program) -> Result<(f64, u64)> {
    let mut maps = Vec::new();
    for spec in &program.specs {
        let map = kernel::Map::create(
            &kernel::MapSpec::new(
                spec.map_type,
                spec.key_size(),
                spec.value_size,
                spec.max_entries,
            )
            .flags(spec.flags.0 & skep_isa::MapFlags::RDONLY_PROG),
        )?;
        if spec.data.is_some() {
            let mut value = value(spec);
            value.truncate(spec.value_size as usize);
            map.update(&0u32.to_le_bytes(), &value, 0)?;
            if spec.frozen {
                map.freeze()?;
            }
        }
        maps.push(map);
    }
    let bytes: Vec<u8> = program.insns.iter().flat_map(|i| i.to_bytes()).collect();
    let bytes = kernel::with_maps(&bytes, &maps.iter().collect::<Vec<_>>());
    let loaded = kernel::Program::load(&kernel::ProgramSpec {
        log: true,
        ..kernel::ProgramSpec::new(skep_isa::ProgramType::SocketFilter, &bytes)
    })?;
    let mut retval = 0;
    let ns = best_of_repeats(|repeat| {
        let ran = loaded.test_run(&kernel::TestRun {
            data_in: &[0; 64],
            repeat,
            ..kernel::TestRun::default()
        })?;
        retval = ran.retval;
        Ok::<(), kernel::Error>(())
    })?;
    Ok((ns, u64::from(retval)))
}
