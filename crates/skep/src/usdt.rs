//! Probes that programs declare themselves, with `sys/sdt.h` (USDT): found in the notes of files, and
//! their arguments told to BPF programs as libbpf does it.
//!
//! `usdt.bpf.h` of libbpf brings a map, `__bpf_usdt_specs`, with an element for each set of arguments:
//! where they are in registers, memory or the code. The attach cookie of a probe is the element's
//! number, so `bpf_usdt_arg`, `bpf_usdt_arg_cnt` and `bpf_usdt_cookie` find it. [`Probes`] fills the map.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use skep_isa::ctx::pt_regs;
use skep_maps::Map;
use skep_proc::elf::{Elf, Probe};
use skep_store::link::{LinkProbe, LinkTarget, Pattern, PatternError};

use crate::load::{LoadedMap, LoadedProgram};
use crate::prototypes::Catalog;

/// The map with where arguments are.
const SPECS: &str = "__bpf_usdt_specs";
/// Arguments that an element of it has room for.
const MAX_ARGS: usize = 12;
/// Bytes of one: value or distance, kind, register, signed, shift.
const ARG: usize = 16;
/// Bytes of an element: the arguments, the cookie, their number.
const SPEC: usize = MAX_ARGS * ARG + 16;
/// Names that an error offers.
const NEAR: usize = 8;

/// Tells why a program cannot be attached to probes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UsdtError {
    /// A pattern cannot be read.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A pattern is not `PATH:provider:name`.
    #[error("`{pattern}` names no probe: write it as PATH:provider:name")]
    NotAProbe {
        /// The pattern.
        pattern: String,
    },
    /// No file has such a probe.
    #[error("no probe matches `{pattern}`{known}")]
    NoProbe {
        /// The pattern.
        pattern: String,
        /// What probes there are, as the end of the sentence.
        known: String,
    },
    /// The arguments of a probe cannot be told to the program.
    #[error("probe `{probe}`: argument `{argument}` {why}")]
    Argument {
        /// `provider:name`.
        probe: String,
        /// The argument, as in the file's notes.
        argument: String,
        /// What is the matter with it.
        why: &'static str,
    },
    /// The object's map is not what `usdt.bpf.h` makes.
    #[error(
        "map `{SPECS}` has values of {size} bytes, not the {SPEC} that are known of `usdt.bpf.h`"
    )]
    Map {
        /// Bytes of its values.
        size: u32,
    },
    /// More sets of arguments than the map has room for.
    #[error(
        "more than {max} sets of arguments: define BPF_USDT_MAX_SPEC_CNT before including `usdt.bpf.h`"
    )]
    Full {
        /// Its elements.
        max: u32,
    },
    /// The map cannot be written.
    #[error("map `{SPECS}` cannot be written: {0}")]
    Write(skep_maps::MapError),
}

/// The probes that the programs of one object attach to.
#[derive(Debug)]
pub struct Probes<'a> {
    catalog: &'a Catalog,
    specs: Option<Arc<Map>>,
    /// Numbers of sets of arguments, with their cookies.
    numbers: HashMap<(String, u64), u32>,
}

/// Tells whether a program attaches to probes.
#[must_use]
pub fn is_usdt(program: &LoadedProgram) -> bool {
    let head = program.program().section().split('/').next().unwrap_or_default();
    matches!(head, "usdt" | "usdt.s")
}

impl<'a> Probes<'a> {
    /// Prepares to attach programs with these maps to probes of these files, and of others that are
    /// named by their paths.
    #[must_use]
    pub fn new(maps: &[LoadedMap], catalog: &'a Catalog) -> Self {
        let specs = maps.iter().find(|m| m.name == SPECS).map(|m| Arc::clone(&m.map));
        Self { catalog, specs, numbers: HashMap::new() }
    }

    /// Finds the probes that patterns mean, and writes where their arguments are.
    ///
    /// # Errors
    /// When a pattern means no probe, or the program cannot be told of the arguments of one.
    pub fn find(&mut self, targets: &[LinkTarget]) -> Result<Vec<LinkProbe>, UsdtError> {
        let mut all: Vec<LinkProbe> = Vec::new();
        for target in targets {
            let pattern: Pattern = target.pattern.parse()?;
            if pattern.module.is_none() || !pattern.function.contains(':') {
                return Err(UsdtError::NotAProbe { pattern: target.pattern.clone() });
            }
            let mut known = Vec::new();
            let before = all.len();
            for path in self.files(&pattern) {
                let probes = Elf::open(&path).and_then(|elf| elf.probes()).unwrap_or_default();
                for probe in probes {
                    let name = format!("{}:{}", probe.provider, probe.name);
                    if pattern.matches_function(&name) {
                        all.push(self.probe(&path, name, &probe, target.cookie)?);
                    } else if !known.contains(&name) {
                        known.push(name);
                    }
                }
            }
            if all.len() == before {
                return Err(none(&target.pattern, known));
            }
        }
        Ok(all)
    }

    /// The files that a pattern means: those of the command or process, else the one with this path.
    fn files(&self, pattern: &Pattern) -> Vec<PathBuf> {
        let module = pattern.module.as_deref().unwrap_or_default();
        let meant = |(path, main): &(&Path, bool)| {
            pattern.matches_module(&outside(path).to_string_lossy())
                || (*main && module == "/proc/self/exe")
        };
        let found: Vec<PathBuf> =
            self.catalog.files().filter(meant).map(|(path, _)| path.to_owned()).collect();
        match std::fs::canonicalize(module) {
            Ok(path) if found.is_empty() && module.contains('/') => vec![path],
            _ => found,
        }
    }

    fn probe(
        &mut self,
        path: &Path,
        name: String,
        probe: &Probe,
        cookie: u64,
    ) -> Result<LinkProbe, UsdtError> {
        let cookie = match &self.specs {
            Some(map) => self.number(&Arc::clone(map), &name, probe, cookie)?.into(),
            // The program asks for nothing.
            None => cookie,
        };
        Ok(LinkProbe {
            module: outside(path).to_string_lossy().into_owned(),
            name,
            vaddr: probe.vaddr,
            semaphore: probe.semaphore,
            cookie,
        })
    }

    /// The number of a probe's set of arguments.
    fn number(
        &mut self,
        map: &Map,
        name: &str,
        probe: &Probe,
        cookie: u64,
    ) -> Result<u32, UsdtError> {
        let next = self.numbers.len() as u32;
        let key = (probe.arguments.clone(), cookie);
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let (size, max) = (map.def().value_size, map.def().max_entries);
        if size as usize != SPEC {
            return Err(UsdtError::Map { size });
        }
        if next >= max {
            return Err(UsdtError::Full { max });
        }
        let spec = spec(&probe.arguments, cookie).map_err(|(argument, why)| {
            UsdtError::Argument { probe: name.to_owned(), argument, why }
        })?;
        map.update(&next.to_le_bytes(), &spec, 0).map_err(UsdtError::Write)?;
        self.numbers.insert(key, next);
        Ok(next)
    }
}

fn none(pattern: &str, known: Vec<String>) -> UsdtError {
    let known = match &*known {
        [] => "; its file declares none, or is not known".to_owned(),
        all if all.len() > NEAR => {
            format!("; there are {} others, as `{}`", all.len(), all[..NEAR].join("`, `"))
        }
        all => format!("; there are `{}`", all.join("`, `")),
    };
    UsdtError::NoProbe { pattern: pattern.to_owned(), known }
}

/// A path as the process itself sees it, of one below `/proc/PID/root`.
fn outside(path: &Path) -> PathBuf {
    let parts: Vec<Component<'_>> = path.components().collect();
    match &*parts {
        [root, proc, _, of, rest @ ..]
            if proc.as_os_str() == "proc" && of.as_os_str() == "root" && !rest.is_empty() =>
        {
            std::iter::once(root).chain(rest).collect()
        }
        _ => path.to_owned(),
    }
}

/// Writes an element of the map: where the arguments are. Fails with the argument that cannot be
/// written, and why.
fn spec(arguments: &str, cookie: u64) -> Result<[u8; SPEC], (String, &'static str)> {
    let mut out = [0; SPEC];
    let mut count = 0_u16;
    for text in arguments.split_ascii_whitespace() {
        let fail = |why| (text.to_owned(), why);
        let place = out.chunks_exact_mut(ARG).take(MAX_ARGS).nth(usize::from(count));
        let place = place.ok_or_else(|| fail("is one too many: there may be 12"))?;
        place.copy_from_slice(&argument(text).map_err(fail)?);
        count += 1;
    }
    out[MAX_ARGS * ARG..][..8].copy_from_slice(&cookie.to_le_bytes());
    out[MAX_ARGS * ARG + 8..][..2].copy_from_slice(&count.to_le_bytes());
    Ok(out)
}

/// Reads an argument, `SIZE@PLACE`: `$5`, `%rdi`, `-8(%rbp)`. A negative size says that it is signed.
fn argument(text: &str) -> Result<[u8; ARG], &'static str> {
    const CONST: u32 = 0;
    const REG: u32 = 1;
    const REG_DEREF: u32 = 2;
    let (size, place) = text.split_once('@').ok_or("has no size")?;
    let signed = size.starts_with('-');
    let bytes = match size.trim_start_matches('-') {
        "1" => 1_u8,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        float if float.ends_with('f') => return Err("is a floating-point number"),
        _ => return Err("has no size of 1, 2, 4 or 8 bytes"),
    };
    let named = |name: &str| {
        let name = name.trim().strip_prefix('%').ok_or("is in no register")?;
        register(name).ok_or("is in a register that programs cannot read")
    };
    let (kind, value, register) = if let Some(number) = place.strip_prefix('$') {
        (CONST, integer(number).ok_or("is no number")?, 0)
    } else if let Some((distance, base)) = place.split_once('(') {
        let base = base.strip_suffix(')').ok_or("has no end")?;
        if base.contains(',') {
            return Err("is addressed by two registers, which `usdt.bpf.h` cannot tell");
        }
        let distance = match distance.trim() {
            "" => 0,
            distance => integer(distance).ok_or("is addressed by a name")?,
        };
        (REG_DEREF, distance, named(base)?)
    } else {
        (REG, 0, named(place)?)
    };
    let mut out = [0; ARG];
    out[..8].copy_from_slice(&value.to_le_bytes());
    out[8..12].copy_from_slice(&kind.to_le_bytes());
    out[12..14].copy_from_slice(&(register as i16).to_le_bytes());
    (out[14], out[15]) = (signed.into(), 64 - 8 * bytes);
    Ok(out)
}

/// Reads a number in C.
fn integer(text: &str) -> Option<i64> {
    let (digits, minus) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    } as i64;
    Some(if minus { number.wrapping_neg() } else { number })
}

/// Finds where `struct pt_regs` has a register, by the name of all or a part of it.
fn register(name: &str) -> Option<u32> {
    use pt_regs::{AX, BP, BX, CX, DI, DX, IP, R8, R9, R10, R11, R12, R13, R14, R15, SI, SP};
    let plain = |name: &str| {
        Some(match name {
            "ax" | "al" | "ah" => AX,
            "bx" | "bl" | "bh" => BX,
            "cx" | "cl" | "ch" => CX,
            "dx" | "dl" | "dh" => DX,
            "si" | "sil" => SI,
            "di" | "dil" => DI,
            "bp" | "bpl" => BP,
            "sp" | "spl" => SP,
            "ip" => IP,
            _ => return None,
        })
    };
    let numbered = |name: &str| {
        let number = name.strip_prefix('r')?.trim_end_matches(['d', 'w', 'b']);
        let of = [R8, R9, R10, R11, R12, R13, R14, R15];
        of.get(number.parse::<usize>().ok()?.checked_sub(8)?).copied()
    };
    // The second byte of a register is no value that a shift can cut out.
    if matches!(name, "ah" | "bh" | "ch" | "dh") {
        return None;
    }
    let whole = name.strip_prefix(['r', 'e']).filter(|rest| rest.len() == 2);
    plain(name).or_else(|| plain(whole?)).or_else(|| numbered(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An argument's fields: value, kind, register, signed, shift.
    fn fields(text: &str) -> (i64, u32, i16, u8, u8) {
        let b = argument(text).unwrap_or_else(|why| panic!("{text} {why}"));
        let value = i64::from_le_bytes(b[..8].try_into().unwrap());
        let kind = u32::from_le_bytes(b[8..12].try_into().unwrap());
        (value, kind, i16::from_le_bytes(b[12..14].try_into().unwrap()), b[14], b[15])
    }

    #[test]
    fn arguments_are_read_as_assemblers_write_them() {
        assert_eq!(fields("-4@$-9"), (-9, 0, 0, 1, 32));
        assert_eq!(fields("8@$0x10"), (16, 0, 0, 0, 0));
        assert_eq!(fields("8@%rdi"), (0, 1, 112, 0, 0));
        assert_eq!(fields("-1@%dl"), (0, 1, 96, 1, 56));
        assert_eq!(fields("2@%r10w"), (0, 1, 56, 0, 48));
        assert_eq!(fields("4@%eax"), (0, 1, 80, 0, 32));
        assert_eq!(fields("-4@-20(%rbp)"), (-20, 2, 32, 1, 32));
        assert_eq!(fields("8@(%rsp)"), (0, 2, 152, 0, 0));
        for wrong in [
            "8%rdi",
            "3@%rdi",
            "8@%xmm0",
            "4f@%xmm0",
            "8@x+4(%rip)",
            "8@(%rax,%rbx,8)",
            "8@%ah",
            "8@rdi",
        ] {
            assert!(argument(wrong).is_err(), "{wrong}");
        }
        let many = vec!["8@%rdi"; 13].join(" ");
        assert!(spec(&many, 0).is_err());
        let two = spec("8@%rsi -4@$7", 5).unwrap();
        assert_eq!((two[MAX_ARGS * ARG], two[MAX_ARGS * ARG + 8]), (5, 2));
    }

    #[test]
    fn a_path_is_the_processs_own() {
        assert_eq!(outside(Path::new("/proc/12/root/usr/lib/x.so")), Path::new("/usr/lib/x.so"));
        assert_eq!(outside(Path::new("/proc/12/exe")), Path::new("/proc/12/exe"));
    }
}
