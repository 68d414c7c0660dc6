//! The loop over our own map.

use std::hint::black_box;
use std::os::unix::fs::MetadataExt;

use skep_isa::MapType;
use skep_maps::dump::batch;
use skep_maps::{Map, MapDef, SlotTable, slots};

use crate::{Case, Op, Part, Result, Side};

/// A map with its keys.
struct Ours {
    map: Map,
    /// What a user stores: for maps of maps, the number of one.
    stored: Vec<u8>,
    keys: Vec<u8>,
    others: Vec<u8>,
    stride: usize,
    value: Vec<u8>,
}

/// Makes the case's map in a directory of its own and hands it to `f`.
pub fn with<T>(case: &Case, f: impl FnOnce(&dyn Side) -> Result<T>) -> Result<T> {
    in_dir(case, |map, stored| {
        let others = if case.op == Op::Lookup(false) { case.all_keys(true) } else { vec![] };
        let value = vec![1; case.value as usize];
        f(&Ours { map, stored, keys: case.all_keys(false), others, stride: case.stride(), value })
    })
}

fn in_dir<T>(case: &Case, f: impl FnOnce(Map, Vec<u8>) -> Result<T>) -> Result<T> {
    let dir = std::path::PathBuf::from(format!("/dev/shm/skep-operations-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("maps"))?;
    let made = (|| {
        SlotTable::open_or_create(&dir)?.install();
        let value = match case.map_type {
            MapType::Ringbuf | MapType::UserRingbuf => 0,
            MapType::PerfEventArray => 4,
            _ => case.value,
        };
        let def = MapDef::new(case.map_type, case.key, value, case.entries()).flags(case.flags());
        if !case.outer() {
            let map = Map::create(&dir.join("maps"), 1, &def)?;
            if case.map_type == MapType::PerfEventArray {
                map.update(&[0; 4], &[0; 4], 0)?;
            }
            return f(map, case.value());
        }
        let inner = MapDef::new(MapType::Array, 4, 8, 1);
        let stored = Map::create(&dir.join("maps"), 2, &inner)?;
        f(
            Map::create(&dir.join("maps"), 1, &def.inner(&inner))?,
            stored.id().to_ne_bytes().to_vec(),
        )
    })();
    std::fs::remove_dir_all(&dir)?;
    made
}

/// Bytes of a full map's file that are there.
pub fn memory(case: &Case) -> Result<u64> {
    let filling = case.filling().ok_or("no case for memory")?;
    in_dir(case, |map, stored| {
        let path = map.file().path().to_owned();
        let (others, value) = (vec![], vec![1; case.value as usize]);
        let side =
            Ours { map, stored, keys: case.all_keys(false), others, stride: case.stride(), value };
        side.part(filling, 0, 1)?()?;
        Ok(std::fs::metadata(&path)?.blocks() * 512)
    })
}

impl Side for Ours {
    fn part(&self, op: Op, part: u32, threads: u32) -> Result<Part<'_>> {
        let keys = if op == Op::Lookup(false) { &self.others } else { &self.keys };
        let each = keys.len() / threads as usize;
        let mine = &keys[each * part as usize..each * (part as usize + 1)];
        Ok(Box::new(move || {
            let entered = slots::enter();
            let count = self.run(op, mine);
            slots::exit(entered);
            let all = (mine.len() / self.stride) as u64;
            if count == all {
                Ok(None)
            } else {
                Err(format!("{op:?}: only {count} of {all} did what they should"))
            }
        }))
    }

    fn consumer(&self, records: u32) -> Result<Part<'_>> {
        match self.map.def().map_type {
            MapType::PerfEventArray => return self.perf_reader(records),
            MapType::UserRingbuf => {
                return Ok(Box::new(move || self.drain(records).map(|()| None)));
            }
            _ => {}
        }
        let mut consumer = self.map.consumer()?;
        Ok(Box::new(move || {
            let mut left = records;
            while left > 0 {
                match consumer.next_record().map_err(|e| e.to_string())? {
                    Some(record) => {
                        black_box(record);
                        left -= 1;
                    }
                    None => std::hint::spin_loop(),
                }
            }
            Ok(None)
        }))
    }
}

impl Ours {
    fn perf_reader(&self, records: u32) -> Result<Part<'_>> {
        let mut reader = self.map.perf_reader()?;
        Ok(Box::new(move || {
            for _ in 0..records {
                black_box(
                    reader
                        .next_record()
                        .map_err(|e| e.to_string())?
                        .ok_or("a record is missing")?,
                );
            }
            Ok(None)
        }))
    }

    fn drain(&self, records: u32) -> std::result::Result<(), String> {
        let mut drain = self.map.user_ringbuf_drain().map_err(|e| format!("errno {e}"))?;
        for _ in 0..records {
            black_box(drain.next_sample().map_err(|e| format!("errno {e}"))?);
        }
        Ok(())
    }

    /// Goes through the keys; how often the result was as wanted.
    fn run(&self, op: Op, keys: &[u8]) -> u64 {
        let (mut count, mut out) = (0u64, vec![0u8; self.value.len()]);
        macro_rules! each {
            ($key:ident => $good:expr) => {
                for key in keys.chunks_exact(self.stride) {
                    let $key = black_box(key.as_ptr());
                    // SAFETY: keys and values are as long as the map's; the thread has a slot.
                    count += u64::from(unsafe { $good });
                }
            };
        }
        match op {
            Op::Lookup(hit) => each!(k => self.map.prog_lookup(k).is_null() != hit),
            Op::Overwrite | Op::Insert => {
                each!(k => self.map.prog_update(k, self.value.as_ptr(), 0) == 0)
            }
            Op::Delete => each!(k => self.map.prog_delete(k) == 0),
            Op::Push => each!(k => self.map.prog_push(k, 0) == 0),
            Op::Pop => each!(_k => self.map.prog_pop(out.as_mut_ptr()) == 0),
            Op::Peek => each!(k => self.map.prog_peek(k.cast_mut()) == 0),
            Op::Reserve => each!(k => {
                let p = self.map.ringbuf_reserve(8, 0);
                if !p.is_null() {
                    p.cast::<u64>().write(k.cast::<u64>().read_unaligned());
                    Map::ringbuf_submit(p, 0);
                }
                !p.is_null()
            }),
            Op::Output if self.map.def().map_type == MapType::PerfEventArray => {
                each!(k => self.map.perf_output(0, [(k, self.value.len() as u64), (std::ptr::null(), 0)]) == 0);
            }
            Op::Output if self.map.def().map_type == MapType::UserRingbuf => {
                each!(k => self.map.user_ringbuf_output(std::slice::from_raw_parts(k, self.value.len())).is_ok());
            }
            Op::StackId => each!(k => {
                let stack: [u64; 8] = std::array::from_fn(|n| u64::from(k.cast::<u32>().read_unaligned()) + n as u64);
                self.map.stack_id(stack.as_ptr(), 8, 1 << 9 | 1 << 10) >= 0
            }),
            Op::Read | Op::Store | Op::Remove | Op::Append | Op::Take => {
                self.as_user(op, keys, &mut count)
            }
            Op::ReadMany | Op::StoreMany => count = self.many(op, keys),
            Op::Output => each!(k => self.map.ringbuf_output(k, self.value.len() as u64, 0) == 0),
            Op::Consume | Op::Through => unreachable!("done by a consumer"),
        }
        count
    }

    /// As a user who has so many keys at a time.
    fn many(&self, op: Op, keys: &[u8]) -> u64 {
        const CALL: usize = 256;
        let (mut values, mut found) = (vec![0u8; CALL * self.value.len()], [false; CALL]);
        let mut count = 0;
        for keys in keys.chunks(CALL * self.stride) {
            let n = keys.len() / self.stride;
            let values = &mut values[..n * self.value.len()];
            let done = match op {
                Op::ReadMany => {
                    batch::lookup_keys(&self.map, black_box(keys), values, &mut found[..n])
                }
                _ => batch::update_batch(&self.map, black_box(keys), values, n, 0),
            };
            count += done.map_or(0, |n| n as u64);
        }
        count
    }

    fn as_user(&self, op: Op, keys: &[u8], count: &mut u64) {
        let mut out = vec![0; self.map.user_value_size()];
        for key in keys.chunks_exact(self.stride) {
            let key = black_box(&key[..self.map.def().key_size as usize]);
            let done = match op {
                Op::Read => self.map.lookup_into(key, &mut out, 0),
                Op::Store if !self.map.is_per_cpu() => self.map.update(key, &self.stored, 0),
                Op::Store => self.map.update(key, &out, 0),
                Op::Append => self.map.update(&[], &self.stored, 0),
                Op::Take => self.map.lookup_and_delete(&[], &mut out, 0),
                _ => self.map.delete(key),
            };
            *count += u64::from(done.is_ok());
        }
    }
}
