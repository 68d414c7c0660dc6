//! Functions for rustc, generic over numbers: maps, closures, formats, panics that are caught.
use std::collections::BTreeMap;

fn work<const N: usize>() -> usize {
    let mut counts = BTreeMap::new();
    for n in 0..N % 50 {
        *counts.entry(format!("{:x}", n * N)).or_insert([0_u8; N]) = [n as u8; N];
    }
    let caught = std::panic::catch_unwind(|| [1, 2, 3][N % 6]).unwrap_or(7);
    counts.iter().filter(|(key, _)| key.contains('a')).map(|(key, all)| key.len() + all.len()).sum::<usize>() + caught
}

macro_rules! all {
    ($($n:literal)*) => { [$(work::<{ $n * 4 + 1 }>() + work::<{ $n * 4 + 2 }>() + work::<{ $n * 4 + 3 }>()),*] };
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let sums = all!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    println!("{}", sums.iter().sum::<usize>());
    std::process::exit(7);
}
