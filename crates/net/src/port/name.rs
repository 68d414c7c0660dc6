//! Ports by their names on a command line.

use std::path::Path;

use super::batch::MAX_FRAME;
use super::capture::{Format, Reader, Writer};
use super::error::PortError;
use super::generator::{Generator, MIN_FRAME};
use super::interface::xdp::{self, XdpOptions};
use super::interface::{self, PacketSink, PacketSource, StackSink, Tap};
use super::sink::Sink;
use super::source::Source;

/// An interface that frames can be sent on, with its number.
pub type InterfaceSink = (Box<dyn Sink>, u32);

/// A port that frames come from.
pub struct Input {
    /// Where they come from.
    pub source: Box<dyn Source>,
    /// Where frames go back to, for interfaces.
    pub back: Option<InterfaceSink>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("back", &self.back.is_some()).finish_non_exhaustive()
    }
}

/// Opens the port that frames come from:
///
/// * `gen:SIZE` or `gen:SIZE+SIZE…` is a [`Generator`] without end,
/// * `tap:NAME` a [`Tap`] device,
/// * `xdp:NAME` or `xdp:NAME@QUEUE` a queue of an interface by `AF_XDP` ([`xdp::open`]),
/// * the name of an interface a [`PacketSource`], unless there is a file of that name,
/// * anything else a capture file, and `-` standard input.
///
/// # Errors
/// When it cannot be opened.
pub fn open_source(name: &str) -> Result<Input, PortError> {
    let alone = |source| Input { source, back: None };
    if let Some(sizes) = name.strip_prefix("gen:") {
        let sizes: Result<Vec<usize>, _> = sizes.split('+').map(str::parse).collect();
        let sizes = sizes.map_err(|_| PortError::Sizes { name: name.to_owned() })?;
        if let Some(size) = sizes.iter().find(|size| !(MIN_FRAME..=MAX_FRAME).contains(*size)) {
            return Err(PortError::Size { name: name.to_owned(), size: *size });
        }
        return Ok(alone(Box::new(Generator::new(&sizes))));
    }
    if let Some(name) = name.strip_prefix("tap:") {
        let tap = Tap::open(name)?;
        let back: InterfaceSink = (Box::new(tap.clone()), tap.index());
        return Ok(Input { source: Box::new(tap), back: Some(back) });
    }
    if name.starts_with("stack:") {
        return Err(PortError::Stack { name: name.to_owned() });
    }
    if let Some((device, options)) = xdp_queue(name)? {
        let (source, sink) = xdp::open(device, &options)?;
        let back: InterfaceSink = (Box::new(sink), source.index());
        return Ok(Input { source: Box::new(source), back: Some(back) });
    }
    if is_interface(name) && !Path::new(name).exists() {
        let (source, sink) = (PacketSource::open(name)?, PacketSink::open(name)?);
        let back: InterfaceSink = (Box::new(sink), source.index());
        return Ok(Input { source: Box::new(source), back: Some(back) });
    }
    Ok(alone(Box::new(Reader::open(Path::new(name))?)))
}

/// Takes `xdp:NAME` or `xdp:NAME@QUEUE` apart; `None` for other names.
fn xdp_queue(name: &str) -> Result<Option<(&str, XdpOptions)>, PortError> {
    let Some(rest) = name.strip_prefix("xdp:") else { return Ok(None) };
    let (device, queue) = rest.split_once('@').unwrap_or((rest, "0"));
    let queue = queue.parse().map_err(|_| PortError::Queue { name: name.to_owned() })?;
    Ok(Some((device, XdpOptions { queue, ..XdpOptions::default() })))
}

/// Opens the port that frames go to: a TAP device (`tap:NAME`), the kernel's stack, which receives them on an
/// interface (`stack:NAME`; [`StackSink`]), a queue of an interface by `AF_XDP`
/// (`xdp:NAME`, `xdp:NAME@QUEUE`; [`xdp::open_sink`]), an interface by its name, unless there is a file
/// of that name, or a capture file, pcapng if its name ends so; `-` is standard output. Returns its
/// number where it is an interface.
///
/// # Errors
/// When it cannot be opened.
pub fn open_sink(name: &Path) -> Result<(Box<dyn Sink>, Option<u32>), PortError> {
    if let Some(text) = name.to_str() {
        if let Some(name) = text.strip_prefix("tap:") {
            let tap = Tap::open(name)?;
            let index = tap.index();
            return Ok((Box::new(tap), Some(index)));
        }
        if let Some(name) = text.strip_prefix("stack:") {
            // Frames that are redirected to the interface are sent there, which this is not.
            return Ok((Box::new(StackSink::open(name)?), None));
        }
        if let Some((device, options)) = xdp_queue(text)? {
            let sink = xdp::open_sink(device, &options)?;
            let index = sink.index();
            return Ok((Box::new(sink), Some(index)));
        }
        if text.starts_with("gen:") {
            return Err(PortError::Generator { name: text.to_owned() });
        }
        if is_interface(text) && !name.exists() {
            let sink = PacketSink::open(text)?;
            let index = sink.index();
            return Ok((Box::new(sink), Some(index)));
        }
    }
    let file: Box<dyn Sink> = Box::new(Writer::create(name, Format::of(name))?);
    Ok((file, None))
}

fn is_interface(name: &str) -> bool {
    !name.contains('/') && interface::index_of(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_is_named() {
        let error = |name| open_source(name).map(|_| ()).expect_err("no such port").to_string();
        assert_eq!(
            error("gen:64+x"),
            "`gen:64+x` gives no sizes; write `gen:SIZE`, several with `+` between"
        );
        assert_eq!(error("gen:64+49"), "`gen:64+49`: packets have 50 to 262144 bytes, not 49");
        assert_eq!(
            error("gen:262145"),
            "`gen:262145`: packets have 50 to 262144 bytes, not 262145"
        );
        assert_eq!(
            error("stack:lo"),
            "`stack:lo` takes packets and gives none; name the interface alone to receive on it"
        );
        assert!(
            error("/nowhere/at/all").starts_with("cannot open `/nowhere/at/all`: No such file")
        );
        assert!(open_source("gen:64+1514").is_ok());
        let error = open_sink("/nowhere/at/all".as_ref()).map(|_| ()).expect_err("no such folder");
        assert!(error.to_string().starts_with("cannot open `/nowhere/at/all`: No such file"));
        // Not files of these names.
        let error = |name: &str| {
            let opened = open_sink(name.as_ref()).map(|_| ());
            opened.expect_err("no such port").to_string()
        };
        assert_eq!(error("gen:64"), "`gen:64` makes packets and takes none");
        assert_eq!(error("xdp:nowhere0"), "there is no interface `nowhere0`");
        for name in ["tap:", "tap:sixteen-bytes-16", "tap:a b", "tap:a/b"] {
            assert_eq!(
                error(name),
                format!(
                    "`{name}`: an interface's name has 1 to 15 bytes, and neither `/`, `:` nor spaces"
                )
            );
        }
        assert_eq!(error("stack:nowhere0"), "there is no interface `nowhere0`");
        assert_eq!(
            error("xdp:lo@x"),
            "`xdp:lo@x` names no queue; write `xdp:NAME@QUEUE`, or `xdp:NAME` for queue 0"
        );
    }
}
