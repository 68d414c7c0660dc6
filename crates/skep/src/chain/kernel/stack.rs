//! Which programs of a chain share the frame of main.

use skep_isa::helper::id as helper;
use skep_isa::op;
use skep_object::Linked;
use skep_vm::chain::{Count, Plan, PlanEdge, To};

use super::compose::Part;
use super::error::KernelChainError as Error;

/// Tells whether a program makes tail calls.
fn calls_tails(linked: &Linked) -> bool {
    linked.insns.iter().any(|i| i.is_helper_call() && i.imm as u32 == helper::TAIL_CALL)
}

/// Decides which programs are functions that main calls: those that make tail calls, and the
/// greediest as long as their stack leaves others too little.
pub fn called(plan: &Plan, parts: &[Part<'_>], count: Count) -> Result<Vec<bool>, Error> {
    let bounded = |e: &&PlanEdge| e.bound.is_some() && matches!(e.to, To::Node(_));
    let bounds = plan.steps.iter().flat_map(|s| &s.edges).filter(bounded).count();
    let clocks = match count {
        Count::Off => 0,
        Count::Runs => 1,
        Count::Timed => 2,
    };
    let slots = 8 * (1 + clocks + usize::from(plan.is_counted()) + bounds) as u32;
    let mut called: Vec<bool> = parts.iter().map(|p| calls_tails(p.linked)).collect();
    loop {
        let inline = || (0..parts.len()).filter(|n| called.get(*n) == Some(&false));
        let own = |n: &usize| parts.get(*n).map_or(0, |p| p.stack.0);
        let greediest = inline().max_by_key(own);
        let deepest = greediest.as_ref().map_or(0, own).next_multiple_of(8);
        // The kernel rounds each frame up like this.
        let frame = (deepest + slots).next_multiple_of(16);
        let needs = |(part, called): (&Part<'_>, &bool)| {
            let (own, whole) = part.stack;
            // The kernel takes a function that makes tail calls below less than 256 bytes, which
            // leaves as many to the programs behind.
            let tails = if calls_tails(part.linked) { frame + 257 } else { 0 };
            let own = if *called { 0 } else { own.next_multiple_of(16) };
            tails.max(frame + whole.saturating_sub(own))
        };
        let over = parts.iter().zip(&called).find(|p| needs(*p) > op::STACK_SIZE as u32);
        let Some((part, is_called)) = over else {
            return if frame > op::STACK_SIZE as u32 {
                Err(Error::Stack { node: "the chain".to_owned(), whole: 0, needs: frame })
            } else {
                Ok(called)
            };
        };
        match greediest.filter(|n| own(n) > 0) {
            Some(n) => called.iter_mut().skip(n).take(1).for_each(|c| *c = true),
            None => {
                let needs = needs((part, is_called));
                let (node, whole) = (part.label.to_owned(), part.stack.1);
                return Err(Error::Stack { node, whole, needs });
            }
        }
    }
}
