//! The static trampolines: `x64.s` with the offsets of what it reads.
//!
//! Nothing imports this file but for its names ([`entry_points`]) and sizes ([`layout`]); it knows
//! the layout of all that the assembly touches, and the functions that it calls.

use crate::frame::Frame;
use crate::hook_code::HookCode;
use crate::hook_list::{HookList, Item, Meta};
use crate::per_thread::block::Block;
use crate::per_thread::{enter, runtime_id};
use crate::side_stack::MAX_TAILS;
use crate::{sandbox, side_stack};
use layout::{FRAME, IFRAME, X_IDS, X_SEQ, X_SESSIONS, X_SIZE, X_TAIL, X_WORDS, XFRAME};
use std::mem::{offset_of, size_of};

pub(crate) mod entry_points;
pub(crate) mod layout;

const _: () = {
    assert!(size_of::<HookList>() == 96 && size_of::<Item>() == 64 && size_of::<Meta>() == 64);
    assert!(
        offset_of!(Item, run) == 0
            && offset_of!(Meta, list) == 0
            && offset_of!(HookList, entry_end) == 0
    );
    assert!(
        offset_of!(Frame, args) == 40
            && offset_of!(Frame, rax) == 144
            && offset_of!(Frame, rsp) == 216
    );
    assert!(size_of::<Frame>() == 272);
    // A body finds its stack as far from a boundary of 64 bytes as its caller left it: metadata and
    // frame lie in between.
    assert!((XFRAME + 16).is_multiple_of(64));
    assert!(IFRAME.is_multiple_of(16));
};

std::arch::global_asm!(
    include_str!("x64.s"),
    FRAME = const FRAME,
    IFRAME = const IFRAME,
    XFRAME = const XFRAME,
    X_SIZE = const X_SIZE,
    X_SEQ = const X_SEQ,
    X_SESSIONS = const X_SESSIONS,
    X_IDS = const X_IDS,
    X_WORDS = const X_WORDS,
    X_TAIL = const X_TAIL,
    X_TAILS = const X_TAIL + 8,
    MAX_TAILS = const MAX_TAILS,
    MD_LIST = const offset_of!(Meta, list),
    MD_IP = const offset_of!(Meta, ip),
    MD_BODY = const offset_of!(Meta, body),
    MD_NR_ARGS = const offset_of!(Meta, nr_args),
    MD_WANTS = const offset_of!(Meta, wants),
    LIST_ENTRY_END = const offset_of!(HookList, entry_end),
    LIST_MOD_END = const offset_of!(HookList, mod_end),
    LIST_EXIT_END = const offset_of!(HookList, exit_end),
    LIST_SEQ = const offset_of!(HookList, seq),
    LIST_EXITS = const offset_of!(HookList, exits),
    LIST_AT_ENTRY = const offset_of!(HookList, code) + offset_of!(HookCode, at_entry),
    LIST_AT_CALL = const offset_of!(HookList, code) + offset_of!(HookCode, at_call),
    LIST_AT_RETURN = const offset_of!(HookList, code) + offset_of!(HookCode, at_return),
    LIST_ITEMS = const size_of::<HookList>(),
    ITEM_RUN = const offset_of!(Item, run),
    ITEM_DATA = const offset_of!(Item, data),
    ITEM_COOKIE_AT = const offset_of!(Item, cookie_at),
    ITEM_SEQ = const offset_of!(Item, seq),
    ITEM_SESSION = const offset_of!(Item, session),
    ITEM_SIZE = const size_of::<Item>(),
    BLOCK_TAIL = const offset_of!(Block, tail),
    BLOCK_TAILS = const offset_of!(Block, tails),
    BLOCK_ZONE = const offset_of!(Block, zone),
    BLOCK_ZONE_LEN = const offset_of!(Block, zone_len),
    BLOCK_LOW = const offset_of!(Block, low),
    BLOCK_TOP = const offset_of!(Block, top),
    BLOCK_TID = const offset_of!(Block, tid),
    tid_at = sym runtime_id::TID_AT,
    too_deep = sym enter::too_deep,
    slow_entry = sym enter::slow_entry,
    slow_exit = sym enter::slow_exit,
    sandboxed = sym sandbox::CLOSED,
    new_thread = sym enter::new_thread,
    side_stack_entry = sym side_stack::entry,
    side_stack_call = sym side_stack::call,
    side_stack_return = sym side_stack::returned,
);
