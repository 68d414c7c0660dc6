//! Memory of the caller: buffers, texts, and structs whose size says of which version they are.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Deref;

use crate::call::{Answer, Failure};
use crate::errno;

/// A struct of the header that may be all zeros.
///
/// # Safety
/// It is `repr(C)`, has no padding, and consists of integers and raw pointers.
pub unsafe trait Plain: Copy {
    /// Its size in the first version of the library, which no caller is below.
    const LEAST: usize;
    /// What messages call it.
    const NAME: &'static str;
}

/// Fails for an address that cannot be one.
pub fn check(address: *const c_void, align: usize, what: &str) -> Answer<()> {
    if address.is_null() {
        return Err(Failure::new(errno::EFAULT, format!("the {what} is NULL")));
    }
    if !(address as usize).is_multiple_of(align) {
        let text = format!("the {what}, {address:p}, is not a multiple of {align}");
        return Err(Failure::new(errno::EFAULT, text));
    }
    Ok(())
}

fn check_buffer(address: *const c_void, size: usize, what: &str) -> Answer<()> {
    check(address, 1, what)?;
    if isize::try_from(size).is_ok_and(|size| address.addr().checked_add_signed(size).is_some()) {
        return Ok(());
    }
    Err(Failure::new(errno::EINVAL, format!("the {what} cannot have size {size}")))
}

/// Takes bytes that the caller gives; without a size they may be null.
///
/// # Safety
/// They are there, and nobody writes to them, for as long as the result is used.
pub unsafe fn input<'a>(address: *const c_void, size: usize, what: &str) -> Answer<&'a [u8]> {
    if size == 0 {
        return Ok(&[]);
    }
    check_buffer(address, size, what)?;
    // SAFETY: not null and of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(address.cast(), size) })
}

/// A key that nobody writes to. One that another thread of the caller writes to while an element goes
/// in or out would damage the map, for all who have it open: a map reads a key several times.
pub struct Key<'a> {
    short: [u8; SHORT],
    long: Cow<'a, [u8]>,
    len: usize,
}

/// Most keys are not longer.
const SHORT: usize = 64;

impl<'a> Key<'a> {
    /// Copies a key, or several one behind another. What has more bytes than `most` is no key, and
    /// refused before anybody reads it.
    pub fn of(given: &'a [u8], most: usize) -> Self {
        let mut key = Self { short: [0; SHORT], long: Cow::Borrowed(given), len: given.len() };
        match key.short.get_mut(..given.len()) {
            Some(short) => short.copy_from_slice(given),
            None if given.len() <= most => key.long = Cow::Owned(given.to_vec()),
            None => {}
        }
        key
    }
}

impl Deref for Key<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.short.get(..self.len).unwrap_or(&self.long)
    }
}

/// Takes bytes that the caller wants written; without a size they may be null.
///
/// # Safety
/// They are there, and nobody else uses them, for as long as the result is used.
pub unsafe fn output<'a>(address: *mut c_void, size: usize, what: &str) -> Answer<&'a mut [u8]> {
    if size == 0 {
        return Ok(&mut []);
    }
    check_buffer(address, size, what)?;
    // SAFETY: not null and of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(address.cast(), size) })
}

/// Fails if what is read and what is written lie over each other. What is no buffer is none here, and
/// refused where it is [taken](input).
pub fn check_apart(read: (*const c_void, usize), written: (*mut c_void, usize)) -> Answer<()> {
    let (a, b) = (read.0.addr(), written.0.addr());
    let is_none = |address, size| check_buffer(address, size, "").is_err();
    if read.1 == 0
        || written.1 == 0
        || is_none(read.0, read.1)
        || is_none(written.0, written.1)
        || a.saturating_add(read.1) <= b
        || b.saturating_add(written.1) <= a
    {
        return Ok(());
    }
    Err(Failure::new(errno::EINVAL, "two buffers of the call overlap"))
}

/// Fails if a number that the call writes lies in one of its buffers.
pub fn check_beside<T>(number: *const T, buffer: (*mut c_void, usize)) -> Answer<()> {
    check_apart((number.cast(), size_of::<T>()), buffer)
}

/// Takes a text.
///
/// # Safety
/// It is null, or ends with NUL and does not change while the result is used.
pub unsafe fn text<'a>(address: *const c_char, what: &str) -> Answer<&'a str> {
    check(address.cast(), 1, what)?;
    // SAFETY: not null; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(address) };
    text.to_str().map_err(|_| Failure::new(errno::EINVAL, format!("the {what} is not UTF-8")))
}

/// Takes a text, or none for null.
///
/// # Safety
/// As [`text`].
pub unsafe fn text_or_none<'a>(address: *const c_char, what: &str) -> Answer<Option<&'a str>> {
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { text(address, what) }.map(Some)
}

/// Writes a text as `snprintf` does, and answers its whole length. It need not be UTF-8: paths of the
/// environment are not always.
///
/// # Safety
/// As [`output`].
pub unsafe fn give_text(text: &[u8], buffer: *mut c_char, size: usize) -> Answer {
    // SAFETY: the caller's promise.
    let out = unsafe { output(buffer.cast(), size, "buffer") }?;
    if let Some((last, room)) = out.split_last_mut() {
        let n = room.len().min(text.len());
        room[..n].copy_from_slice(&text[..n]);
        room[n..].fill(0);
        *last = 0;
    }
    Ok(c_int::try_from(text.len()).unwrap_or(c_int::MAX))
}

/// Reads a struct of any version: fields that the caller does not know are zero, and those that the
/// library does not know must be.
///
/// # Safety
/// As [`input`].
pub unsafe fn read<T: Plain>(address: *const T, size: usize) -> Answer<T> {
    check(address.cast(), align_of::<T>(), T::NAME)?;
    check_size::<T>(size)?;
    // SAFETY: the caller's promise.
    let bytes = unsafe { input(address.cast(), size, T::NAME) }?;
    let (known, more) = bytes.split_at(size.min(size_of::<T>()));
    if more.iter().any(|b| *b != 0) {
        let text = format!("the {} has fields that this version does not know", T::NAME);
        return Err(Failure::new(errno::E2BIG, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as there are, into a value that has them; `Plain` values may be any bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(known.as_ptr(), value.as_mut_ptr().cast(), known.len());
        Ok(value.assume_init())
    }
}

/// Writes a struct of any version: fields that the library does not know become zero.
///
/// # Safety
/// As [`output`].
pub unsafe fn write<T: Plain>(address: *mut T, size: usize, value: &T) -> Answer<()> {
    check(address.cast(), align_of::<T>(), T::NAME)?;
    check_size::<T>(size)?;
    // SAFETY: the caller's promise.
    let out = unsafe { output(address.cast(), size, T::NAME) }?;
    let (known, more) = out.split_at_mut(size.min(size_of::<T>()));
    // SAFETY: no more bytes than the value has, none of which is padding.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast(),
            known.as_mut_ptr(),
            known.len(),
        );
    }
    more.fill(0);
    Ok(())
}

/// Fails for a reserved field that is set: a later version may give it a meaning.
pub fn check_reserved(field: u32) -> Answer<()> {
    if field == 0 {
        return Ok(());
    }
    Err(Failure::new(errno::EINVAL, "`reserved` is not zero"))
}

/// Versions grow by whole words; a page is more than any.
fn check_size<T: Plain>(size: usize) -> Answer<()> {
    if size < T::LEAST {
        let text = format!("the {} has size {size}, at least {} is needed", T::NAME, T::LEAST);
        return Err(Failure::new(errno::EINVAL, text));
    }
    if size > 4096 {
        return Err(Failure::new(
            errno::E2BIG,
            format!("the {} has size {size}, which is too large", T::NAME),
        ));
    }
    Ok(())
}

/// Reads a number that the caller owns.
///
/// # Safety
/// `address` is null or that of a `T`.
pub unsafe fn number<T: Copy>(address: *const T, what: &str) -> Answer<T> {
    check(address.cast(), align_of::<T>(), what)?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    Ok(unsafe { address.read() })
}

/// Writes a number that the caller owns.
///
/// # Safety
/// As [`number`].
pub unsafe fn set<T: Copy>(address: *mut T, value: T, what: &str) -> Answer<()> {
    check(address.cast(), align_of::<T>(), what)?;
    // SAFETY: not null and aligned; the rest is the caller's promise.
    unsafe { address.write(value) };
    Ok(())
}
