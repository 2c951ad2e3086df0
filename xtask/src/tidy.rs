//! What a machine can say about the tree without judging it.
//!
//! *Facts* either hold or do not, and one that does not fails the run. *Oddities* are numbers that
//! stand out; a person looks at them and decides. Neither knows what the code does.

mod facts;
pub(crate) mod links;
mod oddities;
mod pointers;
mod rooms;
mod storeys;

use std::path::Path;

use crate::{Failure, book, crates, figures, source};

/// Checks all facts and prints the oddities.
pub(crate) fn tidy(root: &Path) -> Result<(), Failure> {
    let sources = source::tree(root)?;
    let mut broken: Vec<String> = sources.iter().flat_map(facts::broken).collect();
    broken.extend(sources.iter().flat_map(pointers::broken));
    broken.extend(pointers::idle(&sources));
    broken.extend(storeys::broken(root)?);
    broken.extend(rooms::broken(&sources));
    broken.extend(links::broken(root, &sources));
    broken.extend(book::broken(root)?);
    broken.extend(figures::stale(root)?);
    broken.extend(crates::broken(root)?);

    println!("{}", oddities::report(&sources));
    println!("{}", rooms::drawing(&sources));
    for fact in &broken {
        eprintln!("tidy: {fact}");
    }
    match broken.len() {
        0 => Ok(()),
        count => Err(format!("{count} facts do not hold")),
    }
}
