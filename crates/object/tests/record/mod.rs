//! Maps and linked programs in the words of `tests/data/record.c`.

use skep_isa::{Insn, op};
use skep_object::{Linked, MapSpec};
use std::fmt::Write;

/// libbpf knows maps of custom sections by their whole names.
fn name(m: &MapSpec) -> &str {
    if m.section.matches('.').count() > 1 { &m.section } else { &m.name }
}

/// Describes a map on one line.
pub fn map(m: &MapSpec) -> String {
    let mut contents = m.data.clone().unwrap_or_default();
    if m.data.is_some() {
        contents.resize(m.value_size as usize, 0);
    }
    let (key, value) = (m.key_type_id, m.value_type_id);
    let hash = |n: u64| if n == 0 { "0".to_owned() } else { format!("{n:#x}") };
    let mut out = format!(
        "map {} type={} key={} value={} entries={} flags={} extra={} pinned={} key_type={key} value_type={value} data=",
        name(m),
        m.map_type as u32,
        m.key_size(),
        m.value_size,
        m.max_entries,
        hash(u64::from(m.flags.0)),
        hash(m.map_extra),
        u8::from(m.pinning),
    );
    contents.iter().for_each(|b| write!(out, "{b:02x}").expect("strings take everything"));
    out
}

/// Describes a linked program: maps by name, instructions as one number each.
pub fn program(l: &Linked) -> String {
    let attach = l.attach_type.map_or(0, |a| a as u32);
    let mut out = format!(
        "program {} section={} type={} attach={attach}\n",
        l.name, l.section, l.prog_type as u32
    );
    let mut second = false;
    for insn in &l.insns {
        let (mut insn, mut map) = (*insn, "");
        if !std::mem::replace(&mut second, insn.is_ld_imm64()) && insn.is_ld_imm64() {
            let kernel = match insn.src() {
                op::PSEUDO_MAP_IDX => op::PSEUDO_MAP_FD,
                op::PSEUDO_MAP_IDX_VALUE => op::PSEUDO_MAP_VALUE,
                other => other,
            };
            if kernel != insn.src() {
                map = name(&l.maps[insn.imm as usize].spec);
                insn = Insn { imm: 0, ..insn.with_src(kernel) };
            }
        }
        writeln!(out, "{:016x} {map}", u64::from_le_bytes(insn.to_bytes()))
            .expect("strings take everything");
    }
    out
}
