//! One hooked function: how its first bytes are, and how they shall be.

use super::entries::Entries;
use crate::code;
use crate::goroutines::Goroutines;
use crate::hook_list::Meta;
use crate::hook_lists::CookieWords;
use crate::island;
use crate::jump::{PATCH, jump};
use crate::patch::change::{Change, Detour, Hooked, current};
use crate::patch_site::{PatchSite, Shape};
use crate::sites::Module;
use crate::skip::Skip;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// How a function's first bytes are now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Plain,
    Entry,
    Exit,
}

/// What functions have in common that were prepared together.
#[derive(Debug)]
pub(super) struct Origin {
    /// What they were found in.
    module: Weak<Module>,
    /// The executable range that they are in.
    text: Range<u64>,
    /// The chunk that their islands are in,
    pub(super) islands: Range<u64>,
    /// and those for exit hooks.
    pub(super) exits: Range<u64>,
    /// Those of the module, if it is of Go.
    pub(super) goroutines: Option<&'static Goroutines>,
}

impl Origin {
    pub(super) fn new(module: &Arc<Module>, text: Range<u64>, islands: Range<u64>) -> Self {
        let (module, goroutines) = (Arc::downgrade(module), module.goroutines());
        Self { module, text, exits: islands.clone(), islands, goroutines }
    }

    /// The same with islands for exit hooks in another chunk.
    pub(super) fn with_exits(&self, exits: Range<u64>) -> Self {
        let Self { module, text, islands, goroutines, .. } = self;
        let (module, text, islands) = (module.clone(), text.clone(), islands.clone());
        Self { module, text, islands, exits, goroutines: *goroutines }
    }

    /// Tells whether they are in the executable range that begins there.
    pub(super) fn begins_at(&self, text: u64) -> bool {
        self.text.start == text
    }
}

#[derive(Debug)]
pub(super) struct Site {
    pub(super) origin: Arc<Origin>,
    pub(super) patch_site: PatchSite,
    pub(super) meta: &'static Meta,
    /// Argument words, when one of the attachments knows them.
    pub(super) nr_args: Option<u8>,
    /// Where the five bytes lead for entry hooks, counted from the islands' chunk: called at compiled-in
    /// sites, else jumped to.
    entry: u32,
    /// Where they lead for exit hooks, in the chunk for those; 0: not made yet.
    exit: u32,
    /// The first five bytes of the island of a place inside a function, as they were made.
    pub(super) head: Option<[u8; PATCH]>,
    pub(super) form: Form,
    /// What calls get: another form than that of the bytes while the island they lead to is
    /// redirected.
    pub(super) aim: Form,
    pub(super) entries: Entries,
    pub(super) cookies: CookieWords,
    /// For each of the five bytes after the first that begins an instruction: how far behind the
    /// start of the moved instructions that is.
    relocation_map: [u8; PATCH - 1],
}

/// No instruction begins there.
const NO_START: u8 = u8::MAX;

/// What a site is made of, besides what is the same for all.
#[derive(Debug)]
pub(super) struct NewSite {
    pub(super) origin: Arc<Origin>,
    pub(super) patch_site: PatchSite,
    pub(super) meta: &'static Meta,
    /// Addresses in the chunk of the origin; of the second 0: there is none.
    pub(super) entry: u64,
    pub(super) exit: u64,
    pub(super) head: Option<[u8; PATCH]>,
    /// Of all five bytes: how far behind the start of the moved instructions each is.
    pub(super) relocation_map: [Option<u8>; PATCH],
}

impl Site {
    /// `None`: its islands are too far from the start of their chunk.
    pub(super) fn new(new: NewSite) -> Option<Self> {
        let NewSite { origin, patch_site, meta, entry, exit, head, relocation_map } = new;
        let [_, inner @ ..] = relocation_map;
        Some(Self {
            patch_site,
            meta,
            nr_args: None,
            entry: distance(entry, &origin.islands)?,
            exit: if exit == 0 { 0 } else { distance(exit, &origin.exits)? },
            origin,
            head,
            form: Form::Plain,
            aim: Form::Plain,
            entries: Entries::default(),
            cookies: CookieWords::default(),
            relocation_map: inner.map(|moved| moved.unwrap_or(NO_START)),
        })
    }

    /// Where the five bytes lead for entry hooks.
    fn entry(&self) -> u64 {
        self.origin.islands.start + u64::from(self.entry)
    }

    /// Where they lead for exit hooks; 0: nowhere yet.
    fn exit(&self) -> u64 {
        if self.exit == 0 { 0 } else { self.origin.exits.start + u64::from(self.exit) }
    }

    /// Tells whether there is a path to an exit trampoline.
    pub(super) fn has_exit(&self) -> bool {
        self.exit != 0
    }

    /// Gives it one, in the chunk of `origin`; false: that is too far from the chunk's start.
    pub(super) fn set_exit(&mut self, exit: u64, origin: Arc<Origin>) -> bool {
        let Some(exit) = distance(exit, &origin.exits) else { return false };
        (self.exit, self.origin) = (exit, origin);
        true
    }

    /// The path is gone again.
    pub(super) fn forget_exit(&mut self) {
        self.exit = 0;
    }

    /// Tells whether the code is the one that was looked at, with the changes that were made to it.
    /// All of it was read then that moves: another library may begin with the same five bytes.
    ///
    /// # Safety
    /// Code is mapped over all of [`extent`](Self::extent).
    pub(super) unsafe fn is_there(&self) -> bool {
        let at = self.patch_site.at;
        // SAFETY: the caller's promise.
        let (head, all) = unsafe { (current(at), code::bytes(&self.extent())) };
        self.bytes(self.form).is_ok_and(|(bytes, _)| head == bytes)
            && (self.form != Form::Plain
                || all.get(PATCH..) == self.patch_site.bytes().get(PATCH..))
    }

    /// Where the instructions are that move.
    pub(super) fn extent(&self) -> Range<u64> {
        self.patch_site.at..self.patch_site.end()
    }

    /// Removes an attachment's hooks; false when it had none.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let before = self.entries.len();
        self.entries.retain(|e| e.seq != id);
        self.entries.len() != before
    }

    pub(super) fn wanted(&self) -> Form {
        match self.entries.iter().map(|e| e.hook.position.needs_exit()).max() {
            None => Form::Plain,
            Some(false) => Form::Entry,
            Some(true) => Form::Exit,
        }
    }

    /// Tells whether a jump stays that runs no hooks: through an island that leads to the function, or
    /// through a trampoline that finds nothing to run.
    pub(super) fn is_bypassed(&self) -> bool {
        self.form != Form::Plain && self.wanted() == Form::Plain
    }

    /// Tells whether it was found in this module.
    pub(super) fn is_of(&self, module: &Arc<Module>) -> bool {
        self.origin.module.as_ptr() == Arc::as_ptr(module)
    }

    /// Where the moved instructions are; at compiled-in sites, where calls of the trampoline return.
    pub(super) fn own_island(&self) -> Range<u64> {
        let end = self.patch_site.end();
        match self.patch_site.shape {
            Shape::Nop => end..end + 1,
            Shape::Inline => self.entry()..self.entry() + island::LARGEST,
        }
    }

    /// Tells whether the bytes are those of a hook. Its library may have been closed, and another one
    /// be there. Asked about code that is mapped.
    pub(super) fn is_changed(&self) -> bool {
        // SAFETY: mapped, as the caller says.
        let now = || unsafe { current(self.patch_site.at) };
        self.form != Form::Plain && self.bytes(self.form).is_ok_and(|(bytes, _)| bytes == now())
    }

    /// The five bytes of a form, and what they do.
    pub(super) fn bytes(&self, form: Form) -> Result<([u8; PATCH], Detour), Skip> {
        let at = self.patch_site.at;
        let (opcode, detour) = match form {
            Form::Plain => {
                return Ok((
                    self.patch_site.original(),
                    Detour::Jump(self.meta.body.load(Ordering::Relaxed)),
                ));
            }
            Form::Entry if self.patch_site.shape == Shape::Nop => {
                (0xe8, Detour::Call(self.entry()))
            }
            Form::Entry => (0xe9, Detour::Jump(self.entry())),
            Form::Exit => (0xe9, Detour::Jump(self.exit())),
        };
        let (Detour::Call(to) | Detour::Jump(to)) = detour;
        if to == 0 {
            return Err(Skip::NoRoom);
        }
        Ok((jump(opcode, at, to).ok_or(Skip::NoRoom)?, detour))
    }

    /// The change to a form, of bytes that no other thread can be running: nobody has to be led out of
    /// them.
    pub(super) fn change_alone(&self, to: Form) -> Result<Change, Skip> {
        let (old, _) = self.bytes(self.form)?;
        let (new, head) = self.bytes(to)?;
        let hooked = Hooked { entry: new, meta: self.meta_address() };
        let (at, text) = (self.patch_site.at, self.origin.text.clone());
        Ok(Change { at, old, new, text, head, inner: [0; _], hooked, goroutines: None })
    }

    pub(super) fn change(&self, to: Form) -> Result<Change, Skip> {
        let alone = self.change_alone(to)?;
        // Whoever arrives in the middle of a change does what keeps the other attachments' events.
        let head = if to == Form::Plain { self.bytes(self.form)?.1 } else { alone.head };
        let inner = match self.form {
            Form::Plain => {
                let body = self.meta.body.load(Ordering::Relaxed);
                let [a, b, c, d] = self.relocation_map;
                // A thread that is about to run the first byte runs what is there then.
                [NO_START, a, b, c, d]
                    .map(|by| if by == NO_START { 0 } else { body + u64::from(by) })
            }
            _ => [0; PATCH],
        };
        let hooked = Hooked { entry: self.bytes(Form::Entry)?.0, ..alone.hooked };
        Ok(Change { head, inner, hooked, goroutines: self.origin.goroutines, ..alone })
    }

    fn meta_address(&self) -> u64 {
        std::ptr::from_ref(self.meta) as u64
    }

    /// The island that the bytes lead to; `None` when they lead to none, or to one that is not the
    /// function's own.
    pub(super) fn island(&self) -> Option<u64> {
        match self.form {
            Form::Plain => None,
            Form::Entry => (self.patch_site.shape == Shape::Inline).then(|| self.entry()),
            Form::Exit => Some(self.exit()),
        }
    }

    /// Redirects the function's island, for bytes that cannot be changed while threads run:
    /// an island lies in one word.
    pub(super) fn redirect(&self, to: Form) -> Result<Change, Skip> {
        let at = self.island().ok_or(Skip::Busy { tid: 0 })?;
        let origin = &self.origin;
        let chunk = if self.form == Form::Exit { &origin.exits } else { &origin.islands };
        let target = match to {
            Form::Plain => self.meta.body.load(Ordering::Relaxed),
            Form::Entry if self.patch_site.shape == Shape::Inline => self.entry(),
            Form::Exit if self.has_exit() => self.exit(),
            _ => return Err(Skip::Busy { tid: 0 }),
        };
        let new = match to == self.form {
            true => self.head.unwrap_or_else(|| island::head(self.form == Form::Exit, at, chunk)),
            false => jump(0xe9, at, target).ok_or(Skip::NoRoom)?,
        };
        // SAFETY: islands are mapped for ever.
        let old = unsafe { current(at) };
        Ok(Change {
            at,
            old,
            new,
            text: chunk.clone(),
            head: Detour::Jump(target),
            inner: [0; PATCH],
            hooked: Hooked { entry: new, meta: self.meta_address() },
            goroutines: None,
        })
    }
}

/// How far an address is behind the start of its chunk.
fn distance(at: u64, chunk: &Range<u64>) -> Option<u32> {
    u32::try_from(at.checked_sub(chunk.start)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a million of them.
    #[test]
    fn a_site_is_small() {
        assert!(size_of::<Site>() <= 136, "{}", size_of::<Site>());
    }
}
