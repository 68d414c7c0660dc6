//! Capture files as a sink.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;

use super::{ETHERNET, pcap, pcapng};
use crate::port::batch::{Batch, Frame, MAX_FRAME};
use crate::port::error::PortError;
use crate::port::sink::{Sent, Sink};

/// Bytes that are kept before they are written.
const BUFFER: usize = 1 << 18;

/// The format of a file that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Format {
    /// pcap. Times before 1970 plus 2³² seconds only; ports are not kept.
    Pcap(Unit),
    /// pcapng, with an interface for each port and times in nanoseconds.
    Pcapng,
}

/// The unit of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    /// Every reader knows it.
    Microseconds,
    /// No time is rounded.
    #[default]
    Nanoseconds,
}

impl Format {
    /// Tells the format by a file's name: pcapng if it ends in `.pcapng` or `.ntar`, else pcap.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(e) if e == "pcapng" || e == "ntar" => Self::Pcapng,
            _ => Self::Pcap(Unit::default()),
        }
    }
}

/// Where the bytes go.
enum Target {
    File(File),
    Stream(Box<dyn Write + Send>),
}

impl Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }
}

/// Writes frames to a capture file.
///
/// Frames are kept until there are many; [`Sink::flush`] writes them out and says whether that
/// worked. A writer that is dropped does the same, and cannot say it. When a write fails, for want
/// of room above all, a regular file is cut behind the last packet that is there as a whole, so it
/// can be read; the error says how many that are.
pub struct Writer {
    name: String,
    to: Target,
    format: Format,
    buffer: Vec<u8>,
    /// Where each packet in the buffer ends.
    ends: Vec<u32>,
    /// Packets, and bytes, that are in the file.
    packets: u64,
    bytes: u64,
    /// The ports that have an interface in the file.
    ports: Vec<u32>,
    failed: bool,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("name", &self.name)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// Creates a file, or empties the one that is there; `-` is standard output.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path, format: Format) -> Result<Self, PortError> {
        if path == Path::new("-") {
            return Ok(Self::new("standard output", Box::new(io::stdout()), format));
        }
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Self::begin(name, Target::File(file), format)),
            Err(source) => Err(PortError::Open { name, source }),
        }
    }

    /// Writes to a stream; `name` is what errors call it.
    #[must_use]
    pub fn new(name: &str, to: Box<dyn Write + Send>, format: Format) -> Self {
        Self::begin(name.to_owned(), Target::Stream(to), format)
    }

    fn begin(name: String, to: Target, format: Format) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER + MAX_FRAME + 64);
        match format {
            Format::Pcap(unit) => {
                let magic = match unit {
                    Unit::Microseconds => pcap::MICROSECONDS,
                    Unit::Nanoseconds => pcap::NANOSECONDS,
                };
                put(&mut buffer, &[magic, 4 << 16 | 2, 0, 0, MAX_FRAME as u32, ETHERNET.into()]);
            }
            Format::Pcapng => {
                let unknown = u32::MAX;
                put(
                    &mut buffer,
                    &[pcapng::SECTION, 28, pcapng::BYTE_ORDER, 1, unknown, unknown, 28],
                );
            }
        }
        Self {
            name,
            to,
            format,
            buffer,
            ends: Vec::with_capacity(BUFFER / pcap::RECORD),
            packets: 0,
            bytes: 0,
            ports: Vec::new(),
            failed: false,
        }
    }

    /// Adds a packet to the buffer.
    #[inline]
    fn add(&mut self, frame: Frame<'_>) {
        let len = frame.bytes.len() as u32;
        let wire = frame.meta.wire_len.max(len);
        let ns = frame.meta.ns;
        match self.format {
            Format::Pcap(unit) => {
                let (seconds, rest) = (ns / 1_000_000_000, (ns % 1_000_000_000) as u32);
                let fraction = match unit {
                    Unit::Microseconds => rest / 1000,
                    Unit::Nanoseconds => rest,
                };
                put(&mut self.buffer, &[seconds as u32, fraction, len, wire]);
                self.buffer.extend_from_slice(frame.bytes);
            }
            Format::Pcapng => {
                let interface = self.interface(frame.meta.port);
                let padded = frame.bytes.len().next_multiple_of(4);
                let whole = (padded + 32) as u32;
                let head =
                    [pcapng::ENHANCED, whole, interface, (ns >> 32) as u32, ns as u32, len, wire];
                put(&mut self.buffer, &head);
                self.buffer.extend_from_slice(frame.bytes);
                self.buffer.resize(self.buffer.len() + padded - frame.bytes.len(), 0);
                put(&mut self.buffer, &[whole]);
            }
        }
        self.ends.push(self.buffer.len() as u32);
    }

    /// Finds the interface of a port, and describes it in the file when it is new.
    fn interface(&mut self, port: u32) -> u32 {
        let found = self.ports.iter().position(|known| *known == port);
        let index = found.unwrap_or_else(|| {
            let nanoseconds = u32::from(pcapng::IF_TSRESOL) | 1 << 16;
            let block = [
                pcapng::INTERFACE,
                32,
                ETHERNET.into(),
                MAX_FRAME as u32,
                nanoseconds,
                9,
                pcapng::OPT_END.into(),
                32,
            ];
            put(&mut self.buffer, &block);
            self.ports.push(port);
            self.ports.len() - 1
        });
        index as u32
    }

    /// Writes the buffer out.
    #[cold]
    fn write_out(&mut self) -> Result<(), PortError> {
        let mut done = 0;
        let mut stopped = None;
        while let Some(rest) = self.buffer.get(done..).filter(|rest| !rest.is_empty()) {
            match self.to.write(rest) {
                Ok(0) => stopped = Some(ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => stopped = Some(e),
            }
            if stopped.is_some() {
                break;
            }
        }
        let whole = self.ends.partition_point(|end| *end as usize <= done);
        let lost = (self.ends.len() - whole) as u64;
        self.packets += whole as u64;
        let end = whole.checked_sub(1).and_then(|last| self.ends.get(last));
        let end = end.map_or(0, |end| u64::from(*end));
        let before = self.bytes;
        self.bytes += done as u64;
        self.buffer.clear();
        self.ends.clear();
        let Some(source) = stopped else { return Ok(()) };
        self.failed = true;
        if let Target::File(file) = &mut self.to
            && before + end > 0
        {
            // What cannot be cut is a pipe or a device: a reader finds a packet cut there.
            let _ = file.set_len(before + end).and_then(|()| file.seek(SeekFrom::End(0)));
        }
        Err(PortError::Write { name: self.name.clone(), packets: self.packets, lost, source })
    }
}

impl Sink for Writer {
    fn send(&mut self, batch: &Batch, frames: &[u16]) -> Result<Sent, PortError> {
        let mut sent = Sent::default();
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            if frame.bytes.len() > MAX_FRAME {
                sent.too_large += 1;
                continue;
            }
            self.add(frame);
            sent.took(frame.bytes.len());
            if self.buffer.len() >= BUFFER {
                self.write_out()?;
            }
        }
        Ok(sent)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.write_out()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.failed {
            let _ = self.write_out();
        }
    }
}

/// Appends numbers.
#[inline(always)]
fn put<const N: usize>(buffer: &mut Vec<u8>, words: &[u32; N]) {
    for word in words {
        buffer.extend_from_slice(&word.to_le_bytes());
    }
}
