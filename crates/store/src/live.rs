//! What `skep` says to the agent that it has put into a running process, and what that answers.
//!
//! The agent's library exports what the symbols below name. Its thread begins when [`Config`] is
//! written. It makes a pair of sockets, and says in [`PAIR`] which is for `skep`, who fetches it and
//! sends the agent's end of a socket of its own through it, the skep directory, and its `/proc`. So whatever is open in
//! the process was opened by that thread, which closes it again, at whatever time `skep` is killed. Where it
//! can, it has a table of its own for that, so the program's descriptors stay as they are.
//!
//! The agent reads an [`Order`] at a time from that socket, of whole messages; each is answered by
//! one [`Answer`]. The first answer comes without an order, when the agent is ready. Before it answers
//! an order it may make a [`Request`] again and again: only `skep` can stop threads that block all
//! signals. When the socket ends, the agent takes all links off and ends its thread by itself.

use std::ffi::CStr;
use std::time::Duration;

/// The name of the agent's thread, ended by 0.
pub const THREAD: &CStr = c"skep-agent";
/// The agent's [`Config`].
pub const CONFIG: &str = "skep_alone_config";
/// A word of 32 bits: one more than the number of the descriptor that `skep` fetches from the process;
/// 0: not yet; less: the error number why there is none, negated.
pub const PAIR: &str = "skep_alone_pair";
/// How long the agent's thread waits for what comes through that socket.
pub const PAIR_PATIENCE: Duration = Duration::from_secs(2);
/// The function that its thread begins with.
pub const START: &str = "skep_alone_start";
/// The area whose end all threads get for their GS base; and the bytes that it has up to there.
pub const AREA: &str = "skep_alone_area";
/// See [`AREA`].
pub const AREA_END: u64 = 960;
/// The area that threads under a seccomp filter get instead: `skep` writes, from its end on, its address,
/// [`AREA_MARK`], and a word that is not 0. They make no system calls of ours, and go without hooks.
pub const FILTERED: &str = "skep_alone_filtered";
/// The address of a list of [`Edit`]s: the places where a jump stays that leads to the function itself,
/// as [`Order::Unhook`] found them, and what was there before.
pub const LEFT: &str = "skep_alone_left";

/// Five bytes of code that are written while all threads stand. In memory it is three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where.
    pub at: u64,
    /// What is there, unless somebody else has changed it.
    pub old: [u8; 5],
    /// What shall be there.
    pub new: [u8; 5],
}

impl Edit {
    /// Bytes of one.
    pub const LEN: usize = 24;

    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.at.to_le_bytes());
        out[8..13].copy_from_slice(&self.old);
        out[16..21].copy_from_slice(&self.new);
        out
    }

    /// The other way.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let [at @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let five = |from: usize| std::array::from_fn(|n| bytes[from + n]);
        Self { at: u64::from_le_bytes(at), old: five(8), new: five(16) }
    }
}

/// The function of a thread that takes out what hooks a killed `skep` has left, looks whether calls of
/// the program are still inside of any, and ends: [`Resting`]. It needs none of the files of the agent's
/// thread. A `skep` of another version calls it before it puts its own agent beside this one, so it
/// and what it writes mean the same in all versions.
pub const REST: &str = "skep_alone_rest";
/// What it writes.
pub const RESTING: &str = "skep_alone_resting";
/// What follows the base of a thread's area, in all versions.
pub const AREA_MARK: u64 = u64::from_le_bytes(*b"SKEPAREA");

/// What an agent says of itself that is to make room for another version's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resting {
    /// Who is still inside of its hooks.
    pub inside: StillInside,
    /// [`Edit`]s: the places where a jump stays, and what was there before.
    pub left: List,
    /// The signals that it has handlers on.
    pub actions: Vec<Action>,
}

/// A signal that an agent has a handler on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its number.
    pub signal: u64,
    /// The address of the agent's handler.
    pub own: u64,
    /// The program's action as the kernel has it: handler, flags, restorer, mask.
    pub program: [u64; 4],
}

impl Resting {
    /// Most signals.
    pub const ACTIONS: usize = 4;
    /// Words of it in memory: one more than [`StillInside`], 0 before that is known; the list's address
    /// and length; six for each signal, whose number is 0 where there is none.
    pub const WORDS: usize = 3 + Self::ACTIONS * 6;

    /// Reads it; `None` when the agent has not said it.
    #[must_use]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Option<Self> {
        let [state, at, count, actions @ ..] = words;
        let inside = match state.checked_sub(1)? {
            0 => StillInside::Nobody,
            1 => StillInside::Threads,
            _ => StillInside::Unknown,
        };
        let actions = actions.as_chunks::<6>().0.iter().filter(|action| action[0] != 0);
        let actions =
            actions.map(|&[signal, own, a, b, c, d]| Action { signal, own, program: [a, b, c, d] });
        let count = u32::try_from(*count).ok()?;
        Some(Self { inside, left: List { at: *at, count }, actions: actions.collect() })
    }
}

/// A word of 32 bits: not 0 while the agent's thread does more than waiting. A child of `fork` has the
/// agent's memory as it was then, with the locks that it held.
pub const BUSY: &str = "skep_alone_busy";

/// In front of the name of each function that it has instead of the C library's.
pub const IMPORT: &str = "skep_alone_libc_";
/// The only function of the unwinder (`_Unwind_…`) that it has: a panic asks for it first, and is
/// told that there is nobody. The others have the place of `abort`.
pub const RAISE: &str = "_Unwind_RaiseException";
/// Of all this.
pub const VERSION: u32 = 7;

/// What the agent's thread needs to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the program's runtime keeps a thread's id, from its thread pointer.
    pub tid_at: i32,
    /// Whether `skep` can fetch files of a thread that has a descriptor table of its own: the agent's
    /// shall have one then.
    pub own_table: bool,
}

impl Config {
    /// Words of a configuration in memory: [`VERSION`], and this.
    pub const WORDS: usize = 3;

    /// As it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::WORDS * 4] {
        let mut out = [0; Self::WORDS * 4];
        let words = [VERSION as i32, self.tid_at, self.own_table.into()];
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// The other way; `None` for one of another version.
    #[must_use]
    pub fn from_words(words: [u32; Self::WORDS]) -> Option<Self> {
        let [version, tid_at, own_table] = words.map(|word| word as i32);
        (version == VERSION as i32).then_some(Self { tid_at, own_table: own_table != 0 })
    }
}

/// The number that answers [`Order::Leave`]: who is still inside of hooks that were taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum StillInside {
    /// Nobody.
    Nobody,
    /// Threads of the process.
    Threads,
    /// Nobody knows: the agent cannot look any more.
    Unknown,
}

/// Something for the agent to do. It is given no other before it has answered: while it is at work it takes
/// what comes for what it has asked for, a [`Stopped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Attach a link. The answer's number is how many functions it has.
    Attach {
        /// Which.
        link: u32,
        /// Bytes of memory that may be taken for it.
        memory: u64,
    },
    /// Detach it. The number is 1 when threads are still inside its hooks.
    Detach(u32),
    /// Take all hooks out. The number is how many places keep a jump, as [`LEFT`] says.
    Unhook,
    /// End. The number is of [`StillInside`].
    Leave,
}

impl Order {
    /// Bytes of an order.
    pub const LEN: usize = 16;

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let (kind, link, memory) = match self {
            Self::Attach { link, memory } => (1_u32, link, memory),
            Self::Detach(link) => (2, link, 0),
            Self::Unhook => (3, 0, 0),
            Self::Leave => (4, 0, 0),
        };
        (u128::from(kind) | u128::from(link) << 32 | u128::from(memory) << 64).to_le_bytes()
    }

    /// The other way; `None` for what is no order.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = u128::from_le_bytes(bytes.try_into().ok()?);
        let link = (word >> 32) as u32;
        match word as u32 {
            1 => Some(Self::Attach { link, memory: (word >> 64) as u64 }),
            2 => Some(Self::Detach(link)),
            3 => Some(Self::Unhook),
            4 => Some(Self::Leave),
            _ => None,
        }
    }
}

/// What the agent asks of `skep` while it carries out an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop all threads but the agent's: answered by [`Stopped`].
    Stop {
        /// Pairs of addresses, sorted: a thread that would go on at the first of one goes on at the
        /// second.
        moves: List,
        /// Words for the threads' stack pointers.
        stacks: List,
    },
    /// Write these [`Edit`]s while they stand: answered by [`Stopped`].
    Write(List),
    /// Let them go on. There is no answer.
    GoOn,
}

/// A list in the agent's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Address of the first.
    pub at: u64,
    /// How many there are, or have room.
    pub count: u32,
}

impl Request {
    /// Bytes of a request.
    pub const LEN: usize = 25;

    /// As it is sent: the first byte is that of no answer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        const NONE: List = List { at: 0, count: 0 };
        let (kind, lists) = match self {
            Self::Stop { moves, stacks } => (2, [moves, stacks]),
            Self::Write(edits) => (3, [edits, NONE]),
            Self::GoOn => (4, [NONE, NONE]),
        };
        let mut out = [0; Self::LEN];
        out[0] = kind;
        for (bytes, list) in out[1..].chunks_exact_mut(12).zip(lists) {
            bytes[..8].copy_from_slice(&list.at.to_le_bytes());
            bytes[8..].copy_from_slice(&list.count.to_le_bytes());
        }
        out
    }

    /// Where in the asker's memory the answer is for: other threads of the program may ask, too.
    #[must_use]
    pub fn place(self) -> u64 {
        match self {
            Self::Stop { stacks: list, .. } | Self::Write(list) => list.at,
            Self::GoOn => 0,
        }
    }

    /// The other way; `None` for what is no request.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let list = |from: usize| List {
            at: u64::from_le_bytes(std::array::from_fn(|n| bytes[from + n])),
            count: u32::from_le_bytes(std::array::from_fn(|n| bytes[from + 8 + n])),
        };
        match bytes[0] {
            2 => Some(Self::Stop { moves: list(1), stacks: list(13) }),
            3 => Some(Self::Write(list(1))),
            4 => Some(Self::GoOn),
            _ => None,
        }
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// How many threads stand; `None`: they all run.
    pub threads: Option<u32>,
    /// [`Request::place`] of the request.
    pub of: u64,
}

impl Stopped {
    /// Bytes of it.
    pub const LEN: usize = 13;

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = self.threads.is_some().into();
        out[1..5].copy_from_slice(&self.threads.unwrap_or(0).to_le_bytes());
        out[5..].copy_from_slice(&self.of.to_le_bytes());
        out
    }

    /// The other way; `None` for what is no such answer.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let threads = u32::from_le_bytes(std::array::from_fn(|n| bytes[1 + n]));
        let of = u64::from_le_bytes(std::array::from_fn(|n| bytes[5 + n]));
        Some(Self { threads: (bytes[0] == 1).then_some(threads), of })
    }
}

/// What came of an order: a number, or why it could not be done.
pub type Answer = Result<u32, String>;

/// The number of an answer that nobody has asked for, the last one: the process has put all its threads
/// into a sandbox, and the agent was taken out before, with all hooks.
pub const HAS_LEFT: u32 = u32::MAX;

/// An answer is no longer than that.
pub const ANSWER: usize = 1024;

/// An answer as it is sent: whether all is well, the number, the reason.
#[must_use]
pub fn answer_to_bytes(answer: &Answer) -> Vec<u8> {
    let (number, text) = match answer {
        Ok(number) => (*number, ""),
        Err(why) => (0, why.as_str()),
    };
    let mut out = Vec::from([u8::from(answer.is_ok())]);
    out.extend(number.to_le_bytes());
    out.extend(text.bytes().take(ANSWER - out.len()));
    out
}

/// The other way; `None` for what is no answer.
#[must_use]
pub fn answer_from_bytes(bytes: &[u8]) -> Option<Answer> {
    let (head, text) = bytes.split_at_checked(5)?;
    let [good, number @ ..] = *head.first_chunk::<5>()?;
    Some(match good {
        0 => Err(String::from_utf8_lossy(text).into_owned()),
        _ => Ok(u32::from_le_bytes(number)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read() {
        for order in [
            Order::Attach { link: 7, memory: 1 << 40 },
            Order::Detach(u32::MAX),
            Order::Unhook,
            Order::Leave,
        ] {
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        let mut unknown = Order::Unhook.to_bytes();
        unknown[0] = 9;
        for bytes in [&[][..], &[1; 7], &[1; 17], &unknown] {
            assert_eq!(Order::from_bytes(bytes), None);
        }
        let (moves, stacks) =
            (List { at: 1 << 40 | 3, count: 5 }, List { at: u64::MAX - 7, count: u32::MAX });
        for request in [Request::Stop { moves, stacks }, Request::Write(moves), Request::GoOn] {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
            assert_eq!(Request::from_bytes(&request.to_bytes()[1..]), None);
        }
        for threads in [None, Some(0), Some(70_000)] {
            let stopped = Stopped { threads, of: u64::MAX - 1 };
            assert_eq!(Stopped::from_bytes(&stopped.to_bytes()), Some(stopped));
        }
        assert_eq!(Stopped::from_bytes(&[]), None);
        let long = "ä".repeat(ANSWER);
        for answer in [Ok(0), Ok(50_000), Err("no memory".to_owned())] {
            assert_eq!(Request::from_bytes(&answer_to_bytes(&answer)), None);
            assert_eq!(answer_from_bytes(&answer_to_bytes(&answer)), Some(answer));
        }
        let bytes = answer_to_bytes(&Err(long));
        assert_eq!(bytes.len(), ANSWER);
        assert!(answer_from_bytes(&bytes).is_some_and(|answer| answer.is_err()));
        assert_eq!(answer_from_bytes(&[1, 2]), None);
        let mut words = [0; Resting::WORDS];
        assert_eq!(Resting::from_words(&words), None);
        words[..9].copy_from_slice(&[2, 1 << 40, 3, 11, 4, 5, 6, 7, 8]);
        let action = Action { signal: 11, own: 4, program: [5, 6, 7, 8] };
        let left = List { at: 1 << 40, count: 3 };
        let resting = Resting { inside: StillInside::Threads, left, actions: vec![action] };
        assert_eq!(Resting::from_words(&words), Some(resting));
        let edit = Edit { at: 1 << 40 | 7, old: [1, 2, 3, 4, 5], new: [6, 7, 8, 9, 10] };
        assert_eq!(Edit::from_bytes(&edit.to_bytes()), edit);
        let config = Config { tid_at: -40, own_table: true };
        let words: Vec<u32> = config
            .to_bytes()
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect();
        let mut words: [u32; Config::WORDS] = words.try_into().expect("all words");
        assert_eq!(Config::from_words(words), Some(config));
        words[0] += 1;
        assert_eq!(Config::from_words(words), None);
    }
}
