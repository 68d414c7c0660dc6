//! Running the hooks of a call that has a side frame, as the trampolines do with their own frames.
//!
//! Part of the event path.

use super::frame::{AT_RETURN, SideFrame};
use crate::frame::{Frame, UNTYPED_ARGS};
use crate::hook::Missed;
use crate::hook_list::{HookList, Item, Meta};
use crate::per_thread::missed;
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

/// What the trampoline is told after a call.
pub(crate) const NO_FRAME: u64 = 0;

pub(crate) const LEFT_OUT: u64 = 1;

/// Runs one hook.
#[inline(always)]
unsafe fn run(
    side: *mut SideFrame,
    meta: *const Meta,
    item: *const Item,
    session: u64,
    cookie_bits: u64,
) -> u64 {
    // SAFETY: the item is one of a hook list that the thread's block keeps alive, and its words are
    // those of a hook and its cookie.
    unsafe {
        let frame = &raw mut (*side).frame;
        (&raw mut (*frame).session).write_volatile(session);
        let cookie = ((meta as u64).wrapping_add((*item).cookie_at) as *const u64).read_volatile();
        (&raw mut (*frame).cookie).write_volatile(cookie | cookie_bits);
        let f: crate::hook::RunFn = std::mem::transmute::<u64, crate::hook::RunFn>((*item).run);
        f((&raw mut (*frame).args).cast::<u64>(), (*item).data as *const ())
    }
}

/// Walks a hook list before the function, as the trampolines do. Bit 0 of `flags`: exit hooks
/// count; bit 1: a frame may be left.
#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
pub(crate) unsafe extern "C" fn walk(side: u64, meta: u64, flags: u64) -> u64 {
    let (side, meta) = (side as *mut SideFrame, meta as *const Meta);
    let (exits, may_wait) = (flags & 1 != 0, flags & 2 != 0);
    // SAFETY: both are live; the hook list is, as this thread's block is marked; indexes of
    // sessions are below SESSIONS.
    unsafe {
        let list = (*meta).list.load(Ordering::Acquire);
        let mut item = (list as u64).wrapping_add(size_of::<HookList>() as u64);
        let (entry_end, mod_end, exit_end) = ((*list).entry_end, (*list).mod_end, (*list).exit_end);
        (&raw mut (*side).seq).write_volatile((*list).seq);
        let mut sessions = 0u64;
        while item < entry_end {
            let s = item as *const Item;
            let n = (*s).session;
            if n < 0 {
                run(side, meta, s, 0, 0);
            } else if may_wait {
                let n = n as usize;
                let word = (&raw mut (*side).words).cast::<u64>().wrapping_add(n);
                word.write_volatile(0);
                if run(side, meta, s, word as u64, 0) != 1 {
                    (&raw mut (*side).ids).cast::<u64>().wrapping_add(n).write_volatile((*s).seq);
                    sessions |= 1u64.wrapping_shl(n as u32);
                }
            } else if (*s).without_return != 0 {
                // What it leaves in its word nobody will see.
                let word = (&raw mut (*side).words).cast::<u64>();
                word.write_volatile(0);
                run(side, meta, s, word as u64, (*s).without_return);
            } else if exits {
                missed::count(s, Missed::Stack);
            }
            item = item.wrapping_add(size_of::<Item>() as u64);
        }
        if !exits {
            return NO_FRAME;
        }
        (&raw mut (*side).sessions).write_volatile(sessions);
        if item < mod_end {
            let args = (*side).frame.nr_args;
            // Below that a register of the call is still kept there.
            if args >= UNTYPED_ARGS as u64 {
                (&raw mut (*side).frame.args)
                    .cast::<u64>()
                    .wrapping_add(args as usize)
                    .write_volatile(0);
            }
            while item < mod_end {
                let r = run(side, meta, item as *const Item, 0, 0);
                if r != 0 || (&raw const (*side).frame.session).read_volatile() != 0 {
                    (&raw mut (*side).frame.rax).write_volatile(r);
                    let frame = (&raw mut (*side).frame).cast::<u64>();
                    let mut n = 0;
                    while n < 6 {
                        let at =
                            frame.byte_add(offset_of!(Frame, args)).wrapping_add(n).read_volatile();
                        frame.byte_add(AT_RETURN).wrapping_add(n).write_volatile(if n == 2 {
                            0
                        } else {
                            at
                        });
                        n = n.wrapping_add(1);
                    }
                    after(side, meta);
                    return LEFT_OUT;
                }
                item = item.wrapping_add(size_of::<Item>() as u64);
            }
        }
        if mod_end == exit_end {
            return NO_FRAME;
        }
        if !may_wait {
            let mut s = mod_end;
            while s < exit_end {
                if (*(s as *const Item)).session < 0 {
                    missed::count(s as *const Item, Missed::Stack);
                }
                s = s.wrapping_add(size_of::<Item>() as u64);
            }
            return NO_FRAME;
        }
        (&raw mut (*side).wanted).write_volatile(sessions | (*list).exits);
    }
    side as u64
}

/// Runs exit hooks.
#[inline(always)]
pub(crate) unsafe fn after(side: *mut SideFrame, meta: *const Meta) {
    // SAFETY: both are live; the hook list is, as this thread's block is marked; indexes of sessions
    // are below SESSIONS.
    unsafe {
        let frame = &raw mut (*side).frame;
        (&raw mut (*frame).is_return).write_volatile(1);
        let result = (&raw mut (*frame).args).cast::<u64>().wrapping_add((*frame).nr_args as usize);
        result.write_volatile((&raw const (*frame).rax).read_volatile());
        let list = (*meta).list.load(Ordering::Acquire);
        let (mut item, end) = ((*list).mod_end, (*list).exit_end);
        while item < end {
            let s = item as *const Item;
            let n = (*s).session;
            if n < 0 {
                if (*s).seq <= (*side).seq {
                    run(side, meta, s, 0, 0);
                }
            } else if (*side).sessions >> (n as u32 & 63) & 1 != 0 {
                let n = n as usize;
                if (&raw const (*side).ids).cast::<u64>().wrapping_add(n).read_volatile()
                    == (*s).seq
                {
                    run(
                        side,
                        meta,
                        s,
                        (&raw mut (*side).words).cast::<u64>().wrapping_add(n) as u64,
                        0,
                    );
                }
            }
            item = item.wrapping_add(size_of::<Item>() as u64);
        }
    }
}

#[unsafe(link_section = ".text.skep_event")]
#[inline(never)]
pub(crate) unsafe extern "C" fn walk_after(side: u64, meta: u64, _: u64) -> u64 {
    // SAFETY: the caller's words are these.
    unsafe { after(side as *mut SideFrame, meta as *const Meta) };
    0
}
