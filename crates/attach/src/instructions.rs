//! Walking through the instructions of some code: each at first sight where that is enough, else by
//! a full decoder.

use crate::flow::{Flow, flow};
use crate::predecode::{Predecoded, predecode};
use iced_x86::{Decoder, Instruction, OpKind};

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) ip: u64,
    pub(crate) flow: Flow,
    /// Where it leads, if it says so itself.
    pub(crate) target: Option<u64>,
    /// Its memory operand is an address from its own place.
    pub(crate) is_ip_relative: bool,
    /// It was decoded in full: [`Instructions::decoded`].
    pub(crate) in_full: bool,
}

/// The instructions of some code, one behind the other.
pub(crate) struct Instructions<'a, F> {
    code: &'a [u8],
    at: usize,
    start: u64,
    wants_in_full: F,
    decoder: Decoder<'a>,
    decoded: Instruction,
}

impl<'a, F: Fn(&Predecoded) -> bool> Instructions<'a, F> {
    /// Code at an address. `options` are the full decoder's; `wants_in_full` says of which
    /// instructions the first sight is not enough.
    pub(crate) fn new(code: &'a [u8], start: u64, options: u32, wants_in_full: F) -> Self {
        let decoder = Decoder::with_ip(64, code, start, options);
        Self { code, at: 0, start, wants_in_full, decoder, decoded: Instruction::default() }
    }

    /// The last instruction, if it was decoded in full.
    pub(crate) fn decoded(&self) -> &Instruction {
        &self.decoded
    }

    /// Decodes in full.
    fn in_full(&mut self, ip: u64) -> Option<Seen> {
        self.decoder.set_position(self.at).ok()?;
        self.decoder.set_ip(ip);
        self.decoder.decode_out(&mut self.decoded);
        self.at = self.decoder.position();
        let i = &self.decoded;
        let is_near = matches!(i.op0_kind(), OpKind::NearBranch64);
        Some(Seen {
            ip,
            flow: flow(i),
            target: is_near.then(|| i.near_branch_target()),
            is_ip_relative: i.is_ip_rel_memory_operand(),
            in_full: true,
        })
    }
}

impl<F: Fn(&Predecoded) -> bool> Iterator for Instructions<'_, F> {
    type Item = Seen;

    fn next(&mut self) -> Option<Seen> {
        let rest = self.code.get(self.at..).filter(|rest| !rest.is_empty())?;
        let ip = self.start.wrapping_add(self.at as u64);
        let Some(seen) = predecode(rest).filter(|seen| !(self.wants_in_full)(seen)) else {
            return self.in_full(ip);
        };
        self.at += usize::from(seen.len);
        let next_ip = ip.wrapping_add(u64::from(seen.len));
        Some(Seen {
            ip,
            flow: seen.flow,
            target: seen.distance.map(|distance| next_ip.wrapping_add_signed(distance.into())),
            is_ip_relative: seen.is_ip_relative,
            in_full: false,
        })
    }
}
