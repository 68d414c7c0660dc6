//! Sets of keys: those of the directory that `SKEP_KEY_SETS` names, one key a line, packed as
//! `NAME.txt.gz`; else generated ones of the same kind, which are alike in number, length and
//! shared beginnings.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use crate::Result;

/// Strings of kernel type information, paths of a kernel's source, names of domains, and random
/// bytes (in a file: in hexadecimal digits).
pub const NAMES: [&str; 4] = ["btf_strings", "kernel_paths", "domains", "random_bin"];

/// Keys, one behind another.
#[derive(Clone, Default)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

impl Keys {
    fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        &self.bytes[if i == 0 { 0 } else { self.ends[i - 1] }..self.ends[i]]
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let key = &self.bytes[from..*end];
            from = *end;
            key
        })
    }

    pub fn longest(&self) -> usize {
        self.iter().map(<[u8]>::len).max().unwrap_or(0)
    }

    /// The same in a random order.
    pub fn shuffled(&self, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut order: Vec<usize> = (0..self.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i + 1));
        }
        let mut out = Self::default();
        order.into_iter().for_each(|i| out.push(self.get(i)));
        out
    }

    /// As many that are not there: of each key one that differs in a byte.
    pub fn misses(&self) -> Self {
        let there: HashSet<&[u8]> = self.iter().collect();
        let (mut random, mut out) = (Random(5), Self::default());
        for key in self.iter() {
            let mut key = key.to_vec();
            loop {
                let at = random.below(key.len());
                key[at] = key[at].wrapping_add(1 + random.below(20) as u8);
                if !there.contains(&key[..]) {
                    break;
                }
            }
            out.push(&key);
        }
        out
    }
}

/// Reads a set, or makes it.
pub fn load(name: &str) -> Result<Keys> {
    if !NAMES.contains(&name) {
        return Err(format!("no set `{name}`; there are: {}", NAMES.join(" ")).into());
    }
    match std::env::var_os("SKEP_KEY_SETS") {
        Some(dir) => read(&Path::new(&dir).join(format!("{name}.txt.gz")), name == "random_bin"),
        None => Ok(generate(name)),
    }
}

fn read(path: &Path, hex: bool) -> Result<Keys> {
    let done = Command::new("gzip").arg("-dc").arg(path).output()?;
    if !done.status.success() {
        return Err(format!("cannot unpack `{}`", path.display()).into());
    }
    let mut keys = Keys::default();
    for line in done.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        if !hex {
            keys.push(line);
            continue;
        }
        let digits = std::str::from_utf8(line)?;
        let bytes =
            (0..digits.len() / 2).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16));
        keys.push(&bytes.collect::<std::result::Result<Vec<u8>, _>>()?);
    }
    Ok(keys)
}

/// Words that are more often used the earlier they come, as those of people are.
struct Words(Vec<Vec<u8>>);

impl Words {
    fn new(count: usize, random: &mut Random) -> Self {
        const SYLLABLES: [&str; 24] = [
            "a", "re", "in", "to", "ti", "se", "ma", "co", "de", "net", "io", "ker", "st", "un",
            "ro", "dev", "le", "po", "b", "al", "x", "ock", "ing", "mem",
        ];
        let word = |_| {
            let mut word = vec![];
            for _ in 0..1 + random.below(3) {
                word.extend_from_slice(SYLLABLES[random.below(SYLLABLES.len())].as_bytes());
            }
            word
        };
        Self((0..count).map(word).collect())
    }

    fn pick(&self, random: &mut Random) -> &[u8] {
        let within = 1 + random.below(self.0.len());
        &self.0[random.below(within)]
    }
}

fn generate(name: &str) -> Keys {
    let mut random = Random(name.len() as u64);
    let words = Words::new(4000, &mut random);
    let (mut keys, mut seen) = (Keys::default(), HashSet::new());
    let mut last = Vec::new();
    let count = match name {
        "btf_strings" => 124_620,
        "kernel_paths" => 78_635,
        "domains" => 1_000_000,
        _ => 16_384,
    };
    while keys.len() < count {
        let mut key = Vec::new();
        let r = &mut random;
        match name {
            // Names of functions: many begin as the one before.
            "btf_strings" => {
                let parts: Vec<&[u8]> = last_parts(&last, b'_', r);
                key = parts.join(&b'_');
                for _ in 0..1 + r.below(3) {
                    if !key.is_empty() {
                        key.push(b'_');
                    }
                    key.extend_from_slice(words.pick(r));
                }
            }
            // In the directory of the one before, or in another.
            "kernel_paths" => {
                let parts: Vec<&[u8]> = last_parts(&last, b'/', r);
                key = parts.join(&b'/');
                while key.iter().filter(|b| **b == b'/').count() < 3 || r.below(4) == 0 {
                    if !key.is_empty() {
                        key.push(b'/');
                    }
                    key.extend_from_slice(words.pick(r));
                }
                key.push(b'-');
                key.extend_from_slice(words.pick(r));
                key.extend_from_slice([&b".c"[..], b".h", b".rst"][r.below(3)]);
            }
            "domains" => {
                for _ in 0..1 + r.below(2) {
                    key.extend_from_slice(words.pick(r));
                }
                if r.below(3) == 0 {
                    key.extend_from_slice(r.below(1000).to_string().as_bytes());
                }
                key.extend_from_slice(
                    [&b".com"[..], b".com", b".org", b".net", b".ru", b".co.uk", b".de"]
                        [r.below(7)],
                );
            }
            _ => key.extend((0..1 + r.below(255)).map(|_| r.next() as u8)),
        }
        key.truncate(255);
        if seen.insert(key.clone()) {
            keys.push(&key);
        }
        last = key;
    }
    keys
}

/// Some parts of a name that others begin with too, but not all.
fn last_parts<'a>(last: &'a [u8], between: u8, random: &mut Random) -> Vec<&'a [u8]> {
    let parts: Vec<&[u8]> = last.split(|b| *b == between).collect();
    let keep = random.below(parts.len().min(4));
    parts.into_iter().take(keep).collect()
}
