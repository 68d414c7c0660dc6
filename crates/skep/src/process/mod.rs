//! The agent in processes that run already: put there, told what to attach, and taken away.
//!
//! What happens in the process is in `skep_inject` (the library and its thread, without the
//! process's own loader) and in the agent (`alone`); they speak as `skep::live` says. A process that
//! was attached to before has the library still, and no thread of ours: its thread begins anew. A mark
//! in memory tells where it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::cgroup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use skep_inject::{Image, Loaded, Target};
use skep_store::Dir;
use skep_store::live::{self, Answer, Config, List, Order, Request, StillInside, Stopped};

mod attached;
mod error;
mod follow;
mod hold;
mod mark;
mod others;
mod pair;
mod remedy;
mod stopper;
mod turn;

use mark::Mark;
use stopper::{Follower, Once, Stopper};
use turn::Turn;

pub use attached::Attached;
pub use error::ProcessError;
pub use follow::{Followed, follow, follow_child};
pub use skep_inject::{Error as StopError, ImageError, NoTerminalStops, Refusal};

type Result<T = (), E = ProcessError> = std::result::Result<T, E>;
type Injected<T> = std::result::Result<T, skep_inject::Error>;

/// How long the agent may take for an order. Compiling and hooking a million functions takes
/// seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long it may take to take hooks out. It goes on with that alone.
const LEAVING_PATIENCE: Duration = Duration::from_secs(10);

/// What is said where nobody wants to wait any longer.
const NOT_NOW: &str = "its agent has not answered yet";
/// And where another `skep` was waited for.
const NOT_YET: &str = "another skep is attached to it still";

/// The agent reads what it is sent before it says any more, so there is room.
const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// How often a process that does not answer is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How long another `skep` may take to leave, or the agent of a killed one.
const LEAVING: Duration = Duration::from_secs(5);

/// A process with our agent, until it is dropped or told to [leave](Self::leave).
#[derive(Debug)]
pub struct Live {
    pid: u32,
    /// Readable when the process has ended.
    process: OwnedFd,
    socket: OwnedFd,
    inside: Inside,
    /// Until this is dropped no other `skep` enters.
    turn: Option<Turn>,
    /// The agent is at work for an order that it has not answered.
    owes: AtomicBool,
}

/// The agent's library, ready to be put into processes.
#[derive(Debug)]
pub struct Agent {
    image: Image,
    hash: u64,
}

impl Agent {
    /// Reads the library.
    ///
    /// # Errors
    /// When it cannot be read, or is no such library.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)
            .map_err(|source| ProcessError::Read { path: path.to_owned(), source })?;
        // FNV-1a: two versions of a library differ.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let image = Image::parse(bytes)
            .map_err(|source| ProcessError::Library { path: path.to_owned(), source })?;
        let agent = Self { image, hash };
        agent.symbol(live::START).map(|_| agent)
    }

    fn symbol(&self, name: &'static str) -> Result<u64> {
        self.image.symbol(name).ok_or(ProcessError::Symbol { name })
    }

    /// Puts the agent into a process, and starts it there.
    ///
    /// # Errors
    /// When the process is not there, may not be changed, or has no place for the agent. It goes on as
    /// before then.
    pub fn enter(&self, pid: u32, dir: &Dir) -> Result<Live> {
        self.enter_in_turn(&mut Once::patient(), pid, dir)
    }

    /// As [`enter`](Self::enter), but gives up when `is_over` says so, which is asked now and then.
    ///
    /// # Errors
    /// As for [`enter`](Self::enter).
    pub fn enter_until(&self, is_over: &dyn Fn() -> bool, pid: u32, dir: &Dir) -> Result<Live> {
        self.enter_in_turn(&mut Once(is_over), pid, dir)
    }

    fn enter_in_turn(&self, by: &mut dyn Stopper, pid: u32, dir: &Dir) -> Result<Live> {
        let turn = self.turn(by, pid)?;
        self.enter_by(by, pid, dir, turn)
    }

    /// Waits until no other `skep` is attached to a process, for a while.
    fn turn(&self, by: &mut dyn Stopper, pid: u32) -> Result<Turn> {
        Turn::take(by, pid, Instant::now() + LEAVING).ok_or_else(|| match by.is_over() {
            true => ProcessError::Begin { pid, why: NOT_YET.into() },
            false => self.busy(pid),
        })
    }

    /// Who is attached to a process.
    fn busy(&self, pid: u32) -> ProcessError {
        let marks = Mark::all(pid, &self.image);
        let has_thread = |mark: &&Mark| mark.tid().is_some_and(|tid| is_agent(pid, tid));
        let who = marks.iter().find(has_thread).map(Mark::named).unwrap_or_default();
        ProcessError::Busy { pid, who }
    }

    fn enter_by(&self, by: &mut dyn Stopper, pid: u32, dir: &Dir, turn: Turn) -> Result<Live> {
        let os = |call| {
            move |errno: rustix::io::Errno| ProcessError::Os { pid, call, source: errno.into() }
        };
        let id =
            i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(ProcessError::NoId { pid })?;
        let process = pidfd_open(id, PidfdFlags::empty()).map_err(|errno| match errno {
            rustix::io::Errno::SRCH => {
                ProcessError::Stop { pid, source: StopError::NoProcess { pid } }
            }
            // The id of a thread, say.
            errno => match skep_inject::check(pid) {
                Err(source) => ProcessError::Stop { pid, source },
                Ok(()) => os("pidfd_open")(errno),
            },
        })?;
        let (socket, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(os("socketpair"))?;
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map_err(os("open"))
        };
        let (directory, proc) = (open(dir.path())?, open(Path::new("/proc"))?);
        check(by, pid)?;
        let pair = self.symbol(live::PAIR)?;
        let end = Instant::now() + LEAVING;
        let entered = loop {
            let mut marks = Mark::all(pid, &self.image);
            let works = |mark: &Mark| mark.tid().is_some_and(|tid| is_agent(pid, tid));
            if marks.iter().any(works) && Instant::now() < end && !by.is_over() {
                by.pause(LOOK_FOR_END);
                continue;
            }
            let mut others =
                marks.extract_if(.., |mark| mark.hash != self.hash).collect::<Vec<_>>();
            let known = marks.pop();
            let entered = self.make_room(by, pid, &mut others).and_then(|()| {
                stopper::stop(by, pid, |target| -> std::result::Result<Inside, Entry> {
                    // First: a thread of an agent's has no id where the program's runtime keeps it.
                    for mark in known.iter().chain(&others) {
                        if mark.again(pid, &self.image).as_ref() != Some(mark) {
                            return Err(Entry::Changed);
                        }
                        target.check_free(&mark.loaded)?;
                    }
                    let is_new = |mark: &Mark| known.iter().chain(&others).all(|old| old != mark);
                    let is_alone =
                        turn.is_kept() || !Mark::all(pid, &self.image).iter().any(is_new);
                    if !is_alone {
                        return Err(Entry::Changed);
                    }
                    self.begin(target, known.as_ref(), &others)
                })?
            });
            match entered {
                // Who sees no lock of ours came between, or was killed before it could write down the thread's id.
                Err(Entry::Changed | Entry::Failed(StopError::InUse { .. }))
                    if Instant::now() < end =>
                {
                    by.pause(LOOK_FOR_END);
                }
                Err(Entry::Failed(error))
                    if others::is_traced_by_another(&error) && Instant::now() < end =>
                {
                    by.pause(LOOK_FOR_END);
                }
                // The first thread of an agent that was not there before.
                Err(Entry::NoRuntime)
                    if Instant::now() < end
                        && Mark::all(pid, &self.image).len()
                            > others.len() + usize::from(known.is_some()) =>
                {
                    by.pause(LOOK_FOR_END);
                }
                entered => break entered,
            }
        };
        let inside = match entered {
            Ok(inside) => inside,
            Err(Entry::Changed | Entry::Failed(StopError::InUse { .. })) => {
                return Err(self.busy(pid));
            }
            Err(Entry::Failed(source)) => return Err(ProcessError::Stop { pid, source }),
            Err(Entry::Other(error)) => return Err(error),
            Err(Entry::NoRuntime) => return Err(ProcessError::NoRuntime { pid }),
        };
        // It says by itself that it has begun.
        let owes = AtomicBool::new(true);
        let live = Live { pid, process, socket, inside, turn: Some(turn), owes };
        live.hand_over(by, pair, [theirs, directory, proc])
            .and_then(|()| live.answer(by, Instant::now() + PATIENCE)?)
            .map_err(|why| ProcessError::Begin { pid, why })?;
        Ok(live)
    }

    /// Has the agents of other versions rest that had the process.
    fn make_room(
        &self,
        by: &mut dyn Stopper,
        pid: u32,
        others: &mut [Mark],
    ) -> std::result::Result<(), Entry> {
        if others.len() > others::MOST {
            return Err(ProcessError::OtherVersions { pid, count: others.len() }.into());
        }
        // Half of a library has no thread.
        for other in others.iter_mut().filter(|other| other.is_whole && !other.is_retired) {
            others::rest(by, pid, other)?;
            *other = other.again(pid, &self.image).ok_or(Entry::Changed)?;
        }
        Ok(())
    }

    /// Puts the agent into a process that stands, and begins its thread. `known`: what is there of it;
    /// `others`: those of other versions, which rest.
    fn begin(
        &self,
        target: &mut Target,
        known: Option<&Mark>,
        others: &[Mark],
    ) -> std::result::Result<Inside, Entry> {
        let symbol = |name| self.symbol(name).map_err(Entry::Other);
        let (start, config) = (symbol(live::START)?, symbol(live::CONFIG)?);
        let (area, pair) = (symbol(live::AREA)? + live::AREA_END, symbol(live::PAIR)?);
        let filtered = symbol(live::FILTERED)? + live::AREA_END;
        let Some(tid_at) = target.place_of_thread_ids()? else {
            return Err(Entry::NoRuntime);
        };
        let others_halves = others.iter().filter(|other| other.ends.is_some());
        for half in known.into_iter().chain(others_halves).filter(|mark| !mark.is_whole) {
            target.unload(&half.loaded)?;
        }
        let known = known.filter(|known| known.is_whole);
        let had = || others.iter().filter(|other| other.is_whole && !other.is_retired);
        had().try_for_each(|other| others::take_over(target, other))?;
        let loaded = match known {
            Some(known) => known.loaded,
            None => self.load(target)?,
        };
        let at = loaded.start;
        let begun = (|| -> Injected<u32> {
            if had().next().is_some() || known.is_some_and(|known| known.is_retired) {
                target.replace_gs_bases(at + area, others::is_area)?;
            } else {
                target.set_gs_bases(at + area, known.is_some())?;
            }
            let end = [at + filtered, live::AREA_MARK, 1].map(u64::to_le_bytes);
            target.write(at + filtered, end.as_flattened())?;
            target.set_apart_filtered(at + area, at + filtered)?;
            Mark::set_retired(target, &loaded, false)?;
            had().try_for_each(|other| Mark::set_retired(target, &other.loaded, true))?;
            let own_table = pair::sees_tables_of_threads()
                && target.filters_pass(
                    skep_runtime::lets_own_table,
                    skep_runtime::own_filters_let_own_table,
                );
            target.write(at + config, &Config { tid_at, own_table }.to_bytes())?;
            target.write(at + pair, &[0; 4])?;
            let tid = target.start_thread(&loaded, at + start, 0)?;
            Mark::set_tid(target, &loaded, tid)?;
            Ok(tid)
        })();
        begun.map(|tid| Inside { loaded, tid }).map_err(|error| {
            // What was not begun leaves nothing, as far as the process lets us.
            if known.is_none() {
                [area, filtered]
                    .iter()
                    .for_each(|end| target.clear_gs_bases(at + end).unwrap_or(()));
                target.unload(&loaded).ok();
            }
            error.into()
        })
    }

    /// Loads the library.
    fn load(&self, target: &mut Target) -> Injected<Loaded> {
        let import = |name: &str| {
            let is_never_called = name.starts_with("_Unwind_") && name != live::RAISE;
            let name = if is_never_called { "abort" } else { name };
            self.image.symbol(&format!("{}{name}", live::IMPORT))
        };
        let loaded =
            target.load(&self.image, None, &Mark::bytes(&self.image, self.hash), import)?;
        match Mark::complete(target, &loaded) {
            Ok(()) => Ok(loaded),
            Err(error) => {
                target.unload(&loaded).ok();
                Err(error)
            }
        }
    }
}

/// The library in a process, and the agent's thread.
#[derive(Clone, Copy, Debug)]
struct Inside {
    loaded: Loaded,
    tid: u32,
}

/// Memory that the agent takes for some thousand functions, in bytes.
const MEMORY: u64 = 16 << 20;

/// How often a thread is looked at that is about to end.
const LOOK_FOR_END: Duration = Duration::from_millis(5);

/// Tells whether a thread is the agent's, of this `skep` or another.
fn is_agent(pid: u32, tid: u32) -> bool {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm"));
    name.is_ok_and(|name| name.strip_suffix(b"\n") == Some(live::THREAD.to_bytes()))
}

/// Refuses what would fail later in the process, or never end.
fn check(by: &dyn Stopper, pid: u32) -> Result {
    if by.is_stopped(pid) {
        return Err(ProcessError::Stopped { pid });
    }
    if let Some(group) = cgroup::tightest(pid).filter(|group| group.left < MEMORY) {
        return Err(ProcessError::Memory { pid, left: group.left, limit: group.limit });
    }
    let own = rustix::process::geteuid().as_raw();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    match ids.and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse::<u32>().ok()) {
        // Others than root may not even stop it, which is said there.
        Some(user) if user != own && own == 0 => Err(ProcessError::User { pid, user }),
        _ => Ok(()),
    }
}

/// Tells whether a process was stopped by a signal.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Why the agent could not be put into a process.
enum Entry {
    NoRuntime,
    /// Another `skep` came between.
    Changed,
    Other(ProcessError),
    Failed(skep_inject::Error),
}

impl From<skep_inject::Error> for Entry {
    fn from(error: skep_inject::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ProcessError> for Entry {
    fn from(error: ProcessError) -> Self {
        Self::Other(error)
    }
}

impl Live {
    /// Lets others have their turn: for one whose tracer keeps them away.
    fn give_turn(&mut self) {
        drop(self.turn.take());
    }

    /// The id of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What is readable when the process has ended, or its agent: a descriptor of the process, and one
    /// that the agent answers on.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.process.as_fd(), self.socket.as_fd()]
    }

    /// The order to attach a link, with the memory that the process may still take.
    #[must_use]
    pub fn to_attach(&self, link: u32) -> Order {
        let memory = cgroup::memory_left(self.pid).unwrap_or(u64::MAX);
        Order::Attach { link, memory }
    }

    /// Gives an order, and waits for what comes of it.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn order(&self, order: Order) -> Answer {
        self.order_by(&mut Once::patient(), order)
    }

    /// As [`order`](Self::order), but does not wait any longer when `is_over` says so, which is asked now
    /// and then. The agent goes on with it.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn order_until(&self, is_over: &dyn Fn() -> bool, order: Order) -> Answer {
        self.order_by(&mut Once(is_over), order)
    }

    fn order_by(&self, by: &mut dyn Stopper, order: Order) -> Answer {
        let patience = match order {
            Order::Attach { .. } | Order::Detach(_) => PATIENCE,
            Order::Unhook | Order::Leave => LEAVING_PATIENCE,
        };
        let end = Instant::now() + patience;
        // One order at a time: an agent at work reads only what answers its requests. Who does not want to
        // wait so long hangs up, and the agent then leaves by itself.
        if self.owes.load(Relaxed) && self.answer(by, end)? == HAS_LEFT {
            return HAS_LEFT;
        }
        match rustix::net::send(&self.socket, &order.to_bytes(), SEND) {
            Ok(_) => {
                self.owes.store(true, Relaxed);
                self.answer(by, end)?
            }
            Err(_) => self.last_answer(),
        }
    }

    /// Does what the agent asks for until it answers; fails when that is not waited for any longer.
    fn answer(&self, by: &mut dyn Stopper, end: Instant) -> std::result::Result<Answer, String> {
        let mut bytes = [0; live::ANSWER];
        loop {
            let message = self.receive(by, &mut bytes, end)?;
            match Request::from_bytes(message) {
                Some(Request::Stop { moves, stacks }) => self.hold(by, moves, stacks),
                // The threads go on already, as it took too long: nothing is written.
                Some(Request::Write(edits)) => self.tell(Stopped { threads: None, of: edits.at }),
                Some(Request::GoOn) => {}
                None => {
                    self.owes.store(false, Relaxed);
                    return Ok(read_answer(message));
                }
            }
            // One that says something all the time has not answered either. It may be stopped for a moment.
            self.check_patience(by, end)?;
        }
    }

    /// What an agent that is gone has said before.
    fn last_answer(&self) -> Answer {
        let mut bytes = [0; live::ANSWER];
        // The first may only tell that it has not read everything.
        for _ in 0..2 {
            let got = rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT);
            if let Ok((len @ 1.., _)) = got
                && Request::from_bytes(&bytes[..len]).is_none()
            {
                return read_answer(&bytes[..len]);
            }
        }
        Err(self.gone())
    }

    /// Waits for a message of the agent.
    fn receive<'a>(
        &self,
        by: &mut dyn Stopper,
        bytes: &'a mut [u8; live::ANSWER],
        end: Instant,
    ) -> Result<&'a [u8], String> {
        while !by.wait_for(&self.socket, LOOK)? {
            self.check_running(by, end)?;
        }
        for _ in 0..2 {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((len @ 1.., _)) => return Ok(&bytes[..len]),
                // It has not read everything: what it said before comes next.
                Err(rustix::io::Errno::CONNRESET) => {}
                _ => break,
            }
        }
        Err(self.gone())
    }

    /// Why there is no agent any more.
    fn gone(&self) -> String {
        // Its agent may be gone a moment before.
        let end = Instant::now() + LOOK;
        loop {
            if self.has_ended() {
                return "it has ended".into();
            } else if self.executes_another() {
                return "it executes another program".into();
            } else if Instant::now() > end {
                return "its agent has ended".into();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells whether the memory that the agent was in is gone.
    fn executes_another(&self) -> bool {
        Mark::is_gone(self.pid, &self.inside.loaded)
    }

    /// Tells whether the agent is gone, with the process or without. Nobody waits for an answer.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.has_ended() || is_readable(&self.socket, Duration::ZERO).unwrap_or(true)
    }

    /// Tells whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        is_readable(&self.process, Duration::ZERO).unwrap_or(true)
    }

    /// Has the agent take all hooks out and end. Tells what went wrong.
    #[must_use = "threads may still be inside hooked functions"]
    pub fn leave(self, agent: &Agent) -> Option<String> {
        self.leave_by(&mut Once::patient(), agent)
    }

    /// As [`leave`](Self::leave), but does not wait any longer when `is_over` says so, which is asked now
    /// and then. The agent goes on with it.
    #[must_use = "threads may still be inside hooked functions"]
    pub fn leave_until(self, is_over: &dyn Fn() -> bool, agent: &Agent) -> Option<String> {
        self.leave_by(&mut Once(is_over), agent)
    }

    fn leave_by(self, by: &mut dyn Stopper, agent: &Agent) -> Option<String> {
        let done = self.order_by(by, Order::Unhook).and_then(|count| {
            if count == live::HAS_LEFT {
                return Ok(0);
            }
            if count > 0 {
                self.restore(by, agent, count)?;
            }
            let left = self.order_by(by, Order::Leave)?;
            self.wait_for_end(by);
            Ok(left)
        });
        match done {
            Ok(live::HAS_LEFT) => None,
            Ok(inside) if inside == StillInside::Nobody as u32 => None,
            Ok(inside) if inside == StillInside::Unknown as u32 => Some("its code is as before, but whether threads are still inside of hooks could not be looked at from inside: no more files may be open, or there is no /proc".into()),
            Ok(_) => Some("threads are still inside hooked functions, and return through code that stays for them".into()),
            Err(_) if self.has_ended() || self.executes_another() => None,
            Err(why) => Some(why),
        }
    }

    /// Waits until the agent's thread is gone, which closes what it had open before.
    fn wait_for_end(&self, by: &mut dyn Stopper) {
        let thread = format!("/proc/{}/task/{}", self.pid, self.inside.tid);
        let end = Instant::now() + LEAVING;
        while Path::new(&thread).exists() && Instant::now() < end && !by.is_over() {
            by.pause(Duration::from_micros(200));
        }
    }

    /// Gives places their bytes back that the agent cannot change while threads run: stops them for
    /// that.
    fn restore(
        &self,
        by: &mut dyn Stopper,
        agent: &Agent,
        count: u32,
    ) -> std::result::Result<(), String> {
        let start = self.inside.loaded.start;
        let left = agent.image.symbol(live::LEFT).ok_or("the library does not say where")? + start;
        let stopped = stopper::stop(by, self.pid, |target| {
            let list = target.read(left, 8)?;
            let at = u64::from_le_bytes(list.try_into().unwrap_or_default());
            hold::write(target, List { at, count })
        });
        stopped.and_then(|done| done).map_err(|e| e.to_string())
    }
}

/// What the agent has answered when it was about to be in a sandbox.
const HAS_LEFT: Answer = Ok(live::HAS_LEFT);

fn read_answer(message: &[u8]) -> Answer {
    let answer = live::answer_from_bytes(message);
    answer
        .map(|answer| answer.map_err(|why| error::named(&why)))
        .unwrap_or_else(|| Err("its agent says what nobody understands".into()))
}

/// Waits until a descriptor can be read from, at most so long; tells whether it can.
fn is_readable(fd: &impl AsFd, time: Duration) -> std::result::Result<bool, String> {
    let time = Timespec::try_from(time).ok();
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], time.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.to_string()),
    }
}
