//! Reading a whole map, or taking it: one engine for the native walk, the DUMP command and the
//! BATCH commands.
//!
//! * No skip: an element that is in the map during the whole walk is returned.
//! * At most once: an element is not returned twice; one that was deleted and put in again may be.
//! * Ends: what is put in behind the cursor's place is not returned, and there are finitely many
//!   places. A strict walk returns nothing that was put in after it began.
//! * Progress: any room for one element moves the cursor on.
//! * Order: tries and arrays come in the order of their keys.
//!
//! They hold for every map type, with any number of writers in any number of processes. A map type
//! has part in this with `WalkOps::step`; what else it offers there makes walks faster or exact.
//!
//! [`Walk`] is the engine's own interface. [`command`] is the `BPF_MAP_DUMP` command as it was once
//! proposed, without what sank it; [`batch`] has the kernel's BATCH commands, and what looks many
//! keys up at once.

#[cfg(feature = "users")]
pub mod batch;
#[cfg(feature = "users")]
pub mod command;
#[cfg(feature = "users")]
mod cursor;
pub(crate) mod output;
#[cfg(feature = "users")]
pub(crate) mod packed;
pub(crate) mod position;
#[cfg(feature = "users")]
mod take;
#[cfg(feature = "users")]
mod walk;

#[cfg(feature = "users")]
pub use cursor::{CURSOR_LEN, Cursor};
#[cfg(feature = "users")]
pub use walk::{Iter, Take, Verdict, Walk};
