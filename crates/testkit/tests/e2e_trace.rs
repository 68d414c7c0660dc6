//! `skep trace` on every target: the program is not disturbed, and the counts are the target's own.
//!
//! One test a target, so that a failure names it. The optimised program is traced with its own
//! functions and with every function of every module; one more build is taken in turn, so that a
//! few targets try each. `SKEP_STRESS=1` tries all builds in both ways.

use skep_testkit::cc::Build;
use skep_testkit::target::{self, TARGETS};
use skep_testkit::trace::{Scope, check};

fn check_all(name: &str) {
    let target = target::named(name);
    if std::env::var_os("SKEP_STRESS").is_some() {
        for build in Build::DYNAMIC {
            check(target, build, Scope::Own);
            check(target, build, Scope::All);
        }
        return;
    }
    check(target, Build::O2, Scope::Own);
    check(target, Build::O2, Scope::All);
    check(target, other_build(name), Scope::Own);
}

/// The builds but the optimised one, each for every fifth row of the table.
fn other_build(name: &str) -> Build {
    let others: Vec<Build> =
        Build::DYNAMIC.into_iter().filter(|build| *build != Build::O2).collect();
    let row = TARGETS.iter().position(|target| target.name == name).expect("a target of the table");
    others[row % others.len()]
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check_all(stringify!($name));
            }
        )*

        /// A target without a test would be a hole that nobody sees.
        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($name)),*];
            for target in TARGETS {
                assert!(tested.contains(&target.name), "`{}` has no test here", target.name);
            }
        }
    };
}

targets! {
    threads churn fork exec spawn limits longjmp sigprof args floats structs variadic exceptions classes recursion tailring crash handlers
    dlopen cancel coroutines alloca prologues closefds clearenv exit_now status echo
}
