//! The commands against the running kernel. They need the right to use bpf(2).

use std::ffi::CString;

use skep_isa::{AttachType, MapType, ProgramType};
use skep_kernel::{
    Btf, Command, Link, Map, MapSpec, Program, ProgramSpec, RingReader, TestRun, map_ids,
    possible_cpus, with_maps,
};
use skep_testkit::skip::{skip, without_bpf};

fn array(max_entries: u32) -> MapSpec<'static> {
    MapSpec::new(MapType::Array, 4, 8, max_entries)
}

#[test]
fn elements_go_in_and_out() {
    if without_bpf() {
        return;
    }
    let map = Map::create(&array(3)).unwrap();
    map.update(&1u32.to_le_bytes(), &77u64.to_le_bytes(), 0).unwrap();
    assert_eq!(map.lookup(&1u32.to_le_bytes()).unwrap(), 77u64.to_le_bytes());
    assert_eq!(map.next_key(None).unwrap(), 0u32.to_le_bytes());
    assert_eq!(map.next_key(Some(&1u32.to_le_bytes())).unwrap(), 2u32.to_le_bytes());
    assert!(map.next_key(Some(&2u32.to_le_bytes())).unwrap_err().is_not_found());
    let refused = map.delete(&1u32.to_le_bytes()).unwrap_err();
    assert_eq!(refused.to_string(), "BPF_MAP_DELETE_ELEM: Invalid argument (os error 22)");
    map.freeze().unwrap();
    assert_eq!(map.update(&[0; 4], &[0; 8], 0).unwrap_err().errno(), 1);
}

#[test]
fn slices_that_are_too_short_never_reach_the_kernel() {
    if without_bpf() {
        return;
    }
    let map = Map::create(&array(3)).unwrap();
    for refused in [
        map.lookup(&[0; 3]).map(drop),
        map.lookup_into(&[0; 4], &mut [0; 7]),
        map.update(&[0; 4], &[0; 7], 0),
        map.next_key_into(None, &mut [0; 3]),
        map.element(Command::ProgLoad, None, &mut [], 0),
    ] {
        assert_eq!(refused.unwrap_err().errno(), 22);
    }
    let (mut cursor, mut keys, mut values) = ([0; 4], [0; 8], [0; 15]);
    let batch =
        map.batch(Command::MapLookupBatch, (None, &mut cursor), (&mut keys, &mut values), 2, 0);
    assert_eq!((batch.result.unwrap_err().errno(), batch.count), (22, 2));
    // Per-CPU values are as many as there are CPUs.
    let map = Map::create(&MapSpec::new(MapType::PercpuArray, 4, 4, 1)).unwrap();
    assert_eq!(map.user_value_size(), 8 * possible_cpus().unwrap());
}

#[test]
fn a_map_is_found_by_its_id_and_tells_what_it_is() {
    if without_bpf() {
        return;
    }
    // A BTF with the types `int` (1) and `long` (2).
    let strings = b"\0int\0long\0";
    let types: [u32; 8] = [1, 1 << 24, 4, 1 << 24 | 32, 5, 1 << 24, 8, 1 << 24 | 64];
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, 32, 32, strings.len() as u32].iter().chain(&types) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(strings);
    let btf = Btf::load(&bytes).unwrap();
    let spec = MapSpec { name: "name_of_a_map_too_long", types: Some((&btf, [1, 2])), ..array(7) };
    let map = Map::create(&spec).unwrap();
    let info = map.info().unwrap();
    assert_eq!((info.name.as_str(), info.map_type()), ("name_of_a_map_t", Some(MapType::Array)));
    assert_eq!((info.key_size, info.value_size, info.max_entries), (4, 8, 7));
    assert_eq!((info.key_type_id, info.value_type_id), (1, 2));
    assert_eq!(Btf::open(info.btf_id).unwrap().bytes().unwrap(), bytes);
    assert!(map_ids().unwrap().contains(&info.id));
    let again = Map::open(info.id).unwrap();
    map.update(&[2, 0, 0, 0], &[5; 8], 0).unwrap();
    assert_eq!(again.lookup(&[2, 0, 0, 0]).unwrap(), [5; 8]);
    assert!(Map::open(u32::MAX).unwrap_err().is_not_found());
    assert!(Map::pinned(c"/sys/fs/bpf/no such pin").unwrap_err().errno() > 0);
}

#[test]
fn a_walk_gives_every_element_once() {
    if without_bpf() {
        return;
    }
    // A stack trace map has no batches.
    for map_type in [MapType::Hash, MapType::Array, MapType::PercpuHash, MapType::StackTrace] {
        let n = 5000;
        let map = Map::create(&MapSpec::new(map_type, 4, 8, n)).unwrap();
        let stored = if map_type == MapType::StackTrace { 0 } else { n };
        for i in 0..stored {
            let value = vec![i as u8; map.user_value_size()];
            map.update(&i.to_ne_bytes(), &value, 0).unwrap();
        }
        let mut keys = Vec::new();
        map.walk(|k, v, count| {
            for (k, v) in k.chunks(4).zip(v.chunks(map.user_value_size())).take(count) {
                assert_eq!(k[0], v[0]);
                keys.push(u32::from_ne_bytes(k.try_into().unwrap()));
            }
            true
        })
        .unwrap();
        keys.sort_unstable();
        assert_eq!(keys, (0..stored).collect::<Vec<_>>(), "{map_type}");
        let mut calls = 0;
        map.walk(|_, _, _| {
            calls += 1;
            false
        })
        .unwrap();
        assert_eq!(calls, u32::from(stored > 0), "it ends when it is told to");
    }
}

/// `bpf_loop` with a callback that adds to a word on the stack, and a word of a map as result.
#[test]
fn callbacks_and_map_values_get_through() {
    if without_bpf() {
        return;
    }
    // Programs take addresses in arrays of one entry only.
    let map = Map::create(&array(1)).unwrap();
    map.update(&0u32.to_le_bytes(), &30u64.to_le_bytes(), 0).unwrap();
    let insns = [
        [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0], // *(u64 *)(r10 - 8) = 0
        [0xb7, 1, 0, 0, 4, 0, 0, 0],          // r1 = 4
        [0x18, 0x42, 0, 0, 11, 0, 0, 0],      // r2 = the function at slot 14
        [0; 8],
        [0xbf, 0xa3, 0, 0, 0, 0, 0, 0],          // r3 = r10
        [0x07, 3, 0, 0, 0xf8, 0xff, 0xff, 0xff], // r3 += -8
        [0xb7, 4, 0, 0, 0, 0, 0, 0],             // r4 = 0
        [0x85, 0, 0, 0, 181, 0, 0, 0],           // call bpf_loop
        [0x18, 0x61, 0, 0, 0, 0, 0, 0],          // r1 = the value in map 0
        [0; 8],
        [0x79, 0x10, 0, 0, 0, 0, 0, 0],       // r0 = *(u64 *)r1
        [0x79, 0xa1, 0xf8, 0xff, 0, 0, 0, 0], // r1 = *(u64 *)(r10 - 8)
        [0x0f, 0x10, 0, 0, 0, 0, 0, 0],       // r0 += r1
        [0x95, 0, 0, 0, 0, 0, 0, 0],          // exit
        [0x79, 0x23, 0, 0, 0, 0, 0, 0],       // r3 = *(u64 *)r2
        [0x07, 3, 0, 0, 3, 0, 0, 0],          // r3 += 3
        [0x7b, 0x32, 0, 0, 0, 0, 0, 0],       // *(u64 *)r2 = r3
        [0xb7, 0, 0, 0, 0, 0, 0, 0],          // r0 = 0
        [0x95, 0, 0, 0, 0, 0, 0, 0],          // exit
    ];
    let bytes = with_maps(insns.as_flattened(), &[&map]);
    let spec = ProgramSpec {
        functions: &[0, 14],
        log: true,
        ..ProgramSpec::new(ProgramType::SocketFilter, &bytes)
    };
    let program = Program::load(&spec).unwrap_or_else(|e| panic!("{e}"));
    let run = program.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() }).unwrap();
    assert_eq!(run.retval, 42);
}

#[test]
fn a_refused_program_comes_with_the_log() {
    if without_bpf() {
        return;
    }
    let exit = [0x95, 0, 0, 0, 0, 0, 0, 0];
    let spec = ProgramSpec { log: true, ..ProgramSpec::new(ProgramType::SocketFilter, &exit) };
    let refused = Program::load(&spec).unwrap_err();
    assert!(refused.log.contains("R0 !read_ok"), "{refused}");
    assert!(refused.to_string().starts_with("BPF_PROG_LOAD: "), "{refused}");
    let (accepted, log) = Program::verifier_log(&spec).unwrap();
    assert!(!accepted && log.contains("0: (95) exit"), "{log}");
}

#[test]
fn records_of_a_ring_buffer_arrive_in_order() {
    if without_bpf() {
        return;
    }
    let map = Map::create(&MapSpec::new(MapType::Ringbuf, 0, 0, 4096)).unwrap();
    let insns = [
        [0x7a, 0x0a, 0xf8, 0xff, 7, 0, 0, 0], // *(u64 *)(r10 - 8) = 7
        [0x18, 0x51, 0, 0, 0, 0, 0, 0],       // r1 = map 0
        [0; 8],
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],          // r2 = r10
        [0x07, 2, 0, 0, 0xf8, 0xff, 0xff, 0xff], // r2 += -8
        [0xb7, 3, 0, 0, 8, 0, 0, 0],             // r3 = 8
        [0xb7, 4, 0, 0, 0, 0, 0, 0],             // r4 = 0
        [0x85, 0, 0, 0, 130, 0, 0, 0],           // call bpf_ringbuf_output
        [0xb7, 0, 0, 0, 0, 0, 0, 0],             // r0 = 0
        [0x95, 0, 0, 0, 0, 0, 0, 0],             // exit
    ];
    let bytes = with_maps(insns.as_flattened(), &[&map]);
    let program = Program::load(&ProgramSpec::new(ProgramType::SocketFilter, &bytes)).unwrap();
    let run = TestRun { data_in: &[0; 64], repeat: 5, ..TestRun::default() };
    program.test_run(&run).unwrap();
    let mut reader = RingReader::new(&map, 4096).unwrap();
    let mut records = Vec::new();
    assert_eq!(reader.drain(|record| records.push(record.to_vec())), 5);
    assert_eq!(records, vec![7u64.to_le_bytes().to_vec(); 5]);
    assert_eq!(reader.drain(|_| ()), 0);
}

#[inline(never)]
extern "C" fn probed(n: u64) -> u64 {
    std::hint::black_box(n) * 3 + 1
}

/// Where an address of this process is: a file, and the offset in it.
fn place_in_file(address: u64) -> (CString, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text| u64::from_str_radix(text, 16).unwrap();
    for line in maps.lines() {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        if (hex(start)..hex(end)).contains(&address) {
            return (CString::new(words[5]).unwrap(), address - hex(start) + hex(words[2]));
        }
    }
    panic!("nothing is mapped at {address:#x}")
}

/// This test is the one process with the function.
#[test]
fn a_program_runs_at_an_instruction_as_long_as_its_link_lives() {
    if without_bpf() {
        return;
    }
    let map = Map::create(&array(1)).unwrap();
    // r0 = bpf_map_lookup_elem(map 0, &0); if (r0) *r0 += 1; return 0
    let count: [[u8; 8]; 12] = [
        [0x7a, 0x0a, 0xf8, 0xff, 0, 0, 0, 0],
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
        [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff],
        [0x18, 0x51, 0, 0, 0, 0, 0, 0],
        [0; 8],
        [0x85, 0, 0, 0, 1, 0, 0, 0],
        [0x15, 0x00, 0x03, 0, 0, 0, 0, 0],
        [0x79, 0x01, 0, 0, 0, 0, 0, 0],
        [0x07, 0x01, 0, 0, 1, 0, 0, 0],
        [0x7b, 0x10, 0, 0, 0, 0, 0, 0],
        [0xb7, 0, 0, 0, 0, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let insns = with_maps(count.as_flattened(), &[&map]);
    let mut spec = ProgramSpec::new(ProgramType::Kprobe, &insns);
    spec.attach_type = Some(AttachType::TraceUprobeMulti);
    let program = Program::load(&spec).unwrap();
    let (path, offset) = place_in_file(probed as extern "C" fn(u64) -> u64 as usize as u64);
    assert!(Link::uprobes(&program, c"/no/such/file", &[offset]).is_err());
    let link = match Link::uprobes(&program, &path, &[offset]) {
        Ok(link) => link,
        Err(refused) => return skip(&format!("uprobes by links: {refused}")),
    };
    let sum: u64 = (0..100).map(|n| probed(n)).sum();
    assert_eq!(sum, 3 * 99 * 100 / 2 + 100);
    assert_eq!(map.lookup(&[0; 4]).unwrap(), 100u64.to_le_bytes());
    drop(link);
    probed(1);
    assert_eq!(map.lookup(&[0; 4]).unwrap(), 100u64.to_le_bytes());
}
