//! Arguments of `skep map`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::output::JsonArgs;

const UPDATE_HELP: &str = "\
KEY and VALUE are read by the map's types: a number, text, or JSON for a structure.
Without types, a number is as wide as the key or value. With `--raw`, or after
`hex` as in bpftool, they are bytes in hex, with or without spaces.

Examples:
  skep map update counts 42 7
  skep map update requests '{\"pid\": 7}' '{\"count\": 3}' --exist
  skep map update 3 --raw 2a000000 '07 00 00 00'

Keys of variable length (qp_trie) are text, or bytes after `hex`. Text that
begins with `hex` or a length, as bpftool has them, needs quotes as in JSON:
  skep map update opened /etc/passwd 1
  skep map update opened 'hex 2f 65 74 63' 1
  skep map update opened '\"hex 2f\"' 1";

const LOOKUP_HELP: &str = "\
Examples:
  skep map lookup counts 42
  skep map lookup requests '{\"pid\": 7, \"comm\": \"cat\"}'
  skep map lookup 3 --raw 2a000000
  skep map lookup routes --longest /static/css/main.css
  skep map lookup events --floor 'hex 0000 0000 0000 ffff'

`skep map update --help` says how keys are read.";

const GETNEXT_HELP: &str = "\
Examples:
  skep map getnext counts
  skep map getnext counts 42

`skep map update --help` says how keys are read.";

const DELETE_HELP: &str = "\
Examples:
  skep map delete seen 42
  skep map delete 3 --raw '2a 00 00 00'
  skep map delete opened --prefix /proc/
  skep map delete opened --from a --to m

`skep map update --help` says how keys are read.";

const DUMP_HELP: &str = "\
The context of a filter program is the element: the key, then the value at the
next multiple of eight bytes. It returns 0 to skip the element, 2 to end the dump.

Examples:
  skep map dump counts
  skep map dump counts --json --take=exact
  skep map dump counts --strict
  skep map dump flows --csv > flows.csv
  skep map dump flows --filter busy.bpf.o --take
  skep map dump opened --prefix /etc/
  skep map dump opened --reverse --limit 10
  skep map dump 12 --kernel --json";

const LOAD_HELP: &str = "\
FILE is what `skep map dump` printed: JSON, CSV, or lines. It is read as a whole
before the first element is stored; a file with a mistake changes nothing.
Elements with other keys stay in the map.

Examples:
  skep map dump counts --json > counts.json; skep map load counts counts.json
  skep map dump flows --csv | skep map load other -
  skep map dump flows --raw | skep map load other - --raw";

const COPY_HELP: &str = "\
A path in a bpf file system names a map of the kernel even without `--kernel`.

Examples:
  skep map copy counts old
  skep map copy /sys/fs/bpf/flows flows
  skep map copy --kernel=to flows 12";

const CREATE_HELP: &str = "\
If the map has types, `map dump`, `lookup` and `update` print and read its
elements by them.

Examples:
  skep map create seen --type hash --key 8 --value 8 --entries 10000
  skep map create flows --type hash --entries 1000 --btf flows.bpf.o \\
      --key-type 'struct flow' --value-type __u64
  skep map create flows --from flows.bpf.o:flows --entries 1000
  skep map create older --type-of flows
  skep map create opened --type qp_trie --key 255 --value 8 --entries 100000";

/// Which side's maps, and what to do with them.
#[derive(Args, Debug)]
pub struct MapsArgs {
    /// Use the running kernel's maps (root); also accepted after the subcommand
    #[arg(id = "of_kernel", long = "kernel")]
    kernel: bool,
    /// What to do
    #[command(subcommand)]
    pub command: MapCommand,
}

impl MapsArgs {
    /// Gives the command the `--kernel` that stands before it, or says why that cannot be.
    pub(super) fn apply_kernel(&mut self) -> Result<(), &'static str> {
        if !self.kernel {
            return Ok(());
        }
        match &mut self.command {
            MapCommand::List { kernel, .. } => *kernel = true,
            MapCommand::Dump(DumpArgs { take: Some(_), .. }) => {
                return Err("`--take` works on skep's maps, not on the kernel's");
            }
            MapCommand::Copy(CopyArgs { kernel, .. }) => {
                kernel.get_or_insert(KernelSide::From);
            }
            MapCommand::Show { map, .. }
            | MapCommand::Lookup(LookupArgs { map, .. })
            | MapCommand::Dump(DumpArgs { map, .. }) => map.kernel = true,
            _ => {
                return Err(
                    "of the kernel's maps, `--kernel` can only list, show, dump, look up and copy",
                );
            }
        }
        Ok(())
    }
}

/// Which map.
#[derive(Args, Debug)]
pub struct MapArgs {
    /// The map: its id, its name if unique, a pin, or a path such as /sys/fs/bpf/counts
    #[arg(value_name = "MAP")]
    pub map: String,
    /// Look among the running kernel's maps (root)
    #[arg(long)]
    pub kernel: bool,
}

/// What to do with maps.
#[derive(Subcommand, Debug)]
pub enum MapCommand {
    /// List maps
    List {
        /// List the running kernel's maps (root)
        #[arg(long)]
        kernel: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Show everything about one map except its contents
    Show {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print all elements of a map; they are streamed, so memory use does not grow with the map
    #[command(after_help = DUMP_HELP)]
    Dump(DumpArgs),
    /// Print the value of one key
    #[command(after_help = LOOKUP_HELP)]
    Lookup(LookupArgs),
    /// Store a value under a key
    #[command(after_help = UPDATE_HELP)]
    Update {
        /// The map: its id, its name if unique, or a pin
        #[arg(value_name = "MAP")]
        map: String,
        /// The key
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: String,
        /// The value; for per-CPU maps a list, or the first CPU's value alone: the others become 0
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
        /// Fail if the key exists
        #[arg(long, conflicts_with = "exist")]
        noexist: bool,
        /// Fail if the key does not exist
        #[arg(long)]
        exist: bool,
        /// Read key and value as bytes in hex
        #[arg(long)]
        raw: bool,
    },
    /// Remove a key, or in an ordered map a range of keys
    #[command(after_help = DELETE_HELP)]
    Delete(DeleteArgs),
    /// Push a value to a queue or stack
    #[command(visible_alias = "enqueue")]
    Push {
        /// The map: its id, its name if unique, or a pin
        #[arg(value_name = "MAP")]
        map: String,
        /// The value
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
        /// If the map is full, replace the oldest value
        #[arg(long)]
        exist: bool,
        /// Read the value as bytes in hex
        #[arg(long)]
        raw: bool,
    },
    /// Print the next value of a queue or stack without removing it
    Peek {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// Print the value as bytes in hex
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print the key after KEY, or the first key: also after one that is not there, as in the kernel
    #[command(after_help = GETNEXT_HELP)]
    Getnext {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// The previous key [default: none, which prints the first key]
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: Option<String>,
        /// Read and print keys as bytes in hex
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Remove the next value of a queue or stack and print it
    #[command(visible_alias = "dequeue")]
    Pop {
        /// The map: its id, its name if unique, or a pin
        #[arg(value_name = "MAP")]
        map: String,
        /// Print the value as bytes in hex
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Store what `dump` printed
    #[command(after_help = LOAD_HELP)]
    Load(LoadArgs),
    /// Store the elements of a map in another one, with keys and values of the same size
    #[command(after_help = COPY_HELP)]
    Copy(CopyArgs),
    /// Create a map, pinned under its name
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// Pin a map under a name: it stays even when nothing uses it
    Pin {
        /// The map: its id, its name if unique, or a pin
        #[arg(value_name = "MAP")]
        map: String,
        /// The pin's name
        name: String,
    },
    /// Remove a pin
    Unpin {
        /// The pin's name
        name: String,
    },
    /// Make a map permanently read-only for everything except programs
    Freeze {
        /// The map: its id, its name if unique, or a pin
        #[arg(value_name = "MAP")]
        map: String,
    },
}

/// Arguments of `skep map lookup`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("nearest").args(["floor", "ceiling", "longest"]))]
pub struct LookupArgs {
    /// Which map
    #[command(flatten)]
    pub map: MapArgs,
    /// The key
    #[arg(value_name = "KEY", allow_hyphen_values = true)]
    pub key: String,
    /// Print the element with the greatest key that is not above KEY (ordered maps)
    #[arg(long)]
    pub floor: bool,
    /// Print the element with the least key that is not below KEY (ordered maps)
    #[arg(long)]
    pub ceiling: bool,
    /// Print the element with the longest key that KEY begins with (ordered maps)
    #[arg(long)]
    pub longest: bool,
    /// Read the key and print the value as bytes in hex
    #[arg(long)]
    pub raw: bool,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// Arguments of `skep map delete`.
#[derive(Args, Debug)]
pub struct DeleteArgs {
    /// The map: its id, its name if unique, or a pin
    #[arg(value_name = "MAP")]
    pub map: String,
    /// The key
    #[arg(
        value_name = "KEY",
        allow_hyphen_values = true,
        required_unless_present_any = ["prefix", "from", "to"],
        conflicts_with_all = ["prefix", "from", "to"]
    )]
    pub key: Option<String>,
    /// Which part of an ordered map
    #[command(flatten)]
    pub range: RangeArgs,
    /// Read keys as bytes in hex
    #[arg(long)]
    pub raw: bool,
}

/// Which keys of an ordered map.
#[derive(Args, Debug)]
pub struct RangeArgs {
    /// Only keys that begin with this (ordered maps)
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub prefix: Option<String>,
    /// Only this key and those after it (ordered maps)
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Only this key and those before it (ordered maps)
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<String>,
}

/// Arguments of `skep map dump`.
#[derive(Args, Debug)]
pub struct DumpArgs {
    /// Which map
    #[command(flatten)]
    pub map: MapArgs,
    /// Print keys and values as bytes in hex
    #[arg(long)]
    pub raw: bool,
    /// Print at most this many elements; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: u64,
    /// Which part of an ordered map
    #[command(flatten)]
    pub range: RangeArgs,
    /// Print the greatest key first (ordered maps)
    #[arg(long)]
    pub reverse: bool,
    /// Remove the elements that are printed; with `exact`, only once no running program can
    /// update them, so that no update is lost
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "fast", conflicts_with = "kernel")]
    pub take: Option<TakeHow>,
    /// Print only elements that are in the map when the dump begins, whatever is inserted
    /// meanwhile
    #[arg(long, conflicts_with_all = ["take", "kernel"])]
    pub strict: bool,
    /// Print only elements for which this program, of type `syscall`, does not return 0
    #[arg(long, value_name = "OBJECT[:PROGRAM]")]
    pub filter: Option<String>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values, with the names of the columns in the first line
    #[arg(long)]
    pub csv: bool,
}

/// Arguments of `skep map load`.
#[derive(Args, Debug)]
pub struct LoadArgs {
    /// The map: its id, its name if unique, or a pin
    #[arg(value_name = "MAP")]
    pub map: String,
    /// The file; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// End at the first key that exists
    #[arg(long, conflicts_with = "exist")]
    pub noexist: bool,
    /// End at the first key that does not exist
    #[arg(long)]
    pub exist: bool,
    /// Read keys and values as bytes in hex; a JSON document of `dump --raw` says so itself
    #[arg(long)]
    pub raw: bool,
}

/// Arguments of `skep map copy`.
#[derive(Args, Debug)]
pub struct CopyArgs {
    /// The map to read: its id, its name if unique, a pin, or a path such as /sys/fs/bpf/counts
    #[arg(value_name = "FROM")]
    pub from: String,
    /// The map to change, named in the same way
    #[arg(value_name = "TO")]
    pub to: String,
    /// Which of the two are the running kernel's (root); without SIDE, the one that is read
    #[arg(long, value_name = "SIDE", num_args = 0..=1, require_equals = true, default_missing_value = "from")]
    pub kernel: Option<KernelSide>,
    /// End at the first key that exists
    #[arg(long, conflicts_with = "exist")]
    pub noexist: bool,
    /// End at the first key that does not exist
    #[arg(long)]
    pub exist: bool,
}

/// Which maps of a copy are the kernel's.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelSide {
    /// The one that is read
    From,
    /// The one that is changed
    To,
    /// Both
    Both,
}

/// How elements are removed from a map.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeHow {
    /// One by one, as the kernel does
    Fast,
    /// Once no running program can still update them
    Exact,
}

/// Arguments of `skep map create`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("types").args(["key_type", "value_type"]).multiple(true))]
pub struct CreateArgs {
    /// The name of the map and of its pin
    pub name: String,
    /// The type, by the kernel's name: hash, array, percpu_hash, …
    #[arg(long = "type", value_name = "TYPE", required_unless_present_any = ["from", "type_of"])]
    pub map_type: Option<String>,
    /// Size of a key; for a qp_trie, of the longest
    #[arg(long, visible_alias = "key-size", value_name = "BYTES")]
    pub key: Option<u32>,
    /// For a qp_trie: every key has the size of `--key`
    #[arg(long)]
    pub fixed_keys: bool,
    /// Size of a value
    #[arg(long, visible_alias = "value-size", value_name = "BYTES")]
    pub value: Option<u32>,
    /// Maximum number of elements (max_entries); for a ring buffer, its size in bytes
    #[arg(long, value_name = "N", required_unless_present_any = ["from", "type_of"])]
    pub entries: Option<u32>,
    /// Flags by name (no_prealloc, mmapable, …) or as a number
    #[arg(long, value_name = "FLAG", value_delimiter = ',')]
    pub flags: Vec<String>,
    /// File with the types: BTF, or an ELF file with BTF
    #[arg(long, value_name = "FILE", requires = "types")]
    pub btf: Option<PathBuf>,
    /// Type of the keys; it determines the size
    #[arg(long, value_name = "NAME", requires = "btf")]
    pub key_type: Option<String>,
    /// Type of the values; it determines the size
    #[arg(long, value_name = "NAME", requires = "btf")]
    pub value_type: Option<String>,
    /// Create the map that an object file defines; MAP chooses one of several
    #[arg(long, value_name = "OBJECT[:MAP]", conflicts_with_all = ["map_type", "key", "fixed_keys", "value", "flags", "btf", "key_type", "value_type"])]
    pub from: Option<String>,
    /// Create an empty map like another one: of its type, sizes, flags and types
    #[arg(long, value_name = "MAP", conflicts_with_all = ["from", "map_type", "key", "fixed_keys", "value", "flags", "btf", "key_type", "value_type"])]
    pub type_of: Option<String>,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}
