//! Reads a whole map of the kernel, one entry at a time or by batches: the rival of
//! `cargo xtask bench dump`.
//!
//! Usage: `read_map hash|array each|batch|keep [ENTRIES-A-CALL]`. Prints `measured NS` for all
//! 100,000 entries of 8+8 bytes, the best of five times. `keep` only creates and fills the map,
//! prints `map ID`, and waits for the end of stdin.
#![allow(clippy::print_stdout, reason = "this is a program")]

use std::io::Write;
use std::time::Instant;

use skep_isa::{MapType, errno};
use skep_kernel::{Batch, Command, Error, Map, MapSpec};

const N: u64 = 100_000;
const ROUNDS: u32 = 5;

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> Result {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [kind, "keep"] => keep(&filled(kind)?),
        [kind, "each"] => measure(&filled(kind)?, each),
        [kind, "batch", room] => {
            let room: usize = room.parse()?;
            measure(&filled(kind)?, |map| batch(map, room))
        }
        _ => Err("usage: read_map hash|array each|batch|keep [ENTRIES-A-CALL]".into()),
    }
}

fn filled(kind: &str) -> Result<Map> {
    let map_type = MapType::from_name(kind).ok_or("no such type")?;
    let key_size = if map_type == MapType::Array { 4 } else { 8 };
    let map = Map::create(&MapSpec::new(map_type, key_size, 8, N as u32))?;
    for i in 0..N {
        let key =
            if map_type == MapType::Array { i } else { i.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        map.update(&key.to_ne_bytes()[..key_size as usize], &i.to_ne_bytes(), 0)?;
    }
    Ok(map)
}

fn keep(map: &Map) -> Result {
    println!("map {}", map.info()?.id);
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn measure(map: &Map, read: impl Fn(&Map) -> Result<u64, Error>) -> Result {
    let mut best = u128::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let n = read(map)?;
        best = best.min(begin.elapsed().as_nanos());
        if n != N {
            return Err(format!("read {n} entries").into());
        }
    }
    println!("measured {best}");
    Ok(())
}

fn each(map: &Map) -> Result<u64, Error> {
    let size = map.key_size();
    let (mut key, mut next, mut value) = ([0; 8], [0; 8], [0; 8]);
    let mut n = 0;
    loop {
        match map.next_key_into((n > 0).then_some(&key[..size]), &mut next[..size]) {
            Err(e) if e.is_not_found() => return Ok(n),
            done => done?,
        }
        key = next;
        map.lookup_into(&key[..size], &mut value)?;
        n += 1;
    }
}

/// A bucket that does not fit makes the buffer twice as large, as every caller has to.
fn batch(map: &Map, mut room: usize) -> Result<u64, Error> {
    let key_size = map.key_size();
    let (mut keys, mut values) = (vec![0; room * key_size], vec![0; room * 8]);
    let (mut cursor, mut next) = ([0; 8], [0; 8]);
    let mut n = 0;
    loop {
        let Batch { result, count } = map.batch(
            Command::MapLookupBatch,
            ((n > 0).then_some(&cursor[..]), &mut next),
            (&mut keys, &mut values),
            room as u32,
            0,
        );
        match result.as_ref().map_err(Error::errno) {
            Ok(()) => {}
            Err(errno::ENOENT) => return Ok(n + u64::from(count)),
            Err(errno::ENOSPC) => {
                room *= 2;
                (keys, values) = (vec![0; room * key_size], vec![0; room * 8]);
                continue;
            }
            Err(_) => return result.map(|()| n),
        }
        n += u64::from(count);
        cursor = next;
    }
}
