//! Chain files: the name of a chain, and its graph at each revision.
//!
//! A change appends the whole graph, so a reader takes the last complete record, and a writer that
//! dies in the middle changes nothing. Who changes a chain looks at the last record and appends the
//! next one while no other writer can come between ([`ChainFile::change`]). When the records have
//! grown to many times the newest ones, the file begins anew with these (`restart`).
//!
//! A chain keeps its programs, and they keep their maps: [`Dir::collect`] leaves alone what is named
//! by the last record of a chain that stays.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use skep_isa::{AttachType, ProgramType};

use crate::dir::{Dir, Kind};
use crate::prog::ProgramFile;
use crate::record::{FileKind, RecordError, RecordFile, Records};
use crate::wire::{Reader, WireError, Writer};

const KIND: FileKind = FileKind { number: 6, name: "chain", restarts: true };
const TAG_NAME: u32 = 1;
const TAG_GRAPH: u32 = 2;
const TAG_OBJECTS: u32 = 3;

/// The file begins anew when its records take this many times what a whole state takes, and at least
/// so many bytes.
const TIMES: u64 = 16;
const LEAST: u64 = 16 << 10;

/// Where an edge leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// To the node of this number.
    Node(u32),
    /// Out of the chain with this verdict.
    End(u32),
    /// Out of the chain with the program's verdict.
    Keep,
}

/// An edge of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Its verdicts, by slot (`skep_vm::chain::plan`); all bits for the wildcard.
    pub on: u64,
    /// Where it leads.
    pub to: To,
    /// How often a run may take it.
    pub bound: Option<u32>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// The id of its program.
    pub program: u32,
    /// The program's name.
    pub name: String,
    /// The program's attach type.
    pub attach_type: Option<AttachType>,
    /// The program takes packets of several buffers.
    pub frags: bool,
    /// The edges.
    pub edges: Vec<Edge>,
}

/// A map of an object, as it was when a program was added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedMap {
    /// The name in the object.
    pub name: String,
    /// Its id.
    pub id: u32,
    /// The number that no other map has.
    pub generation: u64,
}

/// An object file that programs of the chain come from, and the maps that they share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedObject {
    /// A hash of the file's bytes.
    pub hash: u64,
    /// The file, as a whole path.
    pub file: PathBuf,
    /// Programs of this file that are added later share the maps.
    pub shares: bool,
    /// Global variables that were set before loading, with their values, as text.
    pub set: Vec<(String, String)>,
    /// The programs.
    pub programs: Vec<u32>,
    /// The maps.
    pub maps: Vec<SharedMap>,
}

/// A chain at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainSpec {
    /// The type of its programs.
    pub prog_type: ProgramType,
    /// The number of changes.
    pub revision: u64,
    /// The number of the next node.
    pub next: u32,
    /// The node that runs first.
    pub entry: Option<u32>,
    /// Most programs of a run.
    pub budget: u32,
    /// A run that would have more answers 0; otherwise the last verdict stands.
    pub aborts: bool,
    /// The answer without programs.
    pub empty: u32,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The objects whose maps programs share.
    pub objects: Vec<SharedObject>,
}

/// Writes the objects of a chain.
#[must_use]
pub fn encode_objects(objects: &[SharedObject]) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32(objects.len() as u32);
    for object in objects {
        w.u64(object.hash).bytes(object.file.as_os_str().as_bytes());
        w.u32(u32::from(object.shares)).u32(object.set.len() as u32);
        for (name, value) in &object.set {
            w.str(name).str(value);
        }
        w.u32(object.programs.len() as u32);
        for id in &object.programs {
            w.u32(*id);
        }
        w.u32(object.maps.len() as u32);
        for map in &object.maps {
            w.str(&map.name).u32(map.id).u64(map.generation);
        }
    }
    w.finish()
}

/// Reads what [`encode_objects`] wrote.
///
/// # Errors
/// What the bytes should have had, and where.
pub fn decode_objects(bytes: &[u8]) -> Result<Vec<SharedObject>, WireError> {
    let mut r = Reader::new(bytes);
    let mut objects = Vec::new();
    for _ in 0..r.count(28, "objects")? {
        let hash = r.u64("object")?;
        let file = PathBuf::from(OsStr::from_bytes(r.bytes("object file")?));
        let shares = r.u32("shared maps")? != 0;
        let mut set = Vec::new();
        for _ in 0..r.count(8, "variables that were set")? {
            set.push((r.str("variable")?.to_owned(), r.str("value of a variable")?.to_owned()));
        }
        let programs = (0..r.count(4, "programs of an object")?)
            .map(|_| r.u32("program"))
            .collect::<Result<_, _>>()?;
        let mut maps = Vec::new();
        for _ in 0..r.count(16, "maps of an object")? {
            let name = r.str("map name")?.to_owned();
            maps.push(SharedMap { name, id: r.u32("map")?, generation: r.u64("map")? });
        }
        objects.push(SharedObject { hash, file, shares, set, programs, maps });
    }
    Ok(objects)
}

impl ChainSpec {
    /// Writes the graph; not the objects.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.prog_type as u32).u64(self.revision).u32(self.next);
        w.u32(self.entry.unwrap_or(0)).u32(self.budget).u32(u32::from(self.aborts));
        w.u32(self.empty).u32(self.nodes.len() as u32);
        for node in &self.nodes {
            w.u32(node.id).u32(node.program).str(&node.name);
            w.u32(node.attach_type.map_or(u32::MAX, |a| a as u32)).u32(u32::from(node.frags));
            w.u32(node.edges.len() as u32);
            for edge in &node.edges {
                let (kind, value) = match edge.to {
                    To::Keep => (0, 0),
                    To::Node(node) => (1, node),
                    To::End(verdict) => (2, verdict),
                };
                w.u64(edge.on).u32(kind).u32(value).u32(edge.bound.unwrap_or(0));
            }
        }
        w.finish()
    }

    /// Reads what [`ChainSpec::encode`] wrote.
    ///
    /// # Errors
    /// What the record should have had, and where.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let unknown = |what| WireError { at: 0, what };
        let some = |n: u32| (n != 0).then_some(n);
        let prog_type =
            ProgramType::from_raw(r.u32("program type")?).ok_or(unknown("a known program type"))?;
        let (revision, next) = (r.u64("revision")?, r.u32("next node")?);
        let entry = some(r.u32("first node")?);
        let (budget, aborts) = (r.u32("budget")?, r.u32("policy")? != 0);
        let empty = r.u32("verdict without programs")?;
        let mut nodes = Vec::new();
        for _ in 0..r.count(24, "nodes")? {
            let (id, program) = (r.u32("node")?, r.u32("program")?);
            let name = r.str("program name")?.to_owned();
            let attach_type = match r.u32("attach type")? {
                u32::MAX => None,
                n => Some(AttachType::from_raw(n).ok_or(unknown("a known attach type"))?),
            };
            let frags = r.u32("fragments")? != 0;
            let mut edges = Vec::new();
            for _ in 0..r.count(20, "edges")? {
                let on = r.u64("verdicts")?;
                let (kind, value) = (r.u32("kind of target")?, r.u32("target")?);
                let to = match kind {
                    0 => To::Keep,
                    1 => To::Node(value),
                    2 => To::End(value),
                    _ => return Err(unknown("a known kind of target")),
                };
                edges.push(Edge { on, to, bound: some(r.u32("bound")?) });
            }
            nodes.push(Node { id, program, name, attach_type, frags, edges });
        }
        let objects = Vec::new();
        Ok(Self { prog_type, revision, next, entry, budget, aborts, empty, nodes, objects })
    }
}

/// A chain file held open: the chain lives at least as long.
#[derive(Debug)]
pub struct ChainFile {
    id: u32,
    name: String,
    file: RecordFile,
}

impl ChainFile {
    /// Writes a new chain.
    ///
    /// # Errors
    /// When no id can be taken or the file cannot be written.
    pub fn create(dir: &Dir, name: &str, spec: &ChainSpec) -> Result<Self, crate::Error> {
        let id = dir.next_id(Kind::Chain)?;
        let mut w = Writer::default();
        w.str(name);
        let objects = encode_objects(&spec.objects);
        let records = [(TAG_NAME, w.finish()), (TAG_OBJECTS, objects), (TAG_GRAPH, spec.encode())];
        let file = RecordFile::create(&dir.object(Kind::Chain, id), KIND, &records)?;
        Ok(Self { id, name: name.to_owned(), file })
    }

    /// Opens the chain with this id.
    ///
    /// # Errors
    /// When there is none, its file belongs to another user or is open to others, is damaged, or of
    /// another version.
    pub fn open(dir: &Dir, id: u32) -> Result<Self, RecordError> {
        let file = RecordFile::open(&dir.object(Kind::Chain, id), KIND)?;
        let records = file.read()?;
        let name = records.iter().find(|(tag, _)| *tag == TAG_NAME);
        let name = name.map(|(_, payload)| Reader::new(payload).str("name").map(str::to_owned));
        let name = name.unwrap_or(Err(WireError { at: 0, what: "a name" }));
        Ok(Self { id, name: name.map_err(|e| file.damaged(e))?, file })
    }

    /// Returns the object's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the chain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how long the file is: another length is another revision.
    ///
    /// # Errors
    /// When the file is gone.
    pub fn length(&self) -> Result<u64, RecordError> {
        self.file.length()
    }

    /// Reads the chain as it is now.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn read(&self) -> Result<ChainSpec, RecordError> {
        self.last(&self.file.read()?)
    }

    fn last(&self, records: &Records) -> Result<ChainSpec, RecordError> {
        let last = |wanted| records.iter().filter(|(tag, _)| *tag == wanted).last();
        let graph = last(TAG_GRAPH).ok_or(WireError { at: 0, what: "a graph" });
        let spec = graph.and_then(|(_, payload)| {
            let objects = last(TAG_OBJECTS).map(|(_, payload)| decode_objects(payload));
            let objects = objects.transpose()?.unwrap_or_default();
            Ok(ChainSpec { objects, ..ChainSpec::decode(payload)? })
        });
        spec.map_err(|e| self.file.damaged(e))
    }

    /// Lets `make` see the chain, and writes what it makes of it; no other writer comes between.
    /// Nothing is written when it fails, or returns no chain.
    ///
    /// # Errors
    /// When the file cannot be locked, read or written.
    pub fn change<T, E>(
        &self,
        make: impl FnOnce(ChainSpec) -> Result<(Option<ChainSpec>, T), E>,
    ) -> Result<Result<T, E>, RecordError> {
        self.file.append_with(|records, batch| {
            let old = self.last(records)?;
            let objects = old.objects.clone();
            Ok(make(old).map(|(spec, result)| {
                if let Some(spec) = spec {
                    let (all, graph) = (encode_objects(&spec.objects), spec.encode());
                    let whole = (self.name.len() + all.len() + graph.len()) as u64;
                    let restart = records.size() > LEAST.max(TIMES * whole);
                    if restart {
                        batch.push(TAG_NAME, |w| w.str(&self.name));
                        batch.restart();
                    }
                    // First, so that a graph is never there without what belongs to it.
                    if restart || spec.objects != objects {
                        batch.push(TAG_OBJECTS, |w| w.raw(&all));
                    }
                    batch.push(TAG_GRAPH, |w| w.raw(&graph));
                }
                result
            }))
        })
    }
}

/// What chains keep: ids of programs, and of the maps of these.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    /// Something could not be read, as it was locked: it may keep anything.
    unknown: bool,
    /// The chains that say so, with the lengths of their files, which each change makes longer.
    chains: Vec<(u32, u64)>,
}

impl Kept {
    /// Finds what the chains of a directory keep. A chain that cannot be read keeps nothing.
    pub(crate) fn of(dir: &Dir) -> Self {
        // Before they are read: what comes between makes them other chains.
        let mut kept = Self { chains: lengths(dir), ..Self::default() };
        let ids = kept.chains.iter().map(|(id, _)| *id);
        let mut unknown = false;
        let mut is_busy = |e: &RecordError| unknown |= matches!(e, RecordError::Busy { .. });
        let mut maps = BTreeSet::new();
        for id in ids {
            let chain = ChainFile::open(dir, id).and_then(|chain| chain.read());
            let nodes = chain.inspect_err(&mut is_busy).map(|spec| spec.nodes).unwrap_or_default();
            for node in nodes.iter().filter(|node| kept.programs.insert(node.program)) {
                let program = ProgramFile::open(dir, node.program).inspect_err(&mut is_busy);
                maps.extend(program.iter().flat_map(|program| program.program().maps()));
            }
        }
        Self { maps, unknown, ..kept }
    }

    /// Tells whether an object is kept, also by chains that were changed since.
    pub(crate) fn has_now(&mut self, dir: &Dir, kind: Kind, id: u32) -> bool {
        if self.is_outdated(dir) {
            *self = Self::of(dir);
        }
        self.has(kind, id)
    }

    /// Tells whether chains were made, changed or removed since. Opens nothing.
    pub(crate) fn is_outdated(&self, dir: &Dir) -> bool {
        self.chains != lengths(dir)
    }

    /// Tells whether an object is kept.
    pub(crate) fn has(&self, kind: Kind, id: u32) -> bool {
        match kind {
            Kind::Program => self.unknown || self.programs.contains(&id),
            Kind::Map => self.unknown || self.maps.contains(&id),
            _ => false,
        }
    }
}

/// Lists the chains of a directory with the lengths of their files.
fn lengths(dir: &Dir) -> Vec<(u32, u64)> {
    let ids = dir.ids(Kind::Chain).unwrap_or_default();
    let length = |id| Some((id, std::fs::metadata(dir.object(Kind::Chain, id)).ok()?.len()));
    ids.into_iter().filter_map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ChainSpec {
        let edge = |on, to, bound| Edge { on, to, bound };
        ChainSpec {
            prog_type: ProgramType::Xdp,
            revision: 7,
            next: 3,
            entry: Some(1),
            budget: 32,
            aborts: true,
            empty: 2,
            nodes: vec![
                Node {
                    id: 1,
                    program: 11,
                    name: "a".to_owned(),
                    attach_type: None,
                    frags: true,
                    edges: vec![edge(8, To::Node(2), Some(4)), edge(4, To::End(2), None)],
                },
                Node {
                    id: 2,
                    program: 12,
                    name: "b".to_owned(),
                    attach_type: Some(AttachType::XdpDevmap),
                    frags: false,
                    edges: vec![edge(1 << 33, To::Keep, None)],
                },
            ],
            objects: Vec::new(),
        }
    }

    #[test]
    fn a_chain_comes_back_from_its_bytes_and_short_ones_are_refused() -> Result<(), WireError> {
        let bytes = spec().encode();
        assert_eq!(ChainSpec::decode(&bytes)?, spec());
        for n in 0..bytes.len() {
            assert!(ChainSpec::decode(&bytes[..n]).is_err(), "{n} bytes");
        }
        Ok(())
    }

    #[test]
    fn objects_come_back_from_their_bytes_and_short_ones_are_refused() -> Result<(), WireError> {
        let map = |name: &str, id| SharedMap { name: name.to_owned(), id, generation: !0 - 1 };
        let maps = vec![map("counts", 3), map(".rodata", 4)];
        let objects = vec![
            SharedObject {
                hash: 7,
                file: "/a.o".into(),
                shares: true,
                set: vec![
                    ("limit".to_owned(), "64".to_owned()),
                    ("s.a[1]".to_owned(), String::new()),
                ],
                programs: vec![1, 2],
                maps,
            },
            SharedObject {
                hash: 8,
                file: PathBuf::new(),
                shares: false,
                set: Vec::new(),
                programs: Vec::new(),
                maps: Vec::new(),
            },
        ];
        let bytes = encode_objects(&objects);
        assert_eq!(decode_objects(&bytes)?, objects);
        for n in 0..bytes.len() {
            assert!(decode_objects(&bytes[..n]).is_err(), "{n} bytes");
        }
        Ok(())
    }

    #[test]
    fn writers_see_each_others_changes() -> Result<(), Box<dyn std::error::Error>> {
        let path = std::env::temp_dir().join(format!("skep-chain-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        let dir = Dir::create(&path)?;
        let file = ChainFile::create(&dir, "fw", &spec())?;
        let length = file.length()?;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let file = ChainFile::open(&dir, 1).expect("it is there");
                    for _ in 0..50 {
                        let done = file.change(|spec| {
                            let revision = spec.revision + 1;
                            Ok::<_, ()>((Some(ChainSpec { revision, ..spec }), ()))
                        });
                        assert_eq!(done.expect("it can be written"), Ok(()));
                    }
                });
            }
        });
        assert_eq!((file.read()?.revision, file.name()), (107, "fw"));
        assert_eq!(file.change(|_| Err::<(Option<ChainSpec>, ()), _>("no"))?, Err("no"));
        assert!(file.length()? > length);
        assert_eq!(file.read()?, ChainSpec { revision: 107, ..spec() });
        std::fs::remove_dir_all(&path)?;
        Ok(())
    }
}
