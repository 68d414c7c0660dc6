//! `skep map dump`: elements are printed as they are read, so a map of any size takes little
//! memory.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use skep::maps::dump::Walk;
use skep::maps::{Access, KeyRange, Map, Take, Verdict};
use skep_text::csv::Csv;
use skep_text::entries::Entries;
use skep_text::layout::{Layout, Style};

use super::filter::Filter;
use super::find::Source;
use super::{no_elements, ordered};
use crate::args::{DumpArgs, TakeHow};
use crate::failure::{Failure, Result};
use crate::printer::{Output, Printer};
use crate::signals::Signals;

/// Bytes of elements read together.
const BATCH: usize = 256 << 10;
/// Taken elements that were not printed are lost, so fewer are taken together.
const BATCH_TAKEN: usize = 1024;

/// Prints all elements.
pub fn run(args: &DumpArgs, printer: Printer) -> Result<u8> {
    // A strict walk notes its beginning in the map.
    let access =
        if args.take.is_some() || args.strict { Access::ReadWrite } else { Access::ReadOnly };
    let source = Source::find(&args.map, access, printer)?;
    let (shape, types) = (source.shape()?, source.btf());
    let entries = Entries::of(shape, types.as_ref(), args.raw);
    if !entries.has_elements() {
        return Err(no_elements(&args.map.map, entries.shape().map_type));
    }
    let name = &args.map.map;
    let range = ordered::range(&source, name, &entries, &args.range, args.raw)?;
    if args.reverse {
        ordered::ordered(&source, name, "--reverse")?;
    }
    let style = if args.json { Style::Json } else { Style::Text };
    let format = if args.csv {
        Format::Csv(Csv::new(&entries))
    } else {
        Format::Layout(Layout::new(&entries, style))
    };
    let value_size = match &source {
        Source::Ours(map, _) => map.user_value_size(),
        Source::Kernel(map) => map.value_size(),
    };
    let load = |text: &String| Filter::load(text, entries.shape().keys, value_size);
    let filter = args.filter.as_ref().map(load).transpose()?;
    let mut signals = Signals::install()?;
    let mut dump = Dump {
        entries: &entries,
        format,
        begun: false,
        filter,
        json: args.json,
        raw: args.raw,
        left: if args.limit == 0 { u64::MAX } else { args.limit },
        text: Vec::new(),
        printed: 0,
        progress: Progress::new(printer),
        interrupted: None,
        signals: &mut signals,
    };
    // What goes wrong on the way is told after the document has its end.
    let mut failure = None;
    printer.data(Output::Stdout, |out| {
        let done = match &source {
            Source::Ours(map, _) => dump.ours(map, args, range, out),
            Source::Kernel(map) => {
                let mut written = Ok(());
                let done = map.walk(|keys, values, n| {
                    let elements = keys
                        .chunks_exact(shape_size(map.info.key_size))
                        .zip(values.chunks_exact(map.value_size().max(1)));
                    let mut stopped = false;
                    let mut filter = dump.filter.take();
                    let kept = elements.take(n).filter(|(key, value)| {
                        let verdict =
                            filter.as_mut().filter(|_| !stopped).map(|f| f.verdict(key, value));
                        stopped |= verdict == Some(Verdict::Stop);
                        !stopped && verdict != Some(Verdict::Skip)
                    });
                    written = dump.batch(out, kept);
                    dump.filter = filter;
                    written.is_ok() && !stopped && dump.goes_on()
                });
                written.map(|()| done.err())
            }
        };
        failure = done?;
        dump.progress.clear();
        if !dump.begun {
            // A map that cannot be read at all is no document.
            if failure.is_some() {
                return Ok(());
            }
            dump.head(out)?;
        }
        dump.tail();
        out.write_all(&dump.text)
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    Ok(dump.interrupted.map_or(0, |signal| 128_u8.wrapping_add(signal as u8)))
}

fn shape_size(size: u32) -> usize {
    (size as usize).max(1)
}

enum Format<'a> {
    Layout(Layout<'a>),
    Csv(Csv<'a>),
}

struct Dump<'a> {
    entries: &'a Entries<'a>,
    format: Format<'a>,
    /// The head is printed.
    begun: bool,
    filter: Option<Filter>,
    json: bool,
    /// Keys and values are bytes in hex.
    raw: bool,
    /// Elements that may still be printed.
    left: u64,
    text: Vec<u8>,
    printed: u64,
    progress: Progress,
    interrupted: Option<i32>,
    signals: &'a mut Signals,
}

impl Dump<'_> {
    fn head(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.begun = true;
        self.text.clear();
        match &self.format {
            Format::Csv(csv) => csv.head(&mut self.text),
            Format::Layout(_) if self.json => {
                let raw = if self.raw { "\"raw\":true," } else { "" };
                drop(write!(self.text, "{{\"map\":{},{raw}\"entries\":[", self.entries.map_json()))
            }
            Format::Layout(_) => {}
        }
        out.write_all(&self.text)
    }

    fn tail(&mut self) {
        self.text.clear();
        if self.json {
            self.text.extend_from_slice(if self.interrupted.is_some() {
                b"],\"interrupted\":true}\n"
            } else {
                b"]}\n"
            });
        }
    }

    /// Prints elements that were read together, as many as may be printed.
    fn batch<'e>(
        &mut self,
        out: &mut dyn Write,
        elements: impl Iterator<Item = (&'e [u8], &'e [u8])>,
    ) -> io::Result<()> {
        if !self.begun {
            self.head(out)?;
        }
        self.text.clear();
        for (key, value) in elements {
            if self.left == 0 {
                break;
            }
            match &self.format {
                Format::Csv(csv) => csv.write(&mut self.text, key, value),
                Format::Layout(layout) => {
                    if self.json && self.printed > 0 {
                        self.text.push(b',');
                    }
                    layout.write(&mut self.text, key, value);
                }
            }
            self.left -= 1;
            self.printed += 1;
        }
        self.progress.show(self.printed);
        out.write_all(&self.text)
    }

    fn goes_on(&mut self) -> bool {
        if let Some(signal) = self.signals.take() {
            self.interrupted = Some(signal.number);
        }
        self.left > 0 && self.interrupted.is_none()
    }

    /// Prints a map of ours. Fails when it cannot be written; returns what went wrong with the map.
    fn ours(
        &mut self,
        map: &Map,
        args: &DumpArgs,
        range: Option<KeyRange>,
        out: &mut dyn Write,
    ) -> io::Result<Option<Failure>> {
        let take = args.take;
        let mut walk = if args.strict { map.walk().strict() } else { map.walk() };
        if let Some(range) = range {
            walk = walk.range(range);
        }
        if args.reverse {
            walk = walk.reversed();
        }
        if let Some(how) = take {
            walk = walk.taking(if how == TakeHow::Exact { Take::Exact } else { Take::Fast });
        }
        let size = walk.element_size().max(1);
        let most = if take == Some(TakeHow::Fast) { BATCH_TAKEN } else { usize::MAX };
        let mut buf = vec![0; (BATCH / size).clamp(1, most) * size];
        while self.goes_on() {
            let room = usize::try_from(self.left)
                .unwrap_or(usize::MAX)
                .saturating_mul(size)
                .min(buf.len());
            let rows = match &mut self.filter {
                None => walk.rows(&mut buf[..room]),
                Some(filter) => {
                    let (signals, interrupted) = (&mut *self.signals, &mut self.interrupted);
                    walk.rows_where(&mut buf[..room], |key, value| {
                        *interrupted = interrupted.or(signals.take().map(|s| s.number));
                        if interrupted.is_some() {
                            Verdict::Stop
                        } else {
                            filter.verdict(key, value)
                        }
                    })
                }
            };
            let n = match rows {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) => {
                    let what = format!(
                        "cannot {} map `{}`",
                        if take.is_some() { "take elements from" } else { "read" },
                        map.def().name
                    );
                    return Ok(Some(Failure::failed(what).because(&e)));
                }
            };
            let done = self
                .batch(out, walk.elements(&buf, n))
                .and_then(|()| if take.is_some() { out.flush() } else { Ok(()) });
            if let Err(e) = done {
                if take.is_some() {
                    put_back(map, &walk, &buf, n);
                }
                return Err(e);
            }
        }
        Ok(None)
    }
}

/// Puts elements back that nobody got to see, unless there are new ones with their keys.
fn put_back(map: &Map, walk: &Walk<'_>, buf: &[u8], n: usize) {
    for (key, value) in walk.elements(buf, n) {
        drop(map.update(key, value, skep::isa::map::update::NOEXIST));
    }
}

/// A count of elements on the terminal while they go elsewhere.
struct Progress {
    shown: bool,
    wanted: bool,
    last: Instant,
}

impl Progress {
    fn new(printer: Printer) -> Self {
        let wanted =
            !printer.is_quiet() && io::stderr().is_terminal() && !io::stdout().is_terminal();
        Self { shown: false, wanted, last: Instant::now() }
    }

    fn show(&mut self, elements: u64) {
        if self.wanted && self.last.elapsed() > Duration::from_millis(200) {
            (self.shown, self.last) = (true, Instant::now());
            drop(write!(io::stderr().lock(), "\r{elements} elements"));
        }
    }

    fn clear(&mut self) {
        if self.shown {
            drop(write!(io::stderr().lock(), "\r\x1b[K"));
        }
    }
}
