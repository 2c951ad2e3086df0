//! Communication identifiers: what the two sides of a connection call it.

/// The name that one side has given to a connection. It means nothing without the side.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CommId(pub u32);
