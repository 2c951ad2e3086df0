//! Operations whose instructions are counted, called by name.
//!
//! Without a name the program says which there are, and how often a call does each; with one it runs
//! that one, once everything that happens only the first few times has happened.

use std::error::Error;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// Operations in one call.
pub(crate) const ROUNDS: usize = 1600;

/// An operation, by its name in the record.
pub(crate) type Operation<B> = (&'static str, fn(&mut B) -> Outcome<()>);

/// Does what the program was asked for. `make` makes what operations need, warmed up.
pub(crate) fn run<B>(
    operations: &[Operation<B>],
    make: impl FnOnce() -> Outcome<B>,
) -> Outcome<()> {
    let name = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    let Some(name) = name else {
        for (name, _) in operations {
            println!("{name} {ROUNDS}");
        }
        return Ok(());
    };
    let found = operations.iter().find(|(known, _)| *known == name);
    let (_, counted) = found.ok_or_else(|| format!("no such operation: {name}"))?;
    counted(&mut make()?)
}
