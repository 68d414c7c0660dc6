//! What the engine keeps for a thread: one [`block`](block::Block), found through one word of
//! thread-local storage, or of an area of its own.
//!
//! | file | what it answers |
//! |---|---|
//! | `block` | what a block holds, and where blocks live |
//! | `area` | what has a thread whose process gives us no thread-local storage? |
//! | `by_gs` | how does that begin? |
//! | `runtime_id` | what does the program's runtime say of a thread? |
//! | `register` | which block does a new thread get? |
//! | `shared_tls` | whose block does a task use that shares another's thread-local storage? |
//! | `enter` | may this thread run hooks now? The trampolines ask. |
//! | `missed` | which calls ran no hooks, and why? |
//! | `mute` | how does the tracer call functions without events? |
//! | `quiescence` | has every thread left what was taken out of use? |

pub(crate) mod area;
pub(crate) mod block;
pub(crate) mod by_gs;
pub(crate) mod enter;
pub(crate) mod missed;
pub(crate) mod mute;
pub(crate) mod quiescence;
pub(crate) mod register;
pub(crate) mod runtime_id;
pub(crate) mod shared_tls;
