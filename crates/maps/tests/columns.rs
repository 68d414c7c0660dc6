//! Large per-CPU arrays, of which a process maps the columns of its own threads only.

use skep_isa::MapType;
use skep_maps::{Access, Map, MapDef, SlotTable, slots};
use skep_testkit::TempDir;

fn address_space() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is one");
    let kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmSize:"))
        .and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("the kernel tells") << 10
}

/// A quarter of a million statistics for 256 slots are 25 GB of a file, and next to nothing of the
/// address space; every thread finds its own value, threads that were there before the map as well
/// as others, and readers find all.
#[test]
fn a_map_of_many_gigabytes_takes_what_is_used() -> Result<(), Box<dyn std::error::Error>> {
    const ENTRIES: u32 = 1 << 18;
    const SIZE: u32 = 384;
    let dir = TempDir::new();
    std::fs::create_dir(dir.join("maps"))?;
    SlotTable::open_or_create(dir.path())?.install();
    let before = address_space();
    drop(Map::create(&dir.join("maps"), 1, &MapDef::new(MapType::PercpuArray, 4, SIZE, ENTRIES))?);
    let map = Map::open_first(&dir.join("maps/1"), Access::ReadWrite, 1000)?;
    let count = |map: &Map, index: u32| {
        let entered = slots::enter();
        assert!(!entered.is_refused());
        // SAFETY: four bytes of a key; a value is as large as the map's are, and this thread's own.
        let value = unsafe { map.prog_lookup((&raw const index).cast()) };
        if !value.is_null() {
            // SAFETY: as above.
            unsafe { value.cast::<u64>().write(value.cast::<u64>().read() + 1) };
        }
        slots::exit(entered);
        !value.is_null()
    };
    let (ready, go) = (std::sync::Barrier::new(21), std::sync::Barrier::new(21));
    std::thread::scope(|s| -> Result<(), Box<dyn std::error::Error>> {
        for _ in 0..20 {
            s.spawn(|| {
                assert!(count(&map, 0));
                ready.wait();
                // By now there is a second map, which was opened when this thread had its slot.
                go.wait();
                let later = Map::open_first(&dir.join("maps/1"), Access::ReadWrite, 1000)
                    .expect("it is there");
                assert!(count(&later, 0) && count(&map, 999));
            });
        }
        assert!(count(&map, 0));
        ready.wait();
        let later = Map::open_first(&dir.join("maps/1"), Access::ReadWrite, 5)?;
        assert!(count(&later, 4) && !count(&later, 5), "programs find no more than was asked for");
        assert_eq!(later.shape().entries, 5);
        // 21 columns of 384,000 bytes; stacks and heaps of the threads take far more.
        assert!(
            address_space() - before < (64 << 20) + 20 * (16 << 20) + 20 * (64 << 20),
            "{}",
            address_space() - before
        );
        go.wait();
        Ok(())
    })?;
    assert!(!count(&map, 1000));
    let sum = |index: u32| -> Result<u64, Box<dyn std::error::Error>> {
        let value =
            Map::open(&dir.join("maps/1"), Access::ReadOnly)?.lookup(&index.to_le_bytes())?;
        Ok(value
            .chunks_exact(SIZE as usize)
            .map(|v| u64::from_le_bytes(v[..8].try_into().expect("eight")))
            .sum())
    };
    assert_eq!((sum(0)?, sum(4)?, sum(999)?, sum(1000)?), (41, 1, 20, 0));
    Ok(())
}
