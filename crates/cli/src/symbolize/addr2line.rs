//! `skep addr2line`: prints what binutils' `addr2line` prints.

use std::borrow::Cow;
use std::io::{self, Write};

use skep_proc::demangle::demangle;
use skep_proc::elf::ET_REL;
use skep_proc::symbolize::{Answer, SymbolFile, Want};

use super::input::Addresses;
use super::{MOST_OF_LINES, open_file};
use crate::args::Addr2lineArgs;
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer};

const SHF_ALLOC: u64 = 2;
/// What binutils reads of a line at a time; the rest counts as the next line.
const LONGEST_LINE: usize = 99;

/// Prints the lines of addresses; the exit status is 0 also where nothing is known of one.
pub fn run(args: &Addr2lineArgs, printer: Printer) -> Result<u8> {
    let mut file = open_file(&args.exe, None, true, printer)?;
    let section = match &args.section {
        None if file.elf().kind() == ET_REL => file.elf().first_code().map(|s| s.range()),
        None => None,
        Some(name) => {
            let section = file.elf().section(name).ok_or_else(|| {
                let what = format!("`{}` has no section `{name}`", args.exe.display());
                Failure { status: FAILED, ..Failure::environment(what) }
            })?;
            // There are no addresses in one that is not loaded.
            let size = if section.flags & SHF_ALLOC == 0 { 0 } else { section.size };
            Some(section.vaddr..section.vaddr.saturating_add(size))
        }
    };
    let base = section.as_ref().map_or(0, |s| s.start);
    let mut addresses = Addresses::new(&args.addrs, |text| Ok(Some(prefix(text))), LONGEST_LINE);
    while let Some(mut addrs) = addresses.next_batch(MOST_OF_LINES)? {
        addrs.iter_mut().for_each(|addr| *addr = base.wrapping_add(*addr));
        let want = Want { lines: true, inlined: args.inlines };
        let answers = file.find(&addrs, want);
        let is_read = printer.part(Output::Stdout, |out| {
            addrs.iter().try_for_each(|addr| {
                let inside = match &section {
                    Some(section) => section.contains(addr),
                    None => is_loaded(&file, *addr),
                };
                write(args, addr.wrapping_sub(base), answers.get(*addr).filter(|_| inside), out)
            })
        })?;
        if !is_read {
            break;
        }
    }
    Ok(0)
}

/// The number that a text begins with, as binutils reads it; one of more digits than fit is the largest.
/// What begins with anything else is a name of a symbol to binutils, and 0 here.
fn prefix(text: &str) -> u64 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let mut digits = digits.chars().map_while(|c| c.to_digit(16));
    let number = digits.try_fold(0_u64, |n, digit| Some(n.checked_mul(16)? | u64::from(digit)));
    number.unwrap_or(u64::MAX)
}

fn is_loaded(file: &SymbolFile, addr: u64) -> bool {
    file.elf().sections().iter().any(|s| s.flags & SHF_ALLOC != 0 && s.range().contains(&addr))
}

fn write(
    args: &Addr2lineArgs,
    addr: u64,
    answer: Option<Answer<'_>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if args.addresses {
        write!(out, "{addr:#018x}{}", if args.pretty_print { ": " } else { "\n" })?;
    }
    let frames: Vec<_> = answer.map_or_else(Vec::new, |a| a.frames().collect());
    let nearest = answer.and_then(|a| a.nearest());
    let discriminator = frames.first().map_or(0, |f| f.discriminator);
    let rows = frames.len().max(usize::from(nearest.is_some()));
    if rows == 0 {
        if args.functions {
            write!(out, "??{}", if args.pretty_print { " " } else { "\n" })?;
        }
        return writeln!(out, "??:0");
    }
    for i in 0..rows {
        let frame = frames.get(i);
        if i > 0 && args.pretty_print {
            write!(out, " (inlined by) ")?;
        }
        if args.functions {
            let name = frame.and_then(|f| f.name);
            let name = name.or(nearest.filter(|_| i == 0).map(|s| s.first_name));
            let name = String::from_utf8_lossy(name.unwrap_or(b"??"));
            let name = match &name {
                Cow::Borrowed(raw) if args.demangle.is_some() => demangle(raw),
                _ => name,
            };
            write!(out, "{name}{}", if args.pretty_print { " at " } else { "\n" })?;
        }
        let file = frame.and_then(|f| f.file).or(nearest.and_then(|s| s.file)).unwrap_or(b"??");
        let file = match file.iter().rposition(|b| *b == b'/') {
            Some(at) if args.basenames => file.get(at + 1..).unwrap_or_default(),
            _ => file,
        };
        out.write_all(file)?;
        match frame.map_or(0, |f| f.line) {
            0 => writeln!(out, ":?")?,
            line if discriminator > 0 => writeln!(out, ":{line} (discriminator {discriminator})")?,
            line => writeln!(out, ":{line}")?,
        }
    }
    Ok(())
}
