//! Prints what this crate makes of an object, in the words of `tests/data/record.c`, which does the
//! same with libbpf: a `diff` of the two shows where they differ.
//!
//! ```sh
//! cargo run -p skep-object --example record -- NAME.bpf.o [TYPES [CONFIG]]
//! ```
//!
//! `TYPES` is what CO-RE relocations are resolved against (BTF, or an ELF file with it), `CONFIG` a
//! kernel's configuration.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use skep_object::{CoreTarget, LinkOptions, Object};
use std::path::Path;

#[path = "../tests/record/mod.rs"]
mod record;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = &args[..] else {
        return Err("usage: record NAME.bpf.o [TYPES [CONFIG]]".into());
    };
    let name = Path::new(path)
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or("")
        .split('.')
        .next()
        .unwrap_or("")
        .to_owned();
    let mut object = Object::parse_named(&name, &std::fs::read(path)?)?;
    let target = rest
        .first()
        .map(|p| Ok::<_, Box<dyn std::error::Error>>(CoreTarget::parse(&std::fs::read(p)?)?))
        .transpose()?;
    object.maps.iter().for_each(|m| println!("{}", record::map(m)));
    let config = rest.get(1).map(std::fs::read_to_string).transpose()?.unwrap_or_default();
    let value = |name: &str| match name {
        "LINUX_KERNEL_VERSION" => Some(
            std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?.trim().to_owned(),
        )
        .map(|r| {
            let n: Vec<u32> = r.split(['.', '-']).map_while(|n| n.parse().ok()).collect();
            n.iter().take(3).fold(0, |all, n| all << 8 | (*n).min(255)).to_string()
        }),
        "LINUX_HAS_BPF_COOKIE" | "LINUX_HAS_SYSCALL_WRAPPER" => Some("1".to_owned()),
        _ => config
            .lines()
            .find_map(|l| Some(l.split_once('=').filter(|(n, _)| *n == name)?.1.to_owned())),
    };
    object.set_kconfig(value)?;
    for (i, p) in object.programs.iter().enumerate() {
        match object
            .link_with(i, &LinkOptions { target: target.as_ref(), ..LinkOptions::default() })
        {
            Ok(linked) => print!("{}", record::program(&linked)),
            Err(e) => println!("program {} section={} error={e}", p.name, p.section),
        }
    }
    Ok(())
}
