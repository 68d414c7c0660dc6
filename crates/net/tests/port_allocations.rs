//! Nothing is allocated for a packet: ten times as many cost no allocation more. A program of its
//! own, since it has an allocator that counts, thread by thread: the thread that runs tests allocates
//! while they run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

use skep_net::port::capture::{Format, Reader, Unit, Writer};
use skep_net::port::generator::Generator;
use skep_net::port::{Batch, Outputs, Source, Target, Until, Verdict, Verdicts, memory, pump};
use skep_testkit::TempDir;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator, and a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's duties are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    run();
    ALLOCATIONS.get() - before
}

/// Pumps so many frames from a source into a file, into memory, and nowhere.
fn pumped(source: &mut dyn Source, file: Writer, packets: u64) -> u64 {
    let [mut near, mut far] = memory::pair([1, 2], 128);
    let mut outputs = Outputs::new();
    let file = outputs.add(Box::new(file));
    let memory = outputs.add(Box::new(near.sink.clone()));
    outputs.send_verdict(2, file);
    outputs.send_target(Target::Port(5), memory);
    let mut taken = Batch::new();
    let until = Until { packets: Some(packets), ..Until::default() };
    let run = |batch: &mut Batch, verdicts: &mut Verdicts| {
        let all = [Verdict::Pass, Verdict::Redirect(Target::Port(5)), Verdict::Drop];
        (0..batch.len()).for_each(|n| verdicts.set(n, all[n % 3]));
        taken.clear();
        far.source
            .receive(&mut taken, Duration::ZERO)
            .map_or(ControlFlow::Break(()), |_| ControlFlow::Continue(()))
    };
    let stats = pump(source, &mut outputs, &until, run).expect("nothing fails");
    assert_eq!((stats.packets, stats.sent.ring_full), (packets, 0));
    near.source.receive(&mut taken, Duration::ZERO).map_or(0, |_| stats.packets)
}

#[test]
fn packets_cost_no_allocations() {
    let dir = TempDir::in_memory();
    for (name, format) in [("pcap", Format::Pcap(Unit::Nanoseconds)), ("pcapng", Format::Pcapng)] {
        let count = |packets: u64| {
            let mut source = Generator::new(&[64, 700, 1514]);
            let file = Writer::create(&dir.join(name), format).expect("there is room");
            let made = allocations(|| assert_eq!(pumped(&mut source, file, packets), packets));
            let packets = packets / 4;
            let mut source = Reader::open(&dir.join(name)).expect("it was written");
            let file = Writer::create(&dir.join("again"), format).expect("there is room");
            let read = allocations(|| assert_eq!(pumped(&mut source, file, packets), packets));
            (made, read)
        };
        let (few, many) = (count(2000), count(20_000));
        assert_eq!(few, many, "{name}");
    }
}
