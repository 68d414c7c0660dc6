//! tcx's lists beside the running kernel's: the same random changes of both, and after each the same
//! answer, order and revision.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use skep_isa::ProgramType;
use skep_net::chain::ProgramRef;
use skep_net::chain::mprog::{Flags, How, List, Relative};
use skep_testkit::random::Random;
use skep_testkit::skip;

const PROG_LOAD: i64 = 5;
const PROG_ATTACH: i64 = 8;
const PROG_DETACH: i64 = 9;
const OBJ_GET_INFO_BY_FD: i64 = 15;
const PROG_QUERY: i64 = 16;
const TCX_INGRESS: u32 = 46;
/// `lo`, in a network namespace without other interfaces.
const LOOPBACK: u32 = 1;

fn bpf(command: i64, attr: &mut [u64; 16]) -> Result<i32, i32> {
    let size = size_of_val(attr);
    // SAFETY: the kernel reads and writes the attribute, and what the addresses in it point to.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size) };
    i32::try_from(done)
        .ok()
        .filter(|n| *n >= 0)
        .ok_or_else(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A program in the kernel, and its id.
struct Loaded {
    fd: OwnedFd,
    id: u32,
    prog_type: ProgramType,
}

impl Loaded {
    /// Loads one that says 0.
    fn new(prog_type: ProgramType) -> Result<Self, i32> {
        let (insns, license) = ([0xb7_u64, 0x95], c"GPL");
        let mut attr = [0; 16];
        attr[0] = two(prog_type as u32, 2);
        attr[1] = insns.as_ptr().expose_provenance() as u64;
        attr[2] = license.as_ptr().expose_provenance() as u64;
        let fd = bpf(PROG_LOAD, &mut attr)?;
        // SAFETY: the kernel has just made it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (mut info, mut attr) = ([0_u64; 32], [0; 16]);
        attr[0] = two(fd.as_raw_fd() as u32, 256);
        attr[1] = info.as_mut_ptr().expose_provenance() as u64;
        bpf(OBJ_GET_INFO_BY_FD, &mut attr)?;
        Ok(Self { fd, id: (info[0] >> 32) as u32, prog_type })
    }

    fn number(&self) -> u32 {
        self.fd.as_raw_fd() as u32
    }
}

/// What is asked of both.
struct Asked<'a> {
    attach: bool,
    program: Option<&'a Loaded>,
    flags: Flags,
    relative: Option<&'a Loaded>,
    replace: Option<&'a Loaded>,
    revision: u64,
}

impl Asked<'_> {
    fn of_the_kernel(&self) -> Result<(), i32> {
        let relative = self.relative.map_or(0, |relative| {
            if self.flags.contains(Flags::ID) { relative.id } else { relative.number() }
        });
        let mut attr = [0; 16];
        attr[0] = two(LOOPBACK, self.program.map_or(0, Loaded::number));
        attr[1] = two(TCX_INGRESS, self.flags.bits());
        attr[2] = two(self.replace.map_or(0, Loaded::number), relative);
        attr[3] = self.revision;
        bpf(if self.attach { PROG_ATTACH } else { PROG_DETACH }, &mut attr).map(|_| ())
    }

    fn of(&self, list: &mut List) -> Result<(), i32> {
        let relative =
            self.relative.map(|r| Relative { program: r.id, prog_type: r.prog_type, link: None });
        let replace = self.replace.map(|old| old.id);
        let how = How { flags: self.flags, relative, replace, revision: self.revision };
        match self.program {
            Some(program) if self.attach => {
                let program = ProgramRef {
                    id: program.id,
                    name: String::new(),
                    prog_type: program.prog_type,
                    attach_type: None,
                    frags: false,
                    device: None,
                };
                list.attach(program, None, &how)
            }
            program => list.detach(program.map(|p| p.id), None, &how).map(|_| ()),
        }
    }
}

/// The programs on the interface in order, and the revision; `None`: there is no list.
fn there() -> Option<(Vec<u32>, u64)> {
    let (mut ids, mut attr) = ([0_u32; 64], [0; 16]);
    attr[0] = two(LOOPBACK, TCX_INGRESS);
    attr[2] = ids.as_mut_ptr().expose_provenance() as u64;
    attr[3] = 64;
    match bpf(PROG_QUERY, &mut attr) {
        Ok(_) => Some((ids[..attr[3] as u32 as usize].to_vec(), attr[7])),
        Err(libc::ENOENT) => None,
        Err(errno) => panic!("query: errno {errno}"),
    }
}

#[test]
fn random_changes_have_the_answers_of_the_running_kernel() {
    // SAFETY: changes the namespace of this thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        skip("root, for a network namespace");
        return;
    }
    let load =
        |n| (0..n).map(|_| Loaded::new(ProgramType::SchedCls)).collect::<Result<Vec<_>, _>>();
    let (mut programs, other) = match (load(7), Loaded::new(ProgramType::Xdp)) {
        (Ok(programs), Ok(other)) => (programs, other),
        _ => return skip("a kernel that loads BPF programs"),
    };
    programs.push(other);
    let first = Asked {
        attach: true,
        program: programs.first(),
        flags: Flags::empty(),
        relative: None,
        replace: None,
        revision: 0,
    };
    match first.of_the_kernel() {
        Ok(()) => {}
        Err(errno) => return skip(&format!("a kernel with tcx (errno {errno})")),
    }
    let mut list = List::new(ProgramType::SchedCls);
    assert_eq!(first.of(&mut list), Ok(()));
    let mut rng = Random::new(1);
    let (mut done, mut refused) = (0, std::collections::BTreeMap::new());
    // The kernel waits for its readers after most changes.
    let rounds = if std::env::var_os("SKEP_STRESS").is_some() { 20_000 } else { 2_000 };
    for round in 0..rounds {
        let attach = rng.below(5) < 3;
        let mut one = || programs.get(rng.below(8));
        let (mut program, mut relative, mut replace) = (one(), one(), one());
        let mut flags = Flags::empty();
        for (flag, of) in [(Flags::BEFORE, 3), (Flags::AFTER, 3), (Flags::REPLACE, 6)] {
            if rng.below(of) == 0 {
                flags |= flag;
            }
        }
        // Lists know the programs that they detach and replace by their ids alone.
        let known = |p: &&Loaded| p.prog_type == ProgramType::SchedCls;
        program = program.filter(|p| attach || known(p) && rng.below(3) > 0);
        relative = relative.filter(|_| rng.below(2) > 0);
        replace = replace.filter(|p| known(p) && attach && flags.contains(Flags::REPLACE));
        if replace.is_none() {
            flags -= Flags::REPLACE;
        }
        if relative.is_some() && rng.below(2) == 0 {
            flags |= Flags::ID;
        }
        let now = list.revision();
        let revision = match rng.below(6) {
            0 => now,
            1 => now + 1,
            _ => 0,
        };
        let asked = Asked { attach, program, flags, relative, replace, revision };
        let (kernel, ours) = (asked.of_the_kernel(), asked.of(&mut list));
        let what = || {
            let id = |p: Option<&Loaded>| p.map(|p| p.id);
            let (p, r, o) = (id(program), id(relative), id(replace));
            format!("{round}: attach {attach} {p:?} {flags:?} beside {r:?} for {o:?} at {revision}")
        };
        assert_eq!(ours, kernel, "{}", what());
        let ids: Vec<_> = list.all().iter().map(|a| a.program.id).collect();
        match there() {
            Some(there) => assert_eq!((ids, list.revision()), there, "{}", what()),
            None => assert_eq!((ids, list.revision()), (Vec::new(), 1), "{}", what()),
        }
        match ours {
            Ok(()) => done += 1,
            Err(errno) => *refused.entry(errno).or_insert(0) += 1,
        }
    }
    assert!(done > 200 && refused.len() >= 5, "{done} done, refused {refused:?}");
}
