//! The kernel's own helpers beside ours, for tests: the same `syscall` program runs on both sides,
//! in this process, on copies of the same memory.

use std::cell::UnsafeCell;

use skep_isa::{MapFlags, MapShape, MapType, ProgramType, ShapeKind, kfunc, text};
use skep_kernel::{Map, MapSpec, Program, ProgramSpec, TestRun, with_maps};
use skep_testkit::skip::without_bpf;
use skep_testkit::vmlinux::with_functions;
use skep_vm::{Code, Env, MapRef};

use super::implementation;

/// A program on both sides.
pub(super) struct Pair {
    kernel: Program,
    memory: Map,
    ours: Code,
    ours_memory: Vec<UnsafeCell<u64>>,
    _constants: Vec<u8>,
}

impl Pair {
    /// Loads a program with `constants` as `value 0` and as many bytes of memory as `size` as
    /// `value 1`; `None`, with the words for it, when the kernel cannot be asked.
    pub(super) fn new(asm: &str, constants: &[u8], size: usize) -> Option<Self> {
        Some(Self::load(asm, constants, size)?.unwrap_or_else(|e| panic!("{e}\n{asm}")))
    }

    /// As [`Pair::new`], for programs that the kernel may refuse; then what it says.
    pub(super) fn load(asm: &str, constants: &[u8], size: usize) -> Option<Result<Self, String>> {
        if without_bpf() {
            return None;
        }
        let insns = text::assemble(asm).unwrap_or_else(|e| panic!("{e}\n{asm}"));
        let mut constants = constants.to_vec();
        constants.resize(constants.len().max(1).next_multiple_of(8), 0);
        let array = |value_size: usize, flags| {
            let spec = MapSpec::new(MapType::Array, 4, value_size as u32, 1).flags(flags);
            Map::create(&spec).expect("an array can be made")
        };
        let map = array(constants.len(), MapFlags::RDONLY_PROG);
        map.update(&[0; 4], &constants, 0).expect("it takes a value");
        map.freeze().expect("it can be frozen");
        let memory = array(size, 0);
        let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
        let Ok(bytes) = with_functions(&bytes, |id| Some(kfunc::by_id(id)?.name)) else {
            skep_testkit::skip("a kernel with these functions");
            return None;
        };
        let bytes = with_maps(&bytes, &[&map, &memory]);
        let spec = ProgramSpec {
            flags: ProgramSpec::SLEEPABLE,
            log: true,
            ..ProgramSpec::new(ProgramType::Syscall, &bytes)
        };
        let kernel = match Program::load(&spec) {
            Ok(program) => program,
            Err(refused) => return Some(Err(refused.log)),
        };
        let shape = MapShape { base: 0, stride: 0, entries: 0, kind: ShapeKind::Opaque };
        let ours_memory: Vec<UnsafeCell<u64>> =
            (0..size.div_ceil(8)).map(|_| UnsafeCell::new(0)).collect();
        let values = [constants.as_ptr() as u64, ours_memory.as_ptr() as u64];
        let maps = values.map(|value| MapRef { handle: 0, value, shape });
        let helper = |id| implementation(ProgramType::Syscall, id);
        let env = Env { maps: &maps, helper: &helper };
        // SAFETY: the kernel's verifier accepted the program; constants and memory live as long as
        // the code.
        let ours = unsafe { Code::compile(&insns, &env) }.unwrap_or_else(|e| panic!("{e}\n{asm}"));
        Some(Ok(Self { kernel, memory, ours, ours_memory, _constants: constants }))
    }

    /// Runs both with this memory; returns what the kernel and what we made of it.
    pub(super) fn run(&self, memory: &[u8]) -> (Vec<u8>, Vec<u8>) {
        self.memory.update(&[0; 4], memory, 0).expect("an array takes a value");
        self.kernel.test_run(&TestRun::default()).unwrap_or_else(|e| panic!("{e}"));
        let theirs = self.memory.lookup(&[0; 4]).expect("an array has its value");
        for (word, bytes) in self.ours_memory.iter().zip(memory.chunks(8)) {
            let value =
                u64::from_le_bytes(std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0)));
            // SAFETY: nobody else has the memory while no program runs.
            unsafe { word.get().write_volatile(value) };
        }
        let mut ctx = [0_u64; 4];
        // SAFETY: verified by the kernel, for these maps.
        unsafe { (self.ours.entry())(ctx.as_mut_ptr().cast()) };
        // SAFETY: as above.
        let mut ours: Vec<u8> = self
            .ours_memory
            .iter()
            .flat_map(|w| unsafe { w.get().read_volatile() }.to_le_bytes())
            .collect();
        ours.truncate(memory.len());
        (theirs, ours)
    }

    /// Runs both and compares the whole memory.
    pub(super) fn same(&self, memory: &[u8], what: &str) {
        let (theirs, ours) = self.run(memory);
        assert!(theirs == ours, "{what}\n  kernel {}\n  ours   {}", show(&theirs), show(&ours));
    }
}

/// First word as a number, the rest as text.
fn show(memory: &[u8]) -> String {
    let r0 = memory.first_chunk::<8>().map_or(0, |w| i64::from_le_bytes(*w));
    format!("{r0} {}", memory.get(8..).unwrap_or_default().escape_ascii())
}

/// Memory of these words.
pub(super) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A program that calls `helper` and stores its result in the first word of the memory. Arguments
/// are numbers, or `at OFF` (an address in the memory), `word OFF` (a number from it), `size OFF
/// MASK` (one whose limits the verifier sees), `some OFF MASK` (one that is not 0 either), `value
/// OFF` (an address in the constants).
pub(super) fn call(helper: &str, args: &[&str]) -> String {
    let mut asm = String::from("lddw %r6, value 1+0\n");
    for (n, arg) in args.iter().enumerate() {
        let r = format!("%r{}", n + 1);
        asm.push_str(&match arg.split_once(' ') {
            Some(("at", off)) => format!("mov {r}, %r6\nadd {r}, {off}\n"),
            Some(("word", off)) => format!("ldxdw {r}, [%r6+{off}]\n"),
            Some(("size", rest)) => {
                let (off, mask) = rest.split_once(' ').expect("an offset and a mask");
                format!("ldxdw {r}, [%r6+{off}]\nand {r}, {mask}\n")
            }
            Some(("some", rest)) => {
                let (off, mask) = rest.split_once(' ').expect("an offset and a mask");
                format!(
                    "ldxdw {r}, [%r6+{off}]\nand {r}, {mask}\njne {r}, 0, some\nmov {r}, 1\nsome:\n"
                )
            }
            Some(("value", off)) => format!("lddw {r}, value 0+{off}\n"),
            _ => format!("mov {r}, {arg}\n"),
        });
    }
    asm + &format!("call {helper}\nstxdw [%r6+0], %r0\nmov %r0, 0\nexit\n")
}

/// Numbers for tests, the same in every run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
