//! Modules and functions of this very process, compared with what the program itself knows.

use skep_proc::module::{self, Role};

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn skep_proc_marker(x: u64) -> u64 {
    std::hint::black_box(x) + 1
}

#[test]
fn own_functions_are_found_at_their_addresses() {
    let modules = module::own().unwrap();
    let mains: Vec<_> = modules.iter().filter(|m| m.is_main()).collect();
    assert_eq!(mains.len(), 1);
    let main = mains[0];
    assert_eq!(main.path, std::env::current_exe().unwrap());
    let marker = skep_proc_marker as *const () as usize as u64;
    assert!(main.text_contains(marker));
    let functions = main.functions().unwrap();
    let f = functions.at(main.vaddr(marker)).unwrap();
    assert_eq!(f.name_lossy(), "skep_proc_marker");
    assert!(f.size > 0 && !f.size_guessed);
    assert_eq!(functions.covering(f.vaddr + f.size - 1).unwrap().name, f.name);
}

#[test]
fn every_kind_of_module_is_seen() {
    let modules = module::own().unwrap();
    let count = |role| modules.iter().filter(|m| m.role == role).count();
    assert_eq!((count(Role::Main), count(Role::Interpreter), count(Role::Vdso)), (1, 1, 1));
    let libc = modules.iter().find(|m| m.name().to_string_lossy().starts_with("libc.so")).unwrap();
    assert_eq!(libc.role, Role::Library);
    for m in &modules {
        assert_eq!(m.build_id, m.elf().unwrap().build_id(), "{m:?}");
        let functions = m.functions().unwrap();
        assert!(!functions.is_empty(), "{m:?}");
        for f in functions.iter() {
            assert!(m.text_contains(m.addr(f.vaddr)), "{} {:x}", f.name_lossy(), f.vaddr);
        }
    }
    let again = module::of(std::process::id()).unwrap();
    let key =
        |m: &module::Module| (m.path.clone(), m.bias, m.text.clone(), m.build_id.clone(), m.role);
    assert_eq!(
        modules.iter().map(key).collect::<Vec<_>>(),
        again.iter().map(key).collect::<Vec<_>>()
    );
}
