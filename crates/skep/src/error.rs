//! What can go wrong between an object and what it counted.

use std::path::PathBuf;

use skep_isa::MapType;
use skep_maps::MapError;
use skep_object::{GlobalError, ObjectError};
use skep_store::link::PatternError;
use skep_store::{DirError, RecordError};

use crate::chain::error::ChainError;
use crate::link::AttachError;
use crate::load::LoadError;
use crate::packets::PacketsError;
use crate::process::ProcessError;
use crate::test_run::{Errno, RunnerError};
use crate::usdt::UsdtError;

/// Any failure of this library. Its text is one line that says what failed, where, and what may help;
/// a command of `skep` prints the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The skep directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The file of a program or a link cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Another file of the skep directory cannot be used.
    #[error(transparent)]
    Store(skep_store::Error),
    /// A file cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program cannot be attached to probes.
    #[error(transparent)]
    Usdt(#[from] UsdtError),
    /// A program cannot run on packets, or stopped.
    #[error(transparent)]
    Packets(#[from] PacketsError),
    /// A file is no object.
    #[error("`{}`: {source}", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ObjectError,
    },
    /// A file gives no types.
    #[error("`{}` gives no types: {source}", path.display())]
    Types {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A global variable cannot have this value.
    #[error(transparent)]
    Global(#[from] GlobalError),
    /// The object has no program or map of this name.
    #[error("the object has no {kind} `{name}`; it has {}", list(known))]
    NotThere {
        /// `program` or `map`.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// The names that are there.
        known: Vec<String>,
    },
    /// A program's section is none that libbpf knows, or does not go with its type.
    #[error("program `{program}` cannot be a `{section}`: {why}")]
    ProgramType {
        /// The program.
        program: String,
        /// What it should be.
        section: String,
        /// Why not.
        why: String,
    },
    /// Loading failed: a map cannot be made, or a program is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A program is not one that can be attached to functions.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A pattern cannot be read.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A program cannot be attached to the functions of this process.
    #[error("cannot attach to this process: {why}")]
    Process {
        /// Why.
        why: String,
    },
    /// Programs cannot be attached in a process that runs already, or not taken out of it.
    #[error("{}", in_process(.0))]
    InProcess(Box<ProcessError>),
    /// [`Object::attach`](crate::Object::attach) was given no program.
    #[error("a link needs a program: name at least one of {}", list(known))]
    NoProgram {
        /// The programs of the object.
        known: Vec<String>,
    },
    /// Nothing was attached.
    #[error("{}", nothing_attached(patterns, reasons))]
    NothingAttached {
        /// The patterns; none: those that were given name nothing.
        patterns: Vec<String>,
        /// Why functions that match were left out; none: there is no such function.
        reasons: Vec<String>,
    },
    /// Programs of one link are to be attached by their sections, which name different functions.
    #[error(
        "the sections of `{first}` and `{other}` name different functions: attach each by a link of \
         its own"
    )]
    Sections {
        /// A program.
        first: String,
        /// One whose section names other functions.
        other: String,
    },
    /// A link is in another directory than the session that is to start a command with it.
    #[error(
        "link {link} is in `{}`, the session in `{}`: a command runs the programs of one directory",
        path.display(), session.display()
    )]
    OtherDirectory {
        /// The link's id.
        link: u32,
        /// Its directory.
        path: PathBuf,
        /// That of the session.
        session: PathBuf,
    },
    /// The file that [`ObjectLoader::prototypes`](crate::ObjectLoader::prototypes) names is not
    /// there, or is none that has functions.
    #[error("cannot look up the types of functions in `{}`: {source}", path.display())]
    Prototypes {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The agent, which commands are started with, is not there.
    #[error(
        "the agent is not there (looked for {}): build it with \
         `cargo build --release -p skep-cli`, and name `libskep_preload.so.debug` in `SKEP_PRELOAD`",
        list(&looked_for.iter().map(|path| path.display().to_string()).collect::<Vec<_>>())
    )]
    NoAgent {
        /// The paths that were tried.
        looked_for: Vec<PathBuf>,
    },
    /// The dynamic linker cannot load the agent from where it is.
    #[error(
        "`{}` cannot be preloaded: the dynamic linker splits paths at spaces and colons, and \
         expands `$`; copy the agent elsewhere and name the file in `SKEP_PRELOAD`",
        path.display()
    )]
    AgentPath {
        /// The agent's library.
        path: PathBuf,
    },
    /// No map has this name, and none is pinned under it.
    #[error("there is no map `{name}`")]
    NoMap {
        /// The name.
        name: String,
    },
    /// A name does not say which map.
    #[error("several maps are named `{name}`: {ids:?}; use the id")]
    SeveralMaps {
        /// The name.
        name: String,
        /// The maps' ids.
        ids: Vec<u32>,
    },
    /// A pin cannot be created, removed, or have this name.
    #[error("cannot {what} the pin `{name}`: {source}")]
    Pin {
        /// `create`, `remove` or `name`.
        what: &'static str,
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// An operation on a map failed.
    #[error("map `{map}`: {source}")]
    Map {
        /// The map.
        map: String,
        /// Why.
        source: MapError,
    },
    /// A map is of another type than it is taken for.
    #[error("map `{map}` is of type {is}, and no {wanted}")]
    MapType {
        /// The map.
        map: String,
        /// What it is.
        is: MapType,
        /// What it is taken for.
        wanted: &'static str,
    },
    /// Keys, values or records are of another size than the Rust type.
    #[error("map `{map}`: a {what} has {is} bytes, `{rust}` has {wanted}")]
    Size {
        /// The map.
        map: String,
        /// `key`, `value` or `record`.
        what: &'static str,
        /// The Rust type.
        rust: &'static str,
        /// Its size.
        wanted: usize,
        /// The size in the map.
        is: usize,
    },
    /// A key of the map is none of the Rust type: not UTF-8, where text is wanted.
    #[error("map `{map}`: the key `{}` is no `{rust}`", key.escape_ascii())]
    Key {
        /// The map.
        map: String,
        /// The key's bytes.
        key: Vec<u8>,
        /// The Rust type.
        rust: &'static str,
    },
    /// A chain cannot be used.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A program cannot be made ready for a test run.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// A test run failed as the kernel's would.
    #[error("test run of `{program}`: {errno}")]
    TestRun {
        /// The program.
        program: String,
        /// With which error number.
        errno: Errno,
    },
}

/// What the functions of this library answer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<skep_store::Error> for Error {
    fn from(e: skep_store::Error) -> Self {
        match e {
            skep_store::Error::Dir(e) => Self::Dir(e),
            skep_store::Error::Record(e) => Self::Record(e),
            e => Self::Store(e),
        }
    }
}

impl From<ProcessError> for Error {
    fn from(e: ProcessError) -> Self {
        Self::InProcess(Box::new(e))
    }
}

/// All of it in one line.
fn in_process(e: &ProcessError) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(e) = source {
        text.push_str(&format!(": {e}"));
        source = e.source();
    }
    if let Some(hint) = e.hint() {
        text.push_str(&format!("; {hint}"));
    }
    text
}

/// Names things in a sentence.
fn list(names: &[String]) -> String {
    match names {
        [] => "none".to_owned(),
        _ => names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
    }
}

fn nothing_attached(patterns: &[String], reasons: &[String]) -> String {
    match (patterns, reasons.first()) {
        ([], _) => "no function is named: a pattern is `MODULE:FUNCTION` or `FUNCTION`".to_owned(),
        (_, Some(reason)) => {
            format!("no function matching {} was attached: {reason}", list(patterns))
        }
        (_, None) => format!(
            "no function matching {} was attached: this process and its libraries have none of that \
             name",
            list(patterns)
        ),
    }
}
