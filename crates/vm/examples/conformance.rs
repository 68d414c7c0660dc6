//! A plugin of the bpf_conformance runner: a program in hex on stdin, optionally memory in hex as
//! first argument, r0 in hex on stdout. r1 is the memory's address and r2 its length, both 0
//! without memory. `--interp` picks the interpreter.

use std::io::Read;
use std::process::ExitCode;

use skep_isa::Insn;
use skep_vm::{Code, Env, HelperImpl, interp};

/// Helper 5 of the suite gives back its first argument.
unsafe extern "C" fn identity(a: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    a
}

#[allow(clippy::print_stdout, clippy::print_stderr, reason = "the plugin protocol")]
fn main() -> ExitCode {
    match answer() {
        Ok(r0) => {
            println!("{r0:x}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(1)
        }
    }
}

fn answer() -> Result<u64, Box<dyn std::error::Error>> {
    let (mut interpret, mut memory) = (false, Vec::new());
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--interp" => interpret = true,
            "--jit" => interpret = false,
            flag if flag.starts_with("--") => return Err(format!("unknown flag `{flag}`").into()),
            hex => memory = bytes(hex)?,
        }
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let insns = Insn::decode(&bytes(&text)?).ok_or("the program is no multiple of eight bytes")?;
    let env = Env { maps: &[], helper: &|id| (id == 5).then_some(HelperImpl::plain(identity)) };
    let (at, len) =
        if memory.is_empty() { (0, 0) } else { (memory.as_mut_ptr() as u64, memory.len() as u64) };
    if interpret {
        // SAFETY: the suite's programs stay inside the memory they are given.
        return Ok(unsafe { interp::Program::new(&insns, &env)?.run([at, len, 0, 0, 0]) }?);
    }
    // SAFETY: as above.
    let code = unsafe { Code::compile(&insns, &env) }?;
    // SAFETY: further arguments of the C convention are the further registers of the program.
    let entry: unsafe extern "C" fn(u64, u64) -> u64 = unsafe { std::mem::transmute(code.entry()) };
    // SAFETY: as above.
    Ok(unsafe { entry(at, len) })
}

fn bytes(hex: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = hex.chars().filter(|c| !c.is_whitespace()).map(|c| c as u8).collect();
    let pairs = digits.chunks(2).map(|p| {
        std::str::from_utf8(p)
            .ok()
            .filter(|p| p.len() == 2)
            .and_then(|p| u8::from_str_radix(p, 16).ok())
    });
    pairs.collect::<Option<_>>().ok_or_else(|| "odd text where hex was expected".to_owned())
}
