//! Arguments of `skep vma`.

use clap::Subcommand;

use super::output::JsonArgs;

/// What to ask about mappings.
#[derive(Subcommand, Debug)]
pub enum VmaCommand {
    /// Show what is mapped at addresses, and which functions are there
    Query {
        /// Process id
        pid: u32,
        /// Addresses in hex
        #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
        addresses: Vec<u64>,
        /// If nothing is mapped at an address, show the next mapping after it
        #[arg(long)]
        next: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
    /// List the mappings of a process
    List {
        /// Process id
        pid: u32,
        /// List only executable mappings of files
        #[arg(long)]
        text: bool,
        /// How the result looks
        #[command(flatten)]
        format: JsonArgs,
    },
}

fn address(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "expected a hexadecimal address".to_owned())
}
