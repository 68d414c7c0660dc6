//! What is read out of the committed objects, program by program and map by map.

use skep_isa::{AttachType, Insn, MapFlags, MapType, ProgramType, helper, op};
use skep_object::{
    Btf, CoreTarget, InnerValue, LinkError, LinkOptions, Linked, MapSpec, Missing, Object,
    ObjectError, POISON_CORE, POISON_KFUNC,
};

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/{name}.bpf.o", env!("CARGO_MANIFEST_DIR")))
        .expect("the fixture is committed")
}

fn object(name: &str) -> Object {
    Object::parse_named(name, &bytes(name)).expect("the fixture is good")
}

fn link(object: &Object, name: &str) -> Result<Linked, LinkError> {
    object.link(object.program(name).expect("the fixture has the program"))
}

fn map<'a>(object: &'a Object, name: &str) -> &'a MapSpec {
    &object.maps[object.map(name).expect("the fixture has the map")]
}

#[test]
fn programs_are_found_with_their_sections() {
    let o = object("several");
    let list: Vec<_> = o
        .programs
        .iter()
        .map(|p| (p.name.as_str(), p.section.as_str(), p.autoload, p.target.as_deref()))
        .collect();
    assert_eq!(
        list,
        [
            ("on_malloc", "uprobe/libc.so.6:malloc", true, Some("libc.so.6:malloc")),
            ("on_malloc_too", "uprobe/libc.so.6:malloc", true, Some("libc.so.6:malloc")),
            ("on_return", "uretprobe", false, None),
            ("with_callback", "raw_tp/sys_enter", true, Some("sys_enter")),
        ]
    );
    assert_eq!((o.license.as_str(), o.is_gpl(), o.version), ("Dual MIT/GPL", true, 0x60c00));
    assert!(o.ignored.is_empty(), "{:?}", o.ignored);
}

#[test]
fn maps_carry_what_their_definitions_say() {
    let o = object("several");
    let seen = map(&o, "seen");
    assert_eq!(
        (seen.map_type, seen.key_size(), seen.value_size, seen.max_entries),
        (MapType::Hash, 4, 32, 1024)
    );
    assert!(seen.flags.has(MapFlags::NO_PREALLOC) && !seen.pinning && seen.data.is_none());
    let btf = o.btf.as_ref().expect("built with -g");
    assert_eq!(
        (btf.describe(seen.key_type_id), btf.describe(seen.value_type_id)),
        ("__u32".to_owned(), "struct event".to_owned())
    );
    let hits = map(&o, "hits");
    assert_eq!(
        (hits.map_type, hits.key_size(), hits.value_size, hits.max_entries),
        (MapType::PercpuArray, 4, 8, 8)
    );
    assert!(hits.pinning && hits.key_type_id == 0);
    assert_eq!(
        (map(&o, "events").map_type, map(&o, "events").max_entries),
        (MapType::Ringbuf, 1 << 16)
    );
    assert_eq!((map(&o, "bloom").value_size, map(&o, "bloom").map_extra), (8, 3));
}

#[test]
fn global_data_becomes_maps_with_libbpf_names_and_contents() {
    let o = object("several");
    let rodata = map(&o, "several.rodata");
    assert_eq!(rodata.data.as_deref(), Some(&b"\x07\0\0\0several\0"[..]));
    assert!(rodata.frozen && rodata.flags == MapFlags(MapFlags::MMAPABLE | MapFlags::RDONLY_PROG));
    let data = map(&o, ".data");
    assert_eq!(
        (data.name.as_str(), data.data.as_deref(), data.frozen),
        ("several.data", Some(&5u64.to_le_bytes()[..]), false)
    );
    assert_eq!(map(&o, ".data.custom").data.as_deref(), Some(&[4, 3, 2, 1][..]));
    let bss = map(&o, ".bss");
    assert_eq!(
        (bss.value_size, bss.data.as_deref(), bss.max_entries, bss.key_size()),
        (40, Some(&[][..]), 1, 4)
    );
    // The compiler leaves sizes and places in the types empty; they are filled in, in the raw bytes
    // too.
    let btf =
        Btf::parse(o.btf.as_ref().expect("built with -g").raw()).expect("stored types are good");
    assert_eq!(&btf, &**o.btf.as_ref().expect("built with -g"));
    let mut zeros = vec![0; 40];
    zeros[..8].copy_from_slice(&9u64.to_le_bytes());
    let text = btf.decode(bss.value_type_id, &zeros).expect("the type fits").to_string();
    assert_eq!(text, "{ .hidden_count = 9, .counts = [0, 0, 0, 0] }");
}

#[test]
fn functions_are_appended_once_and_calls_reach_them() {
    let o = object("several");
    let l = link(&o, "on_malloc").expect("it links");
    assert_eq!(
        (l.prog_type, l.attach_type, l.gpl, l.sleepable),
        (ProgramType::Kprobe, None, true, false)
    );
    let names: Vec<_> = l.subprogs.iter().map(|s| (s.name.as_str(), s.global)).collect();
    assert_eq!(names, [("on_malloc", true), ("shared", true), ("scale", false)]);
    let starts: Vec<_> = l.subprogs.iter().map(|s| s.start).collect();
    let mut calls = Vec::new();
    for (at, insn) in l.insns.iter().enumerate().filter(|(_, i)| i.is_local_call()) {
        calls.push((
            l.subprog(at).map(|s| s.name.as_str()),
            (at as i64 + 1 + i64::from(insn.imm)) as usize,
        ));
    }
    assert_eq!(calls, [(Some("on_malloc"), starts[1]), (Some("shared"), starts[2])]);
    // `__hidden` keeps a function global in the file but makes it a static one.
    let hidden =
        link(&o, "on_return").expect("it links").subprogs.into_iter().find(|s| s.name == "hidden");
    assert!(hidden.is_some_and(|s| !s.global));
}

#[test]
fn callbacks_are_distances_to_functions() {
    let o = object("several");
    let l = link(&o, "with_callback").expect("it links");
    let at = l
        .insns
        .iter()
        .position(|i| i.is_ld_imm64() && i.src() == op::PSEUDO_FUNC)
        .expect("the callback is an address");
    assert_eq!(
        l.subprog((at as i64 + 1 + i64::from(l.insns[at].imm)) as usize).map(|s| s.name.as_str()),
        Some("each")
    );
}

#[test]
fn map_references_are_indices_into_the_programs_own_list() {
    let o = object("several");
    for i in 0..o.programs.len() {
        let l = o.link(i).expect("it links");
        let mut used = vec![false; l.maps.len()];
        let mut at = 0;
        while at < l.insns.len() {
            let insn = l.insns[at];
            if insn.is_ld_imm64() {
                let map = l.maps.get(insn.imm as usize).map(|m| &m.spec);
                match insn.src() {
                    op::PSEUDO_MAP_IDX => assert!(map.is_some_and(|m| !m.is_global_data())),
                    op::PSEUDO_MAP_IDX_VALUE => {
                        assert!(
                            map.is_some_and(|m| m.is_global_data()
                                && (l.insns[at + 1].imm as u32) < m.value_size)
                        );
                    }
                    other => assert!(matches!(other, 0 | op::PSEUDO_FUNC)),
                }
                if matches!(insn.src(), op::PSEUDO_MAP_IDX | op::PSEUDO_MAP_IDX_VALUE) {
                    used[insn.imm as usize] = true;
                    assert_eq!(
                        l.maps[insn.imm as usize].spec,
                        o.maps[l.maps[insn.imm as usize].index]
                    );
                }
                at += 1;
            }
            at += 1;
        }
        assert!(used.iter().all(|u| *u), "{}: a map nobody uses", l.name);
    }
}

#[test]
fn lines_follow_instructions_through_linking() {
    let l = link(&object("several"), "on_malloc").expect("it links");
    assert!(l.lines.is_sorted_by(|a, b| a.insn < b.insn));
    let scale = l.subprogs.iter().find(|s| s.name == "scale").expect("it is called").start;
    let line = l.line(scale).expect("built with -g");
    assert!(line.file.ends_with("several.bpf.c"), "{}", line.file);
    assert!(
        line.text.starts_with("static __noinline __u64 scale")
            || line.text.starts_with("return v * by"),
        "{}",
        line.text
    );
}

#[test]
fn maps_of_maps_and_program_arrays_know_their_first_contents() {
    let o = object("inner");
    let (first, second) = (o.map("first").expect("defined"), o.map("second").expect("defined"));
    let outer = map(&o, "outer");
    assert_eq!((outer.map_type, outer.value_size), (MapType::ArrayOfMaps, 4));
    assert_eq!(outer.values, [(0, InnerValue::Map(second)), (3, InnerValue::Map(first))]);
    let inner = outer.inner.as_ref().expect("the type of inner maps is known");
    assert_eq!(
        (inner.map_type, inner.key_size(), inner.value_size, inner.max_entries),
        (MapType::Array, 4, 8, 2)
    );
    assert_eq!(map(&o, "unset").inner.as_ref().map(|i| i.max_entries), Some(2));
    assert_eq!(map(&o, "jumps").values, [(1, InnerValue::Program("leaf".to_owned()))]);
}

#[test]
fn maps_from_before_btf_are_read() {
    let o = object("legacy");
    let pairs = map(&o, "pairs");
    assert_eq!(
        (pairs.map_type, pairs.key_size(), pairs.value_size, pairs.max_entries, pairs.flags),
        (MapType::Hash, 4, 8, 10, MapFlags(1))
    );
    assert_eq!(
        o.btf.as_ref().map(|b| b.describe(pairs.value_type_id)),
        Some("struct pair".to_owned())
    );
    assert_eq!((map(&o, "slots").map_type, map(&o, "slots").max_entries), (MapType::Array, 20));
    let l = link(&o, "count").expect("it links");
    assert!(!l.gpl && l.maps.len() == 3);
    // A static map in `.maps` beside them; `__ulong` takes all 64 bits.
    assert_eq!((map(&o, "wide").value_size, map(&o, "wide").map_extra), (8, 0x1_0000_0003));
}

#[test]
fn objects_without_types_work_as_well() {
    let o = object("plain");
    assert!(o.btf.is_none());
    let l = link(&o, "pass").expect("it links");
    assert_eq!(l.subprogs.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["pass", "add"]);
    assert!(l.lines.is_empty());
    assert_eq!(map(&o, "plain.rodata").data.as_deref(), Some(&[3, 0, 0, 0][..]));
}

#[test]
fn kernel_functions_on_offer_become_helpers() {
    let o = object("externs");
    let l = link(&o, "session").expect("it links");
    assert_eq!(l.attach_type, Some(AttachType::TraceFsessionMulti));
    let calls: Vec<_> = l
        .insns
        .iter()
        .filter(|i| i.is_helper_call())
        .map(|i| helper::by_id(i.imm as u32).map(|h| h.name))
        .collect();
    assert_eq!(calls.first(), Some(&Some("bpf_session_is_return")));
    assert!(calls.iter().skip(1).all(|c| *c == Some("bpf_session_cookie")) && calls.len() > 1);
    assert!(l.insns.iter().all(|i| i.code != op::CALL || i.src() == 0));
}

#[test]
fn missing_weak_symbols_are_zero_and_missing_strong_ones_are_named() {
    let o = object("externs");
    let l = link(&o, "guarded").expect("weak symbols may be missing");
    let addresses: Vec<_> =
        l.insns.iter().filter(|i| i.is_ld_imm64()).map(|i| (i.src(), i.imm)).collect();
    assert!(addresses.contains(&(0, 0)), "the missing ones: {addresses:?}");
    assert!(addresses.iter().all(|(src, imm)| *src == 0 && matches!(imm, 0 | 1)), "{addresses:?}");
    let poison = |(_, i): &(usize, &Insn)| i.is_helper_call() && i.imm == POISON_KFUNC;
    let calls: Vec<_> =
        l.insns.iter().enumerate().filter(poison).map(|(at, _)| l.missing(at)).collect();
    assert_eq!(
        calls,
        [Some(&Missing::Function("bpf_perhaps".into()))],
        "the call that is never reached"
    );
    let message = |name: &str| link(&o, name).map(|l| l.name).map_err(|e| e.to_string());
    assert!(
        message("strong_function")
            .is_err_and(|e| e.ends_with("kernel function `bpf_nowhere` is not available"))
    );
    assert!(
        message("strong_variable")
            .is_err_and(|e| e.ends_with("kernel variable `kernel_variable` is not available"))
    );
    assert!(
        message("unknown_section").is_err_and(
            |e| e.contains("section `fentry_multi/misspelt` is of no known program type")
        )
    );
}

#[test]
fn a_program_that_needs_other_types_is_refused_alone_without_them() {
    let o = object("core");
    let e = link(&o, "loads").map(|l| l.name).expect_err("it needs relocation");
    let want = "program `loads`, insn 0: CO-RE relocation (byte_off of `struct task`, 0:0) needs the types of the code it looks at";
    assert_eq!(e.to_string(), want);
    assert!(link(&o, "needs_none").is_ok());
    // So is one that could mean several things. What the others become is compared with libbpf
    // elsewhere.
    let target = CoreTarget::new(object("core_target").btf.expect("built with -g"));
    let options = LinkOptions { target: Some(&target), ..LinkOptions::default() };
    let index = o.program("bad_ambiguous").expect("the fixture has it");
    let e = o.link_with(index, &options).map(|l| l.name).expect_err("two types have the name");
    assert!(
        e.to_string().contains(
            "(byte_off of `struct two_answers`, 0:0): several types of this name give different answers: `struct two_answers` (type "
        ) && e.to_string().contains("`struct two_answers___other`"),
        "{e}"
    );
}

#[test]
fn what_the_target_does_not_have_becomes_poison() {
    let o = object("core");
    let target = CoreTarget::new(object("core_target").btf.expect("built with -g"));
    let options = LinkOptions { target: Some(&target), ..LinkOptions::default() };
    let l = o
        .link_with(o.program("gone").expect("the fixture has it"), &options)
        .expect("it is guarded by a question");
    let poison: Vec<_> = l.insns.iter().filter(|i| i.is_helper_call()).map(|i| i.imm).collect();
    assert_eq!(poison, [POISON_CORE]);
    let at = l.insns.iter().position(|i| i.is_helper_call()).expect("it was just counted");
    assert_eq!(l.missing(at), Some(&Missing::Type("byte_off of `struct task`, 0:8".into())));
    assert_eq!(l.missing(at + 1), None);
}

#[test]
fn all_instruction_set_versions_are_read_alike() {
    for v in 1..=4 {
        let o = object(&format!("cpu_v{v}"));
        let l = link(&o, "compute").expect("it links");
        assert_eq!(l.subprogs.len(), 2, "v{v}");
        assert_eq!(l.maps.len(), 1, "v{v}");
        let jmp32 = l.insns.iter().any(|i| i.class() == op::JMP32);
        assert!(v > 2 || !jmp32, "32-bit jumps came with v3");
    }
}

#[test]
fn files_that_are_something_else_are_told_so() {
    let parse = |bytes: &[u8]| Object::parse(bytes).map(|o| o.license).map_err(|e| e.to_string());
    assert_eq!(parse(b""), Err("not an ELF file".to_owned()));
    assert_eq!(parse(b"#!/bin/sh\nexit 0\n "), Err("not an ELF file".to_owned()));
    let exe = std::fs::read(std::env::current_exe().expect("tests have a file"))
        .expect("and may read it");
    assert_eq!(
        parse(&exe),
        Err(format!("ELF machine is {}, not eBPF", std::env::consts::ARCH.replace('_', "-")))
    );
    let e = Object::parse(&bytes("bigendian")).map(|o| o.license);
    assert_eq!(e, Err(ObjectError::Kind { what: "big-endian" }));
    let mut cut = bytes("several");
    cut.truncate(1000);
    assert!(parse(&cut).is_err_and(|e| e.starts_with("damaged ELF file: ")));
}

#[test]
fn objects_without_function_symbols_are_one_program_a_section() {
    // Compilers before LLVM 4 wrote labels without type and size.
    let mut b = bytes("core");
    let at = |b: &[u8], i: usize, n: usize| {
        b[i..i + n].iter().rev().fold(0usize, |acc, x| acc << 8 | usize::from(*x))
    };
    let (headers, count) = (at(&b, 40, 8), at(&b, 60, 2));
    let symtab = (0..count)
        .map(|i| headers + i * 64)
        .find(|h| at(&b, h + 4, 4) == 2)
        .expect("there are symbols");
    let (start, len) = (at(&b, symtab + 24, 8), at(&b, symtab + 32, 8));
    for s in (start..start + len).step_by(24).filter(|s| at(&bytes("core"), s + 4, 1) & 0xf == 2) {
        b[s + 4] &= 0xf0;
        b[s + 16..s + 24].fill(0);
    }
    let o = Object::parse(&b).expect("still an object");
    assert_eq!(
        o.programs.iter().map(|p| (p.name.as_str(), p.section.as_str())).collect::<Vec<_>>(),
        [("loads", "socket"), ("needs_none", "uprobe")]
    );
}

#[test]
fn configuration_values_are_filled_in_or_missed() {
    let mut o = object("kconfig");
    let message =
        |o: &Object, name: &str| link(o, name).map(|l| l.maps.len()).map_err(|e| e.to_string());
    assert!(
        message(&o, "all").is_err_and(
            |e| e.contains("configuration value `") && e.ends_with("` is not available")
        )
    );
    assert_eq!(message(&o, "weak_only"), Ok(1));
    let bad = o
        .set_kconfig(|name| (name == "CONFIG_BPF").then(|| "m".to_owned()))
        .map_err(|e| e.to_string());
    assert_eq!(bad, Err("configuration value `CONFIG_BPF`: `m` does not fit Bool".to_owned()));
    let values = [
        ("LINUX_KERNEL_VERSION", "394752"),
        ("CONFIG_HZ", "0xfa"),
        ("CONFIG_BPF", "y"),
        ("CONFIG_IPV6", "m"),
        ("CONFIG_CC_VERSION_TEXT", "\"gcc (Debian 14)\""),
        ("CONFIG_LOCALVERSION_CHAR", "n"),
    ];
    o.set_kconfig(|name| values.iter().find(|v| v.0 == name).map(|v| v.1.to_owned()))
        .expect("all fit");
    let spec = map(&o, ".kconfig");
    assert!(spec.frozen && spec.flags.has(MapFlags::RDONLY_PROG));
    let value = o
        .btf
        .as_ref()
        .expect("built with -g")
        .decode(spec.value_type_id, spec.data.as_deref().expect("it has contents"));
    let value = value.expect("the contents are of their type").to_string();
    assert_eq!(
        value,
        "{ .CONFIG_HZ = 250, .CONFIG_IPV6 = TRI_MODULE, .LINUX_KERNEL_VERSION = 394752, .CONFIG_NO_SUCH_THING = 0, .CONFIG_BPF = true, \
         .CONFIG_LOCALVERSION_CHAR = 110, .CONFIG_CC_VERSION_TEXT = \"gcc (Debi\" }"
    );
    let l = link(&o, "all").expect("nothing is missing");
    let offset = |at: usize| l.insns[at + 1].imm as u32;
    let used: std::collections::BTreeSet<u32> =
        (0..l.insns.len()).filter(|i| l.insns[*i].is_ld_imm64()).map(offset).collect();
    assert_eq!(used, o.kconfig.iter().map(|v| v.offset).collect());
}

#[test]
fn what_only_a_kernel_has_is_refused_by_name_and_the_rest_of_the_object_is_usable() {
    let o = object("refused");
    let message = |name: &str| link(&o, name).map(|l| l.name).map_err(|e| e.to_string());
    assert_eq!(
        message("first"),
        Err("program `first`: section `struct_ops/first`: `struct_ops` programs take the place of functions in the kernel, there is nothing like it outside".into())
    );
    assert_eq!(
        message("in_arena"),
        Err("program `in_arena`, insn 0: `shared` lies in an arena (section `.addr_space.1`), which is not supported".into())
    );
    assert_eq!(message("plain"), Ok("plain".into()));
    assert!(o.ignored.contains(&".struct_ops".to_owned()), "{:?}", o.ignored);
}

/// Who compares types by their bytes, as proofs that are kept do, counts on that.
#[test]
fn types_are_what_their_bytes_say_after_variables_were_placed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
    let (mut with_types, mut placed) = (0, 0);
    for entry in std::fs::read_dir(folder).expect("it is there").flatten() {
        let Ok(bytes) = std::fs::read(entry.path()) else { continue };
        let Ok(object) = Object::parse(&bytes) else { continue };
        let Some(btf) = object.btf.as_deref() else { continue };
        assert_eq!(&Btf::parse(btf.raw()).expect("it was read"), btf, "{:?}", entry.path());
        with_types += 1;
        placed += usize::from(!bytes.windows(btf.raw().len()).any(|part| part == btf.raw()));
    }
    assert!(with_types > 5 && placed > 0, "{with_types} {placed}");
}
