//! Prints the file, the offset and the build id behind addresses of a process, core file or
//! snapshot.
//!
//! `cargo run -p skep-proc --example normalize -- PID|FILE ADDRESS…`

#![allow(clippy::print_stdout, reason = "a command-line example")]

use std::error::Error;

use skep_proc::maps::{self, MapSource, Normalizer, Place, Process, Saved};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let target = args.next().ok_or("usage: normalize PID|FILE ADDRESS…")?;
    let addresses: Result<Vec<u64>, _> =
        args.map(|a| u64::from_str_radix(a.trim_start_matches("0x"), 16)).collect();
    let addresses = addresses?;
    let source: Box<dyn MapSource> = match target.parse() {
        Ok(pid) => Box::new(Process::open(pid)?),
        Err(_) => match maps::open(&target)? {
            Saved::One(snapshot) => Box::new(snapshot),
            _ => return Err("a recording of several processes".into()),
        },
    };
    let mut normalizer = Normalizer::new(&*source);
    for (address, place) in addresses.iter().zip(normalizer.normalize(&addresses)?) {
        match place {
            Place::File { file, offset } => {
                let file = &normalizer.files()[file as usize];
                let id = file.build_id.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                println!("{address:#x} {offset:#x} {id} {}", String::from_utf8_lossy(&file.name));
            }
            Place::Other(reason) => println!("{address:#x} - - {}", reason.name()),
        }
    }
    Ok(())
}
