//! Runs a program on every engine.

use skep_isa::Insn;
use skep_vm::{Code, Cpu, Env, interp};

/// The engines, by name.
#[allow(dead_code, reason = "each test binary uses a part")]
pub const ENGINES: [&str; 3] = ["interp", "jit", "jit baseline"];

/// Runs a program on one engine.
#[allow(dead_code, reason = "each test binary uses a part")]
pub fn run_in(engine: &str, insns: &[Insn], env: &Env<'_>, args: [u64; 5]) -> Result<u64, String> {
    let cpu = match engine {
        "interp" => {
            let program = interp::Program::new(insns, env).map_err(|e| e.to_string())?;
            // SAFETY: test programs stay inside the memory they are given.
            return unsafe { program.run(args) }.map_err(|e| e.to_string());
        }
        "jit" => Cpu::detect(),
        _ => Cpu::baseline(),
    };
    // SAFETY: as above.
    let code = unsafe { Code::compile_for(insns, env, cpu) }.map_err(|e| e.to_string())?;
    // SAFETY: further arguments of the C convention are the further registers of the program.
    let entry: unsafe extern "C" fn(u64, u64, u64, u64, u64) -> u64 =
        unsafe { std::mem::transmute(code.entry()) };
    let [a, b, c, d, e] = args;
    // SAFETY: as above.
    Ok(unsafe { entry(a, b, c, d, e) })
}
