//! `skep` stops the threads of the process while code is changed.

use skep_attach::{Edit, Move, Tracer, Unstopped};
use skep_runtime::live::{List, Request, Stopped};
use skep_sys::syscall;

use super::{INTERRUPTED, RECVFROM, SOCKET, send};

pub(super) static SKEP: Tracer = Tracer { stop, write, go_on };

fn list<T>(items: &[T]) -> List {
    List { at: items.as_ptr() as u64, count: items.len() as u32 }
}

fn stop(moves: &[Move], stacks: &mut [u64]) -> Result<usize, Unstopped> {
    let stood = ask(Request::Stop { moves: list(moves), stacks: list(stacks) });
    let count = stood.ok_or(Unstopped::Gone)?.threads.ok_or(Unstopped::Busy)?;
    Ok(count as usize)
}

fn write(edits: &[Edit]) {
    ask(Request::Write(list(edits)));
}

fn go_on() {
    if let Some(socket) = SOCKET.number() {
        send(socket, &Request::GoOn.to_bytes());
    }
}

/// Waits for the answer; `None`: `skep` was killed, or the program has closed the socket. Answers to
/// others are passed over: a program that has found the socket may ask as well, and who took its answer
/// would go on while `skep` still writes into the request's list.
fn ask(request: Request) -> Option<Stopped> {
    send(SOCKET.number()?, &request.to_bytes());
    let mut bytes = [0_u8; Stopped::LEN];
    let (at, len) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
    loop {
        let socket = SOCKET.number()?;
        // SAFETY: receives into the bytes.
        let got = unsafe { syscall::call6(RECVFROM, socket, at, len, 0, 0, 0) } as i64;
        if got != -INTERRUPTED {
            let got = usize::try_from(got).ok().filter(|got| *got > 0)?;
            let answer = bytes.get(..got).and_then(Stopped::from_bytes);
            if answer.is_some_and(|answer| answer.of == request.place()) {
                return answer;
            }
        }
    }
}
