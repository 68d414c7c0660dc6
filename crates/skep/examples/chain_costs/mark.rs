//! `struct mark` of `benches/chain/bpf/mark.h`, which begins the global variables of both objects: a
//! program notes the time in its first and its last run.

use crate::Result;

/// Runs before the first that counts, as a part of all.
const WARM: u32 = 20;

/// The global variables before a test run, `size` bytes.
pub fn begin(size: usize, runs: u32) -> Vec<u8> {
    let words = [0, u64::from(runs / WARM), u64::from(runs) - 1];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.resize(size, 0);
    bytes
}

/// Nanoseconds of one run, by the global variables after a test run.
pub fn each(globals: &[u8], runs: u32) -> Result<f64> {
    let word = |n: usize| {
        let bytes = globals.get(n * 8..).and_then(<[u8]>::first_chunk).copied();
        bytes.map(u64::from_ne_bytes).ok_or("the global variables are too short")
    };
    let (ran, first, last, began, ended) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
    if ran != u64::from(runs) || ended <= began {
        return Err(format!("the last program ran {ran} times of {runs}").into());
    }
    Ok((ended - began) as f64 / (last - first) as f64)
}

/// Fails unless a program answered what it should.
pub fn check(retval: u32, want: u32) -> Result<()> {
    if retval == want { Ok(()) } else { Err(format!("a verdict of {retval}, not {want}").into()) }
}
