//! The hash that names an agent among others and shows that its file is whole. The build of the
//! command uses it as well.

/// FNV-1a by words of eight bytes. It finds damage, and need not resist anybody: only files are
/// asked that nobody else can write to.
pub fn hash(bytes: &[u8]) -> String {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
    let all = words.chain([bytes.len() as u64]);
    let hash = all
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
