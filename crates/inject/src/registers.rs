//! The general registers of a stopped thread, and where it goes on.

/// The call was interrupted and starts again, unless a handler without `SA_RESTART` ran.
const ERESTARTSYS: i64 = -512;
/// The call was interrupted and starts again in any case.
const ERESTARTNOINTR: i64 = -513;
/// The call was interrupted and starts again, unless a handler ran.
const ERESTARTNOHAND: i64 = -514;
/// The call goes on by `restart_syscall`, which knows how much of its time is left.
const ERESTART_RESTARTBLOCK: i64 = -516;
/// Number of `restart_syscall`.
const RESTART_SYSCALL: u64 = 219;
const EINTR: i64 = -4;

/// What `orig_rax` holds of a thread that is in no system call: nothing starts again.
pub const NO_CALL: u64 = u64::MAX;

/// The general registers of a thread: `struct user_regs_struct` of x86-64, whose fields have the
/// names and the order of the kernel's `user_64.h`.
#[expect(missing_docs, reason = "the processor's names")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The number of the system call that the thread is in, else [`NO_CALL`].
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// What the kernel does with a thread's system call when the thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Restart {
    /// Nothing: the thread is in no call, or its call has a result.
    No,
    /// It executes the instruction at `rip - 2` again, with the same number.
    Again,
    /// It executes that instruction with the number of `restart_syscall`. What is left of the call
    /// is in the kernel, and a return from a signal handler discards it.
    Rest,
    /// Nothing: the call ends with `EINTR`, although no signal has come, and may be made again.
    Interrupted,
}

impl Registers {
    /// Tells what becomes of the system call that the thread is in.
    pub fn restart(&self) -> Restart {
        if self.orig_rax == NO_CALL {
            return Restart::No;
        }
        match self.rax as i64 {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => Restart::Again,
            ERESTART_RESTARTBLOCK => Restart::Rest,
            EINTR if is_interrupted_by_a_stop(self.orig_rax) => Restart::Interrupted,
            _ => Restart::No,
        }
    }

    /// The registers with which the thread goes on by itself, without the kernel's help, from where
    /// it was stopped: what the kernel makes of them where no signal is to be delivered.
    pub fn resumed(&self) -> Self {
        let number = match self.restart() {
            Restart::No | Restart::Interrupted => return Self { orig_rax: NO_CALL, ..*self },
            Restart::Again => self.orig_rax,
            Restart::Rest => RESTART_SYSCALL,
        };
        Self { rax: number, rip: self.rip.wrapping_sub(2), orig_rax: NO_CALL, ..*self }
    }

    /// The registers with which the thread makes the call that it was in once more.
    pub(crate) fn repeated(&self) -> Self {
        Self { rax: self.orig_rax, rip: self.rip.wrapping_sub(2), orig_rax: NO_CALL, ..*self }
    }
}

/// Tells whether a call of this number returns `EINTR` because its thread was stopped for a moment,
/// instead of starting again by itself, and has done nothing then: those that `signal(7)` lists
/// for stop signals. `connect` is not here: it goes on alone, and cannot be made again.
fn is_interrupted_by_a_stop(number: u64) -> bool {
    /// Missing in `libc`.
    const IO_PGETEVENTS: i64 = 333;
    let known = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_io_uring_enter,
        libc::SYS_io_getevents,
        IO_PGETEVENTS,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        // Of sockets with a time limit.
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
    ];
    known.iter().any(|&known| known as u64 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_on_as_the_kernel_would_let_it() {
        let at = |orig_rax, rax: i64| Registers {
            orig_rax,
            rax: rax as u64,
            rip: 0x1002,
            ..<_>::default()
        };
        let goes_on = |orig_rax, rax| {
            let on = at(orig_rax, rax).resumed();
            assert_eq!(on.orig_rax, NO_CALL);
            (on.rip, on.rax as i64)
        };
        // Outside of calls no result has a meaning.
        assert_eq!(goes_on(NO_CALL, -512), (0x1002, -512));
        // `read`, `nanosleep`, a call that has ended, `epoll_wait`.
        assert_eq!(goes_on(0, -512), (0x1000, 0));
        assert_eq!(goes_on(0, -513), (0x1000, 0));
        assert_eq!(goes_on(0, -514), (0x1000, 0));
        assert_eq!(goes_on(35, -516), (0x1000, 219));
        assert_eq!(goes_on(0, 17), (0x1002, 17));
        assert_eq!(goes_on(232, -4), (0x1002, -4));
        assert_eq!(at(232, -4).restart(), Restart::Interrupted);
        assert_eq!(at(232, -4).repeated().rax, 232);
        // `connect`.
        assert_eq!(at(42, -4).restart(), Restart::No);
    }
}
