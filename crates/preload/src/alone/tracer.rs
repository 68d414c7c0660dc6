//! `skep` stops the threads of the process while code is changed.

use std::sync::atomic::Ordering::Relaxed;

use skep_attach::Tracer;
use skep_runtime::live::{Places, Request, Stopped};
use skep_sys::syscall;

use super::{INTERRUPTED, SOCKET, send};

pub(super) static SKEP: Tracer = Tracer { stop, holds, go_on };

const RECVFROM: u64 = 45;
/// `MSG_PEEK` and `MSG_DONTWAIT`.
const LOOK: u64 = 0x42;

fn stop(moves: &[[u64; 2]], stacks: &mut [u64]) -> Option<usize> {
    let places = Places {
        moves: moves.as_ptr() as u64,
        move_count: moves.len() as u32,
        stacks: stacks.as_mut_ptr() as u64,
        stack_count: stacks.len() as u32,
    };
    send(SOCKET.load(Relaxed), &Request::Stop(places).to_bytes());
    let mut bytes = [0; Stopped::LEN];
    let got = receive(&mut bytes, 0);
    let bytes = bytes.get(..usize::try_from(got).ok()?)?;
    Stopped::from_bytes(bytes).0.map(|count| count as usize)
}

/// The kernel lets the threads go when `skep` ends, whose end of the socket is closed then.
fn holds() -> bool {
    const AGAIN: i64 = 11;
    receive(&mut [0], LOOK) == -AGAIN
}

fn go_on() {
    send(SOCKET.load(Relaxed), &Request::GoOn.to_bytes());
}

fn receive(bytes: &mut [u8], flags: u64) -> i64 {
    let (socket, at, len) = (SOCKET.load(Relaxed) as u64, bytes.as_mut_ptr() as u64, bytes.len());
    loop {
        // SAFETY: receives into the bytes.
        let got = unsafe { syscall::call6(RECVFROM, socket, at, len as u64, flags, 0, 0) } as i64;
        if got != -INTERRUPTED {
            return got;
        }
    }
}
