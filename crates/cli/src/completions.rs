//! Owns shell completions and manual pages, which are generated from the definition of the command line.

use crate::Cli;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io;
use std::path::PathBuf;
use uniference_host::error::{Exit, HostError};

/// `uniference completions SHELL`
#[derive(clap::Args)]
pub(super) struct Completions {
    /// Shell to generate completions for; with bash: `uniference completions bash > ~/.local/share/bash-completion/completions/uniference`
    shell: Shell,
}

/// `uniference man`
#[derive(clap::Args)]
pub(super) struct Man {
    /// Write the manual pages of the command and of all subcommands to this folder, for example ~/.local/share/man/man1
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the completions.
pub(super) fn completions(args: &Completions) -> Result<Exit, HostError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "uniference", &mut text);
    super::say(format_args!("{}", String::from_utf8_lossy(&text)))?;
    Ok(Exit::Ok)
}

/// Prints the command's manual page, or writes all pages.
pub(super) fn man(args: &Man) -> Result<Exit, HostError> {
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).expect("memory takes all that is written to it");
        super::say(format_args!("{}", String::from_utf8_lossy(&page)))?;
        return Ok(Exit::Ok);
    };
    let unusable = |action, source: io::Error| HostError::File {
        action,
        path: folder.clone(),
        source,
        hint: "choose another folder with --out",
    };
    std::fs::create_dir_all(folder).map_err(|source| unusable("create", source))?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(|source| unusable("write pages to", source))?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_completions_of_every_subcommand() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "uniference", &mut text);
            let text = String::from_utf8(text).unwrap();
            for subcommand in Cli::command().get_subcommands() {
                assert!(text.contains(subcommand.get_name()), "{shell}: {}", subcommand.get_name());
            }
        }
    }

    #[test]
    fn every_subcommand_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        man(&Man { out: Some(dir.path().join("man1")) }).unwrap();
        let page = std::fs::read_to_string(dir.path().join("man1/uniference-run.1")).unwrap();
        assert!(page.contains("\\-\\-cluster"), "{page}");
    }
}
