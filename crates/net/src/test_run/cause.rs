//! Why a run is refused, where the kernel has one number for many reasons.

use std::ops::RangeInclusive;

use super::Errno;

/// What is wrong with what a run is given. It is small, as it is returned with the errno of each run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The packet lacks bytes.
    #[error("the packet has {len} bytes, at least {least} are needed")]
    ShortPacket {
        /// Its size.
        len: u32,
        /// What is needed.
        least: u32,
    },
    /// The packet has too many bytes.
    #[error("the packet has {len} bytes, at most {most} are possible")]
    LongPacket {
        /// Its size.
        len: u32,
        /// What is possible.
        most: u32,
    },
    /// The program reads more of the context.
    #[error("the context has {len} bytes, at least {least} are needed")]
    ShortContext {
        /// Its size.
        len: u32,
        /// What is needed.
        least: u32,
    },
    /// The context has more than programs of the type get.
    #[error("the context has {len} bytes, at most {most} are possible")]
    LongContext {
        /// Its size.
        len: u32,
        /// What is possible.
        most: u32,
    },
    /// The context is not a list of arguments.
    #[error("the context has {len} bytes, which are not whole words of eight")]
    Words {
        /// Its size.
        len: u32,
    },
    /// There is no context.
    #[error("programs of this type need a context")]
    NoContext,
    /// There is a packet.
    #[error("programs of this type get no packet")]
    Packet,
    /// It is to run repeatedly.
    #[error("programs of this type cannot be repeated")]
    Repeat,
    /// The context divides the packet where it has no bytes.
    #[error("`data`, `data_end` and `data_meta` of the context do not fit the packet")]
    Bounds,
    /// A field is set that is not the caller's, or to what it cannot be.
    #[error(
        "the context sets a field that a run does not take, or to a value that it does not take"
    )]
    Field,
    /// No interface has the number in the context.
    #[error("there is no interface {0}, which the context names")]
    Interface(u32),
    /// There are too many live frames at a time.
    #[error("a batch has {} frames at most", super::MAX_BATCH)]
    Batch,
    /// There is nothing to walk over.
    #[error("iterators run where they walk over something")]
    Iterator,
    /// The program is for the entries of a map.
    #[error("programs of devmaps and cpumaps run behind a redirect only")]
    Entry,
}

/// A size for a message.
fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Refuses a packet of another size, as the kernel with `EINVAL`.
pub(super) fn check_packet(len: usize, sizes: RangeInclusive<usize>) -> Result<(), Errno> {
    let [len, least, most] = [len, *sizes.start(), *sizes.end()].map(number);
    let cause = match len {
        n if n < least => Cause::ShortPacket { len, least },
        n if n > most => Cause::LongPacket { len, most },
        _ => return Ok(()),
    };
    Err(Errno::EINVAL.because(cause))
}
