//! Prints what this crate finds in a file or process, and how long that took.
//!
//! `cargo run -p skep-proc --release --example symbols -- FILE|PID [--all]`

#![allow(clippy::print_stdout, reason = "a command-line example")]

use std::error::Error;
use std::time::Instant;

use skep_proc::demangle::demangle;
use skep_proc::elf::{Elf, Functions};
use skep_proc::module;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().ok_or("usage: symbols FILE|PID [--all]")?;
    let all = args.next().is_some();
    let start = Instant::now();
    if let Ok(pid) = what.parse() {
        for m in module::of(pid)? {
            println!(
                "{:x}-{:x} {:?} bias {:x} {} {:?}",
                m.span.start,
                m.span.end,
                m.role,
                m.bias,
                m.path.display(),
                m.build_id
            );
        }
        println!("listed in {:?}", start.elapsed());
        return Ok(());
    }
    let elf = Elf::open(&what)?;
    let headers = start.elapsed();
    let functions = elf.functions_at(what.as_ref(), "/".as_ref())?;
    let symbols = start.elapsed();
    let fdes = elf.fdes()?;
    let unwind = start.elapsed();
    let patchable = elf.patchable_entries()?.len();
    println!(
        "{} functions from {:?}, {} unwind ranges, {patchable} patchable",
        functions.len(),
        functions.source(),
        fdes.len()
    );
    println!(
        "headers {headers:?}, functions {:?}, unwind ranges {:?}",
        symbols - headers,
        unwind - symbols
    );
    if all {
        print(&functions);
    }
    Ok(())
}

fn print(functions: &Functions) {
    for f in functions.iter() {
        let guess = if f.size_guessed { "?" } else { "" };
        println!(
            "{:x} {}{guess} {:?} {:?} {}",
            f.vaddr,
            f.size,
            f.kind,
            f.binding,
            demangle(&f.name_lossy())
        );
    }
}
