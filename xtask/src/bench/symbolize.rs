//! Symbolizing 100,000 addresses of a large library and of a large debug build, in a process of its
//! own each time: time, and the most memory that was resident.
//!
//! The library is LLVM's, which clang-19 consists of; it has a table of exported symbols. The debug
//! build is made here: a C++ program of templates, linked 120 times over with all its copies of
//! inline functions, so 120 units and 200 MB.
//!
//! Rivals: blazesym, and `addr2line` of binutils and `llvm-symbolizer`, which print what they find;
//! binutils gets 2,000 addresses only, as it takes minutes for more, and is compared with skep on
//! as many. Each opens the file anew. Names are demangled by all but binutils.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use skep_testkit::skip::has_command;

use super::procmap;
use super::row::Row;
use super::sample::{Contestant, Sample, take_turns};
use crate::{check, output, root};

const TURNS: usize = 5;
const ADDRESSES: usize = 100_000;
const FEW: usize = 2_000;
const UNITS: usize = 120;
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1";
/// What the linker needs to take the program again and again: sections that belong to no group.
const SOURCE: &str = r#"
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
namespace part { template <class T> struct Pair { T a, b; T sum() const { return a + b; } }; }
int work(int n, char **words) {
  std::map<std::string, std::vector<int>> all;
  for (int i = 0; i < n; i++) all[words[i]].push_back(i);
  std::vector<int> v(100);
  std::sort(v.begin(), v.end(), [](int a, int b) { return a > b; });
  std::regex r("a(b|c)*d");
  if (std::regex_match(words[0], r)) std::cout << "x";
  return part::Pair<int>{n, v[0]}.sum() + int(part::Pair<double>{1, 2}.sum());
}
int main(int n, char **words) { return work(n, words); }
"#;

/// A file and what is asked of it.
struct Case<'a> {
    name: &'a str,
    file: &'a Path,
    what: &'a str,
    list: PathBuf,
    few: PathBuf,
}

/// The rows of both files.
pub fn run() -> Result<Vec<Row>> {
    let bench = procmap::program("symbolize_many")?;
    let dir = root().join("target/bench-symbolize");
    std::fs::create_dir_all(&dir)?;
    let mut rows = Vec::new();
    let library = Path::new(LIBRARY);
    if library.exists() {
        rows.extend(
            Case::new("libLLVM-19, mangled names", library, "mangled", &dir)?.rows(&bench)?,
        );
        rows.extend(Case::new("libLLVM-19, names", library, "names", &dir)?.rows(&bench)?);
    }
    if let Some(build) = debug_build(&dir)? {
        rows.extend(Case::new("debug build, names", &build, "names", &dir)?.rows(&bench)?);
        rows.extend(Case::new("debug build, lines", &build, "lines", &dir)?.rows(&bench)?);
    }
    Ok(rows)
}

/// Links the debug build; `None` without the tools.
fn debug_build(dir: &Path) -> Result<Option<PathBuf>> {
    if !["g++", "objcopy"].into_iter().all(has_command) {
        return Ok(None);
    }
    let path = dir.join("large");
    if path.exists() {
        return Ok(Some(path));
    }
    std::fs::write(dir.join("unit.cc"), SOURCE)?;
    let run =
        |program: &str, args: &[&str]| check(Command::new(program).args(args).current_dir(dir));
    run("g++", &["-O1", "-g", "-c", "unit.cc", "-o", "unit.o"])?;
    // Without groups the linker keeps every copy of an inline function.
    run("objcopy", &["--remove-section=.group", "unit.o", "loose.o"])?;
    for i in 0..UNITS {
        std::fs::copy(dir.join("loose.o"), dir.join(format!("unit{i}.o")))?;
    }
    let units: Vec<String> = (0..UNITS).map(|i| format!("unit{i}.o")).collect();
    let link = ["-Wl,--allow-multiple-definition", "-o", "large"];
    check(Command::new("g++").args(&units).args(link).current_dir(dir))?;
    for unit in &units {
        std::fs::remove_file(dir.join(unit))?;
    }
    Ok(Some(path))
}

impl<'a> Case<'a> {
    /// Chooses addresses all over the code, the same ones each time.
    fn new(name: &'a str, file: &'a Path, what: &'a str, dir: &Path) -> Result<Self> {
        let headers = output(Command::new("readelf").args(["-SW"]).arg(file))?;
        let fields = headers
            .lines()
            .filter_map(|line| line.split_once("] .text "))
            .map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
        let hex = |field: Option<&&str>| u64::from_str_radix(field?, 16).ok();
        let found = fields.filter_map(|f| hex(f.get(1)).zip(hex(f.get(3)))).next();
        let (start, size) = found.context("`readelf` shows no `.text`")?;
        let mut state = 1_u64;
        let mut list = |count: usize, name: &str| -> Result<PathBuf> {
            let mut text = String::new();
            for _ in 0..count {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text += &format!("{:#x}\n", start + (state >> 20) % size);
            }
            let path = dir.join(name);
            std::fs::write(&path, text)?;
            Ok(path)
        };
        let (list, few) = (list(ADDRESSES, "addresses")?, list(FEW, "few")?);
        Ok(Self { name, file, what, list, few })
    }

    fn rows(&self, bench: &Path) -> Result<Vec<Row>> {
        let file = self.file.display().to_string();
        let inlines = self.what == "lines";
        let binutils = ["addr2line", if inlines { "-fie" } else { "-fe" }, &file];
        let llvm =
            ["llvm-symbolizer-19", if inlines { "--inlines" } else { "--no-inlines" }, "-e", &file];
        let mut sides: Vec<(&str, &Path, &str, &[&str])> = vec![
            ("skep", &self.list, "ours", &[]),
            ("blazesym", &self.list, "blazesym", &[]),
            ("skep, 2,000", &self.few, "ours", &[]),
        ];
        if has_command("addr2line") {
            sides.push(("addr2line", &self.few, "command", &binutils));
        }
        if has_command("llvm-symbolizer-19") {
            sides.push(("llvm-symbolizer", &self.few, "command", &llvm));
        }
        let peaks: Vec<_> = sides.iter().map(|_| std::cell::RefCell::new(Vec::new())).collect();
        let contestants: Vec<Contestant<'_>> = sides
            .iter()
            .zip(&peaks)
            .map(|((name, list, side, command), peaks)| {
                let run = move || {
                    let mut bench = Command::new(bench);
                    bench
                        .arg(side)
                        .arg(self.what)
                        .arg(self.file)
                        .arg(list)
                        .arg("--")
                        .args(*command);
                    let (nanos, peak) = measured(&mut bench)?;
                    peaks.borrow_mut().push(peak);
                    Ok(nanos)
                };
                Contestant::new(name, run)
            })
            .collect();
        let times = take_turns(TURNS, &contestants)?;
        drop(contestants);
        let times: Vec<Sample> = times.into_iter().map(Sample::of).collect();
        let peaks: Vec<Sample> = peaks.into_iter().map(|p| Sample::of(p.into_inner())).collect();
        let mut rows = Vec::new();
        for (i, (name, ..)) in sides.iter().enumerate().filter(|(i, _)| ![0, 2].contains(i)) {
            // The commands answer as many addresses as the third side.
            let (ours, count) = if i == 1 { (0, "100,000") } else { (2, "2,000") };
            for (samples, unit) in [(&times, ""), (&peaks, ", bytes")] {
                let (Some(mine), Some(theirs)) = (samples.get(ours), samples.get(i)) else {
                    continue;
                };
                rows.push(Row {
                    case: format!("{} of {count} addresses{unit}", self.name),
                    ours: *mine,
                    rival: Some(((*name).to_owned(), *theirs)),
                });
            }
        }
        Ok(rows)
    }
}

/// Runs the bench program: nanoseconds and bytes.
fn measured(command: &mut Command) -> Result<(f64, f64)> {
    let text = output(command)?;
    let line = text.lines().find_map(|line| line.strip_prefix("measured "));
    let mut numbers = line.into_iter().flat_map(|l| l.split(' ')).map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(nanos)), Some(Ok(peak))) => Ok((nanos, peak)),
        _ => anyhow::bail!("no line `measured NANOSECONDS BYTES` in:\n{text}"),
    }
}
