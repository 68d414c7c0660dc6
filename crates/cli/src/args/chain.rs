//! Arguments of `skep chain`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::object::SetArgs;
use super::output::JsonArgs;
use super::prog::{EngineName, PacketArgs};

pub const HELP: &str = "\
A chain is packet programs in sequence: the next one is chosen by the verdict of the one before. It
is an object of the skep directory, with a name and an id; whoever runs it notices changes between
packets. Verdicts are `aborted`, `drop`, `pass`, `tx`, `redirect`, `next`, a number from 0 to 31, a
range `0-3`, several with commas between, or `*` for all that have no edge of their own.

CHAIN is a name or an id. `run`, `explain`, `bench` and `attach` also take a file or a directory of
files, which docs/chains.md describes.

Examples:
  skep chain create fw
  skep chain add fw filter.bpf.o:drop_short
  skep chain add fw count.bpf.o:count --after 1 --on pass,drop
  skep chain show fw
  skep chain explain fw --in capture.pcap --packet 3
  skep chain run fw --in capture.pcap --out 'pass=ok.pcapng,drop=bad.pcap'
  skep chain attach eth0 fw.toml --kernel";

/// What to do with chains.
#[derive(Subcommand, Debug)]
pub enum ChainCommand {
    /// Make a chain: an empty one, or what a file, or all `.toml` files of a directory, describe
    Create {
        /// The name
        name: String,
        /// The file or directory
        #[arg(value_name = "FILE|DIRECTORY")]
        from: Option<PathBuf>,
        /// Type of the programs
        #[arg(long = "type", default_value = "xdp", value_name = "TYPE", conflicts_with = "from")]
        prog_type: String,
        /// Global variables
        #[command(flatten)]
        variables: SetArgs,
    },
    /// Add a program
    Add {
        /// The chain; with --kernel the interface
        #[arg(value_name = "CHAIN|INTERFACE")]
        chain: String,
        /// The object file and the program in it
        #[arg(value_name = "OBJECT:PROGRAM")]
        program: String,
        /// Where it goes
        #[command(flatten)]
        place: PlaceArgs,
        /// Which maps it has
        #[command(flatten)]
        maps: ReuseArgs,
        /// Global variables
        #[command(flatten)]
        variables: SetArgs,
        /// On an interface
        #[command(flatten)]
        on: OnKernelArgs,
        /// With --kernel: pin maps that are new below this directory of the bpf file system
        #[arg(long, value_name = "DIRECTORY", requires = "kernel")]
        pin: Option<PathBuf>,
    },
    /// Take a program out, or remove a whole chain
    Del {
        /// The chain; with --kernel the interface
        #[arg(value_name = "CHAIN|INTERFACE")]
        chain: String,
        /// The program's node; without, the chain is removed
        node: Option<u32>,
        /// What becomes of the edges that led there: `same` (they lead where the node's edge of the
        /// same verdict led), `wildcard` (where its wildcard led), or a verdict to end with
        #[arg(long, value_name = "HOW", default_value = "same")]
        bridge: String,
        /// On an interface
        #[command(flatten)]
        on: OnKernelArgs,
    },
    /// Put a program elsewhere
    Move {
        /// The chain; with --kernel the interface
        #[arg(value_name = "CHAIN|INTERFACE")]
        chain: String,
        /// The program's node
        node: u32,
        /// Where it goes
        #[command(flatten)]
        place: PlaceArgs,
        /// On an interface
        #[command(flatten)]
        on: OnKernelArgs,
    },
    /// Make verdicts of a program lead somewhere
    Connect {
        /// The chain; with --kernel the interface
        #[arg(value_name = "CHAIN|INTERFACE")]
        chain: String,
        /// The program's node
        from: u32,
        /// The verdicts (required)
        #[arg(long, value_name = "VERDICTS")]
        on: Option<String>,
        /// Where they lead (required): a node, `end:VERDICT`, `keep` (end with the program's verdict), or `none`
        #[arg(long, value_name = "TARGET")]
        to: Option<String>,
        /// How often a packet may go this way: for edges that lead back
        #[arg(long, value_name = "N")]
        times: Option<u32>,
        /// On an interface
        #[command(flatten)]
        kernel: OnKernelArgs,
    },
    /// Show a chain, or with --kernel that of an interface, with what was counted
    #[command(group(ArgGroup::new("picture")))]
    Show {
        /// The chain; with --kernel the interface
        #[arg(value_name = "CHAIN|INTERFACE")]
        chain: String,
        /// Show what `attach` put on an interface (root)
        #[arg(long)]
        kernel: bool,
        /// Where the bpf file system is
        #[arg(long, value_name = "DIRECTORY", default_value = "/sys/fs/bpf", requires = "kernel")]
        bpf_fs: PathBuf,
        /// Print one JSON document
        #[arg(long, group = "picture")]
        json: bool,
        /// Print the graph in the language of graphviz
        #[arg(long, group = "picture")]
        dot: bool,
        /// Print the graph as an SVG
        #[arg(long, group = "picture")]
        svg: bool,
    },
    /// List all chains, or with --kernel the XDP programs of all interfaces
    List {
        /// List what runs on interfaces, chains or not (root)
        #[arg(long)]
        kernel: bool,
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Keep a chain even when nobody uses it, as `create` does
    Pin {
        /// The chain
        chain: String,
    },
    /// Remove the pin: the chain goes with its last user, or at once if nobody runs it
    Unpin {
        /// The chain
        chain: String,
    },
    /// Run a chain on the packets of a capture file, an interface or a generator; changes to the
    /// chain take effect from the next packets on
    Run(ChainRunArgs),
    /// Put a chain on an interface of the running kernel, as one XDP program (root); it stays there
    /// when skep ends, and takes the place of the chain that was there
    Attach(AttachArgs),
    /// Take the chain of an interface off (root)
    Detach {
        /// The interface
        interface: String,
        /// Required, as only the kernel has chains on interfaces
        #[arg(long, required = true)]
        kernel: bool,
        /// Where the bpf file system is
        #[arg(long, value_name = "DIRECTORY", default_value = "/sys/fs/bpf")]
        bpf_fs: PathBuf,
    },
    /// Show the path of packets through a chain, and what each program changes
    Explain(ExplainArgs),
    /// Measure how long a chain, and each program of it, takes for a packet
    Bench(BenchArgs),
}

/// Which chain is meant: one of the skep directory, or that of an interface.
#[derive(Args, Debug)]
pub struct OnKernelArgs {
    /// Change what `attach` put on an interface, in one step: the other programs keep their maps, and
    /// counts go on (root)
    #[arg(long)]
    pub kernel: bool,
    /// Where the bpf file system is
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys/fs/bpf", requires = "kernel")]
    pub bpf_fs: PathBuf,
}

/// Where a program goes.
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// After this node [default: the last one that the first verdict of `--on` leads to]
    #[arg(long, value_name = "NODE", conflicts_with = "first")]
    pub after: Option<u32>,
    /// Before all others
    #[arg(long)]
    pub first: bool,
    /// On these verdicts of the program before; with --first, of the new program
    #[arg(long, value_name = "VERDICTS", default_value = "pass")]
    pub on: String,
}

/// Which maps a program has.
#[derive(Args, Debug)]
pub struct ReuseArgs {
    /// Make maps of its own, even if the chain has other programs of the same object file
    #[arg(long)]
    pub own_maps: bool,
    /// Use a map that is there already, by id, name or pin, in place of one of the object; can be
    /// repeated
    #[arg(long, value_name = "NAME=MAP", conflicts_with = "kernel")]
    pub map: Vec<String>,
}

/// What a chain is run on.
#[derive(Args, Debug)]
pub struct ChainRunArgs {
    /// The chain, or a file that describes one
    #[arg(value_name = "CHAIN|FILE")]
    pub chain: String,
    /// The packets
    #[command(flatten)]
    pub packets: PacketArgs,
    /// Time each program; reading the clock takes longer than most programs
    #[arg(long)]
    pub time: bool,
    /// Write packets to a capture file as they are before and after a program, with its verdict; the
    /// node's number or the program's name. Can be repeated, also for the same file
    #[arg(long, value_name = "NODE[:before|:after]=FILE")]
    pub dump: Vec<String>,
    /// Of these, write every N-th packet only
    #[arg(long, value_name = "N", default_value = "1", requires = "dump")]
    pub every: NonZeroU64,
    /// Print the contents of the chain's maps, global variables and ring buffers after the run
    #[arg(long)]
    pub maps: bool,
    /// Print keys and values as bytes in hex
    #[arg(long, requires = "maps")]
    pub raw: bool,
    /// How programs run
    #[arg(long, value_enum, default_value = "jit")]
    pub engine: EngineName,
    /// Global variables
    #[command(flatten)]
    pub variables: SetArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// What is put on an interface.
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// The interface
    pub interface: String,
    /// The chain, as it is now, or the file or directory that describes one
    #[arg(value_name = "CHAIN|FILE")]
    pub from: String,
    /// Required, as only the kernel has chains on interfaces
    #[arg(long, required = true)]
    pub kernel: bool,
    /// Where packets meet the chain: `any` is the driver if it can, else generic; a chain that
    /// replaces another one keeps its mode
    #[arg(long, value_enum, default_value = "any")]
    pub mode: ModeName,
    /// Pin the maps below this directory of the bpf file system, and reuse those that are already
    /// there
    #[arg(long, value_name = "DIRECTORY")]
    pub pin: Option<PathBuf>,
    /// Time each program; reading the clock takes longer than most programs
    #[arg(long, conflicts_with = "no_count")]
    pub time: bool,
    /// Count nothing
    #[arg(long)]
    pub no_count: bool,
    /// Where the bpf file system is
    #[arg(long, value_name = "DIRECTORY", default_value = "/sys/fs/bpf")]
    pub bpf_fs: PathBuf,
    /// Global variables
    #[command(flatten)]
    pub variables: SetArgs,
}

/// Where an XDP program runs.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModeName {
    /// In the driver if it can, else generic
    Any,
    /// Behind the driver
    Generic,
    /// In the driver
    Native,
    /// In the device
    Offload,
}

/// Which packets are explained.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("packets").required(true).args(["data_in", "input"])))]
pub struct ExplainArgs {
    /// The chain, or a file that describes one
    #[arg(value_name = "CHAIN|FILE")]
    pub chain: String,
    /// A packet; can be repeated, `-` reads stdin
    #[arg(long, value_name = "FILE", conflicts_with = "packet")]
    pub data_in: Vec<PathBuf>,
    /// A capture file, or another port, that the packets are in
    #[arg(long = "in", value_name = "PORT")]
    pub input: Option<String>,
    /// Which packet of the port, counted from 1 on; can be repeated [default: the first]
    #[arg(long, value_name = "N", requires = "input")]
    pub packet: Vec<u64>,
    /// Global variables
    #[command(flatten)]
    pub variables: SetArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// What is measured.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("packets").required(true).args(["data_in", "input"])))]
pub struct BenchArgs {
    /// The chain, or a file that describes one
    #[arg(value_name = "CHAIN|FILE")]
    pub chain: String,
    /// The packet; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    pub data_in: Option<PathBuf>,
    /// A capture file, or another port: its first 65,536 packets go through the chain, in turn and
    /// each as it was captured
    #[arg(long = "in", value_name = "PORT")]
    pub input: Option<String>,
    /// How many packets go through the chain
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub repeat: u32,
    /// Global variables
    #[command(flatten)]
    pub variables: SetArgs,
    /// How programs run
    #[arg(long, value_enum, default_value = "jit")]
    pub engine: EngineName,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}
