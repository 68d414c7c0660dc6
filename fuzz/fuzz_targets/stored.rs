//! Any bytes as the files of a program, of a link and of types: behind the header, or, as few damaged
//! records have a sum that fits, as records that are whole. What agents do with a link's file is
//! done, and does not make it worse.
#![no_main]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use skep_store::dir::{Dir, Kind};
use skep_store::link::{AgentRecord, FoundFunction, LinkFile};
use skep_store::prog::ProgramFile;
use skep_store::record::{VERSION, check};
use skep_store::{Error, btf};

fn directory() -> &'static Dir {
    static DIR: OnceLock<Dir> = OnceLock::new();
    DIR.get_or_init(|| {
        let path: PathBuf = format!("/dev/shm/skep-fuzz-{}", std::process::id()).into();
        Dir::create(&path).expect("a directory in memory")
    })
}

/// Takes the input as records: a byte for the tag, two for the length, and the payload.
fn records(mut data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    while let Some(([tag, low, high], rest)) = data.split_first_chunk() {
        let (payload, rest) =
            rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
        let tag = u32::from(*tag);
        let head = [payload.len() as u32, check(tag, payload), tag];
        file.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        file.extend(payload);
        data = rest;
    }
    file
}

fn use_link(dir: &Dir) -> Result<(), Error> {
    let file = LinkFile::open(dir, 1)?;
    let before = file.read()?;
    for program in 0..3 {
        if let Ok(types) = file.types(program)
            && let Some(module) = types.module("/tmp/app", &[])
        {
            let _ = module.function(0x1000);
        }
    }
    let found = FoundFunction {
        module: "/lib/libfuzz.so".into(),
        name: "f",
        vaddr: 0x1000,
        size: 16,
        skipped: None,
    };
    let indexes = file.register(&[found])?;
    file.skip(&[(indexes[0], "no room".to_owned())])?;
    if let Some(agent) = before.agents.first() {
        file.report(&AgentRecord { pid: 7, ..agent.clone() })?;
    }
    let after = file.read()?;
    assert_eq!(after.spec, before.spec);
    assert_eq!(after.functions[indexes[0] as usize].vaddr, 0x1000);
    Ok(())
}

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    let dir = directory();
    let (kind, number) =
        [(Kind::Program, 1u32), (Kind::Link, 2), (Kind::Btf, 4)][usize::from(how / 2) % 3];
    let mut file = b"SKEPREC1".to_vec();
    file.extend(number.to_le_bytes());
    file.extend(VERSION.to_le_bytes());
    match how % 2 {
        0 => file.extend(data),
        _ => file.extend(records(data)),
    }
    let path = dir.object(kind, 1);
    std::fs::write(&path, file).expect("the directory can be written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("the file is ours");
    match kind {
        Kind::Program => {
            if let Ok(program) = ProgramFile::open(dir, 1) {
                let program = program.program();
                assert!(program.with_maps(&[]).is_ok() == program.maps().is_empty());
            }
        }
        Kind::Link => drop(use_link(dir).map_err(|e| e.to_string())),
        _ => {
            if let Some(bytes) = btf::open(dir, 1) {
                assert!(bytes.len() <= data.len());
            }
        }
    }
});
