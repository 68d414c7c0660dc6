use super::*;
use crate::sites;

/// What is said of the first instructions of all functions of this process, its libraries included, is
/// what iced says of them.
#[test]
fn instructions_that_are_moved_are_those_that_iced_finds() {
    let (mut found, mut fixed) = (0, 0);
    for module in sites::scan().expect("the modules of this process") {
        let code = module.code();
        let mut places = Places::of(std::iter::empty());
        for function in module.functions().unwrap_or_default() {
            let Some((text, next)) = code.around(function.addr) else { continue };
            let Ok(site) = PatchSite::find(&function, &text, next, &|_| Vec::new(), &mut places)
            else {
                continue;
            };
            let name = function.name();
            let mut end = site.at;
            let mut starts = [false; PATCH];
            let nops = site.instructions().iter().all(|i| i.mnemonic() == Mnemonic::Nop);
            let is_whole = site.bytes().len() == PATCH && !site.ends();
            assert_eq!(site.shape == Shape::Nop, nops && is_whole, "{name}");
            for i in site.instructions() {
                assert!(!i.is_invalid(), "{name}");
                assert_eq!(i.ip(), end, "{name}");
                if let Some(start) = starts.get_mut((i.ip() - site.at) as usize) {
                    *start = true;
                }
                end = i.next_ip();
                if site.fixed().is_some() {
                    assert!(!i.is_ip_rel_memory_operand(), "{name}: {i:?}");
                    assert!(matches!(flow(&i), Flow::Next | Flow::Return), "{name}: {i:?}");
                }
            }
            assert_eq!(starts, site.boundaries(), "{name}");
            assert_eq!(site.instructions().len(), site.count(), "{name}");
            let last = site.instructions().last().map(flow);
            assert_eq!(last.is_some_and(ends) || is_ud2(&site), site.ends(), "{name}");
            assert!(site.ends() || end >= site.at + PATCH as u64, "{name}");
            // What was read is what is there.
            // SAFETY: the code was found mapped, and nothing is hooked here.
            let there = unsafe { crate::code::bytes(&(site.at..site.end())) };
            assert_eq!(there, site.bytes(), "{name}");
            found += 1;
            fixed += usize::from(site.fixed().is_some());
        }
    }
    assert!(found > 1000, "{found}");
    // Tables would be of no use otherwise.
    assert!(fixed > found / 2, "{fixed} of {found}");
}

fn is_ud2(site: &PatchSite) -> bool {
    site.instructions().last().is_some_and(|i| i.mnemonic() == Mnemonic::Ud2)
}
