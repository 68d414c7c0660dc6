//! Type information in the kernel: BTF.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;
use crate::sys::RawBtf;

/// Type information in the kernel; it lives as long as this or something with these types.
#[derive(Debug)]
pub struct Btf(RawBtf);

impl Btf {
    /// Loads the contents of a section `.BTF`.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn load(btf: &[u8]) -> Result<Self> {
        RawBtf::load(btf).map(Self)
    }

    /// Opens type information by its id.
    ///
    /// # Errors
    /// `ENOENT` when there is none, else the kernel's errno.
    pub fn open(id: u32) -> Result<Self> {
        RawBtf::by_id(id).map(Self)
    }

    /// Returns the contents of its section `.BTF`.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        self.0.bytes()
    }

    pub(crate) fn raw(&self) -> &RawBtf {
        &self.0
    }
}

/// The id of the first function's type in [`for_functions`]; the others follow.
pub(crate) const FIRST_FUNCTION: u32 = 3;

/// Returns types for `n` functions. They are loaded once for each `n`, and kept.
pub(crate) fn for_functions(n: usize) -> Result<Arc<Btf>> {
    static LOADED: Mutex<BTreeMap<usize, Arc<Btf>>> = Mutex::new(BTreeMap::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(types) = loaded.get(&n) {
        return Ok(Arc::clone(types));
    }
    let types = Arc::new(Btf::load(&function_types(n))?);
    loaded.insert(n, Arc::clone(&types));
    Ok(types)
}

/// Writes a section `.BTF` with types for `n` functions: the first global, the others static, none
/// with arguments.
fn function_types(n: usize) -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const FUNC_PROTO: u32 = 13 << 24;
    const FUNC: u32 = 12 << 24;
    const SIGNED_32_BITS: u32 = 1 << 24 | 32;
    let strings = b"\0int\0f\0";
    let mut types = vec![1, INT, 4, SIGNED_32_BITS, 0, FUNC_PROTO, 1];
    for f in 0..n {
        types.extend([5, FUNC | u32::from(f == 0), 2]);
    }
    let types: Vec<u8> = types.iter().flat_map(|w: &u32| w.to_le_bytes()).collect();
    let mut btf = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
        btf.extend(word.to_le_bytes());
    }
    btf.extend(&types);
    btf.extend(strings);
    btf
}
