//! Ports: where frames come from and go to. Capture files, interfaces, memory, a generator.
//!
//! A [`Source`] fills a [`Batch`] with frames. Whoever runs programs gives each frame of the batch a
//! [`Verdict`]. A [`Sink`] is then told the frames of the batch that are its own, by their numbers.
//! [`pump`] does these three steps until the source ends, and counts.
//!
//! ```text
//!   Source::receive ──► Batch ──► programs: a verdict for each frame ──► Sink::send, by verdict
//!        ▲                │                                                  and by port number
//!        └─── cleared ◄───┘
//! ```
//!
//! Rules that all ports keep:
//!
//! * **One buffer.** Frames lie in the batch, each with [`batch::HEADROOM`] bytes before it and room
//!   behind it, as in a driver's pages, so that programs run on them where they are. Sources copy
//!   a frame in once; sinks that write with `sendmmsg(2)` send from there. Nothing is allocated for
//!   a packet: all buffers are made with the port.
//! * **Nothing is lost silently.** A sink that cannot take a frame says why in [`Sent`]: its ring
//!   was full, the frame too large. A source says in [`Lost`] what the kernel dropped before it, and
//!   where a file was cut. What ends a port is a [`PortError`] that names the port, and says how
//!   many packets got through.
//! * **Nothing waits for ever.** [`Source::receive`] returns without frames after the time that it
//!   is given, so its caller can look at a flag.
//! * Ports are numbered as interfaces are (`ingress_ifindex`); the numbers of capture files are
//!   their interfaces', from 1 on.
//!
//! Nothing here knows programs, maps or contexts.

pub mod batch;
pub mod capture;
mod context;
mod error;
pub mod generator;
pub mod interface;
pub mod memory;
pub mod name;
mod outputs;
mod pump;
mod sink;
mod source;
mod verdict;

pub use crate::redirect::{Entry, Redirect};
pub use batch::{Batch, Frame};
pub use context::Context;
pub use error::PortError;
pub use outputs::{Outputs, SinkId, Unsent, Verdicts};
pub use pump::{PumpError, Stats, Until, pump, pump_shared};
pub use sink::{Dropped, Sent, Sink};
pub use source::{Lost, Received, Source};
pub use verdict::{Target, Verdict};
