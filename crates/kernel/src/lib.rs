//! The running kernel's side of eBPF: its maps, programs and types, through bpf(2).
//!
//! For what compares with the kernel or works on it: `skep map --kernel`, chains on interfaces, the
//! oracles of tests, the rivals of benches. Nothing that skep itself runs comes here.
//!
//! A [`Map`] is created from a [`MapSpec`], or opened by id or pin; a [`Program`] is loaded from a
//! [`ProgramSpec`] and run by [`Program::test_run`]. Keys, values and instructions are bytes, as
//! the kernel reads them. Every object here is a file descriptor: it is closed on drop, and a
//! forked child has it too.
//!
//! ```
//! use skep_isa::ProgramType;
//! use skep_kernel::{Program, ProgramSpec, TestRun, probe};
//!
//! // mov r0, 7; exit
//! let insns = [[0xb7, 0, 0, 0, 7, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
//! if probe().is_ok() {
//!     let spec = ProgramSpec::new(ProgramType::SocketFilter, insns.as_flattened());
//!     let program = Program::load(&spec)?;
//!     let run = program.test_run(&TestRun { data_in: &[0; 64], ..TestRun::default() })?;
//!     assert_eq!(run.retval, 7);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attr;
mod btf;
mod cpu;
mod error;
mod info;
mod link;
mod map;
mod mapping;
mod perf;
mod prog;
mod ringbuf;
mod sys;

pub use attr::Command;
pub use btf::Btf;
pub use cpu::possible_cpus;
pub use error::{Error, Result};
pub use info::{MapInfo, map_ids};
pub use link::{Link, LinkInfo, XdpMode};
pub use map::{Batch, Map, MapSpec};
pub use perf::PerfReader;
pub use prog::{LoadError, Program, ProgramSpec, TestRun, TestRunResult, probe, with_maps};
pub use ringbuf::RingReader;
pub use sys::{at_exit, enter_namespaces};
