//! Machine code as text, in the syntax that objdump and bpftool use.

use iced_x86::{
    Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, SymbolResolver, SymbolResult,
};
use skep::isa::ProgramType;
use skep::test_run::{MachineCode, helper_at};

/// One machine instruction.
pub struct Line<'a> {
    /// Bytes from the beginning of the program.
    pub offset: u32,
    /// The instruction.
    pub bytes: &'a [u8],
    /// Its text.
    pub text: String,
}

/// Names the helpers that are called, and places in the program by their offset.
struct Names {
    prog_type: ProgramType,
    start: u64,
    end: u64,
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let name = if (self.start..self.end).contains(&address) {
            format!("{:#x}", address - self.start)
        } else {
            format!("bpf_{}", helper_at(self.prog_type, address)?)
        };
        Some(SymbolResult::with_string(address, name))
    }
}

/// Lists the instructions of a program.
pub fn lines(code: MachineCode<'_>) -> impl Iterator<Item = Line<'_>> {
    let mut decoder = Decoder::with_ip(64, code.bytes, code.address, DecoderOptions::NONE);
    let names = Names {
        prog_type: code.prog_type,
        start: code.address,
        end: code.address + code.bytes.len() as u64,
    };
    let mut formatter = GasFormatter::with_options(Some(Box::new(names)), None);
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_branch_leading_zeros(false);
    formatter.options_mut().set_small_hex_numbers_in_decimal(true);
    let mut instruction = Instruction::default();
    std::iter::from_fn(move || {
        if !decoder.can_decode() {
            return None;
        }
        let from = decoder.position();
        decoder.decode_out(&mut instruction);
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let bytes = code.bytes.get(from..decoder.position()).unwrap_or_default();
        Some(Line { offset: u32::try_from(from).unwrap_or(u32::MAX), bytes, text })
    })
}
