//! Arguments of `skep prog`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::object::ObjectArgs;
use super::output::JsonArgs;

const RUN_HELP: &str = "\
The program runs once for each input, in order, on the same maps. Inputs and
results are those of BPF_PROG_TEST_RUN: xdp programs take a packet and
`struct xdp_md`; tc programs, socket filters and similar types a packet and
`struct __sk_buff`; raw tracepoints up to twelve argument words; syscall programs
any bytes. For types that the kernel cannot test, the program gets the context
unchanged: `struct pt_regs` for kprobes and uprobes, the arguments for fentry and
similar types.

With --in, an XDP program runs on each packet of a capture file or a generator,
and --out writes the packets to files by verdict. With --live-frames, one packet
comes again and again; without --out, frames really go where the program sends
them, which takes root.

If the kernel would refuse a run, the result has its errno and the exit status
is 1.

Examples:
  skep prog run filter.bpf.o drop_short --data-in packet.bin --maps
  skep prog run filter.bpf.o xdp --data-in a.bin --data-in b.bin \\
      --ctx-in md.bin --json
  skep prog run filter.bpf.o drop_short --in capture.pcap \\
      --out 'pass=ok.pcapng,drop=bad.pcap'
  skep prog run reply.bpf.o answer --data-in packet.bin --live-frames \\
      --repeat 1000 --out tx=sent.pcap";

/// What to do with programs.
#[derive(Subcommand, Debug)]
pub enum ProgCommand {
    /// Verify each program; for a rejected one, print the error and the shortest path to it
    Verify {
        /// Object files
        #[arg(required = true, value_name = "OBJECT")]
        objects: Vec<PathBuf>,
        /// Print the verifier's log as the kernel does at level 2; with --to-run, the log of the
        /// verification at load time
        #[arg(long)]
        log: bool,
        /// Reject reads of uninitialized stack and leaks of addresses, as Linux does for
        /// unprivileged users
        #[arg(long)]
        strict: bool,
        /// Fail if a program cannot run in skep, rather than if one is rejected
        #[arg(long)]
        to_run: bool,
        /// How the objects are read
        #[command(flatten)]
        reading: ObjectArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Run a program on packets or contexts from files, as the kernel's BPF_PROG_TEST_RUN does
    #[command(after_help = RUN_HELP)]
    Run(ProgRunArgs),
    /// Show what an object file contains, or list loaded programs
    Show {
        /// An object file, or one loaded program
        #[arg(value_name = "OBJECT|ID|NAME")]
        program: Option<String>,
        /// How the object is read
        #[command(flatten)]
        reading: ObjectArgs,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// Print the instructions of an object file's programs, or of a loaded program
    Dump(ProgDumpArgs),
    /// Assemble text to hexadecimal instructions
    Asm {
        /// The assembly text; `-` reads stdin
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
    /// A program of the object file, by function name, or by section if that has only one
    /// [default: all]
    #[arg(value_name = "PROGRAM")]
    pub program: Option<String>,
    /// Print only hexadecimal instructions
    #[arg(long, conflicts_with_all = ["jit", "opcodes", "json"])]
    pub hex: bool,
    /// Also print the bytes of each instruction
    #[arg(long)]
    pub opcodes: bool,
    /// Verify and compile the program, and print the machine code of each instruction
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
    /// The program, by function name, or by section if that has only one
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// Run on the packet in FILE (`-` reads stdin); can be repeated, for one run each
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub data_in: Vec<PathBuf>,
    /// Run with the context in FILE; can be repeated, once for each packet; one alone is used for
    /// every packet
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    pub ctx_in: Vec<PathBuf>,
    /// Packets of a port, for XDP programs
    #[command(flatten)]
    pub packets: PacketArgs,
    /// Run N times on each input, without resetting packet and context
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        conflicts_with = "input"
    )]
    pub repeat: u32,
    /// Run an XDP program on live frames (BPF_F_TEST_XDP_LIVE_FRAMES): N of them, as if an interface
    /// received them. They go where the program sends them: to the kernel, back, to other interfaces, or
    /// with --out to ports
    #[arg(long, group = "frames", requires = "data_in")]
    pub live_frames: bool,
    /// Frames in a batch of live frames, at most 256; 0 stands for 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        requires = "live_frames"
    )]
    pub batch_size: u32,
    /// How instructions are executed
    #[arg(long, value_enum, default_value_t = EngineName::Jit)]
    pub engine: EngineName,
    /// Print the contents of maps, global variables and ring buffers after the last run
    #[arg(long)]
    pub maps: bool,
    /// Print keys and values as bytes in hex
    #[arg(long, requires = "maps")]
    pub raw: bool,
    /// How the object is read
    #[command(flatten)]
    pub reading: ObjectArgs,
    /// How the result looks
    #[command(flatten)]
    pub format: JsonArgs,
}

/// Which packets a program runs on, and where they go.
#[derive(Args, Debug)]
pub struct PacketArgs {
    /// Run an XDP program on each packet of a capture file (pcap, pcapng; `-` reads stdin), an
    /// interface, `xdp:INTERFACE@QUEUE`, `tap:NAME`, or `gen:SIZE`, which makes UDP packets
    #[arg(long = "in", value_name = "PORT", group = "frames")]
    pub input: Option<String>,
    /// Send packets to capture files, interfaces or `stack:INTERFACE` (the kernel receives them) by verdict, as in `pass=ok.pcapng,drop=bad.pcap`;
    /// `pass+tx=` for several verdicts, `*=` for the others, a port alone for pass, tx and redirect;
    /// `tx=in` sends back to the interface they came from
    #[arg(long, value_name = "VERDICT=PORT,…", requires = "frames")]
    pub out: Vec<String>,
    /// Stop after N packets
    #[arg(long, value_name = "N", requires = "input")]
    pub packets: Option<u64>,
    /// Stop after a time, such as `10s` or `200ms`
    #[arg(long = "for", value_name = "TIME", requires = "input", value_parser = duration)]
    pub duration: Option<Duration>,
}

/// Reads `10s`, `200ms`, `5m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err("write a number and `ms`, `s` or `m`".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and `ms`, `s` or `m`")?;
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(|| "that is too long".to_owned())
}

/// Names an engine.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineName {
    /// Compiled to machine code
    Jit,
    /// By the interpreter
    Interp,
}
