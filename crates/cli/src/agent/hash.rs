//! The hash that names an agent among others and shows that its file is whole. The build of the
//! command uses it as well.

/// FNV-1a by words of eight bytes. It finds damage, and need not resist anybody: only files are
/// asked that nobody else can write to.
pub struct Hash {
    hash: u64,
    words: usize,
}

impl Default for Hash {
    fn default() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, words: 0 }
    }
}

impl Hash {
    /// Adds whole words.
    pub fn add(&mut self, words: &[[u8; 8]]) {
        words.iter().for_each(|word| self.mix(u64::from_le_bytes(*word)));
        self.words += words.len();
    }

    /// The hash, with the rest: less than a word.
    pub fn end(mut self, rest: &[u8]) -> String {
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.mix(u64::from_le_bytes(last));
        self.mix((8 * self.words + rest.len()) as u64);
        format!("{:016x}", self.hash)
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0100_0000_01b3);
    }
}
