//! Asks the running kernel's verifier, through bpf(2): the oracle that nobody can argue with.

use skep_isa::{Insn, MapFlags, op};
use skep_object::{Linked, MapSpec};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

const MAP_CREATE: u64 = 0;
const MAP_UPDATE_ELEM: u64 = 2;
const PROG_LOAD: u64 = 5;
const MAP_FREEZE: u64 = 22;
const EPERM: i64 = -1;
const EINVAL: i64 = -22;

/// What Linux says.
#[derive(Debug)]
pub enum Verdict {
    Accept,
    /// The last lines of its log.
    Reject(String),
    /// It cannot be asked; why.
    Skip(String),
}

#[repr(C)]
#[derive(Default)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    rest: [u32; 13],
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    rest: [u32; 16],
}

fn bpf<T>(cmd: u64, attr: &mut T) -> i64 {
    let ret: i64;
    // SAFETY:
    // - number 321 is bpf(2); `attr` is a live, initialised C structure of the size given;
    // - the buffers it points to are owned by the callers in this file, which outlive the call;
    // - the kernel writes only into the log buffer, of the size given there.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") 321i64 => ret,
            in("rdi") cmd,
            in("rsi") std::ptr::from_mut(attr),
            in("rdx") size_of::<T>(),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    ret
}

fn create(spec: &MapSpec) -> Result<File, String> {
    let mut attr = MapAttr {
        map_type: spec.map_type as u32,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        map_flags: spec.flags.0 & (MapFlags::RDONLY_PROG | MapFlags::WRONLY_PROG | MapFlags::NO_PREALLOC),
        rest: [0; 13],
    };
    let fd = bpf(MAP_CREATE, &mut attr);
    if fd < 0 {
        return Err(format!("map create: {fd}"));
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let map = unsafe { File::from_raw_fd(fd as i32) };
    let map_fd = map.as_raw_fd() as u32;
    if let Some(data) = &spec.data {
        let (key, mut value) = (0u32, data.clone());
        value.resize(spec.value_size as usize, 0);
        let mut elem = ElemAttr { map_fd, key: &raw const key as u64, value: value.as_ptr() as u64, ..ElemAttr::default() };
        bpf(MAP_UPDATE_ELEM, &mut elem);
    }
    if spec.frozen {
        bpf(MAP_FREEZE, &mut ElemAttr { map_fd, ..ElemAttr::default() });
    }
    Ok(map)
}

/// Loads a program into the kernel and lets it go again.
pub fn ask(prog: &Linked) -> Verdict {
    let maps: Result<Vec<File>, String> = prog.maps.iter().map(|m| create(&m.spec)).collect();
    let maps = match maps {
        Ok(m) => m,
        Err(e) => return Verdict::Skip(e),
    };
    let mut insns = prog.insns.clone();
    let mut i = 0;
    while let Some(insn) = insns.get(i).copied() {
        if insn.is_ld_imm64() {
            let pseudo = match insn.src() {
                op::PSEUDO_MAP_IDX => op::PSEUDO_MAP_FD,
                op::PSEUDO_MAP_IDX_VALUE => op::PSEUDO_MAP_VALUE,
                s => s,
            };
            if insn.src() == op::PSEUDO_FUNC {
                return Verdict::Skip("a callback, which needs types".to_owned());
            }
            if pseudo != insn.src() {
                let Some(map) = maps.get(insn.imm as usize) else { return Verdict::Skip("no such map".to_owned()) };
                insns[i] = Insn { imm: map.as_raw_fd(), ..insn.with_src(pseudo) };
            }
            i += 1;
        } else if insn.is_helper_call() && insn.imm as u32 >= skep_isa::helper::KFUNC_BASE {
            return Verdict::Skip("a kernel function".to_owned());
        }
        i += 1;
    }
    let bytes: Vec<u8> = insns.iter().flat_map(|i| i.to_bytes()).collect();
    let license = if prog.gpl { c"GPL" } else { c"Proprietary" };
    let mut log = vec![0u8; 1 << 20];
    let mut attr = ProgAttr {
        prog_type: prog.prog_type as u32,
        insn_cnt: insns.len() as u32,
        insns: bytes.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 4,
        log_size: log.len() as u32,
        log_buf: log.as_mut_ptr() as u64,
        expected_attach_type: prog.attach_type.map_or(0, |a| a as u32),
        ..ProgAttr::default()
    };
    let mut fd = bpf(PROG_LOAD, &mut attr);
    if fd < 0 {
        // Once more for the whole log.
        attr.log_level = 1;
        fd = bpf(PROG_LOAD, &mut attr);
    }
    if fd >= 0 {
        // SAFETY: a fresh descriptor that nothing else owns; closed at once.
        drop(unsafe { File::from_raw_fd(fd as i32) });
        return Verdict::Accept;
    }
    let text = String::from_utf8_lossy(log.split(|b| *b == 0).next().unwrap_or_default()).into_owned();
    let words: Vec<&str> = text.lines().rev().filter(|l| !l.starts_with("processed ")).take(2).collect();
    match fd {
        EPERM if text.is_empty() => Verdict::Skip("bpf(2) is not permitted".to_owned()),
        EINVAL if text.is_empty() => Verdict::Reject("EINVAL".to_owned()),
        _ => Verdict::Reject(words.into_iter().rev().collect::<Vec<_>>().join(" / ")),
    }
}
