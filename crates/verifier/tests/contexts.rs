//! Which bytes of its context each type of program may read and write: what is said here about each access, and
//! what Linux says.

mod kernel_bpf;

use kernel_bpf::Prepared;
use skep_isa::errno::EPERM;
use skep_isa::{AttachType as A, Insn, ProgramType as P, ctx, op};
use skep_object::Linked;
use skep_verifier::{Options, verify};

/// Types whose contexts have fields, with the hooks that make a difference.
const TYPES: &[(P, Option<A>)] = &[
    (P::Xdp, Some(A::Xdp)),
    (P::SocketFilter, None),
    (P::SchedCls, None),
    (P::CgroupSkb, Some(A::CgroupInetIngress)),
    (P::LwtIn, None),
    (P::LwtXmit, None),
    (P::LwtSeg6local, None),
    (P::FlowDissector, Some(A::FlowDissector)),
    (P::SkLookup, Some(A::SkLookup)),
    (P::CgroupSock, Some(A::CgroupInetSockCreate)),
    (P::CgroupSock, Some(A::CgroupInet4PostBind)),
    (P::CgroupSock, Some(A::CgroupInet6PostBind)),
    (P::CgroupSockAddr, Some(A::CgroupInet4Bind)),
    (P::CgroupSockAddr, Some(A::CgroupInet6Bind)),
    (P::CgroupSockAddr, Some(A::CgroupInet4Connect)),
    (P::CgroupSockAddr, Some(A::CgroupInet6Connect)),
    (P::CgroupSockAddr, Some(A::CgroupUnixConnect)),
    (P::CgroupSockAddr, Some(A::CgroupUdp4Sendmsg)),
    (P::CgroupSockAddr, Some(A::CgroupUdp6Sendmsg)),
    (P::CgroupSockAddr, Some(A::CgroupUdp4Recvmsg)),
    (P::CgroupSockAddr, Some(A::CgroupUdp6Recvmsg)),
    (P::CgroupSockAddr, Some(A::CgroupInet4Getpeername)),
    (P::CgroupSockAddr, Some(A::CgroupInet6Getsockname)),
    (P::CgroupSockopt, Some(A::CgroupGetsockopt)),
    (P::CgroupSockopt, Some(A::CgroupSetsockopt)),
    (P::CgroupSysctl, Some(A::CgroupSysctl)),
    (P::CgroupDevice, Some(A::CgroupDevice)),
    (P::SkSkb, Some(A::SkSkbStreamParser)),
    (P::SkSkb, Some(A::SkSkbStreamVerdict)),
    (P::SkMsg, Some(A::SkMsgVerdict)),
    (P::SkReuseport, Some(A::SkReuseportSelect)),
    (P::SockOps, Some(A::CgroupSockOps)),
    (P::Netfilter, Some(A::Netfilter)),
];

const SIZES: [(u8, usize); 4] = [(op::B, 1), (op::H, 2), (op::W, 4), (op::DW, 8)];

/// A program that makes one access to its context.
fn program((prog_type, attach): (P, Option<A>), off: i16, size: u8, writes: bool) -> Linked {
    let access = if writes {
        Insn::new(op::STX | op::MEM | size, 1, 2, off, 0)
    } else {
        Insn::new(op::LDX | op::MEM | size, 2, 1, off, 0)
    };
    let insns = vec![Insn::mov64_imm(2, 0), access, Insn::mov64_imm(0, 1), Insn::exit()];
    let mut prog = Linked::from_insns("p", prog_type, insns);
    prog.attach_type = attach;
    prog
}

/// Goes from the context of a control group's program to its socket, and on to what a helper finds behind that.
fn to_socket(helpers: &[i32]) -> Vec<Insn> {
    let mut insns = vec![Insn::new(op::LDX | op::MEM | op::DW, 1, 1, 168, 0)];
    let leaves =
        |reg| [Insn::new(op::JMP | op::JNE, reg, 0, 2, 0), Insn::mov64_imm(0, 1), Insn::exit()];
    insns.extend(leaves(1));
    for helper in helpers {
        insns.push(Insn::new(op::CALL, 0, 0, 0, *helper));
        insns.extend(leaves(0));
        insns.push(Insn::mov64_reg(1, 0));
    }
    insns
}

#[test]
fn every_load_from_a_socket_is_judged_as_by_linux() {
    let options = Options::default();
    let mut wrong = Vec::new();
    let (fullsock, tcp_sock) = (95, 96);
    for helpers in [&[][..], &[fullsock], &[fullsock, tcp_sock]] {
        for (size, bytes) in SIZES {
            for off in (0..128).step_by(bytes) {
                let mut insns = to_socket(helpers);
                insns.push(Insn::new(op::LDX | op::MEM | size, 2, 1, off as i16, 0));
                insns.extend([Insn::mov64_imm(0, 1), Insn::exit()]);
                let mut prog = Linked::from_insns("p", P::CgroupSkb, insns);
                prog.attach_type = Some(A::CgroupInetIngress);
                let ours = verify(&prog, &options);
                let theirs = Prepared::new(&prog, None).expect("it has no maps").load(false);
                if theirs.as_ref().is_err_and(|e| e.error.errno() == EPERM) {
                    return skep_testkit::skip("the right to use bpf(2)");
                }
                if ours.is_ok() != theirs.is_ok() {
                    wrong.push(format!(
                        "{helpers:?}: {bytes} at {off}: here {:?}, Linux {}",
                        ours.err().map(|r| r.reason.to_string()),
                        theirs.is_ok()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_access_to_a_context_is_judged_as_by_linux() {
    let options = Options::default();
    let mut wrong = Vec::new();
    for &of in TYPES {
        let layout = ctx::kernel_layout(of.0, of.1).or_else(|| ctx::layout(of.0, of.1));
        let end = layout.expect("one of these").size as usize + 16;
        let accesses = SIZES
            .iter()
            .flat_map(|&(size, bytes)| (0..end).step_by(bytes).map(move |off| (off, size, bytes)));
        for ((off, size, bytes), writes) in accesses.flat_map(|a| [(a, false), (a, true)]) {
            let prog = program(of, off as i16, size, writes);
            let ours = verify(&prog, &options);
            let theirs = Prepared::new(&prog, None).expect("it has no maps").load(false);
            if theirs.as_ref().is_err_and(|e| e.error.errno() == EPERM) {
                return skep_testkit::skip("the right to use bpf(2)");
            }
            if ours.is_ok() != theirs.is_ok() {
                wrong.push(format!(
                    "{} {:?}: {} {bytes} at {off}: here {:?}, Linux {}",
                    of.0.name(),
                    of.1.map(A::name),
                    if writes { "write" } else { "read" },
                    ours.err().map(|r| r.reason.to_string()),
                    theirs.is_ok(),
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
