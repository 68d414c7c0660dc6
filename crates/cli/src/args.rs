//! The command line: one definition for parsing and help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};

/// Names the agent's library when it is not where `skep` looks for it.
pub const ENV_PRELOAD: &str = "SKEP_PRELOAD";

const ENVIRONMENT: &str = "\
Environment:
  SKEP_DIR      where maps, programs and links live as files
                [default: $XDG_RUNTIME_DIR/skep, else /dev/shm/skep-UID]
  SKEP_PRELOAD  the agent's library
                [default: libskep_preload.so beside this program or in ../lib]
  NO_COLOR      no colors in messages

Exit status: that of the command for `trace` and `run`, whatever else goes wrong
once it runs; where that is 0, and otherwise: 1 when the asked-for thing failed
or was not found; 2 for wrong usage or environment.";

const TRACE_EXAMPLES: &str = "\
A PATTERN is FUNCTION or MODULE:FUNCTION. Both are shell globs (* ? [a-z]); a
module goes by its file name (libc.so.6), by the part before .so (libc), or by
its whole path. C++ and Rust functions go by symbol or by demangled name.
Several may be parted by commas: libc:malloc,free are both of libc.

Examples:
  skep trace 'libc:*' -- sort /etc/services
  skep trace 'sqlite3_*' --exclude '*mutex*' --sort calls -- ./app
  skep trace '*' --json -o profile.json -- ./app --with arguments
  skep trace --report      after `skep` was killed: what it had counted

In the table, `~` marks estimated times, and `+` those of functions that had not returned.";

const RUN_EXAMPLES: &str = "\
Programs attach where their section says:
  fentry.multi/PATTERN[,PATTERN…]  fexit.multi/…  fmod_ret.multi/…  fsession.multi/…
  fentry/FUNCTION  fexit/…  fmod_ret/…  fsession/…
  uprobe.multi/MODULE:PATTERN  uretprobe.multi/…  uprobe.session/…
  uprobe/MODULE:FUNCTION  uretprobe/…
`--attach PROGRAM=PATTERN` takes the place of what the section says.

`--set NAME=VALUE` reads the value by the variable's type: 5, -0x1f, true, 'c',
BLUE, text, {1, 2}, { .min = 3, .comm = \"cat\" }; NAME may be config.limits[2].max.

Examples:
  skep run count.bpf.o --attach 'count=libc:*' -- sort /etc/services
  skep run slow.bpf.o --set min_ns=1000000 --set comm=sort -- ./app";

const PROG_RUN_EXAMPLES: &str = "\
One run for each input, in order, all on the same maps. What a context may say and what comes back
is what BPF_PROG_TEST_RUN does: xdp programs take a packet and `struct xdp_md`, tc programs, socket
filters and their like a packet and `struct __sk_buff`, raw tracepoints up to twelve argument words,
syscall programs any bytes. Where the kernel has no such thing, the context is given as it is:
`struct pt_regs` for kprobes and uprobes, arguments for fentry and its like.

A run that the kernel would refuse has its errno in the result, and the exit status is 1.

Examples:
  skep prog run filter.bpf.o drop_short --data-in packet.bin --maps
  skep prog run filter.bpf.o xdp --data-in a.bin --data-in b.bin --ctx-in md.bin --json";

/// The eBPF subsystem outside the kernel.
#[derive(Parser, Debug)]
#[command(name = "skep", version, about, after_help = ENVIRONMENT, max_term_width = 100)]
pub struct Cli {
    /// Say nothing but data, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// One subcommand.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a command and count its calls of every matching function
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(TraceArgs),
    /// Run a command with the programs of object files attached to it
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Verify, list and print programs
    #[command(subcommand)]
    Prog(ProgCommand),
    /// List maps and read what is in them, also while a command runs and after it was killed
    Map(MapsArgs),
    /// Ask what is mapped where in a process
    #[command(subcommand)]
    Vma(VmaCommand),
    /// Tell what works on this machine, what does not, and why
    Doctor(JsonArgs),
}

/// How results look.
#[derive(Args, Debug, Clone, Copy)]
pub struct JsonArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// How object files are read.
#[derive(Args, Debug, Clone, Default)]
pub struct ObjectArgs {
    /// Give a global variable, or a part of one, another value before loading; may be given
    /// several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Treat programs whose section name is unknown as TYPE: a section name (`xdp`,
    /// `fentry/FUNCTION`) or a program type (`sched_cls`). If all names are known, every
    /// program is treated so; with PROGRAM=, only that one. May be given several times
    #[arg(long = "type", value_name = "[PROGRAM=]TYPE", value_parser = typed)]
    pub types: Vec<(Option<String>, String)>,
    /// Fit programs (CO-RE) to the types in FILE: BTF, or an ELF file with BTF
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
    /// Fit programs (CO-RE) to the types in PROGRAM's debug information (DWARF)
    #[arg(long, value_name = "PROGRAM", conflicts_with = "btf")]
    pub btf_from: Option<PathBuf>,
}

fn typed(text: &str) -> Result<(Option<String>, String), String> {
    match text.split_once('=') {
        Some((program, named)) if !program.is_empty() && !named.is_empty() => {
            Ok((Some(program.to_owned()), named.to_owned()))
        }
        None if !text.is_empty() => Ok((None, text.to_owned())),
        _ => Err("needs a type, or a program, `=`, and a type".to_owned()),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("needs a variable, `=`, and a value".to_owned()),
    }
}

/// What to do with programs.
#[derive(Subcommand, Debug)]
pub enum ProgCommand {
    /// Tell for each program of object files whether the verifier accepts it, and whether it can
    /// run here
    Verify {
        /// Object files
        #[arg(required = true, value_name = "OBJECT")]
        objects: Vec<PathBuf>,
        /// Print every step of the verifier, as the kernel's log does at level 2; with --to-run,
        /// of the verification that loading does
        #[arg(long)]
        log: bool,
        /// Refuse stack that was never written, and whatever tells addresses, as Linux does for
        /// users without privileges
        #[arg(long)]
        strict: bool,
        /// Fail when a program cannot run here, instead of when one is not accepted
        #[arg(long)]
        to_run: bool,
        /// How the objects are read
        #[command(flatten)]
        reading: ObjectArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Run a program of an object file on given packets or contexts, as the kernel's
    /// BPF_PROG_TEST_RUN does
    #[command(after_help = PROG_RUN_EXAMPLES)]
    Run(ProgRunArgs),
    /// Tell what is in an object file, or list loaded programs
    Show {
        /// An object file, or only this loaded program
        #[arg(value_name = "OBJECT|ID|NAME")]
        program: Option<String>,
        /// How the object is read
        #[command(flatten)]
        reading: ObjectArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print the instructions of programs in an object file, or of a loaded one
    Dump(ProgDumpArgs),
    /// Turn assembly text into hexadecimal instructions
    Asm {
        /// The text; `-` reads stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// How instructions are printed.
#[derive(Args, Debug)]
pub struct ProgDumpArgs {
    /// An object file, or a loaded program
    #[arg(value_name = "OBJECT|ID|NAME")]
    pub from: String,
    /// Which program of the object file: its function's name, or its section when no other program
    /// is in it [default: all]
    #[arg(value_name = "PROGRAM")]
    pub program: Option<String>,
    /// Print hexadecimal instructions and nothing else
    #[arg(long, conflicts_with_all = ["jit", "opcodes", "json"])]
    pub hex: bool,
    /// Print the bytes of each instruction too
    #[arg(long)]
    pub opcodes: bool,
    /// Verify and compile, and print the machine code of each instruction
    #[arg(long)]
    pub jit: bool,
    /// How the object is read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// How a program is run.
#[derive(Args, Debug)]
pub struct ProgRunArgs {
    /// The object file
    #[arg(value_name = "OBJECT")]
    pub object: PathBuf,
    /// The program: its function's name, or its section when no other program is in it
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// Run on the packet in FILE (`-`: stdin); may be given several times, for one run each
    #[arg(long, value_name = "FILE")]
    pub data_in: Vec<PathBuf>,
    /// Run with the context in FILE; several go with the packets in order, one goes with all
    #[arg(long, value_name = "FILE")]
    pub ctx_in: Vec<PathBuf>,
    /// Run this often on each input, without preparing it anew
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub repeat: u32,
    /// What executes the instructions
    #[arg(long, value_enum, default_value_t = EngineName::Jit)]
    pub engine: EngineName,
    /// Print what is in the maps, in global variables and in ring buffers after the last run
    #[arg(long)]
    pub maps: bool,
    /// Print keys and values of maps as bytes in hex
    #[arg(long, requires = "maps")]
    pub raw: bool,
    /// How the object is read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// Names an engine.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineName {
    /// Machine code
    Jit,
    /// The interpreter
    Interp,
}

/// Whose maps, and what to do with them.
#[derive(Args, Debug)]
pub struct MapsArgs {
    /// The running kernel's maps (root); may also stand behind the command
    #[arg(id = "of_kernel", long = "kernel")]
    kernel: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: MapCommand,
}

impl MapsArgs {
    /// Gives the command the `--kernel` that stands before it. Ends the process with a usage error
    /// when that cannot be.
    pub fn settle(&mut self) {
        if !self.kernel {
            return;
        }
        let refuse = |what| Cli::command().error(ErrorKind::ArgumentConflict, what).exit();
        match &mut self.command {
            MapCommand::List { kernel, .. } => *kernel = true,
            MapCommand::Dump(DumpArgs { take: Some(_), .. }) => {
                refuse("`--take` works on maps of skep, not on the kernel's")
            }
            MapCommand::Show { map, .. }
            | MapCommand::Lookup { map, .. }
            | MapCommand::Dump(DumpArgs { map, .. }) => map.kernel = true,
            _ => refuse(
                "the kernel's maps can be listed, shown, dumped and looked up in, not changed",
            ),
        }
    }
}

/// Which map.
#[derive(Args, Debug)]
pub struct MapArgs {
    /// The map: its number, its name if no other map has it, a pin, or a path such as
    /// /sys/fs/bpf/counts
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
    /// Tell everything about one map but its contents
    Show {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print all elements of a map, as they are read: a map of any size takes little memory
    #[command(after_help = DUMP_HELP)]
    Dump(DumpArgs),
    /// Print the value of one key
    #[command(after_help = KEY_HELP)]
    Lookup {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// The key
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: String,
        /// Read the key as bytes in hex, and print the value so
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Store a value under a key
    #[command(after_help = KEY_HELP)]
    Update {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
        /// The key
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: String,
        /// The value; for per-CPU maps a list, or the first CPU's while the others become zero
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
        /// Only when there is no such key yet
        #[arg(long, conflicts_with = "exist")]
        noexist: bool,
        /// Only when there is such a key
        #[arg(long)]
        exist: bool,
        /// Read key and value as bytes in hex
        #[arg(long)]
        raw: bool,
    },
    /// Remove a key
    #[command(after_help = KEY_HELP)]
    Delete {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
        /// The key
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: String,
        /// Read the key as bytes in hex
        #[arg(long)]
        raw: bool,
    },
    /// Put a value into a queue or a stack
    #[command(visible_alias = "enqueue")]
    Push {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
        /// The value
        #[arg(value_name = "VALUE", allow_hyphen_values = true)]
        value: String,
        /// When it is full, throw out the oldest value
        #[arg(long)]
        exist: bool,
        /// Read the value as bytes in hex
        #[arg(long)]
        raw: bool,
    },
    /// Print the next value of a queue or a stack, which stays there
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
    /// Print the key that follows another one, or the first key
    #[command(after_help = KEY_HELP)]
    Getnext {
        /// Which map
        #[command(flatten)]
        map: MapArgs,
        /// The key before; without, the first key is printed
        #[arg(value_name = "KEY", allow_hyphen_values = true)]
        key: Option<String>,
        /// Read the key as bytes in hex, and print the next one so
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Take the next value out of a queue or a stack
    #[command(visible_alias = "dequeue")]
    Pop {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
        /// Print the value as bytes in hex
        #[arg(long)]
        raw: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Make a map, pinned under its name
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// Give a map a name under which it stays when nobody uses it
    Pin {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
        /// The pin's name
        name: String,
    },
    /// Take such a name away
    Unpin {
        /// The pin's name
        name: String,
    },
    /// Forbid all but programs to write to a map, for ever
    Freeze {
        /// Which map
        #[arg(value_name = "MAP")]
        map: String,
    },
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
    /// Print this many elements at most; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub limit: u64,
    /// Remove what is printed; `exact` waits for running programs, so that nothing they add is
    /// lost
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "fast", conflicts_with = "kernel")]
    pub take: Option<TakeHow>,
    /// Print only what is in the map when the dump begins, however much others put in meanwhile
    #[arg(long, conflicts_with_all = ["take", "kernel"])]
    pub strict: bool,
    /// Print only the elements that a program of type `syscall` returns other than 0 for
    #[arg(long, value_name = "OBJECT[:PROGRAM]")]
    pub filter: Option<String>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print lines of comma-separated values, the first one with the names of columns
    #[arg(long)]
    pub csv: bool,
}

/// How elements leave a map.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeHow {
    /// Each on its own, as the kernel does
    Fast,
    /// When no running program may still add to them
    Exact,
}

/// Arguments of `skep map create`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("types").args(["key_type", "value_type"]).multiple(true))]
pub struct CreateArgs {
    /// Its name, and its pin's
    pub name: String,
    /// Its type, as the kernel calls it: hash, array, percpu_hash, …
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "from")]
    pub map_type: Option<String>,
    /// Bytes of a key
    #[arg(long, value_name = "BYTES")]
    pub key: Option<u32>,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES")]
    pub value: Option<u32>,
    /// Most elements; for a ring buffer, bytes
    #[arg(long, value_name = "N", required_unless_present = "from")]
    pub entries: Option<u32>,
    /// Flags by name (no_prealloc, mmapable, …) or as a number
    #[arg(long, value_name = "FLAG", value_delimiter = ',')]
    pub flags: Vec<String>,
    /// Where types are: BTF, or an ELF file with BTF
    #[arg(long, value_name = "FILE", requires = "types")]
    pub btf: Option<PathBuf>,
    /// The key's type, which tells its size
    #[arg(long, value_name = "NAME", requires = "btf")]
    pub key_type: Option<String>,
    /// The value's type, which tells its size
    #[arg(long, value_name = "NAME", requires = "btf")]
    pub value_type: Option<String>,
    /// Make it as an object defines it; which map, where there are several
    #[arg(long, value_name = "OBJECT[:MAP]", conflicts_with_all = ["map_type", "key", "value", "flags", "btf", "key_type", "value_type"])]
    pub from: Option<String>,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

const KEY_HELP: &str = "\
A KEY is read by the map's type of key: a number, a text, or JSON for structures.
A VALUE likewise. Without types, numbers are as wide as the key or the value;
`--raw`, or `hex` in front as for bpftool, takes bytes in hex, with or without spaces.

Examples:
  skep map lookup counts 42
  skep map lookup requests '{\"pid\": 7, \"comm\": \"cat\"}'
  skep map lookup 3 --raw 2a000000
  skep map update requests '{\"pid\": 7}' '{\"count\": 3}' --exist
  skep map delete 3 --raw '2a 00 00 00'";

const DUMP_HELP: &str = "\
A filter's context is the element: the key, and the value at the next multiple
of eight bytes. It returns 0 to leave an element out, 2 to end the dump.

Examples:
  skep map dump counts
  skep map dump counts --json --take=exact
  skep map dump counts --strict
  skep map dump flows --csv > flows.csv
  skep map dump flows --filter busy.bpf.o --take
  skep map dump 12 --kernel --json";

const CREATE_HELP: &str = "\
With types, `map dump`, `lookup` and `update` read and print values by them.

Examples:
  skep map create seen --type hash --key 8 --value 8 --entries 10000
  skep map create flows --type hash --entries 1000 --btf flows.bpf.o \\
      --key-type 'struct flow' --value-type __u64
  skep map create flows --from flows.bpf.o:flows --entries 1000";

/// What to ask about mappings.
#[derive(Subcommand, Debug)]
pub enum VmaCommand {
    /// Tell what is mapped at addresses, and which function is there
    Query {
        /// The process
        pid: u32,
        /// Addresses in hex
        #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<u64>,
        /// Where nothing is mapped, tell the next mapping after it
        #[arg(long)]
        next: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// List the mappings of a process
    List {
        /// The process
        pid: u32,
        /// Only executable mappings of files
        #[arg(long)]
        text: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
}

fn address(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "needs a hexadecimal address".to_owned())
}

/// Where results go and how they look.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Write the report to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Name every function that was not attached, and why
    #[arg(short, long)]
    pub verbose: bool,
}

/// Arguments of `skep trace`.
#[derive(Args, Debug)]
pub struct TraceArgs {
    /// Functions to trace: FUNCTION or MODULE:FUNCTION, with globs; several may be parted by
    /// commas
    #[arg(required_unless_present = "report_left", value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Leave out functions that match this pattern; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Order of the functions
    #[arg(long, value_enum, default_value_t = SortBy::SelfTime, value_name = "COLUMN")]
    pub sort: SortBy,
    /// Print this many functions; 0 prints all [default: 30, with --json all]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Time every call, also of functions that are called often and return soon
    #[arg(long)]
    pub exact: bool,
    /// Run the command also when a pattern without wildcards matches nothing in it and the
    /// libraries it is linked with
    #[arg(long)]
    pub allow_unmatched: bool,
    /// Run nothing: print the report of a trace whose `skep` was killed [default: the newest]
    #[arg(long = "report", value_name = "ID", num_args = 0..=1, require_equals = false, conflicts_with_all = ["patterns", "command", "exclude", "exact", "allow_unmatched"])]
    #[expect(
        clippy::option_option,
        reason = "clap's form of an option whose value may be left out"
    )]
    pub report_left: Option<Option<u32>>,
    /// Attach at most this many functions
    #[arg(long, value_name = "N", default_value_t = 1 << 18, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub max_functions: u32,
    /// How the report looks
    #[command(flatten)]
    pub report: ReportArgs,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "report_left", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `skep run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Object files that clang made
    #[arg(required = true, value_name = "OBJECT")]
    pub objects: Vec<PathBuf>,
    /// Attach a program here instead of where its section says; may be given several times
    #[arg(long, value_name = "PROGRAM=PATTERN", value_parser = attach)]
    pub attach: Vec<(String, String)>,
    /// Leave out functions that match this pattern; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Print this many entries and events of each map; 0 prints all [default: 30, with --json all]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print keys, values and records as bytes in hex
    #[arg(long)]
    pub raw: bool,
    /// Run the command also when a pattern without wildcards matches nothing in it and the
    /// libraries it is linked with
    #[arg(long)]
    pub allow_unmatched: bool,
    /// How the objects are read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the report looks
    #[command(flatten)]
    pub report: ReportArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn attach(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((program, pattern)) if !program.is_empty() && !pattern.is_empty() => {
            Ok((program.to_owned(), pattern.to_owned()))
        }
        _ => Err("needs a program, `=`, and a pattern".to_owned()),
    }
}

/// A column to sort by: numbers fall, names rise.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the variants are the names of columns")]
pub enum SortBy {
    Calls,
    Total,
    #[value(name = "self")]
    SelfTime,
    P50,
    P99,
    Name,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn patterns_end_where_the_command_begins() {
        let cli = Cli::try_parse_from([
            "skep",
            "trace",
            "a*",
            "b:c",
            "--exclude",
            "d",
            "--json",
            "--",
            "cmd",
            "--json",
            "--",
            "x",
        ])
        .unwrap();
        let Command::Trace(args) = cli.command else { panic!("not trace") };
        assert_eq!(
            (args.patterns, args.exclude, args.report.json),
            (vec!["a*".into(), "b:c".into()], vec!["d".into()], true)
        );
        assert_eq!(args.command, ["cmd", "--json", "--", "x"]);
        assert_eq!((args.sort, args.limit), (SortBy::SelfTime, None));
    }

    #[test]
    fn a_command_needs_its_dashes() {
        for line in [
            &["skep", "trace", "a"][..],
            &["skep", "trace", "--", "cmd"],
            &["skep", "trace", "a", "--"],
            &["skep", "run", "x.o"],
        ] {
            assert!(Cli::try_parse_from(line).is_err(), "{line:?}");
        }
    }
}
