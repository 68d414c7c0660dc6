//! Proofs that are kept in files: what was proved once need not be walked again.
//!
//! [`KeptProofs::verify`] answers as [`verify`](crate::verify). When it has proved a program that took long, it leaves
//! a file in its directory, and when it finds such a file, it does not walk:
//!
//! ```text
//! 0       8     16       24
//! | magic | sum | length | question | answer |
//! ```
//!
//! The *question* is all that a proof depends on, byte by byte: the program with its maps and types,
//! the options, and the sources of the verifier that asks. It is compared as a whole, so that no two programs
//! can be taken for each other; its hash is the file's name. The *answer* is what the walk learned
//! ([`Info`]). `sum` is a hash of what follows: a file that is torn or damaged is none. `length` is that of
//! the question.
//!
//! A file is taken for the verifier's word as a file of a verified program is: it is a plain file of
//! this user which nobody else can write to, in a directory of this user which nobody else can write
//! to. Refusals are not kept, and neither are proofs that are about types of something else than the
//! object, nor those of programs with so many types that a file is found no sooner than a walk is done.
//! Where nothing can be kept, programs are proved: nobody is told.

use crate::{Access, Attached, Info, Options, Rejection, Verified, verify};
use skep_object::Linked;
use skep_proc::own_file;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::path::Path;
use twox_hash::XxHash64;

const MAGIC: &[u8; 8] = b"skepprf1";
const HEADER: usize = 24;

/// A walk over fewer instructions is sooner done than its file is found.
const WORTH: u32 = 1000;

/// Types and constants of a program may have so many bytes for each of its instructions,
const FOR_EACH: usize = 1 << 10;
/// and in all. Instructions and names have some more.
const LARGEST: usize = 256 << 10;

/// Larger files are not read.
const LONGEST: usize = 64 << 20;

/// Hashes of the sources of this crate and of those that it judges by.
const VERIFIER: [&str; 3] = [env!("SKEP_SOURCES"), skep_isa::SOURCES, skep_object::SOURCES];

/// A directory with proofs.
#[derive(Debug)]
pub struct KeptProofs {
    directory: OwnedFd,
    /// The verifier.
    by: [&'static str; 3],
    has_written: Cell<bool>,
}

impl KeptProofs {
    /// Has proofs be kept in this directory, and found there. `None`: it is not there, or others can write
    /// to it.
    #[must_use]
    pub fn in_directory(path: &Path) -> Option<Self> {
        let directory = own_file::directory(path).filter(own_file::is_own_directory)?;
        Some(Self { directory, by: VERIFIER, has_written: Cell::new(false) })
    }

    /// Proves a program safe, or finds its proof.
    ///
    /// # Errors
    /// As [`verify`].
    #[allow(clippy::result_large_err, reason = "as for `verify`")]
    pub fn verify(&self, prog: &Linked, opts: &Options) -> Result<Verified, Rejection> {
        let Some(question) = self.question(prog, opts) else { return verify(prog, opts) };
        let name = name(&question);
        if let Some(info) = self.find(&name, &question) {
            return Ok(Verified::new(prog, info, opts));
        }
        let proof = verify(prog, opts)?;
        if proof.info.processed >= WORTH {
            let bytes = file(&question, &proof.info);
            let is_written = own_file::has_room(&self.directory, bytes.len())
                && own_file::replace(&self.directory, &name, &bytes).is_some();
            self.has_written.set(self.has_written.get() | is_written);
        }
        Ok(proof)
    }

    /// Tells whether there are more files than when this was asked last: there may be too many.
    pub fn has_written(&self) -> bool {
        self.has_written.take()
    }

    /// All that a proof depends on. `None`: it is not kept.
    fn question(&self, prog: &Linked, opts: &Options) -> Option<Vec<u8>> {
        let Options {
            log_level,
            limit,
            strict_alignment,
            allow_uninit_stack,
            strict,
            prune,
            offered_only,
            processors,
            target,
            attached,
        } = opts;
        if target.is_some() || *attached != Attached::Anything || !is_small(prog) {
            return None;
        }
        let mut all = Bytes(Vec::new());
        self.by.hash(&mut all);
        let switches = (strict_alignment, allow_uninit_stack, strict, offered_only);
        (log_level, limit, prune, processors, switches).hash(&mut all);
        prog.hash(&mut all);
        Some(all.0)
    }

    fn find(&self, name: &CStr, question: &[u8]) -> Option<Info> {
        let (fd, stat) = own_file::open(&self.directory, name)?;
        let mut bytes = vec![0; usize::try_from(stat.st_size).ok().filter(|n| *n <= LONGEST)?];
        own_file::read_exact(&fd, &mut bytes)?;
        let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
        let mut words = head.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let (magic, sum, length) = (words.next()?, words.next()?, words.next()?);
        if magic != u64::from_le_bytes(*MAGIC) || sum != XxHash64::oneshot(length, rest) {
            return None;
        }
        let (its, answer) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        if its != question {
            return None;
        }
        let info = Answer(answer).read()?;
        // Those go that nobody used for longest, when there are too many.
        own_file::touch(&fd);
        Some(info)
    }
}

/// Tells whether a program has so few types and constants that looking for its proof takes no longer than
/// making that.
fn is_small(prog: &Linked) -> bool {
    let data = prog.maps.iter().filter_map(|map| map.spec.data.as_ref()).map(Vec::len);
    let types = prog.btf.as_ref().map_or(0, |btf| btf.raw().len());
    let most = prog.insns.len().saturating_mul(FOR_EACH).min(LARGEST);
    data.fold(types, usize::saturating_add) <= most
}

fn name(question: &[u8]) -> CString {
    let half = |seed| XxHash64::oneshot(seed, question);
    CString::new(format!("proof.{:016x}{:016x}", half(0), half(1))).unwrap_or_default()
}

fn file(question: &[u8], info: &Info) -> Vec<u8> {
    let mut rest = question.to_vec();
    let mut put = |number: u64| rest.extend_from_slice(&number.to_le_bytes());
    // Every field: what a proof says is used.
    let Info {
        processed,
        stack_depth,
        max_ctx_read,
        ctx_reads,
        ctx_write,
        helpers,
        subprogs,
        packet_loads,
        object_loads,
        max_states_per_insn,
        total_states,
        peak_states,
        calls,
    } = info;
    for number in [*processed, *stack_depth, *max_ctx_read, u32::from(*ctx_write)] {
        put(number.into());
    }
    for number in [*max_states_per_insn, *total_states, *peak_states] {
        put(number as u64);
    }
    let pairs = [
        ctx_reads.iter().map(|read| (read.off.into(), read.size.into())).collect::<Vec<_>>(),
        subprogs.iter().map(|(start, stack)| (*start as u64, (*stack).into())).collect(),
        calls.iter().map(|(from, to)| (*from as u64, *to as u64)).collect(),
    ];
    for list in pairs {
        put(list.len() as u64);
        list.iter().for_each(|(one, other)| [*one, *other].into_iter().for_each(&mut put));
    }
    put(helpers.len() as u64);
    helpers.iter().for_each(|id| put((*id).into()));
    for places in [packet_loads, object_loads] {
        put(places.len() as u64);
        places.iter().for_each(|at| put(*at as u64));
    }
    let length = question.len() as u64;
    let mut all = MAGIC.to_vec();
    all.extend_from_slice(&XxHash64::oneshot(length, &rest).to_le_bytes());
    all.extend_from_slice(&length.to_le_bytes());
    all.extend_from_slice(&rest);
    all
}

/// What is not read yet of an answer.
struct Answer<'a>(&'a [u8]);

impl Answer<'_> {
    fn read(mut self) -> Option<Info> {
        let mut info = Info {
            processed: self.number()?,
            stack_depth: self.number()?,
            max_ctx_read: self.number()?,
            ctx_write: self.number::<u32>()? != 0,
            max_states_per_insn: self.number()?,
            total_states: self.number()?,
            peak_states: self.number()?,
            ..Info::default()
        };
        info.ctx_reads = self.list(|a| Some(Access { off: a.number()?, size: a.number()? }))?;
        info.subprogs = self.list(|a| Some((a.number()?, a.number()?)))?;
        info.calls = self.list(|a| Some((a.number()?, a.number()?)))?;
        info.helpers = self.list(Self::number)?;
        info.packet_loads = self.list::<usize, BTreeSet<_>>(Self::number)?;
        info.object_loads = self.list::<usize, BTreeSet<_>>(Self::number)?;
        self.0.is_empty().then_some(info)
    }

    fn number<T: TryFrom<u64>>(&mut self) -> Option<T> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        u64::from_le_bytes(*number).try_into().ok()
    }

    fn list<T, L: FromIterator<T>>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<L> {
        let count: usize = self.number()?;
        (0..count).map(|_| one(self)).collect()
    }
}

/// Keeps what a hash would be made of.
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        XxHash64::oneshot(0, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skep_isa::{Insn, MapType, ProgramType};
    use skep_object::{LinkedMap, MapSpec};
    use skep_testkit::TempDir;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// Counts to a number, and returns that.
    fn counts(to: i32) -> Linked {
        let insns = vec![
            Insn::mov64_imm(0, 0),
            // r0 += 1; if r0 < to goto -2
            Insn::new(0x07, 0, 0, 0, 1),
            Insn::new(0xa5, 0, 0, -2, to),
            Insn::exit(),
        ];
        Linked::from_insns("counts", ProgramType::Kprobe, insns)
    }

    /// The same, and then uses a register that has nothing.
    fn is_refused() -> Linked {
        let mut prog = counts(1000);
        let end = prog.insns.len() - 1;
        // r0 = r5
        prog.insns.insert(end, Insn::new(0xbf, 0, 5, 0, 0));
        prog
    }

    fn kept(dir: &Path) -> KeptProofs {
        KeptProofs::in_directory(dir).expect("a directory of ours")
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Leaves a file that says something else than what is true, so that it can be seen that it is read.
    fn leave_another(kept: &KeptProofs, prog: &Linked, opts: &Options) -> (PathBuf, Info) {
        let question = kept.question(prog, opts).unwrap();
        let info = Info {
            processed: 7,
            stack_depth: 1 << 31,
            max_ctx_read: 3,
            ctx_reads: [Access { off: 8, size: 4 }, Access { off: 16, size: 8 }].into(),
            ctx_write: true,
            helpers: [1, 0x1_0003].into(),
            subprogs: vec![(0, 8), (5, 512)],
            packet_loads: [2, 3].into(),
            object_loads: [usize::MAX].into(),
            max_states_per_insn: 4,
            total_states: 1 << 40,
            peak_states: 5,
            calls: [(0, 1), (1, 1)].into(),
        };
        own_file::replace(&kept.directory, &name(&question), &file(&question, &info)).unwrap();
        (PathBuf::from(name(&question).into_string().unwrap()), info)
    }

    #[test]
    fn a_proof_is_found_with_all_it_says() {
        let dir = TempDir::new();
        let (kept, opts) = (kept(dir.path()), Options::default());
        let prog = counts(1000);
        let proved = verify(&prog, &opts).unwrap();
        for _ in 0..2 {
            let found = kept.verify(&prog, &opts).unwrap();
            assert_eq!((found.info(), found.log()), (proved.info(), proved.log()));
            assert_eq!((found.insns(), found.name()), (proved.insns(), proved.name()));
            assert_eq!(files(dir.path()).len(), 1);
        }
        let (_, other) = leave_another(&kept, &prog, &opts);
        assert_eq!(kept.verify(&prog, &opts).unwrap().info(), &other);
        assert_eq!(files(dir.path()).len(), 1);
    }

    /// Short programs, refused ones, those with many constants for their instructions, and those whose proof
    /// depends on what is no part of the question.
    #[test]
    fn what_is_not_kept_leaves_no_file() {
        let dir = TempDir::new();
        let (kept, opts) = (kept(dir.path()), Options::default());
        kept.verify(&counts(3), &opts).unwrap();
        let refused = kept.verify(&is_refused(), &opts).unwrap_err();
        assert_eq!(refused.to_string(), verify(&is_refused(), &opts).unwrap_err().to_string());
        let mut large = counts(1000);
        let mut spec = MapSpec::new("constants", MapType::Array, 4, 5 << 10, 1);
        spec.data = Some(vec![0; 5 << 10]);
        large.maps.push(LinkedMap { index: 0, spec });
        kept.verify(&large, &opts).unwrap();
        assert!(!kept.has_written());
        let attached = Attached::Untyped { function: "f".into() };
        kept.verify(&counts(1000), &Options { attached, ..opts.clone() }).unwrap();
        assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
        kept.verify(&counts(1000), &opts).unwrap();
        assert!(kept.has_written() && !kept.has_written());
    }

    #[test]
    fn a_proof_is_of_one_program_with_one_set_of_options_by_one_verifier() {
        let dir = TempDir::new();
        let (kept, opts) = (kept(dir.path()), Options::default());
        let (path, _) = leave_another(&kept, &counts(1000), &opts);
        let path = dir.join(path);
        let another =
            KeptProofs { by: [VERIFIER[0], "another", VERIFIER[2]], ..self::kept(dir.path()) };
        let mut renamed = counts(1000);
        renamed.name.push('x');
        let asked = [
            (&kept, is_refused(), opts.clone()),
            (&kept, counts(1001), opts.clone()),
            (&kept, renamed, opts.clone()),
            (&kept, counts(1000), Options { strict: true, ..opts.clone() }),
            (&kept, counts(1000), Options { limit: 3000, ..opts.clone() }),
            (&another, counts(1000), opts.clone()),
        ];
        for (kept, prog, opts) in asked {
            // Under its name, as if the hashes were equal.
            let wanted =
                dir.join(name(&kept.question(&prog, &opts).unwrap()).into_string().unwrap());
            assert_ne!(wanted, path);
            std::fs::copy(&path, &wanted).unwrap();
            let (answer, proved) = (kept.verify(&prog, &opts), verify(&prog, &opts));
            assert_eq!(answer.map(|p| p.info).ok(), proved.map(|p| p.info).ok());
        }
    }

    #[test]
    fn a_damaged_proof_is_none() {
        let dir = TempDir::new();
        let (kept, opts, prog) = (kept(dir.path()), Options::default(), counts(1000));
        let proved = verify(&prog, &opts).unwrap();
        let (path, _) = leave_another(&kept, &prog, &opts);
        let path = dir.join(path);
        let whole = std::fs::read(&path).unwrap();
        let question = kept.question(&prog, &opts).unwrap();
        let find = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            kept.find(&name(&question), &question)
        };
        assert!(find(&whole).is_some());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert_eq!(find(&damaged), None, "{at}");
            assert_eq!(find(&whole[..at]), None, "{at}");
        }
        assert_eq!(find(&[&whole[..], &[0]].concat()), None);
        // A length that leads nowhere, and counts that no memory has room for.
        for length in [0, whole.len() as u64, u64::MAX] {
            let mut odd = whole[..16].to_vec();
            odd.extend_from_slice(&length.to_le_bytes());
            odd.extend_from_slice(&[0xff; 400]);
            let sum = XxHash64::oneshot(length, &odd[HEADER..]);
            odd[8..16].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(find(&odd), None, "{length}");
        }
        // It is made anew.
        assert_eq!(kept.verify(&prog, &opts).unwrap().info(), proved.info());
        assert_eq!(kept.find(&name(&question), &question).as_ref(), Some(proved.info()));
    }

    #[test]
    fn what_others_can_write_is_none() {
        let dir = TempDir::new();
        let (kept, opts, prog) = (kept(dir.path()), Options::default(), counts(1000));
        let proved = verify(&prog, &opts).unwrap();
        let (path, other) = leave_another(&kept, &prog, &opts);
        let path = dir.join(path);
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        set(&path, 0o644);
        assert_eq!(kept.verify(&prog, &opts).unwrap().info(), &other);
        for mode in [0o620, 0o602] {
            leave_another(&kept, &prog, &opts);
            set(&path, mode);
            assert_eq!(kept.verify(&prog, &opts).unwrap().info(), proved.info());
        }
        leave_another(&kept, &prog, &opts);
        let real = dir.join("real");
        std::fs::rename(&path, &real).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        assert_eq!(kept.verify(&prog, &opts).unwrap().info(), proved.info());
        for mode in [0o720, 0o702] {
            set(dir.path(), mode);
            assert!(KeptProofs::in_directory(dir.path()).is_none());
        }
        set(dir.path(), 0o700);
        assert!(KeptProofs::in_directory(&real).is_none());
        assert!(KeptProofs::in_directory(&dir.join("missing")).is_none());
    }
}
