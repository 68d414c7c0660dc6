//! Chains on interfaces: attached, swapped, shown, detached.
//!
//! All that stays of an attached chain is a link, pinned in the bpf file system. It holds the
//! program, which holds its maps: the counters, and the description that [`show`] reads, also those
//! of the chain before ([`super::carried`]). So there is
//! one file, whose one step makes or ends it, and a process that is killed at any instruction leaves
//! the chain that was there before or the new one:
//!
//! | killed while | leaves |
//! |---|---|
//! | loading | what was there: nothing is visible yet |
//! | a first chain is attached, before its link is pinned | nothing: the link goes with the process |
//! | swapping | the old chain, or from the one system call on the new one |
//! | detaching | the chain, or from the removal of the pin on nothing |
//!
//! Pins of maps that a user asked for are made beside their places before a swap, and renamed after
//! it. A process killed in between leaves them as `new-MAP`, which the next one removes.

use std::path::Path;

use skep_isa::errno;
use skep_kernel::{Link, LinkInfo, Program, XdpMode};
use skep_net::chain::{Graph, Stats};
use skep_net::port::interface::index_of;

use super::carried::Told;
use super::error::KernelChainError as Error;
use super::holder;
use super::pins::{LinkPin, MapPins};
use super::{Current, KernelChain, Result};

/// What attaching did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The program's id in the kernel.
    pub program: u32,
    /// It took the place of this chain's program.
    pub replaced: Option<u32>,
}

/// How often a swap is tried when somebody else swaps too.
const TRIES: usize = 5;

fn index(interface: &str) -> Result<u32> {
    index_of(interface).ok_or_else(|| Error::NoInterface { interface: interface.to_owned() })
}

fn kernel(what: &str) -> impl FnOnce(skep_kernel::Error) -> Error {
    let what = what.to_owned();
    |source| Error::Kernel { what, source }
}

/// Attaches a chain to an interface of the thread's network namespace, where it stays when the
/// process ends. If skep attached a chain there before, it takes its place, in its mode: each packet
/// sees the old chain or the new one.
///
/// # Errors
/// When the interface has a program that is not skep's, is not there, or cannot have one in this
/// mode; when the file system does not take the pins. What was attached stays then.
pub fn attach(
    chain: &KernelChain,
    interface: &str,
    mode: XdpMode,
    bpf_fs: &Path,
    pins: Option<&MapPins>,
) -> Result<Attached> {
    let ifindex = index(interface)?;
    let pin = LinkPin::lock(bpf_fs, ifindex)?;
    put((chain, pins), (interface, ifindex), &pin, Instead::Any(mode))
}

/// Puts another chain in the place of the one that is attached to an interface: `build` makes it, and
/// says where its new maps are pinned. No other `skep` comes between; when somebody else changed what
/// is attached meanwhile, it stays. Counts go on as in [`attach()`].
///
/// # Errors
/// When there is no chain of skep, or it does not say what it is made of; as [`attach()`]. The inner
/// error is that of `build`.
pub fn change<E>(
    interface: &str,
    bpf_fs: &Path,
    build: impl FnOnce(&Current) -> Result<(KernelChain, Option<MapPins>), E>,
) -> Result<Result<Attached, E>> {
    let ifindex = index(interface)?;
    let pin = LinkPin::lock(bpf_fs, ifindex)?;
    let none = || Error::NotAttached { interface: interface.to_owned() };
    let (_, info) = current(&pin, ifindex)?.ok_or_else(none)?;
    let program = Program::open(info.program).map_err(kernel("open the chain's program"))?;
    let none = || Error::Description { interface: interface.to_owned() };
    let current = Told::by(&program)?.and_then(|told| told.current()).ok_or_else(none)?;
    let (chain, pins) = match build(&current) {
        Ok(built) => built,
        Err(e) => return Ok(Err(e)),
    };
    let instead = Instead::Program(info.program);
    put((&chain, pins.as_ref()), (interface, ifindex), &pin, instead).map(Ok)
}

/// In whose place a chain comes.
#[derive(Clone, Copy)]
enum Instead {
    /// Any chain's, or nobody's, then in this mode.
    Any(XdpMode),
    /// This program's.
    Program(u32),
}

/// Puts a chain on an interface, and its maps where they are to be pinned.
fn put(
    (chain, pins): (&KernelChain, Option<&MapPins>),
    interface: (&str, u32),
    pin: &LinkPin,
    instead: Instead,
) -> Result<Attached> {
    if chain.tail_programs() > 0 && pins.is_none() {
        return Err(Error::TailCalls);
    }
    if let Some(pins) = pins {
        pins.prepare(chain.maps())?;
    }
    let attached = swap(chain, interface, pin, instead);
    match (pins, &attached) {
        (Some(pins), Ok(_)) => pins.finish(chain.maps())?,
        (Some(pins), Err(_)) => pins.abandon(chain.maps()),
        _ => {}
    }
    attached
}

fn swap(
    chain: &KernelChain,
    (interface, ifindex): (&str, u32),
    pin: &LinkPin,
    instead: Instead,
) -> Result<Attached> {
    let new = chain.program();
    let (program, _) = new.id_and_maps().map_err(kernel("look at the chain's program"))?;
    let mode = match instead {
        Instead::Any(mode) => mode,
        Instead::Program(_) => XdpMode::Any,
    };
    for _ in 0..TRIES {
        let attached = current(pin, ifindex)?;
        if let Instead::Program(expected) = instead
            && attached.as_ref().is_none_or(|(_, info)| info.program != expected)
        {
            break;
        }
        let Some((link, info)) = attached else {
            let link = Link::xdp(new, ifindex, mode).map_err(|e| refused(interface, mode, e))?;
            pin.pin(&link)?;
            return Ok(Attached { program, replaced: None });
        };
        let old = Program::open(info.program).map_err(kernel("open the chain's program"))?;
        if let Some(told) = Told::by(&old)? {
            told.carry_to(new, chain.graph())?;
        }
        match link.update(new, Some(&old)) {
            Ok(()) => return Ok(Attached { program, replaced: Some(info.program) }),
            // Another program came, or the interface went.
            Err(e) if matches!(e.errno(), errno::EPERM | errno::ENOLINK) => {}
            Err(e) => return Err(refused(interface, mode, e)),
        }
    }
    Err(Error::Race { interface: interface.to_owned() })
}

/// Opens the link of an interface; removes the pin of one that is not attached any more.
fn current(pin: &LinkPin, ifindex: u32) -> Result<Option<(Link, LinkInfo)>> {
    let Some(link) = pin.link()? else { return Ok(None) };
    let info = link.info().map_err(kernel("look at the chain's link"))?;
    match info.filter(|i| i.ifindex == ifindex) {
        Some(info) => Ok(Some((link, info))),
        None => pin.remove().map(|()| None),
    }
}

/// Says why an interface does not take a program.
fn refused(interface: &str, mode: XdpMode, error: skep_kernel::Error) -> Error {
    let interface = interface.to_owned();
    match error.errno() {
        errno::EBUSY | errno::EEXIST => {
            let held = index_of(&interface).and_then(|n| holder::programs(Some(n)).ok());
            let held = held.unwrap_or_default();
            let all = held.iter().map(|h| format!("program {} ({})", h.program, h.mode));
            let by = match held.is_empty() {
                true => "an XDP program".to_owned(),
                false => all.collect::<Vec<_>>().join(", "),
            };
            Error::Busy { interface, by: format!("{by}, which skep did not attach") }
        }
        errno::ENODEV => Error::NoInterface { interface },
        errno::EINVAL if index_of(&interface).is_none() => Error::NoInterface { interface },
        errno::EOPNOTSUPP | errno::EINVAL if mode != XdpMode::Generic => Error::Kernel {
            what: format!("attach to `{interface}` in this mode (`--mode generic` always works)"),
            source: error,
        },
        _ => Error::Kernel { what: format!("attach to `{interface}`"), source: error },
    }
}

/// Detaches the chain of an interface.
///
/// # Errors
/// When there is none, or its pin cannot be removed.
pub fn detach(interface: &str, bpf_fs: &Path) -> Result<()> {
    let ifindex = index(interface)?;
    let pin = LinkPin::lock(bpf_fs, ifindex)?;
    let none = || Error::NotAttached { interface: interface.to_owned() };
    let (link, _) = current(&pin, ifindex)?.ok_or_else(none)?;
    pin.remove()?;
    // Somebody else may have the link open, or have pinned it too.
    link.detach().map_err(kernel("detach the chain"))
}

/// An XDP program that runs on an interface.
#[derive(Debug)]
#[non_exhaustive]
pub struct OnInterface {
    /// The interface's name.
    pub interface: String,
    /// `native`, `generic` or `offload`.
    pub mode: &'static str,
    /// The program's id.
    pub program: u32,
    /// The program's name; empty without one.
    pub name: String,
    /// The chain that it is; `None` of what others attached.
    pub chain: Option<Graph>,
}

/// Finds the XDP programs of all interfaces of the thread's network namespace, whoever attached them.
///
/// # Errors
/// When the kernel does not tell of interfaces or programs.
pub fn list() -> Result<Vec<OnInterface>> {
    let held = holder::programs(None)
        .map_err(|e| Error::File { what: format!("cannot ask for interfaces: {e}") })?;
    let mut all = Vec::new();
    for holder::Held { interface, mode, program: id } in held {
        let program = match Program::open(id) {
            Ok(program) => program,
            // It went meanwhile.
            Err(e) if e.is_not_found() => continue,
            Err(e) => return Err(kernel(&format!("open program {id} on `{interface}`"))(e)),
        };
        let name = program.name().map_err(kernel("look at a program"))?;
        let chain = Told::by(&program)?.map(|told| told.graph);
        all.push(OnInterface { interface, mode, program: id, name, chain });
    }
    Ok(all)
}

/// Reads the graph of the chain that is attached to an interface, and what was counted since the
/// first chain was attached there: a program goes on with its counts in the chain that takes the place
/// of another one.
///
/// # Errors
/// When there is no chain, or it cannot be read.
pub fn show(interface: &str, bpf_fs: &Path) -> Result<(Graph, Stats)> {
    let ifindex = index(interface)?;
    let none = || Error::NotAttached { interface: interface.to_owned() };
    let link = LinkPin::open(&LinkPin::path(bpf_fs, ifindex)?)?.ok_or_else(none)?;
    let info = link.info().map_err(kernel("look at the chain's link"))?;
    let info = info.filter(|i| i.ifindex == ifindex).ok_or_else(none)?;
    let program = Program::open(info.program).map_err(kernel("open the chain's program"))?;
    let none = || Error::Description { interface: interface.to_owned() };
    let told = Told::by(&program)?.ok_or_else(none)?;
    let stats = told.stats()?;
    Ok((told.graph, stats))
}
