//! What loading asks before it makes anything: can this object's programs run here?
//!
//! [`Loader::load`](crate::load::Loader::load) goes this way first and makes files of what comes
//! out. [`DryRun`] goes the same way and stops there, for those who only want the answer: a program
//! that it lets through is refused by `load` only for want of memory or files.

use std::cell::OnceCell;

use skep_isa::map::Offer;
use skep_isa::{MapType, helper, kfunc};
use skep_maps::{MapDef, MapError};
use skep_object::{CoreTarget, InnerValue, LinkError, LinkOptions, Linked, MapSpec, Object};
use skep_store::dir::Dir;
use skep_verifier::{KeptProofs, Options, Rejection, Verified};

use crate::load::definition::{check_key_type, definition};
use crate::load::error::LoadError;
use crate::prototypes::{Asked, Catalog, Proved, Resolved};

/// Why a program is refused by itself.
#[derive(Clone, Debug)]
enum Refusal {
    Link(LinkError),
    Rejected(Box<Rejection>),
    Helper { program: String, helper: String },
}

impl From<Refusal> for LoadError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Link(e) => Self::Link(e),
            Refusal::Rejected(r) => Self::Rejected(r),
            Refusal::Helper { program, helper } => Self::Helper { program, helper },
        }
    }
}

/// How programs are verified that are to run here: with what can be had here, and without stack
/// that was never written.
#[must_use]
pub fn options() -> Options {
    let mut options = Options::default();
    options.offered_only = true;
    options
}

/// The proofs of one object's programs. Each is made when it is asked for first, and once: of
/// programs that call each other by tail calls, every one asks for all.
pub(crate) struct Proofs<'o> {
    object: &'o Object,
    /// Where proofs of earlier processes are.
    kept: Option<(KeptProofs, &'o Dir)>,
    target: Option<&'o CoreTarget>,
    options: Options,
    made: Vec<OnceCell<Result<(Linked, Verified), Refusal>>>,
}

impl<'o> Proofs<'o> {
    /// `dir`: where proofs may be kept; without, all are made here.
    pub fn new(object: &'o Object, target: Option<&'o CoreTarget>, dir: Option<&'o Dir>) -> Self {
        Self {
            object,
            kept: dir.and_then(|dir| Some((KeptProofs::in_directory(&dir.kept_proofs()?)?, dir))),
            target,
            options: options(),
            made: object.programs.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    fn of(&self, index: usize) -> Result<&(Linked, Verified), Refusal> {
        let made = self.made.get(index).ok_or(Refusal::Link(LinkError::NoProgram { index }))?;
        made.get_or_init(|| self.prove(index)).as_ref().map_err(Clone::clone)
    }

    fn prove(&self, index: usize) -> Result<(Linked, Verified), Refusal> {
        let how = LinkOptions { target: self.target, ..LinkOptions::default() };
        let linked = self.object.link_with(index, &how).map_err(Refusal::Link)?;
        let proof = match &self.kept {
            Some((kept, dir)) => {
                let proof = kept.verify(&linked, &self.options);
                if kept.has_written() {
                    dir.sweep_code();
                }
                proof
            }
            None => skep_verifier::verify(&linked, &self.options),
        };
        let proof = proof.map_err(|r| Refusal::Rejected(Box::new(r)))?;
        if let Some(helper) = missing_helper(&proof) {
            return Err(Refusal::Helper { program: linked.name, helper });
        }
        Ok((linked, proof))
    }

    /// Proves these programs, and with `follow` those that tail calls may lead to from the
    /// beginning. In order of the object.
    pub fn programs(
        &self,
        mut wanted: Vec<usize>,
        follow: bool,
    ) -> Result<Vec<Proved<'o>>, LoadError> {
        let mut out = Vec::new();
        let mut done = 0;
        while let Some(i) = wanted.get(done).copied() {
            done += 1;
            let Some(program) = self.object.programs.get(i) else { continue };
            let (linked, proof) = self.of(i)?;
            if follow {
                for next in programs_in(self.object, linked.maps.iter().map(|m| &m.spec)) {
                    if !wanted.contains(&next) {
                        wanted.push(next);
                    }
                }
            }
            out.push((i, program, linked.clone(), proof.clone()));
        }
        // Arrays that these programs do not use get what can be had.
        for i in if follow { programs_in(self.object, self.object.maps.iter()) } else { Vec::new() }
        {
            let Some(program) = self.object.programs.get(i).filter(|_| !wanted.contains(&i)) else {
                continue;
            };
            if let Ok((linked, proof)) = self.of(i) {
                wanted.push(i);
                out.push((i, program, linked.clone(), proof.clone()));
            }
        }
        if out.is_empty() {
            return Err(LoadError::NoPrograms);
        }
        out.sort_by_cached_key(|(i, ..)| *i as u64);
        Ok(out)
    }

    /// Compares programs with the functions that they are going to be attached to.
    pub fn functions(
        &self,
        asked: &Asked<'_>,
        verified: &[Proved<'_>],
    ) -> Result<Vec<Resolved>, LoadError> {
        verified.iter().map(|v| asked.resolve(v, verified, &self.options)).collect()
    }
}

/// Numbers of the programs that program arrays begin with.
fn programs_in<'m>(object: &Object, maps: impl Iterator<Item = &'m MapSpec>) -> Vec<usize> {
    let values = maps.flat_map(|m| &m.values);
    values
        .filter_map(
            |(_, v)| if let InnerValue::Program(name) = v { object.program(name) } else { None },
        )
        .collect()
}

/// Tells for each map whether it must be made. One that cannot be made is left out if no program
/// here uses it.
pub(crate) fn needed(object: &Object, verified: &[Proved<'_>]) -> Vec<bool> {
    let used: Vec<usize> =
        verified.iter().flat_map(|(_, _, linked, _)| linked.maps.iter().map(|m| m.index)).collect();
    let offered = |spec: &MapSpec| !matches!(spec.map_type.row().offer, Offer::No(_));
    object
        .maps
        .iter()
        .enumerate()
        .map(|(index, spec)| used.contains(&index) || offered(spec))
        .collect()
}

/// Names a helper that a proved program calls and that is not here.
pub(crate) fn missing_helper(proof: &Verified) -> Option<String> {
    let mut called = proof.info().helpers.iter();
    let id = called.find(|id| crate::helper(proof.prog_type(), **id).is_none())?;
    let name = helper::by_id(*id)
        .map(|h| h.name)
        .or_else(|| kfunc::by_id(*id).map(|k| k.name))
        .unwrap_or("unknown");
    Some(format!("{name}#{id}"))
}

/// Checks whether maps can be made, and what they are to begin with.
pub(crate) fn check_maps(
    object: &Object,
    needed: &[bool],
    def: impl Fn(&MapSpec) -> MapDef,
) -> Result<(), LoadError> {
    for (spec, _) in object.maps.iter().zip(needed).filter(|(_, needed)| **needed) {
        let err = |source| LoadError::Map { name: spec.name.clone(), source };
        check_key_type(spec, object.btf.as_deref()).map_err(err)?;
        let outer = def(spec);
        outer.check_creation().map_err(err)?;
        for (slot, value) in &spec.values {
            if outer.key_size != 4 {
                return Err(err(MapError::Length {
                    what: "key",
                    given: 4,
                    want: outer.key_size as usize,
                }));
            }
            let by_key = spec.map_type == MapType::HashOfMaps;
            if !by_key && *slot >= outer.max_entries {
                return Err(err(MapError::Index { index: *slot, max_entries: outer.max_entries }));
            }
            if let InnerValue::Map(index) = value
                && let Some(inner) = object.maps.get(*index)
            {
                outer.check_inner(&def(inner)).map_err(err)?;
            }
        }
    }
    Ok(())
}

/// Asks which programs of an object would be loaded, without making anything.
///
/// ```no_run
/// use skep::prove::DryRun;
///
/// let object = skep::object::Object::parse(&std::fs::read("filter.bpf.o")?)?;
/// for (program, answer) in object.programs.iter().zip(DryRun::new().each(&object)) {
///     match answer {
///         Ok(()) => println!("{} can run here", program.name),
///         Err(why) => println!("{}: {why}", program.name),
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct DryRun<'a> {
    target: Option<&'a CoreTarget>,
    catalog: Option<&'a Catalog>,
}

impl<'a> DryRun<'a> {
    /// Asks without types of kernel or functions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Relocates programs for these types, as
    /// [`Loader::core_target`](crate::load::Loader::core_target).
    #[must_use]
    pub fn core_target(self, target: Option<&'a CoreTarget>) -> Self {
        Self { target, ..self }
    }

    /// Compares programs with the functions that their sections name, whatever modules these name:
    /// as [`Catalog::judge`], and as [`Loader::functions`](crate::load::Loader::functions) does
    /// for the modules of a command.
    #[must_use]
    pub fn functions(self, catalog: Option<&'a Catalog>) -> Self {
        Self { catalog, ..self }
    }

    /// Tells for each program whether a loader that is asked for it
    /// ([`Loader::autoload_only`](crate::load::Loader::autoload_only)) would load it, or why not. In order of the
    /// object.
    #[must_use]
    pub fn each(&self, object: &Object) -> Vec<Result<(), LoadError>> {
        let proofs = Proofs::new(object, self.target, None);
        let patterns: Vec<(String, String)> = match self.catalog {
            Some(_) => object
                .programs
                .iter()
                .flat_map(|p| named(p.name.as_str(), p.target.as_deref()))
                .collect(),
            None => Vec::new(),
        };
        let asked = Asked { catalog: self.catalog, patterns: &patterns, exclude: &[] };
        (0..object.programs.len()).map(|index| check(object, &proofs, &asked, index)).collect()
    }
}

fn check(
    object: &Object,
    proofs: &Proofs<'_>,
    asked: &Asked<'_>,
    index: usize,
) -> Result<(), LoadError> {
    let verified = proofs.programs(vec![index], true)?;
    proofs.functions(asked, &verified)?;
    check_maps(object, &needed(object, &verified), |spec| {
        definition(spec, object.btf.as_deref(), 0)
    })
}

/// The functions that a program's section names, without modules.
fn named<'p>(
    program: &'p str,
    target: Option<&str>,
) -> impl Iterator<Item = (String, String)> + use<'p> {
    crate::targets::functions(target)
        .into_iter()
        .map(move |function| (program.to_owned(), function))
}
