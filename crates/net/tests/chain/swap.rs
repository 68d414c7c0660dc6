//! Chains that are replaced while packets run through them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use skep_isa::text;
use skep_net::chain::swap::Current;
use skep_vm::Env;
use skep_vm::chain::plan::ALL;
use skep_vm::chain::{Options, Part, Plan, PlanEdge, Step, To, Unit};

/// Programs of a chain.
const LENGTH: usize = 5;

/// A chain whose programs all write its number into the packet, each into a word of its own.
struct Numbered(Unit);

// Plain code, which any thread may run.
fn chain(number: u32) -> Numbered {
    let env = Env::empty();
    let programs: Vec<_> = (0..LENGTH)
        .map(|n| {
            let source =
                format!("mov r2, {number}\nstxdw [r1+{}], r2\nmov r0, {number}\nexit", 8 * n);
            text::assemble(&source).expect("a program")
        })
        .collect();
    let parts: Vec<Part<'_>> = programs.iter().map(|insns| Part { insns, env: &env }).collect();
    let edge = |n| PlanEdge { on: ALL, to: To::Node(n), bound: None };
    let edges = |n| if n < LENGTH { vec![edge(n)] } else { Vec::new() };
    let steps = (1..=LENGTH).map(|n| Step { edges: edges(n) }).collect();
    let plan = Plan { steps, budget: 32, exhausted: Default::default() };
    // SAFETY: the programs write to their packet, which is large enough.
    Numbered(unsafe { Unit::compile(&plan, &parts, &Options::default()) }.expect("a chain"))
}

/// Two writers replace the chain all the time; in every packet all words are of one chain, and the
/// chains that a reader sees do not go back.
#[test]
fn no_packet_sees_parts_of_two_chains() {
    let current = Arc::new(Current::new(chain(1)));
    let (next, stop) = (AtomicU64::new(2), AtomicBool::new(false));
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 400 };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut reader = Current::reader(&current);
                let stop = &stop;
                scope.spawn(move || {
                    let (mut packets, mut chains, mut last) = (0u64, 0u64, 0);
                    // The last chain is run too.
                    let mut ends = false;
                    while !ends {
                        ends = stop.load(Relaxed);
                        let mut packet = [0u64; LENGTH];
                        let at = packet.as_mut_ptr().cast();
                        // SAFETY: the packet has a word for each program.
                        let verdict = unsafe { reader.get().0.run(at, &[]) };
                        assert_eq!(packet, [u64::from(verdict); LENGTH]);
                        chains += u64::from(verdict != last);
                        last = verdict;
                        packets += 1;
                    }
                    (packets, chains, last)
                })
            })
            .collect();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        current.publish(chain(next.fetch_add(1, Relaxed) as u32));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().expect("no panic"));
        stop.store(true, Relaxed);
        let mut packet = [0u64; LENGTH];
        // SAFETY: as above.
        let last = unsafe { current.load().0.0.run(packet.as_mut_ptr().cast(), &[]) };
        for reader in readers {
            let (packets, chains, seen) = reader.join().expect("no panic");
            assert!(packets >= chains && chains > 0);
            assert_eq!(seen, last, "the last chain is what runs in the end");
        }
    });
    assert_eq!(current.load().1, 2 * rounds);
}

/// A chain that nobody runs any more is freed, and not before.
#[test]
fn an_old_chain_goes_with_its_last_reader() {
    let value = Arc::new(());
    let current = Arc::new(Current::new(Arc::clone(&value)));
    let (mut one, mut two) = (Current::reader(&current), Current::reader(&current));
    assert_eq!(Arc::strong_count(&value), 2);
    current.publish(Arc::new(()));
    assert!(!Arc::ptr_eq(&**one.get(), &value));
    assert_eq!(Arc::strong_count(&value), 2, "the other reader may be inside");
    let _ = two.get();
    assert_eq!(Arc::strong_count(&value), 1);
}
