//! An XDP program as aya's template and macros make it: a map that is a `bpf_map_def` in the section
//! `maps` (`#[map]`), a program in a section of its type (`#[xdp]`), helpers called by number.
//!
//! Compiled by rustc's own BPF backend. Neither bpf-linker, which needs an LLVM as new as rustc's, nor
//! `core`, which has to be built for this target, takes part, so what the program uses of `core` is
//! below. Not rebuilt by `cargo xtask objects`, but with a nightly toolchain (1.97, 2026-05-19) by
//!
//! ```sh
//! rustc +nightly --edition 2024 --target bpfel-unknown-none --crate-type lib -C opt-level=3 -C debuginfo=2 \
//!     -C panic=abort -C target-cpu=v3 --remap-path-prefix=$PWD=. --emit asm=aya_like.s aya_like.rs
//! clang-19 -target bpf -c aya_like.s -o aya_like.bpf.o
//! ```

#![feature(auto_traits, intrinsics, lang_items, no_core, rustc_attrs)]
#![allow(internal_features, non_camel_case_types)]
#![no_core]

/// `Array<u32, u64>`, in which packets are counted by verdict.
#[unsafe(link_section = "maps")]
#[unsafe(export_name = "PACKETS")]
static mut PACKETS: bpf_map_def = bpf_map_def {
    kind: 2,
    key_size: 4,
    value_size: 8,
    max_entries: 4,
    map_flags: 0,
    id: 0,
    pinning: 0,
};

/// `HashMap<u32, u32>`: addresses as they stand in packets.
#[unsafe(link_section = "maps")]
#[unsafe(export_name = "BLOCKLIST")]
static mut BLOCKLIST: bpf_map_def = bpf_map_def {
    kind: 1,
    key_size: 4,
    value_size: 4,
    max_entries: 1024,
    map_flags: 0,
    id: 0,
    pinning: 0,
};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

#[unsafe(link_section = "xdp")]
#[unsafe(no_mangle)]
pub extern "C" fn xdp_firewall(ctx: *mut xdp_md) -> u32 {
    let verdict = unsafe { try_xdp_firewall(ctx) };
    unsafe { count(verdict) };
    verdict
}

#[inline(never)]
unsafe fn count(verdict: u32) {
    let calls = unsafe { bpf_map_lookup_elem(&raw mut PACKETS, &raw const verdict) } as *mut u64;
    if calls as usize != 0 {
        unsafe { *calls = *calls + 1 };
    }
}

#[inline(always)]
unsafe fn try_xdp_firewall(ctx: *mut xdp_md) -> u32 {
    let (start, end) = unsafe { ((*ctx).data as usize, (*ctx).data_end as usize) };
    if start + 34 > end {
        return XDP_PASS;
    }
    // Ethernet's type of IPv4, as it stands in the packet.
    if unsafe { *((start + 12) as *const u16) } != 8 {
        return XDP_PASS;
    }
    let source = unsafe { *((start + 26) as *const u32) };
    let blocked = unsafe { bpf_map_lookup_elem(&raw mut BLOCKLIST, &raw const source) };
    if blocked as usize != 0 { XDP_DROP } else { XDP_PASS }
}

#[inline(always)]
unsafe fn bpf_map_lookup_elem(map: *mut bpf_map_def, key: *const u32) -> *mut u8 {
    let helper: unsafe extern "C" fn(*mut bpf_map_def, *const u32) -> *mut u8 =
        unsafe { transmute(1usize) };
    unsafe { helper(map, key) }
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

/// As in aya-ebpf-bindings.
#[repr(C)]
struct bpf_map_def {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    id: u32,
    pinning: u32,
}

#[repr(C)]
pub struct xdp_md {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

// Of `core`.

#[lang = "pointee_sized"]
pub trait PointeeSized {}
#[lang = "meta_sized"]
pub trait MetaSized: PointeeSized {}
#[lang = "sized"]
pub trait Sized: MetaSized {}
#[lang = "copy"]
pub trait Copy {}
#[lang = "sync"]
unsafe auto trait Sync {}
#[lang = "freeze"]
unsafe auto trait Freeze {}
#[lang = "drop_glue"]
unsafe fn drop_glue<T: PointeeSized>(_: *mut T) {}
#[lang = "legacy_receiver"]
trait LegacyReceiver {}
impl<T: PointeeSized> LegacyReceiver for &T {}
#[lang = "add"]
trait Add<R = Self> {
    type Output;
    fn add(self, other: R) -> Self::Output;
}
#[lang = "eq"]
trait PartialEq<R: PointeeSized = Self>: PointeeSized {
    fn eq(&self, other: &R) -> bool;
    fn ne(&self, other: &R) -> bool;
}
#[lang = "partial_ord"]
trait PartialOrd<R: PointeeSized = Self>: PartialEq<R> {
    fn gt(&self, other: &R) -> bool;
}
macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Copy for $t {}
        impl Add for $t {
            type Output = Self;
            fn add(self, other: Self) -> Self { self + other }
        }
        impl PartialEq for $t {
            fn eq(&self, other: &Self) -> bool { *self == *other }
            fn ne(&self, other: &Self) -> bool { *self != *other }
        }
        impl PartialOrd for $t {
            fn gt(&self, other: &Self) -> bool { *self > *other }
        }
    )*};
}
integer!(u8 u16 u32 u64 usize);
impl<T> Copy for *const T {}
impl<T> Copy for *mut T {}
impl<T, const N: usize> Copy for [T; N] {}

#[rustc_intrinsic]
unsafe fn transmute<Src, Dst>(src: Src) -> Dst;
