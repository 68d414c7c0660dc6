//! Unwind tables as another library reads them, over all that this machine has.

use std::path::{Path, PathBuf};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, X86_64,
};
use skep_proc::elf::Elf;
use skep_proc::unwind::{Memory, Registers, Step};

/// Loaded parts of a file at their link-time addresses.
struct Image(Vec<(u64, Vec<u8>)>);

impl Image {
    fn new(elf: &Elf) -> Self {
        let loads = elf.segments().iter().filter(|s| s.kind == 1 && s.file_size > 0);
        Self(loads.map(|s| (s.vaddr, elf.read_vaddr(s.vaddr, s.file_size).unwrap())).collect())
    }
}

impl Memory for Image {
    fn number(&mut self, addr: u64, size: u64) -> Option<u64> {
        let (start, bytes) = self.0.iter().rev().find(|(start, _)| *start <= addr)?;
        let bytes = bytes.get((addr - start) as usize..)?.get(..size as usize)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

/// Memory in which each word has a value that says where it is.
struct Told;

impl Memory for Told {
    fn number(&mut self, addr: u64, _: u64) -> Option<u64> {
        Some(addr ^ 0x5555_0000_0000)
    }
}

/// Files whose tables are read: the libraries of the machine, or a few of them.
fn files() -> Vec<PathBuf> {
    let stress = std::env::var_os("SKEP_STRESS").is_some();
    let mut found: Vec<PathBuf> = vec![std::env::current_exe().unwrap()];
    for dir in ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/bin", "/lib64"] {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let files = entries.map(|e| e.path()).filter(|p| p.is_file());
        let small = |p: &PathBuf| p.metadata().is_ok_and(|m| stress || m.len() < 1 << 20);
        found.extend(files.filter(small));
    }
    found.sort();
    found.dedup();
    if !stress {
        let some = found.iter().enumerate().filter(|(i, _)| i % 100 == 0);
        found = some.map(|(_, p)| p.clone()).collect();
    }
    found
}

/// What gimli makes of a row, followed from made-up registers; `None` if it is nothing that
/// [`Step`] has.
fn expected(
    row: &gimli::UnwindTableRow<usize>,
    expression: &dyn Fn(gimli::UnwindExpression<usize>) -> Vec<u8>,
    frame: Registers,
) -> Option<Option<Registers>> {
    let rule = |register| row.register(register).unwrap_or(RegisterRule::Undefined);
    let ra = rule(X86_64::RA);
    let (CfaRule::RegisterAndOffset { register, offset }, RegisterRule::Offset(-8)) =
        (row.cfa(), &ra)
    else {
        return match (row.cfa(), ra) {
            (_, RegisterRule::Undefined) => Some(None),
            // The one shape of functions that align their stack.
            (CfaRule::Expression(e), RegisterRule::Offset(-8)) => {
                let RegisterRule::Expression(bp) = rule(X86_64::RBP) else { return None };
                let (cfa, bp) = (expression(*e), expression(bp));
                match (&cfa[..], &bp[..]) {
                    ([0x76, offset, 0x06], [0x76, bp]) if offset & 0x80 == 0 && bp & 0x80 == 0 => {
                        let low = |byte: u8| i64::from((byte << 1) as i8 >> 1);
                        let word = |at: i64| Told.number(frame.bp.wrapping_add_signed(at), 8);
                        let sp = word(low(*offset))?;
                        let ip = Told.number(sp.wrapping_sub(8), 8)?;
                        let bp = word(low(*bp))?;
                        Some((sp > frame.sp).then_some(Registers { ip, sp, bp, is_return: true }))
                    }
                    _ => None,
                }
            }
            _ => None,
        };
    };
    let base = match *register {
        X86_64::RSP => frame.sp,
        X86_64::RBP => frame.bp,
        _ => return None,
    };
    let sp = base.wrapping_add_signed(*offset);
    let bp = match rule(X86_64::RBP) {
        RegisterRule::Undefined | RegisterRule::SameValue => frame.bp,
        RegisterRule::Offset(offset) => Told.number(sp.wrapping_add_signed(offset), 8)?,
        _ => return None,
    };
    let ip = Told.number(sp.wrapping_sub(8), 8)?;
    Some((sp > frame.sp).then_some(Registers { ip, sp, bp, is_return: true }))
}

/// Compares each row of a file; returns how many there were, and how many have no step.
fn compare(path: &Path) -> Option<(usize, usize)> {
    let elf = Elf::open(path).ok()?;
    let header = elf.segments().iter().find(|s| s.kind == 0x6474_e550)?;
    let section = elf.section(".eh_frame").filter(|s| s.size > 0 && s.kind != 8)?;
    let data = elf.section_data(section).ok()?;
    let frames = EhFrame::new(&data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.vaddr);
    let mut context = UnwindContext::new();
    let mut image = Image::new(&elf);
    let (mut rows, mut without) = (0, 0);
    let mut entries = frames.entries(&bases);
    let frame = Registers { ip: 0, sp: 0x7000, bp: 0x9000, is_return: false };
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(|s, bases, offset| s.cie_from_offset(bases, offset)).ok()?;
        if fde.len() == 0 {
            continue;
        }
        let mut table = fde.rows(&frames, &bases, &mut context).ok()?;
        while let Ok(Some(row)) = table.next_row() {
            let bytes = |e: gimli::UnwindExpression<usize>| e.get(&frames).unwrap().0.to_vec();
            // LLVM's library has rows that no instruction is in.
            if row.start_address() == row.end_address() {
                continue;
            }
            for pc in [row.start_address(), row.end_address() - 1] {
                if !(fde.initial_address()..fde.end_address()).contains(&pc) {
                    continue;
                }
                let step = Step::find(&mut image, header.vaddr, pc);
                assert_eq!(Step::from_bits(step.to_bits()), step);
                let expected = expected(row, &bytes, frame);
                let at = format!("{} at {pc:#x}: {row:?}", path.display());
                match expected {
                    Some(expected) => assert_eq!(step.take(&mut Told, frame), expected, "{at}"),
                    None => without += 1,
                }
                rows += 1;
            }
        }
    }
    Some((rows, without))
}

/// Steps are where gimli's rows lead, for both ends of each row.
#[test]
fn steps_are_those_of_another_reader() {
    let mut total = (0, 0, 0);
    for path in files() {
        if let Some((rows, without)) = compare(&path) {
            total = (total.0 + 1, total.1 + rows, total.2 + without);
        }
    }
    let (files, rows, without) = total;
    assert!(files > 3 && rows > 5_000, "{total:?}");
    // Linkage tables, signal frames, a few functions in assembly.
    assert!(without * 50 < rows, "{total:?}");
}

/// Tables with wrong bytes in them lead somewhere or nowhere, soon.
#[test]
fn damaged_tables_end() {
    let elf = Elf::open(std::env::current_exe().unwrap()).unwrap();
    let header = elf.segments().iter().find(|s| s.kind == 0x6474_e550).unwrap().vaddr;
    let text = elf.section(".text").unwrap().range();
    let mut image = Image::new(&elf);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let tables = image
        .0
        .iter()
        .position(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&header));
    let tables = tables.unwrap();
    let frame = Registers { ip: text.start, sp: 0x7000, bp: 0x9000, is_return: true };
    let whole = image.0[tables].1.clone();
    let mut known = 0;
    for round in 0..20_000 {
        if round % 200 == 0 {
            // How soon nothing is found any more depends on the program.
            image.0[tables].1.clone_from(&whole);
        }
        let pc = text.start + random(text.end - text.start);
        let from = (header - image.0[tables].0) as usize;
        let len = image.0[tables].1.len() - from;
        let at = from + if random(4) == 0 { random(16) } else { random(len as u64) } as usize;
        let before = std::mem::replace(&mut image.0[tables].1[at], random(256) as u8);
        let step = Step::find(&mut image, header, pc);
        known += usize::from(step != Step::UNKNOWN);
        let _ = step.take(&mut Told, frame);
        // Most damage stays, so that it adds up.
        if at < from + 16 || random(8) == 0 {
            image.0[tables].1[at] = before;
        }
    }
    assert!(known > 1000, "{known}");
    // A table at the end of all memory.
    struct End;
    impl Memory for End {
        fn number(&mut self, _: u64, size: u64) -> Option<u64> {
            Some(if size == 4 { 0x3b03_1b01 } else { 1 })
        }
    }
    for header in u64::MAX - 20..=u64::MAX {
        let _ = Step::find(&mut End, header, header.wrapping_add(0x3b03_1b02));
    }
}
