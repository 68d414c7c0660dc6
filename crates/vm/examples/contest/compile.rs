//! What compiling 4,000 instructions takes: the bench's own programs one after another, again and
//! again.

use skep_isa::{Insn, MapShape, ShapeKind, op};
use skep_vm::{Code, Env, HelperCall, HelperImpl, MapRef};

use crate::Result;
use crate::clock::best;
use crate::program::Program;

const LENGTH: usize = 4000;

unsafe extern "C" fn nothing(_: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
    0
}

fn helpers(_: u32) -> Option<HelperImpl> {
    Some(HelperImpl { func: nothing, how: HelperCall::MapLookup })
}

/// Compiles, and prints the time.
pub fn run(objects: &[&str]) -> Result<()> {
    let programs = objects.iter().map(|o| Program::load(o)).collect::<Result<Vec<_>>>()?;
    if programs.is_empty() {
        return Err("which objects?".into());
    }
    let mut insns = Vec::new();
    for program in programs.iter().cycle().take_while({
        let mut length = 1;
        move |p| {
            length += p.insns.len();
            length <= LENGTH
        }
    }) {
        let end = program.insns.len();
        // What was an exit goes on with the next program.
        insns.extend(program.insns.iter().enumerate().map(|(at, i)| {
            if i.code == op::EXIT {
                Insn::new(op::JMP | op::JA, 0, 0, (end - at - 1) as i16, 0)
            } else {
                *i
            }
        }));
    }
    insns.resize(LENGTH - 1, Insn::mov64_imm(0, 0));
    insns.push(Insn::exit());
    let memory = vec![0u64; 512];
    let base = memory.as_ptr() as u64;
    let map = MapRef {
        handle: base,
        value: base,
        shape: MapShape { base, stride: 8, entries: 32, kind: ShapeKind::Array },
    };
    let maps = [map; 4];
    let env = Env { maps: &maps, helper: &helpers };
    let ns = best(|| {
        // SAFETY: what is compiled here is not run.
        unsafe { Code::compile(&insns, &env) }.map_or(0, |c| c.machine_code().len() as u64)
    });
    // SAFETY: what is compiled here is not run.
    let code = unsafe { Code::compile(&insns, &env) }?;
    println!(
        "measured {ns} ns\nresult {} instructions, {} bytes",
        insns.len(),
        code.machine_code().len()
    );
    Ok(())
}
