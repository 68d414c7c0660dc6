//! Reads a whole map: `cargo run --release -p skep-maps --example dump hash|percpu_hash|array
//! ENTRIES-A-CALL [take|key]`.
//!
//! Question: what does a dump of 100,000 entries of 8+8 bytes cost through the library? Prints
//! `measured NS`, the best of five times. `key` is the command as it was proposed: the caller gives
//! the last key of the call before. `cargo xtask bench dump` runs it beside the kernel's own ways.
#![allow(clippy::print_stdout, reason = "this is a program")]

use std::path::PathBuf;
use std::time::Instant;

use skep_isa::MapType;
use skep_maps::dump::command;
use skep_maps::{Map, MapDef, Take};

const N: u64 = 100_000;
const ROUNDS: u32 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, room, how @ ..] = args.as_slice() else {
        return Err("usage: dump TYPE ENTRIES-A-CALL [take|key]".into());
    };
    let how = match how.first().map(String::as_str) {
        None => How::Walk,
        Some("take") => How::Take,
        Some("key") => How::Key,
        Some(_) => return Err("no such way".into()),
    };
    let dir = PathBuf::from("/dev/shm").join(format!("skep-dump-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("maps"))?;
    let result = run(&dir, MapType::from_name(kind).ok_or("no such type")?, room.parse()?, how);
    std::fs::remove_dir_all(&dir)?;
    println!("measured {}", result?);
    Ok(())
}

/// How elements are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Walk,
    Take,
    Key,
}

fn run(
    dir: &std::path::Path,
    map_type: MapType,
    room: usize,
    how: How,
) -> Result<u128, Box<dyn std::error::Error>> {
    let array = map_type == MapType::Array;
    let map = Map::create(
        &dir.join("maps"),
        1,
        &MapDef::new(map_type, if array { 4 } else { 8 }, 8, N as u32),
    )?;
    let mut best = u128::MAX;
    for round in 0..ROUNDS {
        if round == 0 || how == How::Take {
            fill(&map, array)?;
        }
        let begin = Instant::now();
        let read = if how == How::Key {
            by_key(&map, room)?
        } else {
            by_walk(&map, room, how == How::Take)?
        };
        best = best.min(begin.elapsed().as_nanos());
        if read != N {
            return Err(format!("read {read} entries").into());
        }
    }
    Ok(best)
}

fn by_walk(map: &Map, room: usize, take: bool) -> Result<u64, skep_maps::MapError> {
    let mut walk = map.walk();
    if take {
        walk = walk.taking(Take::Fast);
    }
    let mut buf = vec![0; room * walk.element_size()];
    let mut read = 0;
    loop {
        let n = walk.rows(&mut buf)?;
        if n == 0 {
            return Ok(read);
        }
        read += n as u64;
    }
}

fn by_key(map: &Map, room: usize) -> Result<u64, skep_maps::MapError> {
    let (key_size, size) = (map.def().key_size as usize, map.walk().element_size());
    let (mut buf, mut key, mut read) = (vec![0; room * size], vec![0; key_size], 0);
    loop {
        let mut len = buf.len() as u32;
        match command::dump(map, (read > 0).then_some(&mut key), &mut buf, &mut len, 0) {
            Err(skep_maps::MapError::NoElement) => return Ok(read),
            done => done?,
        }
        if read == 0 {
            // The first call has no key to move on.
            key.copy_from_slice(&buf[len as usize - size..][..key_size]);
        }
        read += len as u64 / size as u64;
    }
}

fn fill(map: &Map, array: bool) -> Result<(), skep_maps::MapError> {
    for i in 0..N {
        let key = if array {
            (i as u32).to_ne_bytes().to_vec()
        } else {
            i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes().to_vec()
        };
        map.update(&key, &i.to_ne_bytes(), 0)?;
    }
    Ok(())
}
