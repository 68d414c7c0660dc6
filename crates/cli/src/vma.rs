//! `skep vma`: what is mapped where, in a live process or in a file.

use std::io::{self, Read, Write};
use std::path::Path;

use serde_json::{Value as Json, json};
use skep_proc::maps::{Filter, NoBuildId, Normalizer, Perms, Place, Snapshot, Vma, Want};
use skep_proc::symbolize::Want as Details;
use skep_text::value::hex;

use crate::args::{VmaCommand, address as parse_address};
use crate::failure::{Context, FAILED, Failure, Result};
use crate::printer::{Output, Printer, one_line};
use crate::symbolize::Text;
use crate::vma_target::{Target, failure};

/// Answers the question.
pub fn run(command: &VmaCommand, printer: Printer) -> Result<u8> {
    match command {
        VmaCommand::Query { target, addresses, next, format } => {
            query(&Target::open(target)?, &given(addresses)?, *next, format.json, printer)
        }
        VmaCommand::List { target, text, format } => {
            list(&Target::open(target)?, *text, format.json, printer)
        }
        VmaCommand::Snapshot { target, output } => {
            snapshot(&Target::open(target)?, output, printer)
        }
        VmaCommand::Normalize { target, addresses, data, format } => {
            normalize(&Target::open(target)?, &given(addresses)?, *data, format.json, printer)
        }
    }
}

/// The addresses of the command line, else those on stdin, apart by blanks or lines.
fn given(addresses: &[u64]) -> Result<Vec<u64>> {
    if !addresses.is_empty() {
        return Ok(addresses.to_vec());
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text).context("cannot read addresses from stdin")?;
    let mut out = Vec::new();
    for (line, words) in (1..).zip(text.lines()) {
        for word in words.split_ascii_whitespace() {
            let wrong = |e| Failure::environment(format!("line {line} of stdin: `{word}`: {e}"));
            out.push(parse_address(word).map_err(wrong)?);
        }
    }
    if out.is_empty() {
        return Err(Failure::environment("no address was given, and none is on stdin"));
    }
    Ok(out)
}

fn list(target: &Target, text: bool, as_json: bool, printer: Printer) -> Result<u8> {
    let filter = if text { Filter::TEXT } else { Filter::default() };
    let vmas = target.source().all(&filter, Want::ALL).map_err(failure)?;
    if as_json {
        printer.json(Output::Stdout, &vmas.iter().map(vma_json).collect::<Json>())?;
    } else {
        printer.data(Output::Stdout, |out| vmas.iter().try_for_each(|vma| line(out, vma)))?;
    }
    Ok(0)
}

fn snapshot(target: &Target, path: &Path, printer: Printer) -> Result<u8> {
    let bytes = match target {
        Target::Process(process) => {
            let taken = Snapshot::take(process, process.identity(), Want::EVERYTHING);
            // What was read may be of two programs.
            let whole = taken.and_then(|s| process.check().map(|()| s)).map_err(failure)?;
            whole.to_bytes()
        }
        Target::Saved(snapshot) => snapshot.to_bytes(),
    };
    printer.data(Output::open(Some(path))?, |out| out.write_all(&bytes))?;
    Ok(0)
}

fn normalize(
    target: &Target,
    addresses: &[u64],
    data: bool,
    as_json: bool,
    printer: Printer,
) -> Result<u8> {
    let mut normalizer = Normalizer::new(target.source()).data(data);
    let places = normalizer.normalize(addresses).map_err(failure)?;
    let files: Vec<(String, Option<String>, Option<&str>)> = normalizer
        .files()
        .iter()
        .map(|f| {
            let id = f.build_id.as_ref().map(ToString::to_string);
            let name = String::from_utf8_lossy(&f.name).into_owned();
            (name, id, f.no_build_id.map(NoBuildId::name))
        })
        .collect();
    let file = |number: u32| files.get(number as usize);
    printer.data(Output::Stdout, |out| {
        let (mut before, behind) = if as_json { ("[", "]\n") } else { ("", "") };
        for (address, place) in addresses.iter().zip(&places) {
            let (offset, file, reason) = match place {
                Place::File { file: number, offset } => (Some(*offset), file(*number), None),
                Place::Other(reason) => (None, None, Some(reason.name())),
            };
            let name = file.map(|f| &f.0);
            let build_id = file.and_then(|f| f.1.as_deref());
            if as_json {
                // One by one: there may be millions.
                out.write_all(before.as_bytes())?;
                let value = json!({
                    "address": format!("{address:#x}"),
                    "file": name,
                    "offset": offset,
                    "build_id": build_id,
                    "no_build_id": file.and_then(|f| f.2),
                    "reason": reason,
                });
                serde_json::to_writer(&mut *out, &value)?;
                before = ",";
            } else {
                let offset = offset.map_or_else(|| "-".to_owned(), |n| format!("{n:#x}"));
                let what = name.map_or(reason.unwrap_or_default(), String::as_str);
                let id = build_id.unwrap_or("-");
                writeln!(out, "{address:#014x} {offset:>10} {id:40} {}", one_line(what))?;
            }
        }
        out.write_all(behind.as_bytes())
    })?;
    let found = places.iter().all(|place| matches!(place, Place::File { .. }));
    Ok(if found { 0 } else { FAILED })
}

/// One address and what is there.
struct Answer {
    address: u64,
    vma: Option<Vma>,
    /// The function and the distance from its start, if that is known.
    function: Option<(String, Option<u64>)>,
    /// The same with its source line.
    symbol: Json,
}

fn query(
    target: &Target,
    addresses: &[u64],
    next: bool,
    as_json: bool,
    printer: Printer,
) -> Result<u8> {
    let mut filter = Filter::default();
    if next {
        filter = filter.or_next();
    }
    let mut answers = Vec::new();
    for &address in addresses {
        let vma = target.source().query(address, &filter, Want::ALL).map_err(failure)?;
        answers.push(Answer { address, vma, function: None, symbol: Json::Null });
    }
    name_functions(target, &mut answers, as_json);
    if as_json {
        printer.json(Output::Stdout, &answers.iter().map(answer_json).collect::<Json>())?;
    } else {
        printer
            .data(Output::Stdout, |out| answers.iter().try_for_each(|a| answer_lines(out, a)))?;
    }
    Ok(if answers.iter().all(|a| a.vma.is_some()) { 0 } else { FAILED })
}

/// Names the functions, those of a file at once: the one place that asks for symbols.
fn name_functions(target: &Target, answers: &mut [Answer], lines: bool) {
    let in_code = |a: &&mut Answer| {
        a.vma.as_ref().is_some_and(|v| v.perms.contains(Perms::EXEC) && v.contains(a.address))
    };
    let addrs: Vec<u64> = answers.iter_mut().filter(in_code).map(|a| a.address).collect();
    let Some(mut space) = (!addrs.is_empty()).then(|| target.space()).flatten() else { return };
    let found = space.find(&addrs, Details { lines, inlined: lines });
    for answer in answers.iter_mut().filter(in_code) {
        let place = found.get(answer.address);
        let text =
            Text { mangled: false, place: &place, addr: answer.address, vma: None, is_live: false };
        answer.function = text.function().map(|(name, offset)| (name.into_owned(), offset));
        answer.symbol = text.symbol_json();
    }
}

fn name(vma: &Vma) -> Option<String> {
    vma.name.as_ref().map(|n| String::from_utf8_lossy(n).into_owned())
}

/// A mapping as JSON.
pub fn vma_json(vma: &Vma) -> Json {
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
    let vma = answer.vma.as_ref().filter(|v| v.contains(answer.address) && v.file_backed())?;
    Some(vma.file_offset(answer.address))
}

fn answer_json(answer: &Answer) -> Json {
    json!({
        "address": format!("{:#x}", answer.address),
        "vma": answer.vma.as_ref().map(vma_json),
        "file_offset": file_offset(answer),
        "symbol": answer.symbol,
    })
}

/// Writes a mapping in the columns of `/proc/PID/maps`, with the build id in front of the name.
fn line(out: &mut dyn Write, vma: &Vma) -> io::Result<()> {
    let id = vma.build_id.as_deref().map_or_else(|| "-".to_owned(), hex);
    write!(
        out,
        "{:012x}-{:012x} {} {:08x} {:02x}:{:02x} {:<10} ",
        vma.start, vma.end, vma.perms, vma.offset, vma.dev.major, vma.dev.minor, vma.inode,
    )?;
    match name(vma) {
        Some(name) => writeln!(out, "{id:40} {}", one_line(&name)),
        None => writeln!(out, "{id}"),
    }
}

fn answer_lines(out: &mut dyn Write, answer: &Answer) -> io::Result<()> {
    let Some(vma) = &answer.vma else { return writeln!(out, "{:#x}: not mapped", answer.address) };
    write!(out, "{:#x}:", answer.address)?;
    if !vma.contains(answer.address) {
        write!(out, " not mapped; next:")?;
    }
    if let Some((name, offset)) = &answer.function {
        write!(out, " {}", one_line(name))?;
        offset.map_or(Ok(()), |offset| write!(out, "+{offset:#x}"))?;
    }
    if let Some(offset) = file_offset(answer) {
        write!(out, " file+{offset:#x}")?;
    }
    write!(out, "\n  ")?;
    line(out, vma)
}

#[cfg(test)]
mod tests {
    use skep_proc::maps::{Live, MapSource};

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
        let function = Some(("f".to_owned(), Some(1)));
        let answer = Answer { address: here + 1, vma, function, symbol: Json::Null };
        let json = answer_json(&answer);
        assert_eq!(json["vma"]["name"].as_str(), exe.to_str());
        assert_eq!(json["vma"]["perms"], "r-xp");
        let mut text = Vec::new();
        answer_lines(&mut text, &answer).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with(&format!("{:#x}: f+0x1 file+0x", here + 1)), "{text}");
    }
}
