//! What to do about a fault: what the program did not do already.

use skep_isa::{ProgramType as P, helper};

use super::Fault;
use super::access::Size;
use super::bytes::FaultyAccess;
use super::index::{self, Bound, Index, Test};
use crate::reg::Kind;
use crate::reject::{Reason, Step};
use crate::stack::Byte;

/// Finds advice that rests on the path; `None` leaves it to the reason.
pub(super) fn hint(fault: &Fault<'_>, found: Option<&FaultyAccess>) -> Option<String> {
    match fault.reason {
        Reason::OutOfBounds { .. }
            if matches!(found.map(|f| f.base.kind), Some(Kind::Record(_)))
                && found?.index.is_none() =>
        {
            Some(format!(
                "reserve {} bytes for the record",
                found?.first.1.saturating_add_unsigned(found?.access.bytes)
            ))
        }
        Reason::OutsideRange { .. } | Reason::Unbounded { .. } | Reason::OutOfBounds { .. } => {
            upper(fault, found?)
        }
        Reason::BadVariableStackAccess { .. } | Reason::UnboundedStack { .. } => {
            stack_index(fault, found?)
        }
        Reason::MakesOutOfBounds { .. } | Reason::UnboundedStep { .. } => {
            let last = fault.steps.len() - 1;
            let reg = index::added(fault.steps.get(last)?)?;
            let index = index::of_number(fault.steps, last, reg);
            let known = fault.state.reg(reg).as_const().is_some();
            let negative =
                index.tests.iter().any(|t| t.signed && matches!(t.bound, Bound::AtMost(_)));
            match known {
                true => None,
                false if negative => lower(fault, Some(&index)),
                false => Some(bounded(fault.steps, &index, "index", None, is_wide(fault, reg))),
            }
        }
        Reason::NegativeIndex { .. } => lower(fault, found?.index.as_ref()),
        Reason::BadStackAccess { off, .. } if *off < -512 => Some(
            "the stack has 512 bytes: large variables belong in a per-CPU array of one element"
                .to_owned(),
        ),
        Reason::BadStackAccess { .. } => match found?.access.size {
            Size::Register(reg) => {
                Some(format!("give R{reg} at most the size of the variable, `sizeof` of it"))
            }
            Size::Key | Size::Value => Some("give a variable of the map's own type".to_owned()),
            _ => None,
        },
        Reason::OutsidePacket { .. } => packet(fault, found?),
        Reason::UninitStackRead { .. } | Reason::UninitIndirect { .. } => unwritten(fault, found?),
        Reason::UnboundedSize { reg } | Reason::NegativeSize { reg } => size(fault, found, *reg),
        Reason::ZeroSize { .. } => Some("call it only when the size is not 0".to_owned()),
        Reason::NotMemory { reg, kind } if kind == "scalar" => {
            moved_packet(fault.steps, *reg).or_else(|| number(fault, *reg))
        }
        _ => None,
    }
}

/// Where a step is. Compilers give several tests one line, so the instruction stands there too.
fn at(steps: &[Step], step: usize) -> String {
    let insn = steps.get(step).map_or(0, |s| s.insn);
    match steps.get(..=step).and_then(|before| before.iter().rev().find_map(|s| s.line.as_ref())) {
        Some(line) => format!("line {} (insn {insn})", line.line),
        None => format!("insn {insn}"),
    }
}

/// How many bytes an access can be moved up from where it is when the index is 0.
fn room(f: &FaultyAccess) -> Option<i64> {
    let region = f.region.as_ref()?;
    // Not beyond the variable, whatever is behind it.
    let end = region.variable.as_ref().map_or(region.size, |(_, end)| (*end).min(region.size));
    let room =
        i64::from(end).checked_sub(f.fixed())?.checked_sub(i64::try_from(f.access.bytes).ok()?)?;
    (room >= 0).then_some(room)
}

/// How many indexes are inside, when each is so many bytes from the next.
fn fitting(room: i64, scale: u64) -> i64 {
    let scale = i64::try_from(scale).unwrap_or(i64::MAX).max(1);
    (room / scale).saturating_add(1)
}

fn upper(fault: &Fault<'_>, f: &FaultyAccess) -> Option<String> {
    if let Size::Register(reg) = f.access.size
        && f.base.val.as_const().is_some()
    {
        let room = i64::from(f.region.as_ref()?.size).saturating_sub(f.first.1);
        return Some(if fault.state.reg(reg).as_const().is_some() || room <= 0 {
            format!("there is room for {} bytes", room.max(0))
        } else {
            let index = index::of_number(fault.steps, fault.steps.len() - 1, reg);
            bounded(fault.steps, &index, "size", Some(room), is_wide(fault, reg))
        });
    }
    let larger = u64::from(f.region.as_ref().map_or(0, |r| r.size)) < f.access.bytes;
    match f.access.size {
        Size::Key if larger => {
            return Some("give a variable of the type of the map's keys".to_owned());
        }
        Size::Value if larger => {
            return Some("give a variable of the type of the map's values".to_owned());
        }
        _ => {}
    }
    let Some(index) = &f.index else {
        let known = f.base.val.as_const().is_some();
        return (!known).then(|| {
            "compare the offset with the size right before the access, in one variable".to_owned()
        });
    };
    let room = room(f);
    if index.known.is_some() && index.tests.is_empty() {
        return None;
    }
    if f.region.is_some() && room.is_none() {
        let why = if larger {
            "what is accessed is larger than what there is"
        } else {
            "what is added to it leads behind the end already"
        };
        return Some(format!("no index fits: {why}"));
    }
    let scale = i64::try_from(index.scale).unwrap_or(i64::MAX);
    if f.fixed() < 0 && f.base.val.r64.smin == 0 {
        let less = f.fixed().unsigned_abs().div_ceil(scale.unsigned_abs());
        return Some(format!(
            "{less} is subtracted from an index that may be 0: test that it is `>= {less}` before"
        ));
    }
    let wide = f.base.val.r64.umax / index.scale.max(1) > u64::from(u32::MAX);
    Some(bounded(fault.steps, index, "index", room, wide))
}

/// Tells whether more than the lower half of a register is not known.
fn is_wide(fault: &Fault<'_>, reg: u8) -> bool {
    fault.state.reg(reg).val.r64.umax > u64::from(u32::MAX)
}

/// What a test of 32 bits leaves open of a number of 64.
fn narrow(place: &str, what: &str) -> String {
    format!(
        "the test at {place} is of 32 bits, and the {what} has 64: keep it in a `u64`, or mask it before it is used"
    )
}

/// Advice on a number that adds up to `room` bytes to an address or a size; `wide`: its upper 32
/// bits are not known.
fn bounded(steps: &[Step], index: &Index, what: &str, room: Option<i64>, wide: bool) -> String {
    // Numbers that are tested or masked may be multiplied afterwards.
    let limit_at = |scale: u64| room.map(|room| fitting(room, scale));
    if let Some((n, test)) = index.at_most() {
        return at_most(steps, index, what, (n, &test), limit_at(test.scale), wide);
    }
    if let Some(load) = index.load
        && let Some(before) = index::loaded_before(steps, load)
    {
        let place = at(steps, before);
        return format!(
            "the {what} is read anew after it was tested, and may have changed: read it once, at {place}, into a variable"
        );
    }
    wide_mask(steps, index, limit_at)
        .or_else(|| at_least(steps, index, what, limit_at))
        .unwrap_or_else(|| unbounded(steps, index, what, limit_at))
}

/// Advice on a number that a test bounds, but not far enough.
fn at_most(
    steps: &[Step],
    index: &Index,
    what: &str,
    (n, test): (i64, &Test),
    limit: Option<i64>,
    wide: bool,
) -> String {
    let place = at(steps, test.step);
    let what = if test.scale == index.scale { what } else { "offset" };
    match limit {
        _ if test.narrow && wide => narrow(&place, what),
        Some(limit) if n >= limit && !test.moved && what == "size" => {
            format!("the test at {place} lets {n} through: the {what} must be `<= {}`", limit - 1)
        }
        Some(limit) if n >= limit && !test.moved => {
            format!(
                "the test at {place} lets {n} through: the {what} must be `< {limit}`, so leave at `>= {limit}`"
            )
        }
        Some(limit) if test.moved => {
            format!(
                "the test at {place} is of another number than the one used: test the sum, `< {limit}`"
            )
        }
        // The upper end is tested and is not what is wrong.
        _ if test.signed => {
            format!(
                "the test at {place} lets negative numbers through: make the {what} unsigned, or test `>= 0` as well"
            )
        }
        _ => format!(
            "the test at {place} is of another number than the one used: test the {what} right before the access"
        ),
    }
}

/// Advice on a mask that lets too much through.
fn wide_mask(
    steps: &[Step],
    index: &Index,
    limit_at: impl Fn(u64) -> Option<i64>,
) -> Option<String> {
    let (step, mask, scale) = index.mask?;
    let limit = limit_at(scale)?;
    let place = at(steps, step);
    let is_enough = i64::from(mask) < limit && mask >= 0;
    if is_enough || limit <= 0 {
        return None;
    }
    let tight = (limit as u64).next_power_of_two() as i64;
    Some(if tight == limit {
        format!("the mask {mask:#x} at {place} is too wide: `& {:#x}`", limit - 1)
    } else {
        format!("the mask {mask:#x} at {place} is too wide: test `< {limit}` instead")
    })
}

/// Advice on a number that is used where a test found it too large.
fn at_least(
    steps: &[Step],
    index: &Index,
    what: &str,
    limit_at: impl Fn(u64) -> Option<i64>,
) -> Option<String> {
    let mut found = index
        .tests
        .iter()
        .filter_map(|t| if let Bound::AtLeast(n) = t.bound { Some((n, t)) } else { None });
    let (n, test) =
        found.next().filter(|(n, t)| limit_at(t.scale).is_none_or(|limit| *n >= limit))?;
    let place = at(steps, test.step);
    let below =
        limit_at(test.scale).map_or("bounded by a constant".to_owned(), |n| format!("`< {n}`"));
    Some(format!(
        "on this path the test at {place} found the {what} to be {n} or more: use it only where it is {below}"
    ))
}

/// Advice on a number that nothing bounds.
fn unbounded(
    steps: &[Step],
    index: &Index,
    what: &str,
    limit_at: impl Fn(u64) -> Option<i64>,
) -> String {
    let limit = limit_at(index.scale);
    if let Some(test) = index.tests.iter().find(|t: &&Test| t.bound == Bound::Unknown) {
        let place = at(steps, test.step);
        let below = limit_at(test.scale).map_or("a constant".to_owned(), |n| n.to_string());
        return format!(
            "{place} compares the {what} with what is not known: compare it with {below}"
        );
    }
    if index.computed {
        let place = limit
            .map_or("compare it with a constant".to_owned(), |n| format!("`if ({what} < {n})`"));
        return format!(
            "the {what} is made of other numbers, whose tests do not bound it: {place} before it is used"
        );
    }
    match limit {
        Some(n) if n > 1 && (n as u64).is_power_of_two() && what == "index" => {
            format!(
                "{}`if ({what} < {n})` before the access, or `{what} & {}`",
                untested(steps, index, what, "upper"),
                n - 1
            )
        }
        Some(n) => format!(
            "{}`if ({what} < {n})` before it is used",
            untested(steps, index, what, "upper")
        ),
        None => format!(
            "{}compare it with a constant before it is used",
            untested(steps, index, what, "upper")
        ),
    }
}

/// What is known of a number that no test bounds. Tests before the first step that is kept are not
/// known.
fn untested(steps: &[Step], index: &Index, what: &str, end: &str) -> String {
    match index.tests.first() {
        Some(test) => {
            format!("the test at {} sets no {end} end to the {what}: ", at(steps, test.step))
        }
        None if index.cut => format!("nothing near the access tests the {what}: "),
        None => format!("nothing tests the {what} on this path: "),
    }
}

/// Stack variables have no sizes that anybody knows here.
fn stack_index(fault: &Fault<'_>, f: &FaultyAccess) -> Option<String> {
    let index = f.index.as_ref()?;
    if let Some((n, test)) = index.at_most() {
        let place = at(fault.steps, test.step);
        return Some(format!(
            "the test at {place} lets {n} through, which leaves the stack: compare the index with the array's size"
        ));
    }
    if let Some((step, mask, _)) = index.mask {
        let place = at(fault.steps, step);
        return Some(format!(
            "the mask {mask:#x} at {place} is wider than the array: use its size less 1"
        ));
    }
    Some(format!(
        "{}compare it with the array's size before the access",
        untested(fault.steps, index, "index", "upper")
    ))
}

fn lower(fault: &Fault<'_>, index: Option<&Index>) -> Option<String> {
    let index = index?;
    let above = index.tests.iter().any(|t| matches!(t.bound, Bound::AtLeast(n) if n >= 0));
    let signed = index.tests.iter().find(|t| t.signed && matches!(t.bound, Bound::AtMost(_)));
    if let Some(test) = signed.filter(|_| !above) {
        let place = at(fault.steps, test.step);
        return Some(format!(
            "the test at {place} lets negative numbers through: make the index unsigned, or test `>= 0` as well"
        ));
    }
    if above || index.tests.iter().any(|t| t.moved) {
        return Some(
            "what is subtracted after the test may be more than the index: test the difference"
                .to_owned(),
        );
    }
    if let Some(load) = index.load
        && let Some(before) = index::loaded_before(fault.steps, load)
    {
        let place = at(fault.steps, before);
        return Some(format!(
            "the index is read anew after it was tested, and may have changed: read it once, at {place}, into a variable"
        ));
    }
    if index.tests.iter().any(|t| matches!(t.bound, Bound::AtMost(_))) {
        return None;
    }
    Some(format!(
        "{}make it unsigned, and compare it with the size",
        untested(fault.steps, index, "index", "lower")
    ))
}

fn packet(fault: &Fault<'_>, f: &FaultyAccess) -> Option<String> {
    let first = i64::from(f.base.off) + f.access.off;
    let end = first.checked_add_unsigned(f.access.bytes)?;
    if first < 0 {
        return Some(
            "what lies before `data` is no packet: move its beginning with a helper first"
                .to_owned(),
        );
    }
    let of =
        if f.base.kind == Kind::PacketMeta { ("data_meta", "data") } else { ("data", "data_end") };
    let pointer = if f.base.id == 0 { of.0 } else { "pointer" };
    let wanted = format!("`if ({pointer} + {end} > {}) return …;`", of.1);
    if f.base.range > 0 {
        return Some(format!(
            "{end} bytes are needed where {} are compared: {wanted}",
            f.base.range
        ));
    }
    let (_, high) = f.base.offsets();
    if f.base.val.as_const().is_none() && high > 0xffff {
        return Some(format!(
            "the number added to the pointer may be too large for a packet: bound it (`& 0xffff`) before, then {wanted}"
        ));
    }
    let compared = |with: &str| {
        fault.steps.iter().rposition(|s| {
            crate::cfg::is_conditional(s.code)
                && s.regs.iter().any(|(_, what)| what.starts_with(with))
        })
    };
    if f.base.kind == Kind::PacketMeta
        && let Some(step) = compared("pkt(")
    {
        let place = at(fault.steps, step);
        return Some(format!(
            "the comparison at {place} goes on where the metadata may end before: {wanted}"
        ));
    }
    let compared = compared("pkt_end");
    Some(match compared {
        Some(step) if f.base.kind == Kind::PacketMeta => {
            let place = at(fault.steps, step);
            format!(
                "the comparison at {place} is with the end of the packet, metadata ends where that begins: {wanted}"
            )
        }
        Some(step) if f.base.id != 0 => {
            let place = at(fault.steps, step);
            format!(
                "the comparison at {place} is of another pointer: compare this one after the addition, {wanted}"
            )
        }
        Some(step) => {
            let place = at(fault.steps, step);
            format!("the comparison at {place} goes on where the packet may end before: {wanted}")
        }
        None => format!("compare the end of the access with `{}` before: {wanted}", of.1),
    })
}

fn unwritten(fault: &Fault<'_>, f: &FaultyAccess) -> Option<String> {
    let Kind::Stack(frame) = f.base.kind else { return None };
    let frame = fault.state.frames.get(usize::from(frame))?;
    let all = f.first.0..f.first.1.saturating_add_unsigned(f.access.bytes);
    let bytes: Vec<Byte> = all
        .filter_map(|o| i32::try_from(o).ok())
        .filter(|o| *o < 0)
        .map(|o| frame.stack.byte(o))
        .collect();
    if bytes.contains(&Byte::Special) {
        return Some(
            "an object of the kernel (a dynptr, an iterator) lies there: use another variable"
                .to_owned(),
        );
    }
    let some = bytes.iter().any(|b| *b != Byte::Uninit);
    let calls = !matches!(f.access.size, Size::Insn);
    match (some, calls) {
        (true, true) => {
            Some("an initializer leaves padding as it was: `__builtin_memset` the whole variable first, then set its fields".to_owned())
        }
        (false, _) => Some("initialize the variable on every path: `= {}` or `__builtin_memset`".to_owned()),
        _ => None,
    }
}

fn size(fault: &Fault<'_>, found: Option<&FaultyAccess>, reg: u8) -> Option<String> {
    if fault.state.reg(reg).as_const().is_some() {
        return Some("give the size of the variable, `sizeof` of it".to_owned());
    }
    let room = found
        .and_then(|f| Some(i64::from(f.region.as_ref()?.size).saturating_sub(f.first.1)))
        .filter(|n| *n > 0);
    let index = index::of_number(fault.steps, fault.steps.len() - 1, reg);
    if let Some((n, test)) = index.at_most() {
        let place = at(fault.steps, test.step);
        return Some(match room {
            _ if test.narrow && is_wide(fault, reg) => narrow(&place, "size"),
            _ if test.signed => {
                format!(
                    "the test at {place} lets negative numbers through: make the size unsigned, or test `>= 0` as well"
                )
            }
            Some(room) if n > room => {
                format!("the test at {place} lets {n} through: the size must be `<= {room}`")
            }
            _ => format!(
                "the test at {place} is of another number than the one used: test the size right before the call"
            ),
        });
    }
    Some(match room {
        Some(n) => format!(
            "{}`if (size <= {n})` before the call",
            untested(fault.steps, &index, "size", "upper")
        ),
        None => format!(
            "{}compare it with the size of the variable before the call",
            untested(fault.steps, &index, "size", "upper")
        ),
    })
}

/// A number where an address is wanted.
fn number(fault: &Fault<'_>, reg: u8) -> Option<String> {
    if fault.state.reg(reg).is_zero() {
        return Some(
            "the pointer is NULL on this path: use it only where the test finds that it is not"
                .to_owned(),
        );
    }
    let probes = matches!(
        fault.prog.prog_type,
        P::Kprobe
            | P::Tracing
            | P::Tracepoint
            | P::RawTracepoint
            | P::RawTracepointWritable
            | P::PerfEvent
            | P::Lsm
    );
    (!probes).then(|| {
        "the verifier takes this for a plain number, not for a pointer: use the pointer that it was made from"
            .to_owned()
    })
}

/// A pointer into the packet that a helper made a number of.
fn moved_packet(steps: &[Step], reg: u8) -> Option<String> {
    let was = steps
        .iter()
        .rposition(|s| s.regs.iter().any(|(r, what)| *r == reg && what.starts_with("pkt")))?;
    let mover = steps[was..].iter().rposition(|s| {
        let by_id =
            |id| helper::by_id(id).is_some_and(|h| h.packet_effect == helper::PacketEffect::Moves);
        s.code.is_helper_call() && by_id(s.code.imm as u32)
    })?;
    let place = at(steps, was + mover);
    Some(format!(
        "the call at {place} may move the packet: read `data` and `data_end` anew after it, and compare again"
    ))
}
