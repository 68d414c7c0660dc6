//! Writes and compiles a program with many functions: `cargo run -p skep-testkit --example many --
//! 50000 FOLDER`.
#![allow(clippy::print_stdout, reason = "a command line tool")]

use skep_testkit::cc::Build;
use skep_testkit::many;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [functions, folder] = args.as_slice() else {
        return Err("usage: many FUNCTIONS FOLDER".into());
    };
    std::fs::create_dir_all(folder)?;
    println!("{}", many::build(functions.parse()?, Build::O2, folder.as_ref()).display());
    Ok(())
}
