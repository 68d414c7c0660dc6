//! Damaged objects: each fixture with bytes changed at random gives an object or an error, never a
//! panic, and whatever links or decodes keeps its promises, in less memory than [`MOST_MEMORY`]. A
//! few thousand variants by default, 20,000 of each with `SKEP_STRESS=1`.

use skep_isa::op;
use skep_object::{Btf, CoreTarget, LinkOptions, Object};
use skep_testkit::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Most memory that one object may cost, whatever it says of itself.
const MOST_MEMORY: usize = 64 << 20;

/// Counts what this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    let held = HELD.get().saturating_add(more).saturating_sub(less);
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call goes to the system's allocator as it is; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's duties are this function's own.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        count(new, layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs something and returns the most memory it held at a time.
fn measured<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    PEAK.set(before);
    let out = f();
    (out, PEAK.get().saturating_sub(before))
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random, hot: &[std::ops::Range<usize>]) {
    const NASTY: &[u32] = &[
        0,
        1,
        2,
        7,
        8,
        0x18,
        0x85,
        0x7f,
        0x80,
        0xff,
        0x100,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_fff8,
        0xffff_ffff,
    ];
    for _ in 0..1 + random.below(4) {
        let hot = hot.get(random.below(hot.len())).cloned().unwrap_or(0..bytes.len());
        let range = if random.below(3) == 0 { 0..bytes.len() } else { hot };
        let at = (range.start + random.below(range.len())).min(bytes.len().saturating_sub(1));
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next_u64() as u8,
            2 | 3 => {
                let word = NASTY[random.below(NASTY.len())].to_le_bytes();
                bytes.iter_mut().skip(at & !3).zip(word).for_each(|(to, from)| *to = from);
            }
            4 => bytes[at] = bytes[at].wrapping_add(1),
            5 => bytes[at] = bytes[at].wrapping_sub(1),
            6 => {
                let from = random.below(bytes.len());
                let piece: Vec<u8> =
                    bytes.iter().skip(from).take(random.below(64)).copied().collect();
                bytes.iter_mut().skip(at).zip(piece).for_each(|(to, from)| *to = from);
            }
            _ if random.below(8) == 0 => bytes.truncate(at + 1),
            _ => {}
        }
    }
}

/// Reads types to fit mutants to.
fn target() -> CoreTarget {
    let path = format!("{}/tests/data/core_target.bpf.o", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the fixture is committed");
    CoreTarget::new(Object::parse(&bytes).expect("the fixture is good").btf.expect("built with -g"))
}

/// Goes through everything an object offers.
fn exercise(bytes: &[u8], target: &CoreTarget) -> bool {
    let Ok(o) = Object::parse_named("mutant", bytes) else { return false };
    let own = o.btf.clone().map(CoreTarget::new);
    for i in 0..o.programs.len() {
        let options = LinkOptions {
            def: skep_isa::sec::SECTIONS.first(),
            target: own.as_ref(),
            known_kfuncs: true,
        };
        let _ = o.link_with(i, &LinkOptions { target: Some(target), ..options });
        let Ok(l) = o.link(i).or_else(|_| o.link_with(i, &options)) else { continue };
        assert!(l.insns.len() <= op::MAX_INSNS && l.subprogs.first().is_some_and(|s| s.start == 0));
        assert!(
            l.subprogs.is_sorted_by(|a, b| a.start < b.start)
                && l.lines.is_sorted_by(|a, b| a.insn < b.insn)
        );
        for (at, insn) in l.insns.iter().enumerate() {
            if insn.is_local_call() {
                let to = at as i64 + 1 + i64::from(insn.imm);
                // The second half of a 64-bit immediate may look like a call and has not been
                // touched.
                let half = at > 0 && l.insns[at - 1].is_ld_imm64();
                assert!(half || l.subprogs.iter().any(|s| s.start as i64 == to), "call to {to}");
            }
            if insn.is_ld_imm64()
                && matches!(insn.src(), op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE)
            {
                let half = at > 0 && l.insns[at - 1].is_ld_imm64();
                assert!(half || (insn.imm as usize) < l.maps.len(), "map {}", insn.imm);
            }
        }
        for at in 0..l.insns.len() {
            let _ = (l.line(at), l.subprog(at));
        }
    }
    let Some(btf) = &o.btf else { return true };
    assert!(
        Btf::parse(btf.raw()).is_ok_and(|b| b == **btf),
        "raw bytes do not give the types again"
    );
    let zeros = vec![0; 4096];
    for (id, t) in btf.types().take(300) {
        let _ = (btf.describe(id), btf.string(t.name_off), btf.resolve(id));
        if let Ok(value) = btf.decode(id, &zeros) {
            let _ = value.to_string();
            if btf.size_of(id).is_ok_and(|s| s < 65536) {
                let _ = btf.encode(id, &value);
            }
        }
    }
    for m in &o.maps {
        if let Some(data) = &m.data {
            let _ = btf.decode(m.value_type_id, data);
        }
    }
    true
}

/// Finds where headers, symbols, relocations, types and code lie: damage elsewhere (debug
/// information) is not looked at.
fn interesting(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    use object::{Object as _, ObjectSection as _};
    let mut out = vec![0..64, bytes.len().saturating_sub(64 * 32)..bytes.len()];
    if let Ok(file) = object::File::parse(bytes) {
        for s in file.sections().filter(|s| !s.name().is_ok_and(|n| n.contains(".debug"))) {
            out.extend(s.file_range().map(|(at, len)| at as usize..(at + len) as usize));
        }
    }
    out.retain(|r| !r.is_empty());
    out
}

#[test]
fn damage_gives_errors_not_panics() {
    let dir = format!("{}/tests/data", env!("CARGO_MANIFEST_DIR"));
    let mut objects: Vec<_> = std::fs::read_dir(dir)
        .expect("fixtures are there")
        .map(|e| e.expect("and readable").path())
        .collect();
    objects.retain(|p| p.extension().is_some_and(|e| e == "o"));
    objects.sort();
    assert!(objects.len() > 10);
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() {
        20_000
    } else {
        6_000 / objects.len() as u64
    };
    let target = target();
    let (mut whole, mut all, mut most) = (0, 0, 0);
    for (i, path) in objects.iter().enumerate() {
        let bytes = std::fs::read(path).expect("fixtures are readable");
        let hot = interesting(&bytes);
        for round in 0..rounds {
            let seed = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(1 + round + (i as u64) * 1_000_003);
            let mut mutant = bytes.clone();
            mutate(&mut mutant, &mut Random::new(seed | 1), &hot);
            let (done, peak) = measured(|| std::panic::catch_unwind(|| exercise(&mutant, &target)));
            assert!(peak < MOST_MEMORY, "{} with seed {seed:#x}: {peak} bytes", path.display());
            most = most.max(peak);
            whole += usize::from(*done.as_ref().unwrap_or(&false));
            all += 1;
            assert!(done.is_ok(), "{} with seed {seed:#x}", path.display());
        }
    }
    assert!(
        whole * 10 > all,
        "almost no mutant gets past the first checks ({whole} of {all}): the test tests nothing"
    );
    assert!(most > 1 << 16, "{most} bytes: memory is not counted");
}

#[test]
fn every_truncation_gives_an_answer() {
    let path = format!("{}/tests/data/several.bpf.o", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the fixture is committed");
    let target = target();
    for len in (0..bytes.len()).step_by(13) {
        exercise(&bytes[..len], &target);
    }
}
