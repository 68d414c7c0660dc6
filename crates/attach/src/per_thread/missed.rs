//! Calls that ran no hooks, counted by the reason ([`Missed`]).
//!
//! Part of the event path.

use super::block::{Block, MUTED};
use crate::hook::Missed;
use crate::hook_list::{HookList, Item, Meta};
use crate::table::Table;
use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads without a block that are reading a table or a hook list.
pub(crate) static ANONYMOUS: AtomicU64 = AtomicU64::new(0);

/// Adds one to the counter of a hook.
///
/// # Safety
///
/// The item is one of a hook list that lives.
#[inline(always)]
pub(crate) unsafe fn count(item: *const Item, why: Missed) {
    // SAFETY: the caller's promise; `missed` is null or the attacher's array.
    unsafe {
        let missed = (*item).missed as *const AtomicU64;
        if !missed.is_null() {
            (*missed.wrapping_add(why as usize)).fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts a call without hooks, once for each of the function's hooks. At a return, for which
/// `entered` is the number of the newest attachment when the call began: for exit hooks that were
/// there then. Sessions have run or were counted at entry.
///
/// # Safety
/// `meta` is a function's, `block` null or that of the task, which is inside a hook, or counted, so
/// that the hook list is not freed meanwhile.
#[inline(always)]
pub(crate) unsafe fn missed(
    block: *const Block,
    meta: *const Meta,
    entered: Option<u64>,
    why: Missed,
) {
    // SAFETY: blocks live for ever; metadata too, and the hook list by the caller's promise.
    unsafe {
        if !block.is_null() && !is_counted(&*block) {
            return;
        }
        let list = (*meta).list.load(Ordering::Acquire);
        let mod_end = (*list).mod_end;
        let mut item = if entered.is_some() {
            mod_end
        } else {
            (list as u64).wrapping_add(size_of::<HookList>() as u64)
        };
        while item < (*list).exit_end {
            let s = item as *const Item;
            // A session has a item on both sides, and is one hook.
            let counts = match entered {
                Some(seq) => (*s).session < 0 && (*s).seq <= seq,
                None => item < mod_end || (*s).session < 0,
            };
            if counts {
                count(s, why);
            }
            item = item.wrapping_add(size_of::<Item>() as u64);
        }
    }
}

/// Counts a call of a task that has no block. `meta` is null for compiled-in sites, which are known
/// by `ret`.
///
/// # Safety
/// `meta` is null or a function's; `entered` as for [`missed`].
#[inline(always)]
pub(crate) unsafe fn missed_without_block(ret: u64, meta: *const Meta, entered: Option<u64>) {
    ANONYMOUS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: whoever frees tables and hook lists waits for those that are counted.
    unsafe {
        let meta = if meta.is_null() { Table::find(ret) } else { meta };
        if !meta.is_null() {
            missed(ptr::null(), meta, entered, Missed::Thread);
        }
    }
    ANONYMOUS.fetch_sub(1, Ordering::SeqCst);
}

/// Counts a call that a thread makes from inside a hook. `meta` is null for compiled-in sites,
/// which are known by `ret`.
///
/// # Safety
/// The block is the calling thread's and marked; `meta` is null or a function's.
#[inline(always)]
pub(crate) unsafe fn missed_inside(block: &Block, ret: u64, meta: *const Meta) {
    // Nobody waits for a thread that is muted before a table or a hook list is freed: it must not
    // look there.
    if !is_counted(block) {
        return;
    }
    // SAFETY: the thread is inside a hook, so neither is freed.
    unsafe {
        let meta = if meta.is_null() { Table::find(ret) } else { meta };
        if !meta.is_null() {
            missed(block, meta, None, Missed::Inside);
        }
    }
}

/// Tells whether calls that run no hooks now are counted as missed.
#[inline(always)]
fn is_counted(block: &Block) -> bool {
    block.inside.load(Ordering::Relaxed) != MUTED && block.silent.load(Ordering::Relaxed) == 0
}
