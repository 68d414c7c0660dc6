//! Any bytes as the file of a chain: behind the header, or, as few damaged records have a sum that
//! fits, as graph and objects in records that are whole. What can be read is drawn, planned, changed
//! and read again.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use skep::chain::{Bridge, Chain, Edit, picture};
use skep::dir::Kind;
use skep::{Dir, Session};
use skep_store::chain::ChainSpec;
use skep_store::record::check;

fn directory() -> &'static Dir {
    static DIR: OnceLock<Dir> = OnceLock::new();
    DIR.get_or_init(|| {
        let path: PathBuf = format!("/dev/shm/skep-fuzz-{}", std::process::id()).into();
        Dir::create(&path).expect("a directory in memory")
    })
}

fn record(tag: u32, payload: &[u8]) -> Vec<u8> {
    let head = [payload.len() as u32, check(tag, payload), tag];
    head.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((how, data)) = data.split_first() else { return };
    if let Ok(spec) = ChainSpec::decode(data) {
        let again = ChainSpec::decode(&spec.encode()).expect("what was written can be read");
        assert_eq!(again, spec);
    }
    let mut file = b"SKEPREC1\x06\0\0\0\x02\0\0\0".to_vec();
    if how % 2 == 0 {
        file.extend(data);
    } else {
        let (graph, objects) = data.split_at((*how as usize / 2 * 8).min(data.len()));
        file.resize(48, 0);
        file.extend(record(1, b"\x02\0\0\0fw"));
        file.extend(record(3, objects));
        file.extend(record(2, graph));
    }
    let dir = directory();
    let path = dir.object(Kind::Chain, 1);
    std::fs::write(&path, file).expect("the directory can be written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("the file is ours");
    let session = Session::open_in(dir.path()).expect("the directory is there");
    let Ok(chain) = Chain::open(&session, "1") else { return };
    let _ = chain.object_files();
    let Ok(graph) = chain.graph() else { return };
    let drawn =
        [picture::text(&graph, None), picture::dot(&graph, None), picture::svg(&graph, None)];
    assert!(drawn.iter().all(|text| !text.is_empty()));
    if let Some((plan, order)) = graph.plan() {
        assert_eq!(plan.steps.len(), order.len());
        plan.check().expect("a graph that can be read has a plan that can be followed");
    }
    let Some((node, _)) = graph.nodes().next() else { return };
    let remove = Edit::Remove { node, bridge: Bridge::SameVerdict };
    if let Ok((changed, _)) = chain.transaction(0, &[remove]) {
        assert_eq!(chain.graph().expect("what was written can be read"), changed);
    }
});
