//! Symbolizing 100,000 addresses of a large library and of a large debug build, in a process of its
//! own each time: time, and the most memory that was resident.
//!
//! The library is LLVM's, which clang consists of; it has a table of exported symbols. The debug build
//! is made here, in a minute: a C++ program of templates, compiled with and without optimization, and
//! linked some 500 times over with other names, so 500 units, 450,000 symbols and 800 MB.
//!
//! Rivals: blazesym, and `addr2line` of binutils and `llvm-symbolizer`, which print what they find;
//! they get 100 addresses only, as binutils takes minutes for more, and
//! are compared with skep on as many. Each opens the file anew. Names are demangled by all but binutils.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use skep_testkit::skip::has_command;

use super::procmap;
use super::row::Row;
use super::sample::{Contestant, Sample, take_turns};
use crate::{check, output, root};

const TURNS: usize = 5;
/// Lines take seconds.
const TURNS_OF_LINES: usize = 3;
const ADDRESSES: usize = 100_000;
/// How many the commands get; `addr2line` takes 16 s for these with lines.
const FEW: usize = 100;
/// How often the program is in the debug build: optimized, and not.
const UNITS: [usize; 2] = [240, 280];
/// The first one that is there; the others are older, or the compiler's own.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/libLLVM.so.19.1",
    "/usr/lib/llvm-19/lib/libLLVM.so",
    "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
];
/// What stands in the object files in place of the number of a unit.
const UNIT: &[u8] = b"unit_0000";
/// A name that all templates have got in their names.
const SOURCE: &str = r#"
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
namespace unit_0000 {
struct Key { std::string text; bool operator<(const Key &o) const { return text < o.text; } };
template <class T> struct Pair { T a, b; T sum() const { return a + b; } };
struct Shape { virtual ~Shape() {} virtual double area(const Key &) const = 0; };
struct Square : Shape {
  double side = 1;
  double area(const Key &) const override { return side * side; }
};
struct Traits : std::regex_traits<char> {};
int work(int n, char **words) {
  std::map<Key, std::vector<Pair<int>>> all;
  std::vector<std::unique_ptr<Shape>> shapes;
  for (int i = 0; i < n; i++) {
    all[Key{words[i]}].push_back(Pair<int>{i, 1});
    shapes.push_back(std::make_unique<Square>());
  }
  std::vector<Pair<double>> v(100);
  std::sort(v.begin(), v.end(), [](const auto &a, const auto &b) { return a.sum() > b.sum(); });
  std::unordered_map<int, Key> names;
  names.emplace(n, Key{words[0]});
  std::basic_regex<char, Traits> r("a(b|c)*d");
  if (std::regex_match(words[0], r)) std::cout << "x";
  return Pair<int>{n, int(v[0].a)}.sum() + int(shapes[0]->area(all.begin()->first));
}
}
"#;
const MAIN: &str = "int main() { return 0; }\n";

/// A file and what is asked of it.
struct Case<'a> {
    name: String,
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
    let library = LIBRARIES.into_iter().map(Path::new).find(|path| path.exists());
    for (what, title) in [("mangled", "mangled names"), ("names", "names")] {
        let Some(library) = library else { continue };
        let name = library.file_name().unwrap_or_default().display();
        rows.extend(Case::new(format!("{name}, {title}"), library, what, &dir)?.rows(&bench)?);
    }
    if let Some(build) = debug_build(&dir)? {
        for (what, title) in [("mangled", "mangled names"), ("names", "names"), ("lines", "lines")]
        {
            let name = format!("debug build, {title}");
            rows.extend(Case::new(name, &build, what, &dir)?.rows(&bench)?);
        }
    }
    Ok(rows)
}

/// Links the debug build; `None` without the tools.
fn debug_build(dir: &Path) -> Result<Option<PathBuf>> {
    if !has_command("g++") {
        return Ok(None);
    }
    let path = dir.join("debug-build");
    if path.exists() {
        return Ok(Some(path));
    }
    std::fs::write(dir.join("unit.cc"), SOURCE)?;
    std::fs::write(dir.join("main.cc"), MAIN)?;
    let compile = |args: &[&str]| check(Command::new("g++").args(args).current_dir(dir));
    let mut objects = Vec::new();
    for (level, units) in ["-O1", "-O0"].into_iter().zip(UNITS) {
        compile(&[level, "-g", "-c", "unit.cc", "-o", "unit.o"])?;
        let unit = std::fs::read(dir.join("unit.o"))?;
        let places = places(&unit);
        for _ in 0..units {
            let name = format!("part{}.o", objects.len());
            std::fs::write(dir.join(&name), renamed(&unit, &places, objects.len()))?;
            objects.push(name);
        }
    }
    // No function is called: the linker keeps them all the same.
    let linked = Command::new("g++")
        .args(["-g", "main.cc", "-o", "debug-build.new"])
        .args(&objects)
        .current_dir(dir)
        .status();
    for object in &objects {
        std::fs::remove_file(dir.join(object))?;
    }
    anyhow::ensure!(linked?.success(), "`g++` cannot link the debug build");
    std::fs::rename(dir.join("debug-build.new"), &path)?;
    Ok(Some(path))
}

/// Where an object file has the name of its unit.
fn places(object: &[u8]) -> Vec<usize> {
    let all = object.windows(UNIT.len()).enumerate();
    all.filter(|(_, window)| *window == UNIT).map(|(at, _)| at).collect()
}

/// The object file with another number in all names.
fn renamed(object: &[u8], places: &[usize], number: usize) -> Vec<u8> {
    let mut out = object.to_vec();
    let name = format!("unit_{number:04}");
    for at in places {
        if let Some(place) = out.get_mut(*at..at + UNIT.len()) {
            place.copy_from_slice(name.as_bytes());
        }
    }
    out
}

impl<'a> Case<'a> {
    /// Chooses addresses all over the code, the same ones each time.
    fn new(name: String, file: &'a Path, what: &'a str, dir: &Path) -> Result<Self> {
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
            ("skep, few", &self.few, "ours", &[]),
        ];
        // The commands have no way to leave debug information out.
        let commands = self.file.starts_with("/usr") || inlines;
        let commands = commands && self.what != "mangled";
        if commands && has_command("addr2line") {
            sides.push(("addr2line", &self.few, "command", &binutils));
        }
        if commands && has_command("llvm-symbolizer-19") {
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
        let turns = if inlines { TURNS_OF_LINES } else { TURNS };
        let times = take_turns(turns, &contestants)?;
        drop(contestants);
        let times: Vec<Sample> = times.into_iter().map(Sample::of).collect();
        let peaks: Vec<Sample> = peaks.into_iter().map(|p| Sample::of(p.into_inner())).collect();
        let mut rows = Vec::new();
        for (i, (name, ..)) in sides.iter().enumerate().filter(|(i, _)| ![0, 2].contains(i)) {
            // The commands answer as many addresses as the third side.
            let (ours, count) = if i == 1 { (0, "100,000") } else { (2, "100") };
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
