//! A load balancer of many maps (`benches/chain/bpf/balancer.bpf.c`) sends the same packets as in the
//! kernel, and counts the same, on a mix of connections with damaged packets among them.
#![allow(dead_code, clippy::print_stdout, reason = "parts of an example that measures")]

#[path = "../examples/chain_costs/agree.rs"]
mod agree;
#[path = "../examples/chain_costs/balancer_maps.rs"]
mod balancer_maps;
#[path = "../examples/chain_costs/kernel.rs"]
mod kernel;
#[path = "../examples/chain_costs/mark.rs"]
mod mark;
#[path = "../examples/chain_costs/mix.rs"]
mod mix;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[test]
fn a_load_balancer_sends_what_it_sends_in_the_kernel() {
    if skep_testkit::skip::without_bpf() {
        return;
    }
    agree::run().unwrap_or_else(|e| panic!("{e}"));
}
