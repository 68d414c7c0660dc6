//! What the kernel's stack receives on an interface: frames of a test run that pass.

use std::io;

use skep_isa::ProgramType;
use skep_kernel::{Error, Program, ProgramSpec, TestRun};

use super::{failed, sys};
use crate::port::batch::{Batch, ETH_HLEN};
use crate::port::error::PortError;
use crate::port::sink::{Sent, Sink};

/// `mov r0, XDP_PASS; exit`.
const PASS: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
/// Words of `struct xdp_md`, and those that say where the packet ends and comes from.
const MD_WORDS: usize = 6;
const DATA_END: usize = 1;
const INGRESS_IFINDEX: usize = 3;
/// Every kernel takes frames that are not longer; how much more fits a page is its own matter.
const FITS: usize = 3072;

/// Lets the kernel receive frames on any interface, as if they had come in there and no XDP program had
/// stopped them. Whoever listens gets them: firewall, sockets, forwarding.
///
/// Each frame is a system call, a test run of a program in the kernel that passes it on
/// (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), which takes root or `CAP_BPF` and `CAP_NET_ADMIN`. It comes
/// with a pool of pages, which the kernel keeps until whoever gets the frame has read or dropped it, and
/// complains of in its log when that takes a minute.
#[derive(Debug)]
pub struct StackSink {
    pass: Program,
    name: String,
    index: u32,
}

impl StackSink {
    /// Takes an interface of the thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel does not let this process load programs.
    pub fn open(name: &str) -> Result<Self, PortError> {
        let index =
            sys::index_of(name).ok_or_else(|| PortError::NoInterface { name: name.to_owned() })?;
        let spec = ProgramSpec::new(ProgramType::Xdp, PASS.as_flattened());
        let pass = Program::load(&spec).map_err(|refused| why(name, &refused.error))?;
        Ok(Self { pass, name: name.to_owned(), index })
    }

    /// Returns the number of the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Makes the error of a call of bpf(2).
fn why(name: &str, error: &Error) -> PortError {
    failed(name, "bpf")(io::Error::from_raw_os_error(error.errno()))
}

impl Sink for StackSink {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            let len = frame.bytes.len();
            if len < ETH_HLEN {
                sent.too_short += 1;
                continue;
            }
            let mut ctx = [[0; 4]; MD_WORDS];
            ctx[DATA_END] = u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes();
            ctx[INGRESS_IFINDEX] = self.index.to_ne_bytes();
            let run = TestRun {
                data_in: frame.bytes,
                ctx_in: ctx.as_flattened(),
                // Equal ones are not repeated: for that the kernel changes its dispatcher of XDP
                // programs twice, and waits each time until all processors have seen it.
                repeat: 1,
                flags: TestRun::LIVE_FRAMES,
                // It makes a pool of so many pages, and keeps it while somebody has one of them.
                batch_size: 1,
                ..TestRun::default()
            };
            match self.pass.test_run(&run) {
                Ok(_) => sent.took(len),
                Err(e) if e.errno() == libc::EINVAL && len > FITS => sent.too_large += 1,
                Err(e) if e.errno() == libc::EINTR => sent.unwritten += 1,
                Err(e) => return Err(why(&self.name, &e)),
            }
        }
        Ok(())
    }
}
