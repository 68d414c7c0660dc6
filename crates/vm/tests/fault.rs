//! Reads of bad addresses, with a signal handler that asks where to continue.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

#[path = "suite/fault.rs"]
mod handler;
mod suite;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use skep_isa::{Insn, op};
use skep_vm::{Code, Env, fault};

/// Returns the address of the end of a page that is followed by nothing readable.
fn edge() -> *mut u8 {
    handler::mend();
    // SAFETY: a fresh mapping, of which the upper page becomes unreadable.
    unsafe {
        let at = mmap_anonymous(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
        .unwrap();
        mprotect(at.cast::<u8>().add(4096).cast(), 4096, MprotectFlags::empty()).unwrap();
        at.cast::<u8>().add(4096)
    }
}

#[test]
fn copies_of_every_length_stop_exactly_at_the_edge() {
    let edge = edge();
    for n in 0..200u8 {
        // SAFETY: inside the readable page.
        unsafe { edge.sub(usize::from(n) + 1).write(n) };
    }
    for before in 0..200usize {
        for len in [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 199, 200] {
            let mut to = [0xaa_u8; 208];
            // SAFETY: `to` has room for every length; the source may fail.
            let ok = unsafe { fault::copy_from(to.as_mut_ptr(), edge as u64 - before as u64, len) };
            assert_eq!(ok, len <= before, "{before} {len}");
            if ok {
                let want: Vec<u8> = (0..len).map(|n| (before - n - 1) as u8).collect();
                assert_eq!(to[..len], want, "{before} {len}");
            }
            assert!(to[len..].iter().all(|b| *b == 0xaa), "{before} {len}: wrote too much");
        }
    }
}

#[test]
fn strings_end_with_nul_or_fail() {
    let edge = edge();
    // SAFETY: inside the readable page.
    unsafe { std::ptr::copy_nonoverlapping(b"hi\0wxyz".as_ptr(), edge.sub(7), 7) };
    let get = |before: u64, size: usize| {
        let mut to = [0xaa_u8; 16];
        // SAFETY: `to` has room for every size used here.
        let n = unsafe { fault::str_from(to.as_mut_ptr(), edge as u64 - before, size) };
        n.map(|n| to[..n].to_vec())
    };
    assert_eq!(get(7, 16), Some(b"hi\0".to_vec()));
    assert_eq!(get(7, 3), Some(b"hi\0".to_vec()));
    assert_eq!(get(7, 2), Some(b"h\0".to_vec()));
    assert_eq!(get(7, 0), Some(vec![]));
    assert_eq!(get(4, 4), Some(b"wxy\0".to_vec()), "as far as it may, then cut");
    assert_eq!(get(4, 5), None, "runs into the edge");
    assert_eq!(get(0, 1), None);
}

#[test]
fn wild_addresses_fail_and_foreign_ones_are_not_ours() {
    let _ = edge();
    let mut to = [0; 128];
    for src in [0, 8, 0x1234_5678_9abc_def0, 0xffff_8000_0000_0000, u64::MAX - 7, u64::MAX] {
        for len in [1, 8, 100] {
            // SAFETY: `to` has room; the source may fail.
            assert!(!unsafe { fault::copy_from(to.as_mut_ptr(), src, len) }, "{src:#x}");
        }
        // SAFETY: as above.
        assert_eq!(unsafe { fault::str_from(to.as_mut_ptr(), src, 100) }, None, "{src:#x}");
    }
    // SAFETY: no programs come and go in this test.
    let fixup = |ip| unsafe { fault::fixup(ip) };
    assert_eq!(fixup(edge as *const () as u64), None);
    assert_eq!(fixup(0), None);
}

/// What the step after the verifier makes of loads that may find nothing: 0 there, the value
/// elsewhere, and no register is lost.
#[test]
fn loads_of_programs_give_zero_where_there_is_no_memory() {
    let edge = edge();
    // SAFETY: inside the readable page.
    unsafe { edge.sub(8).cast::<u64>().write_unaligned(0x8182_8384_8586_8788) };
    let want: [(u8, u64, u64, i64); 4] = [
        (op::B, 1, 0x81, i64::from(0x81_u8 as i8)),
        (op::H, 2, 0x8182, i64::from(0x8182_u16 as i16)),
        (op::W, 4, 0x8182_8384, i64::from(0x8182_8384_u32 as i32)),
        (op::DW, 8, 0x8182_8384_8586_8788, 0x8182_8384_8586_8788_u64 as i64),
    ];
    for engine in suite::ENGINES {
        for (size, bytes, value, signed) in want {
            for mode in [op::PROBE_MEM, op::PROBE_MEMSX] {
                if (size, mode) == (op::DW, op::PROBE_MEMSX) {
                    continue;
                }
                for dst in 0..6u8 {
                    // The registers' sum tells whether one of them was lost.
                    let mut insns: Vec<Insn> =
                        (2..=5).map(|r| Insn::mov64_imm(r, i32::from(r) * 1000)).collect();
                    insns.push(Insn::mov64_imm(0, 7));
                    insns.push(Insn::new(op::LDX | mode | size, dst, 1, -4, 0));
                    insns.push(Insn::mov64_reg(6, dst));
                    insns.extend(
                        (2..=5)
                            .filter(|r| *r != dst)
                            .map(|r| Insn::new(op::ALU64 | op::X | op::ADD, 6, r, 0, 0)),
                    );
                    insns.push(Insn::mov64_reg(0, 6));
                    insns.push(Insn::exit());
                    let rest: u64 =
                        (2..=5).filter(|r| *r != u64::from(dst)).map(|r| r * 1000).sum();
                    let run = |at: u64| {
                        suite::run_in(
                            engine,
                            &insns,
                            &Env::empty(),
                            [at.wrapping_add(4), 0, 0, 0, 0],
                        )
                    };
                    let there = if mode == op::PROBE_MEM { value } else { signed as u64 };
                    assert_eq!(
                        run(edge as u64 - bytes),
                        Ok(there.wrapping_add(rest)),
                        "{engine} {size:x} {mode:x} r{dst}"
                    );
                    for bad in [edge as u64, edge as u64 - bytes + 1, 0, 16, 1 << 47, u64::MAX - 64]
                    {
                        assert_eq!(
                            run(bad),
                            Ok(rest),
                            "{engine} {size:x} {mode:x} r{dst} {bad:#x}"
                        );
                    }
                }
            }
        }
    }
}

/// Two loads in a function of their own, and one in the main function: the sum of what is there,
/// and what the stack held.
fn three_loads(add: i32) -> Vec<Insn> {
    let probe = |dst, src, off| Insn::new(op::LDX | op::PROBE_MEM | op::DW, dst, src, off, 0);
    let add_reg = |dst, src| Insn::new(op::ALU64 | op::X | op::ADD, dst, src, 0, 0);
    vec![
        Insn::mov64_imm(6, add),
        probe(7, 1, 0),
        Insn::new(op::CALL, 0, op::PSEUDO_CALL, 0, 3),
        add_reg(0, 6),
        add_reg(0, 7),
        Insn::exit(),
        Insn::new(op::ST | op::MEM | op::DW, 10, 0, -8, 5),
        probe(3, 1, 8),
        probe(2, 1, 16),
        Insn::new(op::LDX | op::MEM | op::DW, 0, 10, -8, 0),
        add_reg(0, 2),
        add_reg(0, 3),
        Insn::exit(),
    ]
}

/// More programs than there are tables, at the same time, with others going away between them: each
/// is mended where it is.
#[test]
fn each_of_many_programs_is_mended_by_its_own_table() {
    let edge = edge();
    // SAFETY: inside the readable page.
    unsafe { edge.sub(8).cast::<u64>().write(1000) };
    let edge = edge as u64;
    // SAFETY: the program's stores go to its stack, and its loads may fail.
    let make = |n: i32| (n, unsafe { Code::compile(&three_loads(n), &Env::empty()) }.unwrap());
    let check = |all: &[(i32, Code)]| {
        for (n, code) in all {
            for (from, want) in [(8, 1005), (16, 1005), (24, 1005), (0, 5), (25, 5)] {
                let at = if from == 25 { 16 } else { edge - from };
                // SAFETY: as above.
                let got = unsafe { code.entry()(at as *mut u8) };
                assert_eq!(got, want + *n as u64, "program {n}, {from} bytes before the edge");
            }
        }
    };
    let mut all: Vec<_> = (0..1100).map(make).collect();
    check(&all);
    let mut odd = false;
    all.retain(|_| {
        odd = !odd;
        odd
    });
    check(&all);
    all.extend((2000..2600).map(make));
    check(&all);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..300).for_each(|n| check(&[make(n)])));
        check(&all[..100]);
    });
}
