//! One link with two programs: one at the entry, one at the return of each function.

use skep::{Functions, PerCpuArray, PerCpuHashMap, Session};

const OBJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/library.bpf.o");

#[allow(clippy::print_stdout, reason = "it is a report")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let session = Session::scratch()?;
    let object = session.load(OBJECT)?;
    let functions = Functions::of_self("libc:malloc").cookie(1).and("libc:free").cookie(2);
    let link = object.attach(["enter", "leave"], functions)?;

    let words: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    drop(words);

    for function in link.functions()? {
        let state = function.skipped.as_deref().unwrap_or("attached");
        println!("{} in {}: {state}", function.name, function.module);
    }
    drop(link);
    let calls: PerCpuArray<u64> = object.map("calls")?.typed()?;
    let sum = |index| Ok::<u64, skep::Error>(calls.get(index)?.iter().flatten().sum());
    println!("{} entries, {} returns", sum(0)?, sum(1)?);
    let by_cookie: PerCpuHashMap<u64, u32> = object.map("by_cookie")?.typed()?;
    for entry in by_cookie.iter() {
        let (cookie, values) = entry?;
        println!("cookie {cookie}: {} calls", values.iter().sum::<u32>());
    }
    Ok(())
}
