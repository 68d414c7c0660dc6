//! Runs of programs compared with the kernel's: live where bpf(2) may be used, and with what it
//! said when the fixtures were recorded everywhere.
//!
//! Every case is a program, a packet and a context; results are retval or errno, packet, context,
//! and all maps. With `SKEP_RECORD=1` and the right to use bpf(2), the fixtures are written anew.
//! `SKEP_SEED=N` tries other arguments than the recorded ones on the helpers.

mod cases;
mod kernel_side;
mod live;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use cases::Case;
use skep::dir::{Dir, Scratch};
use skep::isa::MapType;
use skep::load::Loader;
use skep::object::Object;
use skep::port::Outputs;
use skep::test_run::{Engine, Input, Runner};
use skep_testkit::TempDir;

/// What a case left, as text: lines that can be compared and kept.
pub type Report = String;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/test_run").join(name)
}

/// Bytes as text; of long ones the beginning, the length and a sum that tells them apart.
fn hex(bytes: &[u8]) -> String {
    const LONG: usize = 112;
    let shown = if bytes.len() > LONG { &bytes[..32] } else { bytes };
    let mut text = shown.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    });
    if bytes.len() > LONG {
        let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
        });
        let _ = write!(text, "..{}#{sum:016x}", bytes.len());
    }
    text
}

/// Runs every case in turn on one loaded object.
fn ours(dir: &Dir, object: &Object, program: &str, engine: Engine, cases: &[Case]) -> Report {
    let scratch = Scratch::create_in(dir).unwrap();
    let loaded = Loader::new(scratch.dir())
        .autoload_only(program)
        .load(object)
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let runner = Runner::new(scratch.dir(), &loaded, program, engine).unwrap();
    let mut out = String::new();
    for case in cases {
        let input =
            Input { data: case.data.as_deref(), ctx: case.ctx.as_deref(), repeat: case.repeat };
        let done = match case.live {
            None => runner.test_run(&input),
            Some(batch) => {
                let runner = Runner::new(scratch.dir(), &loaded, program, engine).unwrap();
                live::run(runner, &input, batch, &mut Outputs::new())
            }
        };
        match done {
            Ok(done) => run_line(
                &mut out,
                &case.name,
                done.retval,
                done.data_out.as_deref(),
                done.ctx_out.as_deref(),
            ),
            Err(errno) => {
                let _ = writeln!(out, "{}: errno {}", case.name, errno.0);
            }
        }
    }
    for map in loaded.maps().iter().filter(|m| !m.spec.is_global_data()) {
        let size = map.map.def().value_size as usize;
        let mut lines: Vec<String> = map
            .map
            .iter()
            // Some types cannot be walked; the kernel's side of this test finds no keys in them
            // either.
            .take_while(|e| !matches!(e, Err(skep::maps::MapError::Unsupported { .. })))
            .take(if size == 0 || map.map.def().key_size == 0 { 0 } else { usize::MAX })
            .map(Result::unwrap)
            .map(|(k, v)| {
                element(&k, comparable(map.spec.map_type, &v), size, map.map.is_per_cpu())
            })
            .collect();
        lines.sort();
        let _ = writeln!(out, "map {}: {}", map.name, lines.join(" "));
    }
    out
}

/// One run as a line.
pub fn run_line(
    out: &mut Report,
    name: &str,
    retval: u32,
    data: Option<&[u8]>,
    ctx: Option<&[u8]>,
) {
    let show = |bytes: Option<&[u8]>| bytes.map_or("-".to_owned(), hex);
    let _ = writeln!(out, "{name}: retval {retval:#x} data {} ctx {}", show(data), show(ctx));
}

/// What of a value means the same on both sides: ids of maps and programs do not.
pub fn comparable(map_type: MapType, value: &[u8]) -> &[u8] {
    if matches!(map_type, MapType::ProgArray | MapType::ArrayOfMaps | MapType::HashOfMaps) {
        &[]
    } else {
        value
    }
}

/// One element as a word. Which CPU a per-CPU value lies on is chance: what is compared is the sum
/// of each of their words.
pub fn element(key: &[u8], value: &[u8], size: usize, per_cpu: bool) -> String {
    if !per_cpu {
        return format!("{}={}", hex(key), hex(value));
    }
    let each = size.next_multiple_of(8);
    let mut sums = vec![0u64; each / 8];
    for one in value.chunks(each) {
        for (sum, word) in sums.iter_mut().zip(one.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    format!("{}=sum{sums:x?}", hex(key))
}

fn object(name: &str) -> Object {
    Object::parse(&std::fs::read(data(name)).unwrap()).unwrap()
}

#[test]
fn runs_are_the_kernels() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let live = !skep_testkit::skip::without_bpf();
    let record = live && std::env::var_os("SKEP_RECORD").is_some();
    // Other random cases than the recorded ones.
    let seeded = std::env::var_os("SKEP_SEED").is_some();
    let mut wrong = Vec::new();
    for (file, programs) in cases::all() {
        let object = object(file);
        let path = data(&file.replace(".bpf.o", ".kernel.txt"));
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let mut fresh = String::new();
        for (program, cases) in programs {
            let title = format!("== {program}\n");
            let recorded = kept
                .split("== ")
                .find_map(|part| part.strip_prefix(program)?.strip_prefix('\n'))
                .unwrap_or_default();
            let kernel = if live { Some(kernel_side::run(&object, program, &cases)) } else { None };
            for engine in [Engine::Jit, Engine::Interp] {
                let ours = ours(&dir, &object, program, engine, &cases);
                for (whose, theirs) in [("recorded", Some(recorded)), ("kernel", kernel.as_deref())]
                {
                    let Some(theirs) =
                        theirs.filter(|_| !((record || seeded) && whose == "recorded"))
                    else {
                        continue;
                    };
                    for (a, b) in ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b) {
                        wrong.push(format!(
                            "{program}, {engine:?}:\n  ours     {a}\n  {whose:8} {b}"
                        ));
                    }
                    if ours.lines().count() != theirs.lines().count() {
                        wrong.push(format!(
                            "{program}, {engine:?}: {} lines, {whose} {}",
                            ours.lines().count(),
                            theirs.lines().count()
                        ));
                    }
                }
            }
            fresh += &title;
            fresh += kernel.as_deref().unwrap_or_default();
        }
        if record {
            std::fs::write(path, fresh).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong.join("\n"));
}

/// A program that is put into an array after another was made ready is found at the first tail
/// call, and the next one that takes its place as well; one of another type is not.
#[test]
fn tail_calls_follow_a_program_array_as_it_changes() {
    let temp = TempDir::in_memory();
    let dir = Dir::create(&temp.join("skep")).unwrap();
    let object = object("nested.bpf.o");
    for engine in [Engine::Jit, Engine::Interp] {
        let scratch = Scratch::create_in(&dir).unwrap();
        let loaded = Loader::new(scratch.dir()).load(&object).unwrap();
        let runner = Runner::new(scratch.dir(), &loaded, "jump", engine).unwrap();
        let jumps = loaded.map("jumps").unwrap();
        let id = |name| loaded.program(name).unwrap().id().to_ne_bytes();
        let (slot, mut packet) = (2u32.to_ne_bytes(), [0; 60]);
        packet[0] = 2;
        let retval = || runner.test_run(&Input::data(&packet)).unwrap().retval;
        assert_eq!(retval(), 55, "the slot is empty");
        for _ in 0..2 {
            jumps.update(&slot, &id("drop"), 0).unwrap();
            assert_eq!((retval(), retval()), (1, 1));
            jumps.update(&slot, &id("pass"), 0).unwrap();
            assert_eq!((retval(), retval()), (2, 2));
        }
        jumps.update(&slot, &id("tc_last"), 0).unwrap();
        assert_eq!(retval(), 55, "what takes another context cannot go on here");
        jumps.delete(&slot).unwrap();
        assert_eq!(retval(), 55);
    }
}
