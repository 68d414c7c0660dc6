//! Verifies every program of object files: `cargo run --example verify -- FILE.bpf.o…`; `-v` prints
//! the logs.
#![allow(clippy::print_stdout, reason = "a command-line example")]

use skep_object::Object;
use skep_verifier::{Options, verify};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let verbose = std::env::args().any(|a| a == "-v");
    for file in std::env::args().skip(1).filter(|a| a != "-v") {
        let object = match Object::parse(&std::fs::read(&file)?) {
            Ok(o) => o,
            Err(e) => {
                println!("{file}: {e}");
                continue;
            }
        };
        for (i, p) in object.programs.iter().enumerate() {
            let name = &p.name;
            let linked = match object.link(i) {
                Ok(l) => l,
                Err(e) => {
                    println!("{file}\t{name}\terror\t{e}");
                    continue;
                }
            };
            let start = std::time::Instant::now();
            match verify(&linked, &Options::default()) {
                Ok(v) => {
                    println!(
                        "{file}\t{name}\taccept\t{} insns\t{:?}\tstack {}",
                        v.info().processed,
                        start.elapsed(),
                        v.info().stack_depth
                    )
                }
                Err(r) => {
                    println!("{file}\t{name}\treject\t{r}\t{:?}", start.elapsed());
                    if let Some(h) = &r.hint {
                        println!("hint: {h}");
                    }
                    if verbose {
                        println!("{}", r.log());
                    }
                }
            }
        }
    }
    Ok(())
}
