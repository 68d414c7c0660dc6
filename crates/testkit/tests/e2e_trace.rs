//! `skep trace` on every target: the program is not disturbed, and the counts are the target's own.
//!
//! One test a target, so that a failure names it. Each runs all builds with the program's own functions traced; with `SKEP_STRESS=1`
//! every function of every module, too.

use skep_testkit::cc::Build;
use skep_testkit::target::{self, TARGETS};
use skep_testkit::trace::{Scope, check};

fn check_all(name: &str) {
    let target = target::named(name);
    for build in Build::DYNAMIC {
        check(target, build, Scope::Own);
    }
    check(target, Build::O2, Scope::All);
    if std::env::var_os("SKEP_STRESS").is_some() {
        for build in Build::DYNAMIC {
            check(target, build, Scope::All);
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            #[ignore = "needs the skep command"]
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
    threads churn fork exec spawn longjmp sigprof args floats structs variadic exceptions classes recursion tailring crash handlers
    dlopen cancel coroutines alloca prologues closefds clearenv exit_now status echo
}
