//! The interfaces of this machine as outputs: frames go where a driver would send them.

use super::{PacketSink, StackSink, sys};
use crate::port::batch::Batch;
use crate::port::error::PortError;
use crate::port::outputs::Outputs;
use crate::port::sink::{Sent, Sink};
use crate::port::verdict::{Target, Verdict};

/// Makes outputs that do what becomes of frames that came in on an interface: those that pass the
/// kernel's stack receives ([`StackSink`]), also through a CPU map; `XDP_TX` sends them back there, and a
/// redirect to any other interface of the thread's network namespace ([`PacketSink`]). What an interface
/// does not send because it is down is counted ([`Sent::down`]), as the kernel drops it. Other targets are
/// none ([`Unsent::no_target`](crate::port::Unsent)).
///
/// # Errors
/// When there is no such interface, or this process may not use it: that takes root, or `CAP_BPF`,
/// `CAP_NET_ADMIN` and `CAP_NET_RAW`.
pub fn machine(ingress: u32) -> Result<Outputs, PortError> {
    let no_interface = || PortError::NoInterface { name: ingress.to_string() };
    let name = sys::name_of(ingress).ok_or_else(no_interface)?;
    let mut outputs = Outputs::new();
    let stack = outputs.add(Box::new(StackSink::open(&name)?));
    outputs.send_verdict(Verdict::Pass.kind(), stack);
    let back = outputs.add(Box::new(Wire(PacketSink::open(&name)?)));
    outputs.send_verdict(Verdict::Tx.kind(), back);
    outputs.send_target(Target::Port(ingress), back);
    outputs.open_targets(move |target| match target {
        Target::Port(index) => {
            let sink = Wire(PacketSink::open(&sys::name_of(index)?).ok()?);
            Some(Box::new(sink))
        }
        Target::Cpu(_) => Some(Box::new(StackSink::open(&name).ok()?)),
        _ => None,
    });
    Ok(outputs)
}

/// An interface that may go down and come back.
struct Wire(PacketSink);

impl Sink for Wire {
    fn send_counted(
        &mut self,
        batch: &Batch,
        frames: &[u16],
        sent: &mut Sent,
    ) -> Result<(), PortError> {
        let before = sent.all();
        match self.0.send_counted(batch, frames, sent) {
            Err(PortError::Down { .. }) => {
                sent.down += (frames.len() as u64).saturating_sub(sent.all() - before);
                Ok(())
            }
            done => done,
        }
    }
}
