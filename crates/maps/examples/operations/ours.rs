//! The loop over our own map.

use std::hint::black_box;
use std::os::unix::fs::MetadataExt;

use skep_isa::MapType;
use skep_maps::{Map, MapDef, SlotTable, slots};

use crate::{Case, Op, Part, Result, Side};

/// A map with its keys.
struct Ours {
    map: Map,
    keys: Vec<u8>,
    others: Vec<u8>,
    stride: usize,
    value: Vec<u8>,
}

/// Makes the case's map in a directory of its own and hands it to `f`.
pub fn with<T>(case: &Case, f: impl FnOnce(&dyn Side) -> Result<T>) -> Result<T> {
    in_dir(case, |map| {
        let others = if case.op == Op::Lookup(false) { case.all_keys(true) } else { vec![] };
        f(&Ours { map, keys: case.all_keys(false), others, stride: case.stride(), value: vec![1; case.value as usize] })
    })
}

fn in_dir<T>(case: &Case, f: impl FnOnce(Map) -> Result<T>) -> Result<T> {
    let dir = std::path::PathBuf::from(format!("/dev/shm/skep-operations-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("maps"))?;
    let made = (|| {
        SlotTable::open_or_create(&dir)?.install();
        let value = if case.map_type == MapType::Ringbuf { 0 } else { case.value };
        let def = MapDef::new(case.map_type, case.key, value, case.entries()).flags(case.flags());
        f(Map::create(&dir.join("maps"), 1, &def)?)
    })();
    std::fs::remove_dir_all(&dir)?;
    made
}

/// Bytes of a full map's file that are there.
pub fn memory(case: &Case) -> Result<u64> {
    in_dir(case, |map| {
        let path = map.file().path().to_owned();
        let others = vec![];
        let side = Ours { map, keys: case.all_keys(false), others, stride: case.stride(), value: vec![1; case.value as usize] };
        side.part(Op::Insert, 0, 1)?()?;
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
            if count == all { Ok(()) } else { Err(format!("{op:?}: only {count} of {all} did what they should")) }
        }))
    }

    fn consumer(&self, records: u32) -> Result<Part<'_>> {
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
            Ok(())
        }))
    }
}

impl Ours {
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
            Op::Overwrite | Op::Insert => each!(k => self.map.prog_update(k, self.value.as_ptr(), 0) == 0),
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
            Op::Output => each!(k => self.map.ringbuf_output(k, self.value.len() as u64, 0) == 0),
            Op::Consume | Op::Through => unreachable!("done by a consumer"),
        }
        count
    }
}
