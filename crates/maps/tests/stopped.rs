//! Writers that are stopped (`SIGSTOP`, a debugger) at any instruction: others do their work or are
//! told at once that they cannot, readers read on, and when the writer goes on or dies, all is as
//! before.

mod support;

use std::collections::BTreeSet;

use skep_isa::map::DynptrUser;
use skep_isa::{KeyShape, MapFlags, MapType};
use skep_maps::{Access, Map, MapDef, MapError};
use support::{Child, Dir, Random, forked, rounds};

const KINDS: [(MapType, u32, u32, u32); 10] = [
    (MapType::Hash, 8, 64, 64),
    (MapType::Hash, 8, 64, 16),
    (MapType::LruHash, 8, 64, 16),
    (MapType::LpmTrie, 8, 64, 64),
    (MapType::QpTrie, 8, 64, 64),
    (MapType::QpTrie, 8, 8, 16),
    (MapType::QpTrie, STRINGS, 64, 64),
    (MapType::Queue, 0, 512, 64),
    (MapType::Stack, 0, 512, 64),
    (MapType::Ringbuf, 0, 0, 4096),
];

/// The size of a description: keys of that trie are byte strings.
const STRINGS: u32 = DynptrUser::SIZE;

fn key(t: MapType, i: u64) -> Vec<u8> {
    match t {
        MapType::LpmTrie => [32u32.to_ne_bytes(), (i as u32).to_be_bytes()].concat(),
        MapType::Queue | MapType::Stack => vec![],
        _ => i.to_ne_bytes().to_vec(),
    }
}

/// One change as a program makes it.
fn change(map: &Map, x: u64) -> i64 {
    let t = map.def().map_type;
    let (key, value) = (key(t, x % 16), [x as u8; 512]);
    let description = DynptrUser { data: key.as_ptr() as u64, size: 8, reserved: 0 };
    let key = match map.key_shape() {
        KeyShape::Bytes { .. } => (&raw const description).cast(),
        KeyShape::Fixed(_) => key.as_ptr(),
    };
    // SAFETY: a key and a value of the map, at least as long as they are.
    unsafe {
        match t {
            MapType::Queue | MapType::Stack => map.prog_push(value.as_ptr(), 2),
            MapType::Ringbuf => map.ringbuf_output(value.as_ptr(), 200, 0),
            _ => map.prog_update(key, value.as_ptr(), 0),
        }
    }
}

fn signal(child: &Child, signal: i32) {
    let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.pid()).expect("a process"),
        signal,
    )
    .expect("ours");
}

fn wait_for_state(child: &Child, letter: &str) {
    let stat = || {
        std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).expect("not waited for yet")
    };
    while !stat().rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(letter)) {
        std::thread::yield_now();
    }
}

fn check(map: &Map) {
    if map.def().map_type == MapType::Ringbuf {
        return;
    }
    let mut seen = BTreeSet::new();
    for e in map.iter() {
        match e {
            Ok((key, value)) => {
                assert!(key.is_empty() || seen.insert(key), "once");
                assert!(value.iter().all(|b| *b == value[0]), "whole");
            }
            Err(e) => panic!("reading goes on: {e}"),
        }
    }
}

#[test]
fn others_go_on_or_are_told_while_a_writer_is_stopped() {
    for (t, key_size, value_size, entries) in KINDS {
        let dir = Dir::new();
        let is_trie = matches!(t, MapType::LpmTrie | MapType::QpTrie);
        let flags = if is_trie { MapFlags::NO_PREALLOC } else { 0 };
        let longest = if key_size == STRINGS { 20 } else { 0 };
        let def = MapDef::new(t, key_size, value_size, entries).flags(flags).extra(longest);
        let map = dir.make(&def);
        let mut random = Random(t as u64 * 1000 + u64::from(entries));
        for round in 0..rounds(40, 2_000) {
            let child = forked(|| {
                let map = Map::open(map.file().path(), Access::ReadWrite).expect("opens");
                let mut random = Random(u64::from(round));
                loop {
                    change(&map, random.next());
                }
            });
            wait_for_state(&child, "R");
            for _ in 0..random.below(20_000) {
                std::hint::spin_loop();
            }
            signal(&child, 19);
            wait_for_state(&child, "T");
            let mut stuck = None;
            for i in 0..32 {
                match change(&map, i) {
                    // A ring buffer is full when its consumer is slow; -EAGAIN is all that a
                    // program is told.
                    0 | -11 => {}
                    -16 => {
                        stuck = Some(i);
                    }
                    e => panic!("{t}: {e}"),
                }
            }
            if let (Some(i), true) = (stuck, key_size >= 8) {
                match map.update(&key(t, i % 16), &vec![1; map.user_value_size()], 0) {
                    Err(MapError::Held { pid, .. }) => assert_eq!(pid, child.pid() as u32),
                    // Nodes that were made anew since have other locks.
                    Ok(()) if t == MapType::QpTrie => {}
                    other => panic!("{t}: as busy as it was: {other:?}"),
                }
            }
            check(&map);
            if round % 2 == 0 {
                signal(&child, 18);
            }
            child.kill();
            child.join();
            for i in 0..16 {
                assert!(matches!(change(&map, i), 0 | -11), "{t}: its lock is free again");
            }
            check(&map);
        }
    }
}
