//! What the kernel's stack receives on an interface: frames of a test run that pass.

use std::io;

use skep_isa::ProgramType;
use skep_kernel::{Error, Program, ProgramSpec, TestRun};

use super::{failed, sys};
use crate::port::batch::Batch;
use crate::port::error::PortError;
use crate::port::sink::{Sent, Sink};

/// `mov r0, XDP_PASS; exit`.
const PASS: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
/// Bytes of an Ethernet header; no frame is shorter.
const ETH_HLEN: usize = 14;
/// Words of `struct xdp_md`, and those that say where the packet ends and comes from.
const MD_WORDS: usize = 6;
const DATA_END: usize = 1;
const INGRESS_IFINDEX: usize = 3;
/// Every kernel takes frames that are not longer; how much more fits a page is its own matter.
const FITS: usize = 3072;

/// Lets the kernel receive frames on any interface, as if they had come in there and no XDP program had
/// stopped them. Whoever listens gets them: firewall, sockets, forwarding.
///
/// Each frame, or each row of equal ones, is a system call, a test run of a program in the kernel that
/// passes it on (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18), which takes root or `CAP_BPF` and
/// `CAP_NET_ADMIN`. Frames come with a pool of pages, which the kernel keeps until the last of them was
/// read, or dropped, by whoever gets it.
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
    fn send(&mut self, batch: &Batch, frames: &[u16]) -> Result<Sent, PortError> {
        let mut sent = Sent::default();
        self.send_counted(batch, frames, &mut sent)?;
        Ok(sent)
    }

    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        let frames = frames.iter().filter_map(|index| batch.frame(usize::from(*index)));
        let mut frames = frames.map(|frame| frame.bytes).peekable();
        while let Some(bytes) = frames.next() {
            let len = bytes.len();
            let mut count = 1;
            while frames.next_if(|next| *next == bytes).is_some() {
                count += 1;
            }
            if len < ETH_HLEN {
                sent.too_short += u64::from(count);
                continue;
            }
            let mut ctx = [[0; 4]; MD_WORDS];
            ctx[DATA_END] = u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes();
            ctx[INGRESS_IFINDEX] = self.index.to_ne_bytes();
            let run = TestRun {
                data_in: bytes,
                ctx_in: ctx.as_flattened(),
                repeat: count,
                flags: TestRun::LIVE_FRAMES,
                // The kernel makes room for so many, and keeps it while somebody has one of them.
                batch_size: count,
                ..TestRun::default()
            };
            match self.pass.test_run(&run) {
                Ok(_) => (0..count).for_each(|_| sent.took(len)),
                Err(e) if e.errno() == libc::EINVAL && len > FITS => {
                    sent.too_large += u64::from(count);
                }
                Err(e) if e.errno() == libc::EINTR => sent.unwritten += u64::from(count),
                Err(e) => return Err(why(&self.name, &e)),
            }
        }
        Ok(())
    }
}
