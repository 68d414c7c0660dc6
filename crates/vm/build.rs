//! Tells the crate how it is optimized: what runs inside events counts on it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=SKEP_OPT_LEVEL={level}");
}
