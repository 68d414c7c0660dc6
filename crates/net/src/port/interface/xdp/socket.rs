//! Making the socket, its memory, and the program that sends frames there.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use skep_isa::{MapType, ProgramType};
use skep_kernel::{Link, Map, MapSpec, Program, ProgramSpec, XdpMode};

use super::ring::{ENTRIES, Ring};
use super::sink::XdpSink;
use super::source::XdpSource;
use crate::port::batch::MAX_FRAMES;
use crate::port::error::PortError;
use crate::port::interface::failed;
use crate::port::interface::sys::{self, Mapping};

/// Bytes of a chunk of the memory.
pub(super) const CHUNK: u64 = 4096;
/// Chunks that are received into, and as many that are sent from.
pub(super) const CHUNKS: u64 = ENTRIES as u64;

/// How frames get into the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copying {
    /// Without a copy if the driver can, else by one.
    #[default]
    IfNeeded,
    /// By a copy, which every driver can.
    Always,
    /// Without a copy, or not at all.
    Never,
}

/// How a socket is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct XdpOptions {
    /// The receive queue of the interface.
    pub queue: u32,
    /// How frames get into the memory.
    pub copying: Copying,
    /// The program runs behind the driver, which all interfaces can.
    pub generic: bool,
}

/// What both ends of a socket share. The link goes first: no frame is sent to a socket that closes.
#[derive(Debug)]
pub(super) struct Socket {
    _program: Option<(Link, Program, Map)>,
    pub(super) fd: OwnedFd,
    pub(super) memory: Mapping,
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) queue: u32,
}

/// Opens a receive queue of an interface of the thread's network namespace. Frames that come in
/// there are the source's, and the stack does not see them any more.
///
/// # Errors
/// When there is no such interface or queue, the queue has a socket already, the interface has an
/// XDP program, or it is not allowed.
pub fn open(name: &str, options: &XdpOptions) -> Result<(XdpSource, XdpSink), PortError> {
    let (mut opened, rings) = Opened::new(name, true)?;
    let receive = opened.map(rings.receive, 16, libc::XDP_PGOFF_RX_RING as u64)?;
    let fill = &mut opened.fill;
    // Frames can be seen before the kernel has said that it took their chunks: there is always room to
    // give back those of a batch.
    let given = ENTRIES - MAX_FRAMES as u32;
    (0..given).for_each(|n| fill.put_address(n, u64::from(n) * CHUNK));
    fill.add(given);
    bind(&opened.fd, opened.index, options).map_err(failed(name, "bind"))?;
    let program = attach(opened.index, options, &opened.fd).map_err(|e| {
        let errno = io::Error::from_raw_os_error(e.errno());
        failed(name, "bpf")(errno)
    })?;
    let (socket, fill, completion, send) = opened.socket(options, Some(program));
    let source = XdpSource::new(Arc::clone(&socket), fill, receive);
    Ok((source, XdpSink::new(socket, completion, send)))
}

/// Opens a queue of an interface of the thread's network namespace for sending only: what comes in
/// there goes where it went before, and an XDP program that is there stays.
///
/// # Errors
/// When there is no such interface or queue, the queue has a socket already, or it is not allowed.
pub fn open_sink(name: &str, options: &XdpOptions) -> Result<XdpSink, PortError> {
    let (opened, _) = Opened::new(name, false)?;
    bind(&opened.fd, opened.index, options).map_err(failed(name, "bind"))?;
    let (socket, _, completion, send) = opened.socket(options, None);
    Ok(XdpSink::new(socket, completion, send))
}

/// A socket with its memory and the rings that each one has, not bound yet.
struct Opened {
    fd: OwnedFd,
    memory: Mapping,
    fill: Ring,
    completion: Ring,
    send: Ring,
    name: String,
    index: u32,
}

impl Opened {
    fn new(name: &str, receives: bool) -> Result<(Self, sys::AllRings), PortError> {
        let index =
            sys::index_of(name).ok_or_else(|| PortError::NoInterface { name: name.to_owned() })?;
        let fd = sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0).map_err(failed(name, "socket"))?;
        let memory = Mapping::anonymous((2 * CHUNKS * CHUNK) as usize);
        let memory = memory.map_err(failed(name, "mmap"))?;
        let set = failed(name, "setsockopt");
        sys::register_umem(fd.as_fd(), &memory, CHUNK as u32).map_err(&set)?;
        // The kernel binds none without the first two.
        let rings = [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_TX_RING];
        for option in rings.into_iter().chain(receives.then_some(libc::XDP_RX_RING)) {
            sys::set_option(fd.as_fd(), libc::SOL_XDP, option, &(ENTRIES as i32)).map_err(&set)?;
        }
        let rings = sys::ring_offsets(fd.as_fd()).map_err(failed(name, "getsockopt"))?;
        let map = |at, entry, page| map(&fd, name, at, entry, page);
        let fill = map(rings.fill, 8, libc::XDP_UMEM_PGOFF_FILL_RING)?;
        let completion = map(rings.completion, 8, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let send = map(rings.send, 16, libc::XDP_PGOFF_TX_RING as u64)?;
        Ok((Self { fd, memory, fill, completion, send, name: name.to_owned(), index }, rings))
    }

    fn map(&self, at: sys::RingOffsets, entry: usize, page: u64) -> Result<Ring, PortError> {
        map(&self.fd, &self.name, at, entry, page)
    }

    /// The rings are those for filling, completion and sending.
    fn socket(
        self,
        options: &XdpOptions,
        program: Option<(Link, Program, Map)>,
    ) -> (Arc<Socket>, Ring, Ring, Ring) {
        let Self { fd, memory, fill, completion, send, name, index } = self;
        let socket = Socket { _program: program, fd, memory, name, index, queue: options.queue };
        (Arc::new(socket), fill, completion, send)
    }
}

fn map(
    fd: &OwnedFd,
    name: &str,
    at: sys::RingOffsets,
    entry: usize,
    page: u64,
) -> Result<Ring, PortError> {
    Ring::map(fd.as_fd(), at, entry, page as i64).map_err(failed(name, "mmap"))
}

/// The kernel gives up the queue of a socket that was closed some time after the close.
const BUSY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

fn bind(fd: &OwnedFd, index: u32, options: &XdpOptions) -> io::Result<()> {
    let started = Instant::now();
    let bind = |flags| loop {
        match sys::bind_xdp(fd.as_fd(), index, options.queue, flags) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && started.elapsed() < BUSY => {
                std::thread::sleep(PAUSE);
            }
            done => return done,
        }
    };
    let zero_copy = libc::XDP_ZEROCOPY | libc::XDP_USE_NEED_WAKEUP;
    let copy = libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP;
    match options.copying {
        Copying::Always => bind(copy),
        Copying::Never => bind(zero_copy),
        Copying::IfNeeded => match bind(zero_copy) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                bind(copy)
            }
            done => done,
        },
    }
}

/// Attaches the program that sends frames of this queue to the socket, and others to the stack.
fn attach(
    index: u32,
    options: &XdpOptions,
    fd: &OwnedFd,
) -> skep_kernel::Result<(Link, Program, Map)> {
    let queues = options.queue.saturating_add(1);
    let map = Map::create(&MapSpec::new(MapType::Xskmap, 4, 4, queues))?;
    let [a, b, c, d] = map.fd().to_le_bytes();
    let insns: [[u8; 8]; 6] = [
        // r2 = ctx->rx_queue_index
        [0x61, 0x12, 16, 0, 0, 0, 0, 0],
        // r1 = map
        [0x18, 0x11, 0, 0, a, b, c, d],
        [0; 8],
        // r3 = XDP_PASS, for queues that are not in the map
        [0xb7, 3, 0, 0, 2, 0, 0, 0],
        // bpf_redirect_map
        [0x85, 0, 0, 0, 51, 0, 0, 0],
        [0x95, 0, 0, 0, 0, 0, 0, 0],
    ];
    let spec = ProgramSpec::new(ProgramType::Xdp, insns.as_flattened());
    let program = Program::load(&spec).map_err(|refused| refused.error)?;
    map.update(&options.queue.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes(), 0)?;
    let mode = if options.generic { XdpMode::Generic } else { XdpMode::Any };
    let link = Link::xdp(&program, index, mode)?;
    Ok((link, program, map))
}
