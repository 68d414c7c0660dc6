//! Capture files as a source.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use super::ETHERNET;
use super::error::CaptureError;
use super::input::{Input, Stream};
use super::order::Order;
use super::pcap::{self, Header};
use super::pcapng::{self, AROUND, Interface};
use crate::port::batch::{Batch, MAX_FRAME, Meta};
use crate::port::error::PortError;
use crate::port::source::{Lost, Received, Source};

/// Most bytes of a block that must be seen as a whole; larger ones of other types are skipped.
const MAX_BLOCK: u32 = 1 << 20;

/// The format of a file that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// pcap with microseconds.
    PcapMicroseconds,
    /// pcap with nanoseconds.
    PcapNanoseconds,
    /// pcapng.
    Pcapng,
}

enum Format {
    Pcap(Header),
    Pcapng { order: Order, interfaces: Vec<Interface>, ports: u32 },
}

/// What one step through a file did.
enum Step {
    Frame,
    /// Something else than a packet was passed.
    Passed,
    /// The batch takes no more, or reading on would wait.
    Full,
    End,
}

/// Reads the packets of a capture file, in order.
///
/// ```no_run
/// use std::time::Duration;
/// use skep_net::port::{Batch, Received, Source, capture::Reader};
///
/// let mut file = Reader::open("capture.pcapng".as_ref())?;
/// let mut batch = Batch::new();
/// while file.receive(&mut batch, Duration::ZERO)? == Received::Frames {
///     for frame in batch.frames() {
///         println!("{} ns: {} bytes", frame.meta.ns, frame.bytes.len());
///     }
///     batch.clear();
/// }
/// if let Some(at) = file.lost()?.cut_at {
///     println!("the file ends inside the packet at byte {at}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader {
    name: String,
    input: Input,
    format: Format,
    any_link_type: bool,
    packets: u64,
    lost: Lost,
    state: State,
}

enum State {
    Reading,
    /// What ended it, to be told when the frames before it have been handed out.
    Failed(CaptureError),
    Ended,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("name", &self.name)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    /// When it cannot be opened, or does not begin as a capture file does.
    pub fn open(path: &Path) -> Result<Self, PortError> {
        let (name, file) = if path == Path::new("-") {
            // Its own descriptor: what `Stdin` keeps cannot be waited for.
            let own = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            ("standard input".to_owned(), own)
        } else {
            (path.display().to_string(), File::open(path))
        };
        match file {
            Ok(file) => Self::begin(&name, Stream::File(file)),
            Err(source) => Err(PortError::Open { name, source }),
        }
    }

    /// Reads from a stream; `name` is what errors call it.
    ///
    /// # Errors
    /// When it does not begin as a capture file does.
    pub fn new(name: &str, from: Box<dyn Read + Send>) -> Result<Self, PortError> {
        Self::begin(name, Stream::Other(from))
    }

    fn begin(name: &str, from: Stream) -> Result<Self, PortError> {
        let (mut input, name) = (Input::new(from), name.to_owned());
        match begin(&mut input) {
            Ok(format) => Ok(Self {
                name,
                input,
                format,
                any_link_type: false,
                packets: 0,
                lost: Lost::default(),
                state: State::Reading,
            }),
            Err(source) => Err(PortError::Capture { name, packets: 0, source }),
        }
    }

    /// Takes packets of any link type; otherwise one that is not Ethernet is an error.
    #[must_use]
    pub fn any_link_type(mut self) -> Self {
        self.any_link_type = true;
        self
    }

    /// Returns the format.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match &self.format {
            Format::Pcap(Header { unit: 1, .. }) => Kind::PcapNanoseconds,
            Format::Pcap(_) => Kind::PcapMicroseconds,
            Format::Pcapng { .. } => Kind::Pcapng,
        }
    }

    /// Takes the next block or packet.
    #[inline]
    fn step(&mut self, batch: &mut Batch) -> Result<Step, CaptureError> {
        match self.format {
            Format::Pcap(header) => self.pcap(header, batch),
            Format::Pcapng { .. } => self.pcapng(batch),
        }
    }

    #[inline]
    fn pcap(&mut self, header: Header, batch: &mut Batch) -> Result<Step, CaptureError> {
        if !self.input.has(pcap::RECORD) && !batch.is_empty() {
            return Ok(Step::Full);
        }
        let offset = self.input.offset();
        let seen = self.input.peek(pcap::RECORD)?;
        let Some(record) = seen.first_chunk() else { return Ok(self.end(offset)) };
        let (ns, captured, wire_len) = header.record(record);
        let len = captured as usize;
        if len > MAX_FRAME {
            return Err(CaptureError::Packet { offset, len: captured });
        }
        if !self.any_link_type && header.link_type != ETHERNET {
            return Err(CaptureError::LinkType(header.link_type));
        }
        let whole = pcap::RECORD + len;
        if !self.input.has(whole) && !batch.is_empty() {
            return Ok(Step::Full);
        }
        let Some(bytes) = self.input.peek(whole)?.get(pcap::RECORD..whole) else {
            return Ok(self.end(offset));
        };
        if !batch.push(Meta { ns, wire_len, port: 1, queue: 0 }, bytes) {
            return Ok(Step::Full);
        }
        self.took(captured, wire_len);
        self.input.consume(whole);
        Ok(Step::Frame)
    }

    fn pcapng(&mut self, batch: &mut Batch) -> Result<Step, CaptureError> {
        let Format::Pcapng { order, interfaces, ports } = &mut self.format else {
            return Ok(Step::End);
        };
        if !self.input.has(AROUND) && !batch.is_empty() {
            return Ok(Step::Full);
        }
        let offset = self.input.offset();
        let Some(head) = self.input.peek(AROUND)?.first_chunk::<AROUND>() else {
            return Ok(self.end(offset));
        };
        if head.starts_with(&pcapng::SECTION.to_le_bytes()) {
            *order = byte_order(head).ok_or(damage(offset, "it has no byte order"))?;
        }
        let (kind, len) = (order.u32(head, 0), order.u32(head, 4));
        if (len as usize) < AROUND || !len.is_multiple_of(4) {
            return Err(damage(offset, "its length is less than 12, or no multiple of 4"));
        }
        let seen = matches!(
            kind,
            pcapng::SECTION
                | pcapng::INTERFACE
                | pcapng::PACKET
                | pcapng::SIMPLE
                | pcapng::ENHANCED
        );
        if !seen {
            return self.skip_block(offset, len);
        }
        if len > MAX_BLOCK {
            return Err(damage(offset, "it is longer than 1 MiB"));
        }
        let whole = len as usize;
        if !self.input.has(whole) && !batch.is_empty() {
            return Ok(Step::Full);
        }
        let Some(block) = self.input.peek(whole)?.get(..whole) else { return Ok(self.end(offset)) };
        if order.u32(block, whole - 4) != len {
            return Err(damage(offset, "the two lengths of it differ"));
        }
        let body = block.get(8..whole - 4).unwrap_or_default();
        let (order, known) = (*order, interfaces.len() as u32);
        let interface = |number: u32| {
            let found = interfaces.get(number as usize);
            found.ok_or(CaptureError::Interface { offset, interface: number, known })
        };
        let (of, ns, captured, wire_len, at) = match kind {
            pcapng::SECTION => {
                let (major, minor) = (order.u16(body, 4), order.u16(body, 6));
                if body.len() < 16 || major != 1 {
                    return Err(CaptureError::Version { major, minor });
                }
                interfaces.clear();
                self.input.consume(whole);
                return Ok(Step::Passed);
            }
            pcapng::INTERFACE => {
                if body.len() < 8 {
                    return Err(damage(offset, "it is too short"));
                }
                *ports += 1;
                interfaces.push(Interface::parse(order, body, *ports));
                self.input.consume(whole);
                return Ok(Step::Passed);
            }
            pcapng::ENHANCED => {
                let of = interface(order.u32(body, 0))?;
                let ns = of.nanoseconds(order.u32(body, 4), order.u32(body, 8));
                (of, ns, order.u32(body, 12), order.u32(body, 16), 20)
            }
            pcapng::PACKET => {
                let of = interface(u32::from(order.u16(body, 0)))?;
                let ns = of.nanoseconds(order.u32(body, 4), order.u32(body, 8));
                (of, ns, order.u32(body, 12), order.u32(body, 16), 20)
            }
            _ => {
                let of = interface(0)?;
                let wire = order.u32(body, 0);
                let snaplen = if of.snaplen == 0 { u32::MAX } else { of.snaplen };
                (of, 0, wire.min(snaplen), wire, 4)
            }
        };
        if captured as usize > MAX_FRAME {
            return Err(CaptureError::Packet { offset, len: captured });
        }
        if !self.any_link_type && of.link_type != ETHERNET {
            return Err(CaptureError::LinkType(of.link_type));
        }
        let bytes = body
            .get(at..at + captured as usize)
            .ok_or(damage(offset, "it is shorter than its packet"))?;
        if !batch.push(Meta { ns, wire_len, port: of.port, queue: 0 }, bytes) {
            return Ok(Step::Full);
        }
        self.took(captured, wire_len);
        self.input.consume(whole);
        Ok(Step::Frame)
    }

    /// Passes a block whose contents do not matter, of whatever length.
    fn skip_block(&mut self, offset: u64, len: u32) -> Result<Step, CaptureError> {
        if len <= MAX_BLOCK {
            // All of it, so that it can be tried again.
            self.input.peek(len as usize)?;
        }
        self.input.patience = None;
        let before_last = u64::from(len) - 4;
        let skipped = self.input.skip(before_last)?;
        let Some(last) = self.input.peek(4)?.first_chunk::<4>().filter(|_| skipped == before_last)
        else {
            return Ok(self.end(offset));
        };
        let Format::Pcapng { order, .. } = &self.format else { return Ok(Step::End) };
        if order.u32(last, 0) != len {
            return Err(damage(offset, "the two lengths of it differ"));
        }
        self.input.consume(4);
        Ok(Step::Passed)
    }

    #[inline]
    fn took(&mut self, captured: u32, wire_len: u32) {
        self.packets += 1;
        self.lost.shortened += u64::from(captured < wire_len);
    }

    /// The file has ended, in the middle of something if anything is left.
    fn end(&mut self, offset: u64) -> Step {
        let inside =
            offset != self.input.offset() || self.input.peek(1).is_ok_and(|b| !b.is_empty());
        if inside {
            self.lost.cut_at.get_or_insert(offset);
        }
        Step::End
    }
}

impl Source for Reader {
    /// Reads on. A batch may have fewer frames than it takes although more come later: what a pipe
    /// has by now is not kept back. Pipes are waited for as long as said, other streams as they
    /// read.
    fn receive(&mut self, batch: &mut Batch, wait: Duration) -> Result<Received, PortError> {
        let before = batch.len();
        while matches!(self.state, State::Reading) {
            self.input.patience = Some(wait);
            match self.step(batch) {
                Ok(Step::Frame | Step::Passed) => {}
                Err(CaptureError::Read(e)) if e.kind() == ErrorKind::WouldBlock => break,
                Ok(Step::Full) => break,
                Ok(Step::End) => self.state = State::Ended,
                Err(e) => self.state = State::Failed(e),
            }
        }
        if batch.len() > before {
            return Ok(Received::Frames);
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            // The batch was full before, or nothing has come.
            State::Reading => {
                self.state = State::Reading;
                Ok(Received::Nothing)
            }
            State::Ended => Ok(Received::End),
            State::Failed(source) => {
                let (name, packets) = (self.name.clone(), self.packets);
                Err(PortError::Capture { name, packets, source })
            }
        }
    }

    fn lost(&mut self) -> Result<Lost, PortError> {
        Ok(self.lost)
    }
}

/// Reads the beginning of a file.
fn begin(input: &mut Input) -> Result<Format, CaptureError> {
    let seen = input.peek(pcap::HEADER)?;
    let Some(magic) = seen.first_chunk::<4>().copied() else {
        return Err(if seen.is_empty() { CaptureError::Empty } else { CaptureError::Header });
    };
    if magic == pcapng::SECTION.to_le_bytes() {
        // The first block says which it is.
        return Ok(Format::Pcapng { order: Order::Little, interfaces: Vec::new(), ports: 0 });
    }
    if !pcap::is_magic(&magic) {
        return Err(CaptureError::Magic(magic));
    }
    let header = Header::parse(seen.first_chunk().ok_or(CaptureError::Header)?)?;
    input.consume(pcap::HEADER);
    Ok(Format::Pcap(header))
}

/// The byte order of a section, from its first 12 bytes.
fn byte_order(head: &[u8; AROUND]) -> Option<Order> {
    [Order::Little, Order::Big].into_iter().find(|o| o.u32(head, 8) == pcapng::BYTE_ORDER)
}

fn damage(offset: u64, what: &'static str) -> CaptureError {
    CaptureError::Block { offset, what }
}
