//! Measures the symbolization of a list of addresses of one file, for `cargo xtask bench
//! symbolize`.
//!
//! ```text
//! symbolize_many ours|blazesym mangled|names|lines FILE ADDRESSES
//! symbolize_many command mangled|names|lines FILE ADDRESSES -- COMMAND…
//! ```
//!
//! ADDRESSES is a file with a link-time address in hex on each line; a command gets it as its
//! standard input. All open the file, answer all addresses with names, demangled but with
//! `mangled`; with `lines` source lines and inlined functions too. Prints `measured NANOSECONDS PEAK-BYTES NAMED`.

#![allow(clippy::print_stdout, reason = "this is a program")]

use std::borrow::Cow;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use skep_proc::demangle::demangle;
use skep_proc::symbolize::{SymbolFile, Want};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [side, what, file, list, rest @ ..] = args.as_slice() else {
        return Err(
            "usage: symbolize_many SIDE mangled|names|lines FILE ADDRESSES [-- COMMAND…]".into()
        );
    };
    let (lines, plain) = (what == "lines", what != "mangled");
    let (named, nanos) = match side.as_str() {
        "ours" | "blazesym" => {
            // Read piece by piece, so that the list is no part of the memory that is measured.
            let mut addrs = Vec::with_capacity(File::open(list)?.metadata()?.len() as usize / 8);
            for line in BufReader::new(File::open(list)?).lines() {
                addrs.push(u64::from_str_radix(line?.trim_start_matches("0x"), 16)?);
            }
            let side = if side == "ours" { ours } else { rival };
            let before = Instant::now();
            (side(Path::new(file), &addrs, lines, plain)?, before.elapsed().as_nanos())
        }
        _ => {
            let [_, program, arguments @ ..] = rest else { return Err("no command".into()) };
            let before = Instant::now();
            let output = Command::new(program)
                .args(arguments)
                .stdin(File::open(list)?)
                .stdout(Stdio::null())
                .status()?;
            let nanos = before.elapsed().as_nanos();
            (usize::from(output.success()), nanos)
        }
    };
    let peak = if side == "command" { child_peak() } else { own_peak()? };
    println!("measured {nanos} {peak} {named}");
    Ok(())
}

/// Symbolizes with skep, and keeps no names where there are no lines; all are demangled, as often as
/// they come. Returns how many addresses have a name.
fn ours(path: &Path, addrs: &[u64], lines: bool, plain: bool) -> Result<usize, Box<dyn Error>> {
    let mut file = SymbolFile::open(path)?;
    if !lines {
        let mut named = 0;
        file.each_name(addrs, &mut |number, symbol| {
            let name = text(symbol.name);
            if plain {
                black_box((number, demangle(&name)));
            }
            black_box((number, name));
            named += 1;
        });
        return Ok(named);
    }
    let answers = file.find(addrs, Want { lines, inlined: lines });
    let mut named = 0;
    for answer in (0..addrs.len()).filter_map(|number| answers.at(number)) {
        let symbol = answer.symbol();
        if let Some(symbol) = symbol {
            black_box(demangle(&text(symbol.name)));
        }
        named += usize::from(symbol.is_some() || answer.frames().len() > 0);
        for frame in answer.frames() {
            let name = text(frame.name.unwrap_or_default());
            black_box((demangle(&name), frame.file, frame.line));
        }
    }
    Ok(named)
}

/// A name as text. `String::from_utf8_lossy` looks at its bytes one by one.
fn text(name: &[u8]) -> Cow<'_, str> {
    str::from_utf8(name).map_or_else(|_| String::from_utf8_lossy(name), Cow::Borrowed)
}

/// The same with blazesym.
fn rival(path: &Path, addrs: &[u64], lines: bool, plain: bool) -> Result<usize, Box<dyn Error>> {
    let symbolizer = Symbolizer::builder()
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .enable_demangling(plain)
        .build();
    let mut elf = Elf::new(path);
    // Without lines, names come from the symbol table here too.
    elf.debug_syms = lines;
    let found = symbolizer.symbolize(&Source::Elf(elf), Input::VirtOffset(addrs))?;
    let named = found.iter().filter(|s| matches!(s, Symbolized::Sym(_))).count();
    black_box(found);
    Ok(named)
}

/// The most memory that this process had resident at a time, in bytes.
fn own_peak() -> Result<i64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM")?;
    Ok(kib.parse::<i64>()? * 1024)
}

/// The same of the largest child that has ended.
fn child_peak() -> i64 {
    // SAFETY: all zeros is a value of the structure; the kernel writes to nothing else.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage.ru_maxrss * 1024
    }
}
