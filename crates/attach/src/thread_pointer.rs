//! The thread pointer, which tells threads of a process apart.

pub(crate) use skep_sys::thread;
