//! What profilers are told: the files read back by a reader that shares nothing with the writer.
#![cfg(target_arch = "x86_64")]

use skep_isa::text;
use skep_testkit::TempDir;
use skep_vm::perf::{Dump, Function, Line, Listing, Map};
use skep_vm::{Code, Env};

const PROGRAM: &str = "mov r1, 1\ncall local f\nadd r0, 1\nexit\nf: mov r0, r1\nadd r0, 41\nexit";

fn code() -> Code {
    // SAFETY: the program touches no memory and ends.
    unsafe { Code::compile(&text::assemble(PROGRAM).unwrap(), &Env::empty()) }.unwrap()
}

fn listing(code: &Code) -> Listing<'_> {
    const FUNCTIONS: [Function<'_>; 2] =
        [Function { insn: 0, name: "main" }, Function { insn: 4, name: "f" }];
    const LINES: [Line<'_>; 4] = [
        Line { insn: 0, file: "a.bpf.c", line: 7 },
        Line { insn: 2, file: "a.bpf.c", line: 8 },
        Line { insn: 4, file: "a.h", line: 3 },
        Line { insn: 5, file: "a.h", line: 4 },
    ];
    Listing { code, name: "count", functions: &FUNCTIONS, lines: &LINES }
}

#[test]
fn the_map_has_a_line_for_each_function() {
    let dir = TempDir::new();
    let path = dir.join("perf-1.map");
    let code = code();
    let map = Map::open_at(path.to_str().unwrap()).unwrap();
    map.add(&listing(&code)).unwrap();
    drop(map);
    // Another writer's lines stay.
    Map::open_at(path.to_str().unwrap())
        .unwrap()
        .add(&Listing { name: "again", ..listing(&code) })
        .unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let base = code.machine_code().as_ptr() as usize;
    let f = code.function_offset(4).unwrap();
    let lines: Vec<(usize, usize, &str)> = text
        .lines()
        .map(|l| {
            let words: Vec<&str> = l.splitn(3, ' ').collect();
            (
                usize::from_str_radix(words[0], 16).unwrap(),
                usize::from_str_radix(words[1], 16).unwrap(),
                words[2],
            )
        })
        .collect();
    let rest = code.machine_code().len() - f;
    assert_eq!(lines[..2], [(base, f, "bpf_prog_count"), (base + f, rest, "bpf_prog_count.f")]);
    assert_eq!(lines[2].2, "bpf_prog_again");
    assert_eq!(lines.len(), 4);
    // /tmp is everybody's: a link that somebody put there is not followed.
    let link = dir.join("perf-2.map");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Map::open_at(link.to_str().unwrap()).is_err());
}

/// Reads little-endian numbers and strings.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Vec<u8> {
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        head.to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn string(&mut self) -> String {
        let n = self.0.iter().position(|b| *b == 0).unwrap();
        let text = String::from_utf8(self.take(n)).unwrap();
        self.take(1);
        text
    }
}

#[test]
fn the_dump_has_code_and_lines() {
    let dir = TempDir::new();
    let code = code();
    let mut dump = Dump::create(dir.path().to_str().unwrap()).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = format!("jit-{}.dump", std::process::id());
    assert!(
        maps.lines().any(|l| l.contains("r-xp") && l.ends_with(&name)),
        "perf sees the file mapped as code"
    );
    dump.add(&listing(&code)).unwrap();
    let bytes = std::fs::read(dir.join(&name)).unwrap();
    let mut r = Reader(&bytes);
    assert_eq!((r.u32(), r.u32(), r.u32(), r.u32(), r.u32()), (0x4a69_5444, 1, 40, 62, 0));
    assert_eq!(r.u32(), std::process::id());
    let start = r.u64();
    assert_eq!(r.u64(), 0);
    let machine = code.machine_code();
    let (base, f) = (machine.as_ptr() as u64, code.function_offset(4).unwrap());
    let mut last = start;
    for (n, (name, at, end, lines)) in [
        ("bpf_prog_count", 0, f, [(7, 0), (8, 2)]),
        ("bpf_prog_count.f", f, machine.len(), [(3, 4), (4, 5)]),
    ]
    .into_iter()
    .enumerate()
    {
        let (kind, size, time) = (r.u32(), r.u32(), r.u64());
        assert_eq!(kind, 2);
        assert!(time >= last);
        last = time;
        let mut info = Reader(&bytes[bytes.len() - r.0.len()..][..size as usize - 16]);
        assert_eq!(info.u64(), base + at as u64);
        assert_eq!(info.u64(), 2);
        for (line, slot) in lines {
            assert_eq!(info.u64(), base + u64::from(code.offsets()[slot]));
            assert_eq!((info.u32(), info.u32()), (line, 0));
            assert_eq!(info.string(), if n == 0 { "a.bpf.c" } else { "a.h" });
        }
        assert!(info.0.is_empty());
        r.take(size as usize - 16);
        let (kind, size, _) = (r.u32(), r.u32(), r.u64());
        assert_eq!((kind, r.u32()), (0, std::process::id()));
        r.u32();
        assert_eq!((r.u64(), r.u64()), (base + at as u64, base + at as u64));
        assert_eq!((r.u64(), r.u64()), ((end - at) as u64, n as u64));
        assert_eq!(r.string(), name);
        assert_eq!(r.take(end - at), &machine[at..end]);
        assert_eq!(size as usize, 16 + 8 + 32 + name.len() + 1 + end - at);
    }
    assert!(r.0.is_empty());
}
