//! A packet as helpers see it, through the context of a running program.
//!
//! Contexts of packet programs are made by `skep_net`, which draws how a packet lies in memory.
//! Only dynptrs need this here; the helpers of packet programs are in that crate too.

use std::marker::PhantomData;

use skep_isa::ctx::{packet as word, sk_buff};

/// Tells whether a packet context has a word at this offset below it. Callers give constants, so
/// nothing of it is left.
#[inline(always)]
const fn is_below(word: i32) -> bool {
    word < 0 && word >= -(word::BELOW as i32) && word & 7 == 0
}

/// A packet as helpers see it, through the program's context.
///
/// All methods are loads and stores of single words, so they may run inside a traced process. It
/// lasts no longer than its packet.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    ctx: *mut u8,
    _packet: PhantomData<&'a ()>,
}

impl View<'_> {
    /// Looks at the packet of a context.
    ///
    /// # Safety
    /// `ctx` is the context of a running packet program: what its owner made, with the words below it; its packet
    /// alive as long as the view is used.
    #[inline(always)]
    #[must_use]
    pub unsafe fn of(ctx: u64) -> Self {
        Self { ctx: ctx as *mut u8, _packet: PhantomData }
    }

    /// Loads a word below the context, [`word::DATA`] and its like; 0 where there is none.
    #[inline(always)]
    #[must_use]
    pub fn get(self, word: i32) -> u64 {
        if !is_below(word) {
            return 0;
        }
        // SAFETY: every packet context has these words below it .
        unsafe { self.ctx.offset(word as isize).cast::<u64>().read_volatile() }
    }

    /// Stores a word below the context.
    #[inline(always)]
    pub fn set(self, word: i32, value: u64) {
        if !is_below(word) {
            return;
        }
        // SAFETY: as above.
        unsafe { self.ctx.offset(word as isize).cast::<u64>().write_volatile(value) }
    }

    /// Loads a 32-bit field of the context; `off` is one of [`sk_buff`], or an offset in `struct
    /// xdp_md`.
    #[inline(always)]
    #[must_use]
    pub fn field(self, off: u32) -> u32 {
        if off >= sk_buff::SIZE {
            return 0;
        }
        // SAFETY: inside the context (checked), fields are aligned.
        unsafe { self.ctx.add(off as usize & !3).cast::<u32>().read_volatile() }
    }

    /// Stores a 32-bit field of the context.
    #[inline(always)]
    pub fn set_field(self, off: u32, value: u32) {
        if off < sk_buff::SIZE {
            // SAFETY: as above.
            unsafe { self.ctx.add(off as usize & !3).cast::<u32>().write_volatile(value) }
        }
    }

    /// Tells whether the context is an `xdp_md`; else it is an `__sk_buff`.
    #[inline(always)]
    #[must_use]
    pub fn is_xdp(self) -> bool {
        self.get(word::KIND) & 0xff == word::XDP
    }

    /// Address of the first byte.
    #[inline(always)]
    #[must_use]
    pub fn data(self) -> u64 {
        self.get(word::DATA)
    }

    /// Address behind the last byte that pointers reach.
    #[inline(always)]
    #[must_use]
    pub fn data_end(self) -> u64 {
        self.get(word::DATA_END)
    }

    /// Address of the metadata.
    #[inline(always)]
    #[must_use]
    pub fn data_meta(self) -> u64 {
        self.get(word::DATA_META)
    }

    /// Address behind the last byte of all.
    #[inline(always)]
    #[must_use]
    pub fn end(self) -> u64 {
        self.data_end().wrapping_add(self.get(word::FRAGMENTS))
    }

    /// Bytes of the packet, with fragments.
    #[inline(always)]
    #[must_use]
    pub fn len(self) -> u64 {
        self.end().saturating_sub(self.data())
    }

    /// Tells whether the packet has no bytes.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Finds `len` bytes at an offset of the packet, fragments included; `None` when they are not
    /// all there.
    #[inline(always)]
    #[must_use]
    pub fn at(self, off: u64, len: u64) -> Option<*mut u8> {
        let all = self.len();
        if off > all || len > all - off {
            None
        } else {
            Some(self.data().wrapping_add(off) as *mut u8)
        }
    }
}
