//! Test runs of packet programs, with the semantics of the kernel's `BPF_PROG_TEST_RUN`
//! (net/bpf/test_run.c): a context is made from [`Input`], the program runs, and what the kernel
//! would copy out comes back, or the errno it would return.
//!
//! Which engine runs the program is its owner's business: [`Program`].

mod cause;
mod flow;
mod interface;
mod live;
mod skb;
mod xdp;

pub use cause::Cause;
use cause::check_packet;
pub use live::{DEFAULT_BATCH, LiveFrames, MAX_BATCH, SIZES};

use skep_isa::{AttachType, ProgramType as P, errno};

/// The errno with which a run fails, as that of the kernel would, and why where that is known. Those of
/// one number are equal.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct Errno(pub i32, Option<Cause>);

impl PartialEq for Errno {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Errno {}

impl Errno {
    /// `EIO`.
    pub const EIO: Self = Self(errno::EIO, None);
    /// `E2BIG`.
    pub const E2BIG: Self = Self(errno::E2BIG, None);
    /// `ENOMEM`.
    pub const ENOMEM: Self = Self(errno::ENOMEM, None);
    /// `EFAULT`.
    pub const EFAULT: Self = Self(errno::EFAULT, None);
    /// `EBUSY`.
    pub const EBUSY: Self = Self(errno::EBUSY, None);
    /// `ENODEV`.
    pub const ENODEV: Self = Self(errno::ENODEV, None);
    /// `EINVAL`.
    pub const EINVAL: Self = Self(errno::EINVAL, None);
    /// `ERANGE`.
    pub const ERANGE: Self = Self(errno::ERANGE, None);
    /// `EAFNOSUPPORT`.
    pub const EAFNOSUPPORT: Self = Self(errno::EAFNOSUPPORT, None);
    /// The kernel's own number for what it does not support; it does reach users.
    pub const ENOTSUPP: Self = Self(errno::ENOTSUPP, None);

    /// Says why.
    #[must_use]
    pub fn because(self, cause: Cause) -> Self {
        Self(self.0, Some(cause))
    }

    fn text(self) -> String {
        match (self.0, self.1) {
            (errno::ENOTSUPP, _) => {
                "programs of this type cannot be run like this (errno 524)".to_owned()
            }
            (n, None) => std::io::Error::from_raw_os_error(n).to_string(),
            (n, Some(cause)) => {
                format!("{cause} ({})", errno::find(n).map_or("an error", |e| e.name))
            }
        }
    }
}

/// What a run is given.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The packet, for programs that get one.
    pub data: Option<&'a [u8]>,
    /// The context: the UAPI structure of the program's type, or the words it gets.
    pub ctx: Option<&'a [u8]>,
    /// How often to run on the same context; 0 runs once.
    pub repeat: u32,
}

impl<'a> Input<'a> {
    /// Nothing at all.
    #[must_use]
    pub fn none() -> Self {
        Self { data: None, ctx: None, repeat: 0 }
    }

    /// A packet.
    #[must_use]
    pub fn data(data: &'a [u8]) -> Self {
        Self { data: Some(data), ..Self::none() }
    }

    /// A context.
    #[must_use]
    pub fn ctx(ctx: &'a [u8]) -> Self {
        Self { ctx: Some(ctx), ..Self::none() }
    }
}

/// What a run leaves.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// The lower half of r0, of the last run.
    pub retval: u32,
    /// Average time of one run.
    pub duration_ns: u64,
    /// The packet, for programs that get one.
    pub data_out: Option<Vec<u8>>,
    /// The context, where the kernel gives one back and one was given.
    pub ctx_out: Option<Vec<u8>>,
}

/// A program that is ready to run on the calling thread.
///
/// # Safety
/// [`Program::run`] runs a program that was verified for contexts of [`Program::prog_type`], and
/// for no other.
pub unsafe trait Program {
    /// Returns its type.
    fn prog_type(&self) -> P;

    /// Returns its attach type, when the section fixed one.
    fn attach_type(&self) -> Option<AttachType>;

    /// Returns the section it came from.
    fn section(&self) -> &str;

    /// Runs it `repeat` times on one context; returns r0 of the last run and the average time in
    /// nanoseconds.
    ///
    /// # Errors
    /// When a run is refused, with the errno for it.
    ///
    /// # Safety
    /// `ctx` is the kind of context the program was verified for, with at least as many bytes as it
    /// reads.
    unsafe fn run(&self, ctx: *mut u8, repeat: u32) -> Result<(u32, u64), Errno>;
}

/// Runs a packet program as `BPF_PROG_TEST_RUN` would; `None` when it is of no type that gets a
/// packet here.
pub fn test_run(program: &dyn Program, input: &Input<'_>) -> Option<Result<Outcome, Errno>> {
    Some(match program.prog_type() {
        P::Xdp => xdp::test_run(program, input),
        P::SocketFilter
        | P::SchedCls
        | P::SchedAct
        | P::CgroupSkb
        | P::LwtIn
        | P::LwtOut
        | P::LwtXmit => skb::test_run(program, input),
        P::FlowDissector => flow::test_run(program, input),
        _ => return None,
    })
}

/// Takes a context of at most `size` bytes: what is missing is zero, what is too much must be
/// (`bpf_ctx_init`).
///
/// # Errors
/// With `E2BIG` when more is given.
pub fn context(ctx: &[u8], size: usize) -> Result<Vec<u8>, Errno> {
    const PAGE: usize = 4096;
    let (head, tail) = ctx.split_at(ctx.len().min(size));
    if ctx.len() > PAGE || tail.iter().any(|b| *b != 0) {
        let (len, most) = (ctx.len() as u32, size as u32);
        return Err(Errno::E2BIG.because(Cause::LongContext { len, most }));
    }
    let mut out = head.to_vec();
    out.resize(size, 0);
    Ok(out)
}

/// Reads a 32-bit field.
#[must_use]
pub fn field(ctx: &[u8], off: u32) -> u32 {
    let bytes = ctx.get(off as usize..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |b| u32::from_ne_bytes(*b))
}

/// Writes a 32-bit field.
pub fn set_field(ctx: &mut [u8], off: u32, value: u32) {
    if let Some(bytes) = ctx.get_mut(off as usize..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = value.to_ne_bytes();
    }
}

/// Tells whether a part of a context is zero.
#[must_use]
pub fn is_zero(ctx: &[u8], from: u32, to: u32) -> bool {
    ctx.get(from as usize..to as usize).is_some_and(|part| part.iter().all(|b| *b == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_filled_up_and_must_not_be_too_long() {
        assert_eq!(context(&[1, 2], 4), Ok(vec![1, 2, 0, 0]));
        assert_eq!(context(&[1, 2, 0, 0, 0], 2), Ok(vec![1, 2]));
        assert_eq!(context(&[1, 2, 3], 2), Err(Errno::E2BIG));
        assert_eq!(context(&[0; 4097], 2), Err(Errno::E2BIG));
    }

    #[test]
    fn an_errno_has_words() {
        assert_eq!(Errno::EINVAL.to_string(), "Invalid argument (os error 22)");
        let short = Errno::EINVAL.because(Cause::ShortPacket { len: 13, least: 14 });
        assert_eq!(short, Errno::EINVAL);
        assert_eq!(short.to_string(), "the packet has 13 bytes, at least 14 are needed (EINVAL)");
        // One is returned of each run.
        assert_eq!(size_of::<Result<u32, Errno>>(), 16);
        assert!(Errno::ENOTSUPP.to_string().contains("524"));
    }
}
