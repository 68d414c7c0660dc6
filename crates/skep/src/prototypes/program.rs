//! The programs of an object beside the functions that they are going to be attached to.

use std::collections::BTreeSet;

use skep_isa::ProgramType;
use skep_isa::helper::id;
use skep_object::{Access, InnerValue, Linked};
use skep_verifier::{Options, Verified};

use super::Catalog;
use super::resolve::{Ask, Resolved};
use crate::load::error::LoadError;

/// A program that was proved safe, by its place in the object.
pub(crate) type Proved<'o> = (usize, &'o skep_object::Program, Linked, Verified);

/// What a loader was asked for.
pub(crate) struct Asked<'a> {
    pub catalog: Option<&'a Catalog>,
    /// Programs that are not attached where their sections say, and where instead.
    pub patterns: &'a [(String, String)],
    pub exclude: &'a [String],
}

impl Asked<'_> {
    /// Compares a program with the functions that it is going to be attached to.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn resolve(
        &self,
        of: &Proved<'_>,
        all: &[Proved<'_>],
        options: &Options,
    ) -> Result<Resolved, LoadError> {
        let (_, program, linked, _) = of;
        let family = family(of, all);
        let reads: BTreeSet<Access> =
            family.iter().flat_map(|(.., proof)| proof.info().ctx_reads.iter().copied()).collect();
        let asks = |id: &u32| matches!(*id, id::GET_FUNC_ARG | id::GET_FUNC_ARG_CNT);
        let counts = family.iter().any(|(.., proof)| proof.info().helpers.iter().any(asks));
        let Some(attach) =
            skep_store::link::attach_type::on_functions_of(linked.prog_type, linked.attach_type)
                .filter(|_| counts || !reads.is_empty())
        else {
            return Ok(Resolved::default());
        };
        let reads: Vec<Access> = reads.into_iter().collect();
        let mut include: Vec<String> = self
            .patterns
            .iter()
            .filter(|(p, _)| *p == program.name)
            .map(|(_, p)| p.clone())
            .collect();
        if include.is_empty() {
            include = crate::targets::listed(program.target.as_deref());
        }
        let nothing = Catalog::default();
        let ask = Ask { reads: &reads, attach, include: &include, exclude: self.exclude };
        // Patterns that cannot be read are told where links are made.
        let refusal = match self.catalog.unwrap_or(&nothing).resolve(&ask) {
            Err(_) => return Ok(Resolved::default()),
            Ok(Ok(resolved)) => return Ok(resolved),
            Ok(Err(refusal)) => refusal,
        };
        let mut options = options.clone();
        options.attached = refusal.attached;
        let rejected = family.iter().find_map(|(_, _, linked, proof)| {
            let mut linked = linked.clone();
            // It is judged as what leads to it.
            linked.attach_type = Some(attach).filter(|_| proof.prog_type() == ProgramType::Tracing);
            skep_verifier::verify(&linked, &options).err()
        });
        Err(match rejected {
            Some(r) => LoadError::Rejected(Box::new(r)),
            None => LoadError::Misfit {
                program: program.name.clone(),
                function: refusal.function,
                why: Box::new(refusal.why),
            },
        })
    }
}

/// A program, and those that its tail calls lead to from the beginning: they all run on its
/// context.
fn family<'v, 'o>(of: &'v Proved<'o>, all: &'v [Proved<'o>]) -> Vec<&'v Proved<'o>> {
    let mut family = vec![of];
    let mut done = 0;
    while let Some((_, _, linked, _)) = family.get(done).copied() {
        done += 1;
        for (_, value) in linked.maps.iter().flat_map(|m| &m.spec.values) {
            let InnerValue::Program(name) = value else { continue };
            let next = all.iter().find(|(_, p, ..)| p.name == *name);
            family.extend(next.filter(|n| !family.iter().any(|f| f.0 == n.0)));
        }
    }
    family
}
