//! `skep vma`: what is mapped where in a live process.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use skep_proc::demangle::demangle;
use skep_proc::maps::{Filter, Live, MapSource, MapsError, Perms, Vma, Want};
use skep_proc::symbolize::Symbolizer;

use crate::args::VmaCommand;
use crate::failure::{FAILED, Failure, Result};
use crate::printer::{Output, Printer};
use crate::value::hex;

/// Answers the question.
pub fn run(command: &VmaCommand, printer: Printer) -> Result<u8> {
    match command {
        VmaCommand::Query { pid, addresses, next, format } => {
            query(*pid, addresses, *next, format.json, printer)
        }
        VmaCommand::List { pid, text, format } => list(*pid, *text, format.json, printer),
    }
}

fn failure(pid: u32, error: MapsError) -> Failure {
    match error {
        MapsError::Gone => Failure::failed(format!("there is no process `{pid}`")),
        e => Failure::from(e),
    }
}

fn list(pid: u32, text: bool, as_json: bool, printer: Printer) -> Result<u8> {
    let filter = if text { Filter::TEXT } else { Filter::default() };
    let vmas =
        Live::of(pid).and_then(|live| live.all(&filter, Want::ALL)).map_err(|e| failure(pid, e))?;
    if as_json {
        printer.json(Output::Stdout, &vmas.iter().map(vma_json).collect::<Json>())?;
    } else {
        printer.data(Output::Stdout, |out| vmas.iter().try_for_each(|vma| line(out, vma)))?;
    }
    Ok(0)
}

/// One address and what is there.
struct Answer {
    address: u64,
    vma: Option<Vma>,
    /// The function and the distance from its start.
    function: Option<(String, u64)>,
}

fn query(pid: u32, addresses: &[u64], next: bool, as_json: bool, printer: Printer) -> Result<u8> {
    let live = Live::of(pid).map_err(|e| failure(pid, e))?;
    let mut filter = Filter::default();
    if next {
        filter = filter.or_next();
    }
    let mut names = None;
    let mut answers = Vec::new();
    for &address in addresses {
        let vma = live.query(address, &filter, Want::ALL).map_err(|e| failure(pid, e))?;
        let mut function = None;
        if vma.as_ref().is_some_and(|v| v.perms.contains(Perms::EXEC) && v.contains(address)) {
            if names.is_none() {
                names = Symbolizer::of(pid).ok();
            }
            function = names.as_mut().and_then(|names: &mut Symbolizer| {
                let frame = names.resolve(address);
                let name = String::from_utf8_lossy(frame.function?.name).into_owned();
                Some((demangle(&name).into_owned(), frame.offset))
            });
        }
        answers.push(Answer { address, vma, function });
    }
    if as_json {
        printer.json(Output::Stdout, &answers.iter().map(answer_json).collect::<Json>())?;
    } else {
        printer
            .data(Output::Stdout, |out| answers.iter().try_for_each(|a| answer_lines(out, a)))?;
    }
    Ok(if answers.iter().all(|a| a.vma.is_some()) { 0 } else { FAILED })
}

fn name(vma: &Vma) -> Option<String> {
    vma.name.as_ref().map(|n| String::from_utf8_lossy(n).into_owned())
}

fn vma_json(vma: &Vma) -> Json {
    json!({
        "start": format!("{:#x}", vma.start),
        "end": format!("{:#x}", vma.end),
        "perms": vma.perms.to_string(),
        "offset": vma.offset,
        "dev": format!("{:02x}:{:02x}", vma.dev.major, vma.dev.minor),
        "inode": vma.inode,
        "name": name(vma),
        "build_id": vma.build_id.as_deref().map(hex),
    })
}

/// Distance into the file; `None` where there is no file or the address is outside.
fn file_offset(answer: &Answer) -> Option<u64> {
    let vma = answer.vma.as_ref().filter(|v| v.contains(answer.address) && v.inode != 0)?;
    Some(answer.address.wrapping_sub(vma.start).wrapping_add(vma.offset))
}

fn answer_json(answer: &Answer) -> Json {
    json!({
        "address": format!("{:#x}", answer.address),
        "mapping": answer.vma.as_ref().map(vma_json),
        "file_offset": file_offset(answer),
        "function": answer.function.as_ref().map(|(name, _)| name),
        "function_offset": answer.function.as_ref().map(|(_, offset)| offset),
    })
}

/// Writes a mapping in the columns of `/proc/PID/maps`, with the build id in front of the name.
fn line(out: &mut dyn Write, vma: &Vma) -> io::Result<()> {
    let text = format!(
        "{:012x}-{:012x} {} {:08x} {:02x}:{:02x} {:<10} {:40} {}",
        vma.start,
        vma.end,
        vma.perms,
        vma.offset,
        vma.dev.major,
        vma.dev.minor,
        vma.inode,
        vma.build_id.as_deref().map_or_else(|| "-".to_owned(), hex),
        name(vma).unwrap_or_default(),
    );
    writeln!(out, "{}", text.trim_end())
}

fn answer_lines(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let Some(vma) = &answer.vma else { return writeln!(out, "{:#x}: not mapped", answer.address) };
    write!(out, "{:#x}:", answer.address)?;
    if !vma.contains(answer.address) {
        write!(out, " not mapped; next:")?;
    }
    if let Some((name, offset)) = &answer.function {
        write!(out, " {name}+{offset:#x}")?;
    }
    if let Some(offset) = file_offset(answer) {
        write!(out, " file+{offset:#x}")?;
    }
    write!(out, "\n  ")?;
    line(out, vma)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_our_own_is_found_with_its_function() {
        let pid = std::process::id();
        let vmas = Live::of(pid).unwrap().all(&Filter::TEXT, Want::NAME).unwrap();
        let exe = std::env::current_exe().unwrap();
        assert!(vmas.iter().any(|v| name(v).as_deref() == exe.to_str()));

        let here = an_address_of_our_own_is_found_with_its_function as *const () as u64;
        let live = Live::own().unwrap();
        let vma = live.query(here, &Filter::default(), Want::ALL).unwrap();
        let answer = Answer { address: here + 1, vma, function: Some(("f".to_owned(), 1)) };
        let json = answer_json(&answer);
        assert_eq!(json["mapping"]["name"].as_str(), exe.to_str());
        assert_eq!(json["mapping"]["perms"], "r-xp");
        let mut text = Vec::new();
        answer_lines(&mut text, &answer).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(&format!("{:#x}: f+0x1 file+0x", here + 1)), "{text}");
    }
}
