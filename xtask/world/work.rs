//! What rustc works on: generics, closures, threads, a panic that is caught.
use std::collections::BTreeMap;
use std::sync::mpsc;

fn fib(n: u64) -> u64 {
    if n < 2 { n } else { fib(n - 1) + fib(n - 2) }
}

fn main() {
    let (tx, rx) = mpsc::channel();
    let threads: Vec<_> = (0..8).map(|n| { let tx = tx.clone(); std::thread::spawn(move || tx.send(fib(10 + n)).unwrap()) }).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    drop(tx);
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (0..50).filter(|n| std::panic::catch_unwind(|| [1, 2, 3][*n]).is_err()).count();
    let mut count = BTreeMap::new();
    "the quick brown fox jumps over the lazy dog".split(' ').for_each(|w| *count.entry(w).or_insert(0) += 1);
    println!("{} {caught} {count:?}", rx.iter().sum::<u64>());
    std::process::exit(7);
}
