//! One contestant of `cargo xtask bench jit`: runs one program on one engine in this process and
//! prints what a run takes.
//!
//! ```text
//! contest program ENGINE OBJECT [NATIVE.so]   skep, interp, rbpf, kernel, native
//! contest lookup ENGINE CASE                  skep, kernel; array, percpu, hashBYTES (of a key),
//!                                             call, tail
//! contest compile ENGINE OBJECT…              skep; the programs one after another, again and
//!                                             again, up to 4,000 instructions
//! contest dump OBJECT FILE                    the machine code, for a disassembler
//! ```
//!
//! Output: `measured NANOSECONDS` and, for programs, `result HEX`, which all engines must agree on.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the result")]

mod clock;
mod compile;
mod lookup;
mod program;

use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["program", engine, object, rest @ ..] => {
            program::run(engine, object, rest.first().copied())
        }
        ["dump", object, file] => program::dump(object, file),
        ["lookup", engine, case] => lookup::run(engine, case),
        ["compile", "skep", objects @ ..] => compile::run(objects),
        _ => Err("usage: contest program|lookup|compile ENGINE …".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(2)
        }
    }
}
