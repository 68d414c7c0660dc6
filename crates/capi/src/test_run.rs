//! Test runs, of programs and of chains.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use skep::isa::{AttachType as A, ProgramType};
use skep::packets::PacketRunner;
use skep::port::interface::machine;
use skep::port::{Outputs, Stats, Until};
use skep::test_run::{Engine, Errno, Input, LiveFrames, Outcome, Runner};
use skep::{Chain, ChainRunner, Error};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory::{self, Plain};
use crate::object::OwnedProgram;
use crate::session::OpenSession;

/// What is ready to run.
enum Ready {
    Program(Box<Runner>),
    /// One that may run on live frames, too.
    Packets(Box<PacketRunner>),
    Chain(Box<ChainRunner>),
}

/// A program or chain that is ready to run, by one call at a time.
pub struct TestRunner(Mutex<Ready>);

static RUNNERS: Table<TestRunner> = Table::new("runner");

impl Kind for TestRunner {
    fn table() -> &'static Table<Self> {
        &RUNNERS
    }
}

/// `struct skep_test_run`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct TestRun {
    pub data_in: *const c_void,
    pub data_out: *mut c_void,
    pub ctx_in: *const c_void,
    pub ctx_out: *mut c_void,
    pub data_size_in: u32,
    pub data_size_out: u32,
    pub ctx_size_in: u32,
    pub ctx_size_out: u32,
    pub repeat: u32,
    pub retval: u32,
    pub duration_ns: u64,
    pub flags: u32,
    pub batch_size: u32,
}

// SAFETY: four pointers, six words, a double word at a multiple of eight, and two words.
unsafe impl Plain for TestRun {
    const LEAST: usize = 64;
    const NAME: &'static str = "struct skep_test_run";
}

/// `SKEP_INTERP`.
pub const INTERP: u32 = 1;
/// `SKEP_TEST_LIVE_FRAMES`, the kernel's `BPF_F_TEST_XDP_LIVE_FRAMES`.
pub const LIVE_FRAMES: u32 = 2;

/// Makes a program ready, for live frames if it is one for the packets of a device.
fn ready(runner: Runner) -> Answer<Ready> {
    let of = runner.program();
    let of_entries = matches!(of.attach_type(), Some(A::XdpDevmap | A::XdpCpumap));
    if of.prog_type() != ProgramType::Xdp || of_entries {
        return Ok(Ready::Program(Box::new(runner)));
    }
    Ok(Ready::Packets(Box::new(PacketRunner::new(runner).map_err(Error::Packets)?)))
}

fn refused(e: Errno) -> Failure {
    Failure::new(e.0.abs(), format!("test run: {e}"))
}

/// Moves frames to the interfaces of this machine; answers the nanoseconds for each.
fn timed(
    mut frames: LiveFrames,
    pump: impl FnOnce(&mut LiveFrames, &mut Outputs) -> Result<Stats, Error>,
) -> Answer<u64> {
    let mut outputs = machine(frames.port())?;
    let began = Instant::now();
    let moved = pump(&mut frames, &mut outputs)?;
    let each = began.elapsed().as_nanos() / u128::from(moved.packets.max(1));
    Ok(u64::try_from(each).unwrap_or(u64::MAX))
}

/// Runs live frames, which go where the program or chain sends them on this machine.
fn live(ready: &mut Ready, input: &Input<'_>, batch_size: u32) -> Answer<Outcome> {
    let frames = LiveFrames::new(input, batch_size).map_err(refused)?;
    let until = Until::default();
    let duration_ns = match ready {
        Ready::Program(_) => {
            return Err(Failure::new(errno::EINVAL, "live frames are for XDP programs of devices"));
        }
        Ready::Packets(packets) => timed(frames, |frames, outputs| {
            packets.pump(frames, outputs, &until).map_err(Error::Packets)
        })?,
        Ready::Chain(chain) => timed(frames, |frames, outputs| {
            chain.pump(frames, outputs, &until).map_err(Error::Chain)
        })?,
    };
    Ok(Outcome { retval: 0, duration_ns, data_out: input.data.map(<[u8]>::to_vec), ctx_out: None })
}

/// Copies out as much as there is room for; answers the whole size, and whether all of it fit.
///
/// # Safety
/// `out` is null or has `room` bytes.
unsafe fn copy_out(bytes: Option<&[u8]>, out: *mut c_void, room: u32) -> Answer<(u32, bool)> {
    let bytes = bytes.unwrap_or_default();
    let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    if out.is_null() {
        return Ok((size, true));
    }
    // SAFETY: the caller's promise.
    let out = unsafe { memory::output(out, room as usize, "output") }?;
    let n = out.len().min(bytes.len());
    out[..n].copy_from_slice(&bytes[..n]);
    Ok((size, n == bytes.len()))
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_program_runner(
    program: Handle,
    flags: u32,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `out` is a place for a handle: the caller's promise.
    call(|| unsafe {
        let program = handle::get::<OwnedProgram>(program)?;
        let engine = match flags {
            0 => Engine::Jit,
            INTERP => Engine::Interp,
            _ => return Err(Failure::new(errno::EINVAL, format!("flags {flags:#x} are unknown"))),
        };
        let make = || Ok(TestRunner(Mutex::new(ready(program.program()?.runner(engine)?)?)));
        handle::give(out, make)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_chain_runner(
    session: Handle,
    name: *const c_char,
    out: *mut Handle,
) -> c_int {
    // SAFETY: `name` is a text, `out` a place for a handle: the caller's promise.
    call(|| unsafe {
        let session = handle::get::<OpenSession>(session)?;
        let name = memory::text(name, "name of the chain")?;
        handle::give(out, || {
            let chain = Chain::open(&session, name).map_err(Error::Chain)?;
            let runner = chain.runner().map_err(Error::Chain)?;
            Ok(TestRunner(Mutex::new(Ready::Chain(Box::new(runner)))))
        })
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_runner_test_run(
    runner: Handle,
    run: *mut TestRun,
    size: usize,
) -> c_int {
    // SAFETY: the struct has `size` bytes, and its buffers the sizes in it: the caller's promise. What
    // goes in is not used any more when the results are copied out.
    call(|| unsafe {
        let runner = handle::get::<TestRunner>(runner)?;
        let mut given = memory::read(run, size)?;
        let data = memory::input(given.data_in, given.data_size_in as usize, "packet")?;
        let ctx = memory::input(given.ctx_in, given.ctx_size_in as usize, "context")?;
        let written = [
            (given.ctx_out, given.ctx_size_out as usize),
            (given.data_out, given.data_size_out as usize),
        ];
        memory::check_apart((written[0].0.cast_const(), written[0].1), written[1])?;
        for buffer in written {
            memory::check_apart((run.cast_const().cast(), size), buffer)?;
        }
        let input = Input {
            data: (!given.data_in.is_null()).then_some(data),
            ctx: (!given.ctx_in.is_null()).then_some(ctx),
            repeat: given.repeat,
        };
        let is_live = match given.flags {
            0 if given.batch_size == 0 => false,
            0 => return Err(Failure::new(errno::EINVAL, "`batch_size` is for live frames")),
            LIVE_FRAMES => true,
            flags => {
                return Err(Failure::new(errno::EINVAL, format!("flags {flags:#x} are unknown")));
            }
        };
        let has_output = !given.data_out.is_null() || !given.ctx_out.is_null();
        if is_live && input.ctx.is_some() && has_output {
            let text = "live frames with a context have no `data_out` and `ctx_out`";
            return Err(Failure::new(errno::EINVAL, text));
        }
        let mut ready = runner.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ready::Chain(chain) = &mut *ready {
            match chain.refresh().map_err(Error::Chain) {
                // It was deleted; who runs it goes on.
                Err(e) if errno::number(&e) == errno::ENOENT => {}
                refreshed => drop(refreshed?),
            }
        }
        let done = match &mut *ready {
            of if is_live => live(of, &input, given.batch_size)?,
            Ready::Program(program) => program.test_run(&input).map_err(refused)?,
            Ready::Packets(packets) => packets.runner().test_run(&input).map_err(refused)?,
            Ready::Chain(chain) => chain.test_run(&input).map_err(Error::Chain)?,
        };
        given.retval = done.retval;
        given.duration_ns = done.duration_ns;
        let (data, data_fits) =
            copy_out(done.data_out.as_deref(), given.data_out, given.data_size_out)?;
        let (ctx, ctx_fits) = copy_out(done.ctx_out.as_deref(), given.ctx_out, given.ctx_size_out)?;
        (given.data_size_out, given.ctx_size_out) = (data, ctx);
        memory::write(run, size, &given)?;
        if data_fits && ctx_fits {
            return Ok(0);
        }
        let text = format!("a buffer is too small: the packet has size {data}, the context {ctx}");
        Err(Failure::new(errno::ENOSPC, text))
    })
}

/// Frees a runner.
#[unsafe(no_mangle)]
pub extern "C" fn skep_runner_free(runner: Handle) -> c_int {
    handle::free::<TestRunner>(runner)
}
