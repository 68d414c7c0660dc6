//! What a program is given to run on.

use skep::isa::ProgramType;
use skep::test_run::Input;

use crate::packet::Packet;

/// What a program gets: a packet, a context, the arguments of a call.
///
/// ```
/// use skep_test::{Given, Packet};
///
/// let packet = Packet::tcp("10.0.0.1:4000", "10.0.0.2:80");
/// let all = [
///     Given::from(&packet),                   // packet programs: a packet
///     Given::packet([0; 64]).repeat(3),       // bytes, three times
///     Given::call(&[7, 8]).returned(0),       // fexit, uretprobe: f(7, 8) returned 0
///     Given::context([0; 24]),                // any: the bytes of the type's context
/// ];
/// # let _ = all;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Given {
    packet: Option<Vec<u8>>,
    context: Option<Vec<u8>>,
    call: Option<(Vec<u64>, Option<u64>)>,
    repeat: u32,
}

/// Where `struct pt_regs` of x86-64 has the arguments, as its words are numbered.
const ARGUMENTS: [usize; 6] = [14, 13, 12, 11, 9, 8];
const RESULT: usize = 10;
const PT_REGS: usize = 21;

impl Given {
    /// Gives nothing: for programs that need nothing, such as `syscall` ones.
    #[must_use]
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Gives a packet, from its Ethernet header on.
    #[must_use]
    pub fn packet(packet: impl Into<Vec<u8>>) -> Self {
        Self { packet: Some(packet.into()), ..Self::default() }
    }

    /// Gives the bytes of a context.
    #[must_use]
    pub fn context(context: impl Into<Vec<u8>>) -> Self {
        Self::default().with_context(context)
    }

    /// Adds the bytes of a context to a packet: a `struct xdp_md` or `struct __sk_buff`.
    #[must_use]
    pub fn with_context(self, context: impl Into<Vec<u8>>) -> Self {
        Self { context: Some(context.into()), ..self }
    }

    /// Gives what a function is called with, to programs on functions: fentry, fexit, uprobe and
    /// their like. Uprobes see the first six. A pointer may lead to memory of the test.
    #[must_use]
    pub fn call(arguments: &[u64]) -> Self {
        Self { call: Some((arguments.to_vec(), None)), ..Self::default() }
    }

    /// Adds what the function returned.
    #[must_use]
    pub fn returned(mut self, result: u64) -> Self {
        self.call.get_or_insert_default().1 = Some(result);
        self
    }

    /// Runs the program several times. Packet and context are not reset in between, as in the
    /// kernel.
    #[must_use]
    pub fn repeat(self, times: u32) -> Self {
        Self { repeat: times, ..self }
    }

    /// Lays out the context for a program of a type.
    pub(crate) fn context_of(&self, kind: ProgramType) -> Option<Vec<u8>> {
        let Some((arguments, result)) = &self.call else { return self.context.clone() };
        let mut words = Vec::new();
        if kind == ProgramType::Kprobe {
            words.resize(PT_REGS, 0);
            for (at, argument) in ARGUMENTS.into_iter().zip(arguments) {
                words[at] = *argument;
            }
            words[RESULT] = result.unwrap_or_default();
        } else {
            words.extend(arguments);
            words.extend(result);
        }
        Some(words.into_iter().flat_map(u64::to_ne_bytes).collect())
    }

    pub(crate) fn input<'a>(&'a self, context: Option<&'a [u8]>) -> Input<'a> {
        Input { data: self.packet.as_deref(), ctx: context, repeat: self.repeat }
    }

    pub(crate) fn into_packet(self) -> Option<Vec<u8>> {
        self.packet
    }
}

impl From<&Packet> for Given {
    fn from(packet: &Packet) -> Self {
        Self::packet(packet.bytes())
    }
}

impl From<Packet> for Given {
    fn from(packet: Packet) -> Self {
        Self::packet(packet.bytes())
    }
}

impl From<&[u8]> for Given {
    fn from(packet: &[u8]) -> Self {
        Self::packet(packet)
    }
}

impl<const N: usize> From<&[u8; N]> for Given {
    fn from(packet: &[u8; N]) -> Self {
        Self::packet(*packet)
    }
}

impl From<Vec<u8>> for Given {
    fn from(packet: Vec<u8>) -> Self {
        Self::packet(packet)
    }
}
