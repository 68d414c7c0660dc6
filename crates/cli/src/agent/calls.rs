//! Machine code as it is compressed: a call names its target by the distance, which is another one
//! for each call of the same function. With the target's place instead, calls look alike.

/// Replaces the distance behind each byte that may begin a call or a jump (`e8`, `e9`) by a place.
#[cfg_attr(not(test), allow(dead_code, reason = "the build does it, the command undoes it"))]
pub fn to_places(code: &mut [u8]) {
    each(code, u32::wrapping_add);
}

/// Undoes [`to_places`].
#[cfg_attr(not(test), allow(dead_code, reason = "the build does it, the command undoes it"))]
pub fn to_distances(code: &mut [u8]) {
    each(code, u32::wrapping_sub);
}

fn each(code: &mut [u8], change: impl Fn(u32, u32) -> u32) {
    let mut at = 0;
    while let Some([op, word @ ..]) =
        code.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<5>())
    {
        at += 1;
        if matches!(op, 0xe8 | 0xe9) {
            at += 4;
            *word = change(u32::from_le_bytes(*word), at as u32).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_become_distances_again() {
        let mut code = std::fs::read("/proc/self/exe").expect("this program");
        code.truncate(1 << 20);
        let before = code.clone();
        to_places(&mut code);
        assert_ne!(code, before);
        to_distances(&mut code);
        assert!(code == before);
    }

    #[test]
    fn calls_of_one_function_look_alike() {
        // Two calls of what is at 0x100; the third has no whole distance.
        let mut code = *b"\xe8\xfb\0\0\0\x90\xe8\xf5\0\0\0\xe8\0\0\0";
        to_places(&mut code);
        assert_eq!(&code, b"\xe8\0\x01\0\0\x90\xe8\0\x01\0\0\xe8\0\0\0");
    }
}
