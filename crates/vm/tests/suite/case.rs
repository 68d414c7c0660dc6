//! Reads `.data` files: assembly, optional memory, the expected r0 and memory after.

use skep_isa::{Insn, text};
use skep_vm::{Env, HelperImpl};

use crate::suite::run_in;

/// One case.
#[allow(dead_code, reason = "each test binary uses a part")]
pub struct Case {
    pub insns: Vec<Insn>,
    pub raw: Option<Vec<u64>>,
    pub mem: Vec<u8>,
    pub result: u64,
    pub after: Option<Vec<u8>>,
}

/// Reads a case. Sections: `asm`, `raw` (slots as numbers), `mem` and `mem after` (hex bytes),
/// `result`.
pub fn parse(data: &str) -> Result<Case, String> {
    let (mut name, mut sections) = (String::new(), Vec::<(String, String)>::new());
    for line in data.lines() {
        if let Some(n) = line.strip_prefix("-- ") {
            name = n.trim().to_owned();
            sections.push((name.clone(), String::new()));
        } else if !name.is_empty()
            && let Some((_, body)) = sections.last_mut()
        {
            body.push_str(line);
            body.push('\n');
        }
    }
    let find = |n: &str| sections.iter().find(|(s, _)| s == n).map(|(_, b)| b.as_str());
    let plain = |b: &str| {
        b.lines().map(|l| l.split('#').next().unwrap_or("")).collect::<Vec<_>>().join(" ")
    };
    let number = |w: &str| match w.strip_prefix("0x") {
        Some(h) => u64::from_str_radix(h, 16).map_err(|e| format!("{w}: {e}")),
        None => w.parse().map_err(|e| format!("{w}: {e}")),
    };
    let bytes = |b: &str| {
        let digits: String = plain(b).split_whitespace().collect();
        let pairs = digits
            .as_bytes()
            .chunks(2)
            .map(|p| u8::from_str_radix(&String::from_utf8_lossy(p), 16));
        pairs.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())
    };
    let result = plain(find("result").ok_or("no result")?);
    Ok(Case {
        insns: text::assemble(find("asm").ok_or("no asm")?).map_err(|e| e.to_string())?,
        raw: find("raw").map(|b| plain(b).split_whitespace().map(number).collect()).transpose()?,
        mem: find("mem").map(bytes).transpose()?.unwrap_or_default(),
        result: number(result.trim())?,
        after: find("mem after").map(bytes).transpose()?,
    })
}

#[allow(dead_code, reason = "each test binary uses a part")]
unsafe extern "C" fn identity(a: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    a
}

/// Helper 5 of the public suite gives back its first argument.
#[allow(dead_code, reason = "each test binary uses a part")]
fn helpers(id: u32) -> Option<HelperImpl> {
    (id == 5).then_some(HelperImpl::plain(identity))
}

/// Runs a program on one engine with `mem` in r1 and its length in r2.
#[allow(dead_code, reason = "each test binary uses a part")]
pub fn run(engine: &str, insns: &[Insn], mem: &mut [u8]) -> Result<u64, String> {
    let (at, len) =
        if mem.is_empty() { (0, 0) } else { (mem.as_mut_ptr() as u64, mem.len() as u64) };
    run_in(engine, insns, &Env { maps: &[], helper: &helpers }, [at, len, 0, 0, 0])
}
