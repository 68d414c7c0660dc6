//! Tables of bytes that are made of many small pieces.

/// Adds a piece. Not inlined: what debuggers and profilers are told consists of a hundred pieces, which
/// would be a hundredth of what each traced process has of skep.
#[inline(never)]
pub(crate) fn add(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(piece);
}

/// Adds a text up to its first zero, and a zero.
pub(crate) fn add_text(out: &mut Vec<u8>, text: &str) {
    add(out, text.split('\0').next().unwrap_or_default().as_bytes());
    add(out, &[0]);
}
