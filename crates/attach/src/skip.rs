//! Why something was not hooked.

use std::io;
use std::path::PathBuf;

/// Tells why one function was left alone. The others of the same call are not affected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Skip {
    /// There is no room for a 5-byte jump.
    #[error("too short: {room} of 5 bytes before other code begins")]
    TooShort {
        /// Bytes that belong to the function or to padding.
        room: u64,
    },
    /// Other code jumps between the first bytes.
    #[error(
        "jump from {from:#x} of the file to +{offset} of the function, inside the bytes to change"
    )]
    JumpInto {
        /// Address of the jump in the module's file.
        from: u64,
        /// Distance of its target from the function's start.
        offset: u64,
    },
    /// The function loops back to its own first instruction, so every round would look like a call.
    #[error("loops back from {from:#x} of the file to its own first instruction")]
    LoopAtEntry {
        /// Address of the jump in the module's file.
        from: u64,
    },
    /// Functions of its runtime are hooked behind the check of the stack that they begin with, and
    /// it has none.
    #[error("begins without a check of the stack, and may be called at its very end")]
    NoStackCheck,
    /// The bytes at +`offset` are no instruction.
    #[error("no valid instruction at +{offset}")]
    Undecodable {
        /// Distance from the function's start.
        offset: u64,
    },
    /// An instruction at the start cannot run from another place.
    #[error("instruction at +{offset} cannot be moved: {why}")]
    Unmovable {
        /// Distance from the function's start.
        offset: u64,
        /// What prevents it.
        why: &'static str,
    },
    /// A resolver of an indirect function: it runs inside the dynamic loader.
    #[error("resolver of an indirect function")]
    Resolver,
    /// Listed as unsafe to hook.
    #[error("denied: {why}")]
    Denied {
        /// The reason in the list.
        why: &'static str,
    },
    /// Listed, or seen, as unsafe to hook at its return; entry hooks are possible.
    #[error("no exit hooks: {why}")]
    NoExit {
        /// The reason.
        why: &'static str,
    },
    /// There is no free memory within reach of a 32-bit jump.
    #[error("no room for a trampoline within 2 GiB")]
    NoRoom,
    /// The same function came twice in one call.
    #[error("already a target of this attachment")]
    Duplicate,
    /// Not the start of a function: a part that the compiler moved away from it.
    #[error("cold part of another function")]
    ColdPart,
    /// A stub of the procedure linkage table, or start-up code around a section.
    #[error("linkage stub")]
    LinkageStub,
    /// The address is not in executable memory of a module.
    #[error("address {addr:#x} is not code of a module")]
    NotCode {
        /// The address.
        addr: u64,
    },
    /// Session hooks keep their words in the frame, and it is full.
    #[error("more than {max} session hooks on one function")]
    Sessions {
        /// What fits.
        max: usize,
    },
    /// A thread was stopped among the bytes to change and could not be reached in time.
    #[error("thread {tid} could not be moved out of the bytes to change")]
    Busy {
        /// The thread.
        tid: i32,
    },
    /// A goroutine stayed suspended among the bytes to change, or there is no telling whether one is.
    #[error("a goroutine may be suspended among the bytes to change")]
    Suspended,
    /// The program has a handler for every signal, as those of Go have: none is left to stop its
    /// threads with.
    #[error(
        "the program handles all real-time signals, so its threads cannot be stopped for a change of code"
    )]
    Signals,
    /// The kernel refused to let the code be changed.
    #[error("code cannot be changed: {}", std::io::Error::from_raw_os_error(*errno))]
    Protected {
        /// The error number of the last attempt.
        errno: i32,
    },
    /// The caller is a child that shares its parent's memory.
    #[error("this process runs in its parent's memory until it executes a program")]
    SharedMemory,
    /// The bytes were changed by somebody else.
    #[error("the first bytes were changed by somebody else")]
    Foreign,
    /// Another hook has changed bytes that this one needs.
    #[error("the bytes to change are those of another hook, at {at:#x} of the file")]
    Overlap {
        /// Address of the other one in the module's file.
        at: u64,
    },
    /// Instructions that were moved for a hook that is gone end among the bytes to change, and a
    /// thread may still be in them.
    #[error(
        "a thread may still be among the instructions that were moved for another hook, at {at:#x} of the file"
    )]
    Occupied {
        /// Address of the other one in the module's file.
        at: u64,
    },
    /// Programs of another link were told of another number of arguments.
    #[error("another program is attached with other types")]
    Arguments,
}

impl Skip {
    /// Turns addresses in memory, as reasons are found with, into those in the file: the same in every
    /// run, and what other tools ask for.
    pub(crate) fn place_in_file(&mut self, bias: u64) {
        if let Self::JumpInto { from: place, .. }
        | Self::LoopAtEntry { from: place }
        | Self::Overlap { at: place }
        | Self::Occupied { at: place } = self
        {
            *place = place.wrapping_sub(bias);
        }
    }
}

/// A whole operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// A system call needed for start-up failed.
    #[error("`{call}` failed")]
    System {
        /// Its name.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
    /// The modules of the own process could not be listed.
    #[error("modules of this process cannot be listed: {what}")]
    Modules {
        /// What went wrong.
        what: String,
    },
    /// The symbols of a module could not be read.
    #[error("functions of `{}` cannot be listed: {what}", path.display())]
    Symbols {
        /// The module.
        path: PathBuf,
        /// What went wrong.
        what: String,
    },
    /// The caller is a child that shares its parent's memory.
    #[error("this process runs in its parent's memory until it executes a program")]
    SharedMemory,
    /// There is no such attachment.
    #[error("no attachment {id}")]
    NoAttachment {
        /// The id asked for.
        id: u64,
    },
}
