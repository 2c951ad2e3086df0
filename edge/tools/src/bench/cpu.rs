//! Which processor each end of a test runs on.

use std::sync::OnceLock;

use adverb_sys::affinity;

/// The two ends of a test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// Orders and measures.
    Client,
    /// Answers.
    Server,
}

/// Binds the calling thread, and those it starts later, to the processor for `end`: the client to
/// the first that this process may use, the server to the second. Without two, or without
/// permission, the kernel decides; returns whether the thread is bound.
pub(crate) fn pin(end: End) -> bool {
    let cpus = usable();
    let cpu = match (end, cpus) {
        (End::Client, [first, _, ..]) => first,
        (End::Server, [_, second, ..]) => second,
        (_, [] | [_]) => return false,
    };
    affinity::pin_to_cpu(*cpu).is_ok()
}

/// Whether both ends can spin at the same time.
pub(crate) fn enough() -> bool {
    usable().len() >= 2
}

/// How many processors this process may use.
pub(crate) fn count() -> usize {
    usable().len()
}

/// The processors that this process could use when it first asked, before it bound itself to one.
fn usable() -> &'static [usize] {
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    USABLE.get_or_init(|| affinity::cpus().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_get_different_processors_where_there_are_two() {
        let bound = |end| std::thread::spawn(move || (pin(end), affinity::cpus().unwrap()));
        let _ = count(); // Asked once, before anything is bound.
        let (client, on) = bound(End::Client).join().unwrap();
        let (server, other) = bound(End::Server).join().unwrap();
        assert_eq!((client, server), (enough(), enough()));
        if enough() {
            assert_eq!((on.len(), other.len()), (1, 1));
            assert_ne!(on, other);
        }
    }
}
