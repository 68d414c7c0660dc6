//! Capture files as a sink.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;

use super::{ETHERNET, pcap, pcapng};
use crate::port::batch::{Batch, Frame, MAX_FRAME};
use crate::port::error::PortError;
use crate::port::sink::{Dropped, Sent, Sink};

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

/// What is written of a packet besides its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note<'a> {
    /// Where it was seen: the name of an interface.
    pub place: &'a str,
    /// Its number; the same packet has it at all places (`epb_packetid`).
    pub number: u64,
    /// What an XDP program said of it (`epb_verdict`).
    pub verdict: Option<u32>,
}

impl Note<'_> {
    /// Bytes of its options.
    fn size(&self) -> usize {
        let verdict = if self.verdict.is_some() { 16 } else { 0 };
        12 + 8 + verdict + 4
    }

    fn put(&self, buffer: &mut Vec<u8>, queue: u32) {
        option(buffer, pcapng::EPB_PACKETID, &self.number.to_le_bytes());
        option(buffer, pcapng::EPB_QUEUE, &queue.to_le_bytes());
        if let Some(verdict) = self.verdict {
            let mut value = [pcapng::VERDICT_XDP, 0, 0, 0, 0, 0, 0, 0, 0];
            value[1..].copy_from_slice(&u64::from(verdict).to_le_bytes());
            option(buffer, pcapng::EPB_VERDICT, &value);
        }
        option(buffer, pcapng::OPT_END, &[]);
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
    /// Where each packet in the buffer ends, and how many bytes of it are a frame's.
    ends: Vec<(u32, u32)>,
    /// Packets, and bytes, that are in the file.
    packets: u64,
    bytes: u64,
    /// What has an interface in the file: a port, and the place there.
    interfaces: Vec<(u32, String)>,
    failed: bool,
    /// Why it failed, which nobody was told yet.
    untold: Option<PortError>,
    /// Frames that were lost by that.
    dropped: Dropped,
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
            interfaces: Vec::new(),
            failed: false,
            untold: None,
            dropped: Dropped::default(),
        }
    }

    /// Writes a packet as it was at some place on its way: at a program of a chain, say. In a pcapng
    /// file, each place of a port is an interface of that name, and the packet has the number, queue
    /// and verdict of the note; pcap files have no room for these.
    ///
    /// # Errors
    /// When the file takes no more.
    ///
    /// ```
    /// use skep_net::port::Frame;
    /// use skep_net::port::capture::{Format, Note, Writer};
    ///
    /// let mut writer = Writer::new("memory", Box::new(std::io::sink()), Format::Pcapng);
    /// let frame = Frame { bytes: &[0; 60], meta: Default::default() };
    /// writer.note(frame, &Note { place: "filter@after", number: 1, verdict: Some(2) })?;
    /// # Ok::<(), skep_net::port::PortError>(())
    /// ```
    pub fn note(&mut self, frame: Frame<'_>, note: &Note<'_>) -> Result<(), PortError> {
        let bytes = frame.bytes.get(..MAX_FRAME).unwrap_or(frame.bytes);
        self.add(Frame { bytes, meta: frame.meta }, Some(note));
        if self.buffer.len() >= BUFFER { self.write_out() } else { Ok(()) }
    }

    /// Adds a packet to the buffer.
    #[inline]
    fn add(&mut self, frame: Frame<'_>, note: Option<&Note<'_>>) {
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
                let interface = self.interface(frame.meta.port, note.map_or("", |n| n.place));
                let padded = frame.bytes.len().next_multiple_of(4);
                let options = note.map_or(0, Note::size);
                let whole = (padded + 32 + options) as u32;
                let head =
                    [pcapng::ENHANCED, whole, interface, (ns >> 32) as u32, ns as u32, len, wire];
                put(&mut self.buffer, &head);
                self.buffer.extend_from_slice(frame.bytes);
                self.buffer.resize(self.buffer.len() + padded - frame.bytes.len(), 0);
                if let Some(note) = note {
                    note.put(&mut self.buffer, frame.meta.queue);
                }
                put(&mut self.buffer, &[whole]);
            }
        }
        self.ends.push((self.buffer.len() as u32, len));
    }

    /// Finds the interface of a place at a port, and describes it in the file when it is new.
    fn interface(&mut self, port: u32, place: &str) -> u32 {
        let known = |(of, at): &(u32, String)| *of == port && at == place;
        let found = self.interfaces.iter().position(known);
        let index = found.unwrap_or_else(|| {
            let start = self.buffer.len();
            let snaplen = MAX_FRAME as u32;
            put(&mut self.buffer, &[pcapng::INTERFACE, 0, ETHERNET.into(), snaplen]);
            if !place.is_empty() {
                option(&mut self.buffer, pcapng::IF_NAME, place.as_bytes());
            }
            // Nanoseconds.
            option(&mut self.buffer, pcapng::IF_TSRESOL, &[9]);
            option(&mut self.buffer, pcapng::OPT_END, &[]);
            let whole = (self.buffer.len() - start + 4) as u32;
            put(&mut self.buffer, &[whole]);
            if let Some(length) = self.buffer.get_mut(start + 4..start + 8) {
                length.copy_from_slice(&whole.to_le_bytes());
            }
            self.interfaces.push((port, place.to_owned()));
            self.interfaces.len() - 1
        });
        index as u32
    }

    /// Says why it failed, if nobody was told.
    fn tell(&mut self) -> Result<(), PortError> {
        self.untold.take().map_or(Ok(()), Err)
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
        let whole = self.ends.partition_point(|(end, _)| *end as usize <= done);
        let lost = self.ends.get(whole..).unwrap_or_default();
        self.dropped.unwritten += lost.len() as u64;
        self.dropped.bytes += lost.iter().map(|(_, len)| u64::from(*len)).sum::<u64>();
        let lost = lost.len() as u64;
        self.packets += whole as u64;
        let end = whole.checked_sub(1).and_then(|last| self.ends.get(last));
        let end = end.map_or(0, |(end, _)| u64::from(*end));
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
    /// Says of a write that fails what became of each frame; why it failed is the answer to the next
    /// call, or to [`Sink::flush`].
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        self.tell()?;
        for frame in frames.iter().filter_map(|index| batch.frame(usize::from(*index))) {
            if let Some(PortError::Write { lost, .. }) = &mut self.untold {
                *lost += 1;
                sent.unwritten += 1;
                continue;
            }
            if frame.bytes.len() > MAX_FRAME {
                sent.too_large += 1;
                continue;
            }
            self.add(frame, None);
            sent.took(frame.bytes.len());
            if self.buffer.len() >= BUFFER {
                self.untold = self.write_out().err();
            }
        }
        Ok(())
    }

    fn dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.tell()?;
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

/// Appends an option of a pcapng block.
fn option(buffer: &mut Vec<u8>, code: u16, value: &[u8]) {
    // Longer ones are cut: the length has two bytes.
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    buffer.extend_from_slice(&code.to_le_bytes());
    buffer.extend_from_slice(&(value.len() as u16).to_le_bytes());
    buffer.extend_from_slice(value);
    buffer.resize(buffer.len() + value.len().next_multiple_of(4) - value.len(), 0);
}
