//! Keeps `docs/reference/command-line.md` equal to clap's definition of the command line.
//!
//! A generated page cannot describe options that do not exist. The test writes the page again after each change of an
//! option.

use super::Cli;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write;
use std::fs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/command-line.md");

const INTRODUCTION: &str = "\
# Command line

<!-- A test writes this page from the command's own definition: `cargo nextest run -p uniference-cli reference`. -->

`uniference COMMAND --help` prints the same text. Put options before the script of `run` and `launch`, and before the
command of `testbed`: what follows belongs to the program. [Exit codes](../how-to/deadlock.md#exit-codes) are the same
for all commands.
";

#[test]
fn the_reference_of_the_command_line_is_what_the_command_says() {
    let mut root = Cli::command();
    root.build();
    let mut page = String::from(INTRODUCTION);
    for command in root.get_subcommands_mut() {
        describe(command, 2, &mut page);
    }
    if fs::read_to_string(PAGE).ok().as_deref() != Some(&*page) {
        fs::write(PAGE, &page).unwrap();
        panic!("docs/reference/command-line.md was out of date; this test has written it anew: commit it");
    }
}

/// Writes the section of a command, and the sections of its subcommands.
fn describe(command: &mut Command, level: usize, page: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let about = command.get_long_about().or(command.get_about()).unwrap_or_default().to_string();
    writeln!(page, "\n{} {name}\n\n{}.", "#".repeat(level), about.trim_end_matches('.')).unwrap();
    let of_its_own = command.get_arguments().any(|arg| arg.get_id() != "help");
    if !command.has_subcommands() || of_its_own {
        describe_itself(command, page);
    }
    for subcommand in command.get_subcommands_mut() {
        describe(subcommand, level + 1, page);
    }
}

/// Writes a command's usage, and its options.
fn describe_itself(command: &mut Command, page: &mut String) {
    let usage = command.render_usage().to_string();
    writeln!(page, "\n```text\n{}\n```", usage.trim_start_matches("Usage: ")).unwrap();
    let shown: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for arg in &shown {
        if !headings.contains(&arg.get_help_heading()) {
            headings.push(arg.get_help_heading());
        }
    }
    for heading in headings {
        if let Some(heading) = heading {
            writeln!(page, "\n**{heading}**").unwrap();
        }
        writeln!(page, "\n| option | meaning | default |\n|---|---|---|").unwrap();
        for arg in shown.iter().filter(|arg| arg.get_help_heading() == heading) {
            writeln!(page, "{}", row(arg)).unwrap();
        }
    }
}

/// An option's row. A default that its help states as `[default: ...]`, because it is not a fixed value, is in the same
/// column as fixed ones.
fn row(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).unwrap_or_default().to_string().replace('\n', " ");
    let (mut meaning, stated) = match help.split_once(" [default: ") {
        Some((meaning, rest)) => (meaning.to_owned(), rest.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    };
    let takes_value = arg.get_num_args().is_some_and(|values| values.takes_values());
    let values: Vec<String> =
        arg.get_possible_values().iter().filter(|value| !value.is_hide_set()).map(possible).collect();
    if takes_value && !values.is_empty() {
        write!(meaning, ": {}", values.join("; ")).unwrap();
    }
    let fixed: Vec<String> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let default = if takes_value && !fixed.is_empty() { fixed.join(" ") } else { stated };
    format!("| `{}` | {} | {} |", code(&words(arg)), cell(&meaning), cell(&default)).replace("|  |", "| |")
}

fn possible(value: &clap::builder::PossibleValue) -> String {
    match value.get_help() {
        Some(help) => format!("`{}` ({help})", value.get_name()),
        None => format!("`{}`", value.get_name()),
    }
}

/// The option's syntax: `-m, --module`, `--ranks <N>`, `<SCRIPT>...`.
fn words(arg: &Arg) -> String {
    if arg.is_positional() {
        return arg.to_string();
    }
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    short + &arg.to_string()
}

/// Text that neither ends a table cell nor starts HTML.
fn cell(text: &str) -> String {
    code(text).replace('<', "\\<")
}

/// Text that does not end a table cell, inside backquotes.
fn code(text: &str) -> String {
    text.replace('|', "\\|")
}
