//! One register: what kind of value it holds and what is known of it.

use crate::flow::Node;
use crate::scalar::Scalar;

/// Identifies a reference, a set of equal scalars, or a set of pointers that are null together. 0
/// is none.
pub type Id = u32;

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// Never written on this path.
    Uninit,
    /// A number.
    Scalar,
    /// The context.
    Ctx,
    /// A map of the program, by index.
    Map(u32),
    /// A value of that map.
    Value(u32),
    /// A key of that map, as a callback is shown it.
    Key(u32),
    /// The stack of that frame.
    Stack(u8),
    /// Memory of that many bytes, lent by a helper.
    Mem(u32),
    /// A ring buffer record of that many bytes; must be submitted or discarded.
    Record(u32),
    /// The packet.
    Packet,
    /// The metadata before the packet.
    PacketMeta,
    /// The end of the packet.
    PacketEnd,
    /// A function of the program, by first instruction.
    Func(u32),
    /// A socket of any kind.
    SockCommon,
    /// A full socket.
    Socket,
    /// A TCP socket.
    TcpSock,
    /// A socket of the express data path.
    XdpSock,
    /// What a flow dissector fills in.
    FlowKeys,
    /// What a raw tracepoint lets programs write to.
    TpBuffer,
    /// A kernel object of that type of the target's BTF.
    Btf(u32),
    /// An object the program allocated, of that type of its own BTF.
    Local(u32),
    /// A dynptr that was handed to a function or callback.
    Dynptr(crate::stack::DynptrKind),
    /// An iterator on the stack, by the function that made it.
    Iter {
        /// Number of that function.
        of: skep_isa::HelperId,
        /// There are no more elements.
        drained: bool,
    },
    /// Memory of an arena.
    Arena,
}

/// What else is known of a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The memory must not be written to.
    pub const RDONLY: Self = Self(1);
    /// The object is alive for as long as the program runs, or a reference is held.
    pub const TRUSTED: Self = Self(2);
    /// The object is alive until the read-side section ends.
    pub const RCU: Self = Self(4);
    /// The object may be gone: a load may fault and then yields 0.
    pub const UNTRUSTED: Self = Self(8);
    /// The object belongs to a list or tree; it may be looked at while the lock is held.
    pub const NON_OWNING: Self = Self(16);
    /// The object has a copy for each CPU.
    pub const PERCPU: Self = Self(32);
    /// The memory is part of a packet: it is gone when that moves.
    pub const PACKET: Self = Self(64);

    /// Tells whether all of `o` are set.
    #[must_use]
    pub const fn has(self, o: Self) -> bool {
        self.0 & o.0 == o.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, o: Self) -> Self {
        Self(self.0 | o.0)
    }

    /// Without those of `o`.
    #[must_use]
    pub const fn without(self, o: Self) -> Self {
        Self(self.0 & !o.0)
    }
}

impl Kind {
    /// Tells whether this is a pointer of any kind.
    #[must_use]
    pub const fn is_pointer(self) -> bool {
        !matches!(self, Self::Uninit | Self::Scalar)
    }

    /// Tells whether this points into a packet.
    #[must_use]
    pub const fn is_packet(self) -> bool {
        matches!(self, Self::Packet | Self::PacketMeta)
    }

    /// The kernel's name of the kind (kernel/bpf/log.c `reg_type_str`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uninit => "?",
            Self::Scalar => "scalar",
            Self::Ctx => "ctx",
            Self::Map(_) => "map_ptr",
            Self::Value(_) => "map_value",
            Self::Key(_) => "map_key",
            Self::SockCommon => "sock_common",
            Self::Socket => "sock",
            Self::TcpSock => "tcp_sock",
            Self::XdpSock => "xdp_sock",
            Self::FlowKeys => "flow_keys",
            Self::TpBuffer => "tp_buffer",
            Self::Btf(_) | Self::Local(_) => "ptr_",
            Self::Dynptr(_) => "dynptr_ptr",
            Self::Iter { .. } => "iter",
            Self::Arena => "arena",
            Self::Stack(_) => "fp",
            Self::Mem(_) => "mem",
            Self::Record(_) => "ringbuf_mem",
            Self::Packet => "pkt",
            Self::PacketMeta => "pkt_meta",
            Self::PacketEnd => "pkt_end",
            Self::Func(_) => "func",
        }
    }
}

/// A register or a spilled one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reg {
    /// What it holds.
    pub kind: Kind,
    /// A pointer that may be NULL.
    pub nullable: bool,
    /// What else is known of a pointer.
    pub flags: Flags,
    /// Constant part of a pointer's offset.
    pub off: i32,
    /// The number, or the variable part of a pointer's offset.
    pub val: Scalar,
    /// Scalars of one id hold the same number, `delta` apart; nullable pointers of one id are NULL
    /// together; packet pointers of one id have the same variable part.
    pub id: Id,
    /// What this scalar has more than the number its id stands for, modulo 2^64, or 2^32 if it is
    /// `low`.
    pub delta: i32,
    /// This scalar is the zero-extended low half of that sum.
    pub low: bool,
    /// The reference this pointer came with.
    pub reference: Id,
    /// The dynptr whose memory this is.
    pub parent: Id,
    /// Bytes behind a packet pointer known to be inside the packet; for objects on the stack,
    /// which of its slots this is.
    pub range: u32,
    /// Where the number came from.
    pub node: Node,
}

impl Reg {
    /// Not written yet.
    pub const UNINIT: Self = Self::of(Kind::Uninit);

    /// A value of that kind with nothing added.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        Self {
            kind,
            nullable: false,
            flags: Flags::NONE,
            off: 0,
            val: Scalar::constant(0),
            id: 0,
            delta: 0,
            low: false,
            reference: 0,
            parent: 0,
            range: 0,
            node: Node::NONE,
        }
    }

    /// A number.
    #[must_use]
    pub const fn scalar(val: Scalar) -> Self {
        let mut r = Self::of(Kind::Scalar);
        r.val = val;
        r
    }

    /// Any number.
    pub const UNKNOWN: Self = Self::scalar(Scalar::UNKNOWN);

    /// A known number.
    #[must_use]
    pub const fn constant(n: u64) -> Self {
        Self::scalar(Scalar::constant(n))
    }

    /// Tells whether it holds a number.
    #[must_use]
    pub fn is_scalar(&self) -> bool {
        self.kind == Kind::Scalar
    }

    /// The number if it is the only one possible.
    #[must_use]
    pub fn as_const(&self) -> Option<u64> {
        if self.is_scalar() { self.val.as_const() } else { None }
    }

    /// Tells whether it is the number 0 for certain.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.as_const() == Some(0)
    }

    /// The kernel's name of the type: `map_value_or_null`.
    #[must_use]
    pub fn type_name(&self) -> String {
        let null = if self.nullable { "_or_null" } else { "" };
        let trust = [
            (Flags::RDONLY, "rdonly_"),
            (Flags::TRUSTED, "trusted_"),
            (Flags::RCU, "rcu_"),
            (Flags::UNTRUSTED, "untrusted_"),
        ];
        let prefix: String =
            trust.into_iter().filter(|(f, _)| self.flags.has(*f)).map(|(_, p)| p).collect();
        format!("{prefix}{}{null}", self.kind.name())
    }

    /// Smallest and largest total offset of a pointer, saturated.
    #[must_use]
    pub fn offsets(&self) -> (i64, i64) {
        let off = i64::from(self.off);
        (self.val.r64.smin.saturating_add(off), self.val.r64.smax.saturating_add(off))
    }
}
