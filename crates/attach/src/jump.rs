//! The five bytes that lead a function away: a jump or call with a 32-bit distance.

/// Bytes of a jump or call with a 32-bit distance.
pub(crate) const PATCH: usize = 5;

/// `opcode` (0xe8 call, 0xe9 jmp) at `from` to `to`; `None` when that is too far.
pub(crate) fn jump(opcode: u8, from: u64, to: u64) -> Option<[u8; PATCH]> {
    let distance = i32::try_from(to.wrapping_sub(from).wrapping_sub(PATCH as u64) as i64).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([opcode, a, b, c, d])
}

/// Where a jump leads that `jump` made with the opcode 0xe9.
pub(crate) fn jump_target(from: u64, [opcode, distance @ ..]: [u8; PATCH]) -> Option<u64> {
    let end = from.wrapping_add(PATCH as u64);
    (opcode == 0xe9).then(|| end.wrapping_add_signed(i32::from_le_bytes(distance).into()))
}
