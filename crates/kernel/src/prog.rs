//! Programs in the kernel: loading them, with the verifier's log, and test runs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use skep_isa::{AttachType, ProgramType, errno, op};

use crate::attr;
use crate::btf::{self, Btf};
use crate::error::{Error, Result};
use crate::map::Map;
use crate::sys::{self, ProgramBytes, RunBuffers};

/// Says what program to load.
#[derive(Clone, Debug)]
pub struct ProgramSpec<'a> {
    /// Its type.
    pub prog_type: ProgramType,
    /// Where it will be attached, for types that depend on it.
    pub attach_type: Option<AttachType>,
    /// The instructions, eight bytes each. References to maps are descriptors, see [`with_maps`].
    pub insns: &'a [u8],
    /// The license is GPL.
    pub gpl: bool,
    /// `BPF_F_*` for programs, such as [`ProgramSpec::SLEEPABLE`].
    pub flags: u32,
    /// First instructions of the program's functions, for which types are made. Needed for
    /// callbacks: the kernel wants to know that they are static.
    pub functions: &'a [u32],
    /// The program's own types, and first instruction and type of each function; instead of
    /// `functions`.
    pub types: Option<(&'a Btf, &'a [[u32; 2]])>,
    /// Source lines: instruction, offsets of file name and text in the strings of `types`, and
    /// line and column (`struct bpf_line_info`). None without `types`.
    pub lines: &'a [[u32; 4]],
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: &'a str,
    /// A program that is refused is loaded once more for the whole log; else there is none.
    pub log: bool,
}

impl<'a> ProgramSpec<'a> {
    /// `BPF_F_SLEEPABLE`: it may sleep, as programs of type `syscall` must.
    pub const SLEEPABLE: u32 = 1 << 4;
    /// `BPF_F_XDP_HAS_FRAGS`: it takes packets of several pages.
    pub const XDP_HAS_FRAGS: u32 = 1 << 5;

    /// Describes a GPL program of one function.
    #[must_use]
    pub fn new(prog_type: ProgramType, insns: &'a [u8]) -> Self {
        Self {
            prog_type,
            attach_type: None,
            insns,
            gpl: true,
            flags: 0,
            functions: &[],
            types: None,
            lines: &[],
            name: "",
            log: false,
        }
    }
}

/// A program that the kernel refused.
#[derive(Debug)]
#[non_exhaustive]
pub struct LoadError {
    /// Which command failed, and its errno.
    pub error: Error,
    /// What the verifier wrote, when it was asked to.
    pub log: String,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.error)?;
        if self.log.is_empty() { Ok(()) } else { write!(f, ": {}", self.log) }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// What a test run gets.
#[derive(Clone, Copy, Debug, Default)]
pub struct TestRun<'a> {
    /// The packet.
    pub data_in: &'a [u8],
    /// Room for the packet after the run; 0: not wanted.
    pub data_out: usize,
    /// The context. Programs of type `syscall` change it in place: it comes back as `ctx_out`.
    pub ctx_in: &'a [u8],
    /// Room for the context after the run; 0: not wanted.
    pub ctx_out: usize,
    /// How often to run; 0 is once.
    pub repeat: u32,
    /// `BPF_F_TEST_…`.
    pub flags: u32,
    /// Frames of a batch, for live frames; 0: as many as the kernel likes.
    pub batch_size: u32,
}

impl TestRun<'_> {
    /// Frames of an XDP program really go where it sends them (`BPF_F_TEST_XDP_LIVE_FRAMES`).
    pub const LIVE_FRAMES: u32 = 2;
}

/// What a test run gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestRunResult {
    /// r0, where the program type has a result.
    pub retval: u32,
    /// Nanoseconds of one run, by the kernel's clock.
    pub duration: u32,
    /// The packet after the run.
    pub data_out: Vec<u8>,
    /// The context after the run.
    pub ctx_out: Vec<u8>,
}

/// A program in the kernel. It lives as long as this, a program array or a pin refers to it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
}

impl Program {
    /// Loads a program.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn load(spec: &ProgramSpec<'_>) -> Result<Self, LoadError> {
        let without_log = match Self::load_logging(spec, 0, &mut []) {
            Err(_) if spec.log => {
                let mut log = vec![0; 1 << 20];
                return Self::load_logging(spec, 1, &mut log)
                    .map_err(|error| LoadError { error, log: text(&log) });
            }
            loaded => loaded,
        };
        without_log.map_err(|error| LoadError { error, log: String::new() })
    }

    /// Returns every step of the kernel's verifier (log level 2), and whether it accepted the
    /// program.
    ///
    /// # Errors
    /// The log did not fit in 4 MiB, or the program did not get as far as the verifier.
    pub fn verifier_log(spec: &ProgramSpec<'_>) -> Result<(bool, String)> {
        let mut log = vec![0; 4 << 20];
        let loaded = Self::load_logging(spec, 2, &mut log);
        match (loaded, text(&log)) {
            (Err(e), log) if log.is_empty() || e.errno() == errno::ENOSPC => Err(e),
            (loaded, log) => Ok((loaded.is_ok(), log)),
        }
    }

    fn load_logging(spec: &ProgramSpec<'_>, log_level: u32, log: &mut [u8]) -> Result<Self> {
        let made = match spec.functions {
            [] => None,
            functions => Some(btf::for_functions(functions.len())?),
        };
        let made_functions: Vec<[u32; 2]> =
            (btf::FIRST_FUNCTION..).zip(spec.functions).map(|(id, start)| [*start, id]).collect();
        let functions = spec
            .types
            .map(|(types, functions)| (types.raw(), functions))
            .or(made.as_ref().map(|types| (types.raw(), &*made_functions)));
        let mut attr = attr::ProgLoad {
            prog_type: spec.prog_type as u32,
            expected_attach_type: spec.attach_type.map_or(0, |a| a as u32),
            prog_flags: spec.flags,
            log_level,
            ..Default::default()
        };
        let kept = attr.prog_name.len() - 1;
        for (to, from) in attr.prog_name[..kept].iter_mut().zip(spec.name.bytes()) {
            *to = from;
        }
        let license = if spec.gpl { c"GPL" } else { c"Proprietary" };
        let program = ProgramBytes { insns: spec.insns, license, functions, lines: spec.lines };
        sys::load_program(attr, &program, log).map(|fd| Self { fd })
    }

    /// Opens a program by its id.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn open(id: u32) -> Result<Self> {
        sys::program_by_id(id).map(|fd| Self { fd })
    }

    /// Returns its id, and the ids of its maps.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn id_and_maps(&self) -> Result<(u32, Vec<u32>)> {
        sys::program_info(self.fd.as_fd())
    }

    /// Returns its name, up to 15 characters; empty without one.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn name(&self) -> Result<String> {
        sys::program_name(self.fd.as_fd())
    }

    /// Makes a map live as long as the program, which need not refer to it.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn bind_map(&self, map: &Map) -> Result {
        sys::bind_map(self.fd.as_fd(), map.as_fd())
    }

    /// Returns the descriptor's number: what goes into a program array.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Runs the program once, or as often as asked.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn test_run(&self, run: &TestRun<'_>) -> Result<TestRunResult> {
        let mut ctx = run.ctx_in.to_vec();
        let (mut data_out, mut ctx_out) = (vec![0; run.data_out], vec![0; run.ctx_out]);
        let mut attr = attr::ProgTestRun {
            repeat: run.repeat,
            flags: run.flags,
            batch_size: run.batch_size,
            ..Default::default()
        };
        let buffers = RunBuffers {
            data_in: run.data_in,
            data_out: &mut data_out,
            ctx_in: &mut ctx,
            ctx_out: &mut ctx_out,
        };
        sys::test_run(self.fd.as_fd(), &mut attr, buffers)?;
        data_out.truncate(attr.data_size_out as usize);
        ctx_out.truncate(attr.ctx_size_out as usize);
        let ctx_out = if run.ctx_out == 0 { ctx } else { ctx_out };
        Ok(TestRunResult { retval: attr.retval, duration: attr.duration, data_out, ctx_out })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What the kernel wrote into a buffer of zeroes.
fn text(log: &[u8]) -> String {
    String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

/// Loads the smallest program, to see whether this process may use bpf(2).
///
/// # Errors
/// It may not; [`Error::requirement`] says what is missing.
pub fn probe() -> Result {
    const EXIT: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let spec = ProgramSpec::new(ProgramType::SocketFilter, EXIT.as_flattened());
    Program::load(&spec).map(drop).map_err(|refused| refused.error)
}

/// Returns instructions whose references to maps by index are descriptors of these maps, as the
/// kernel wants them.
#[must_use]
pub fn with_maps(insns: &[u8], maps: &[&Map]) -> Vec<u8> {
    let mut out = insns.to_vec();
    let mut second = false;
    for slot in out.as_chunks_mut::<8>().0 {
        if std::mem::take(&mut second) || slot[0] != op::LD_IMM64 {
            continue;
        }
        second = true;
        let pseudo = match slot[1] >> 4 {
            op::PSEUDO_MAP_IDX => op::PSEUDO_MAP_FD,
            op::PSEUDO_MAP_IDX_VALUE => op::PSEUDO_MAP_VALUE,
            _ => continue,
        };
        let index = u32::from_le_bytes([slot[4], slot[5], slot[6], slot[7]]) as usize;
        if let Some(map) = maps.get(index) {
            slot[1] = slot[1] & 0xf | pseudo << 4;
            slot[4..].copy_from_slice(&map.fd().to_le_bytes());
        }
    }
    out
}
