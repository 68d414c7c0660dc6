//! `skep completions`: scripts for shells, from the definition of the command line.

use clap::{CommandFactory, ValueEnum};
use clap_complete::Generator;
use clap_complete::shells::{Bash, Fish, Zsh};

use super::Cli;

pub const HELP: &str = "\
Where the scripts go:
  bash  skep completions bash > ~/.local/share/bash-completion/completions/skep
  zsh   skep completions zsh > _skep    into a directory of $fpath, before `compinit`
  fish  skep completions fish > ~/.config/fish/completions/skep.fish";

/// A shell.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Writes the script.
    pub fn script(self) -> Vec<u8> {
        super::on_a_large_stack(move || self.written())
    }

    fn written(self) -> Vec<u8> {
        let mut command = Cli::command();
        command.set_bin_name("skep");
        command.build();
        let mut script = Vec::new();
        let write: &dyn Fn(&mut Vec<u8>) = match self {
            Self::Bash => &|out| Bash.generate(&command, out),
            Self::Zsh => &|out| Zsh.generate(&command, out),
            Self::Fish => &|out| Fish.generate(&command, out),
        };
        write(&mut script);
        script
    }
}
