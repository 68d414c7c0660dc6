//! Machine code as it is compressed: a call names its target by the distance, which is another one
//! for each call of the same function, and so do loads of constants and of addresses. With the
//! target's place instead, they look alike.

/// Replaces the distance behind bytes that may begin a call (`e8`), a call or a jump through a word
/// relative to the instruction (`ff`), or a `mov` or `lea` of 64 bits relative to it, by a place. Jumps
/// (`e9`) stay: most are within a function, where the distance says more.
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
    while let Some(head) = code.get(at..).and_then(|rest| rest.first_chunk::<7>()) {
        // Bytes in front of the distance. What decides lies ahead, where nothing was changed yet.
        let opcode = match head {
            [0xe8, ..] => 1,
            [0xff, 0x15 | 0x25 | 0x35, ..] => 2,
            [0x40..0x50, 0x8b | 0x8d, mode, ..] if mode & 0xc7 == 5 => 3,
            _ => {
                at += 1;
                continue;
            }
        };
        at += opcode + 4;
        if let Some(word) = code.get_mut(at - 4..at).and_then(|word| word.first_chunk_mut()) {
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
        let mut code = *b"\xe8\xfb\0\0\0\x90\xe8\xf5\0\0\0\x90\x90\xe8\0\0\0";
        to_places(&mut code);
        assert_eq!(&code, b"\xe8\0\x01\0\0\x90\xe8\0\x01\0\0\x90\x90\xe8\0\0\0");
    }

    #[test]
    fn calls_through_one_word_look_alike() {
        // `call [rip + 0xfa]` and `jmp [rip + 0xf4]`, both 0x100; then one through a register, and a jump.
        let mut code = *b"\xff\x15\xfa\0\0\0\xff\x25\xf4\0\0\0\xff\xd0\xe9\xfb\0\0\0";
        to_places(&mut code);
        assert_eq!(&code, b"\xff\x15\0\x01\0\0\xff\x25\0\x01\0\0\xff\xd0\xe9\xfb\0\0\0");
    }

    #[test]
    fn loads_of_one_place_look_alike() {
        // `lea rsi, [rip + 0xf9]` and `mov r9, [rip + 0xf2]`, both 0x100; then one by a register.
        let mut code = *b"\x48\x8d\x35\xf9\0\0\0\x4c\x8b\x0d\xf2\0\0\0\x48\x8d\x36\0\0\0\0";
        to_places(&mut code);
        assert_eq!(&code, b"\x48\x8d\x35\0\x01\0\0\x4c\x8b\x0d\0\x01\0\0\x48\x8d\x36\0\0\0\0");
    }
}
