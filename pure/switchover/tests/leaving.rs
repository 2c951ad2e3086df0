//! Going back to the kernel, where the other end is not there in time.

use std::sync::atomic::Ordering;

use adverb_switchover::{Connection, End, Leaving, Page, Waiters};

const MOST_NS: u64 = 1000;

/// Two ends that use the rings.
fn page() -> Page {
    let page = Page::default();
    page.prepare();
    assert!(page.take(0, 0));
    page.directions().iter().for_each(|direction| assert!(direction.switch()));
    page
}

/// Goal: a program that knows nothing of bells gets none. Method: the other end's thread is stopped before it counts and
/// sends one, for longer than the end that leaves waits.
#[test]
fn an_end_does_not_leave_while_a_bell_is_about_to_be_sent() {
    let (page, waiters) = (page(), [Waiters::default(), Waiters::default()]);
    let [client, server] = [End::Client, End::Server].map(|me| {
        let [a, b] = &waiters;
        Connection { page: &page, waiters: if me == End::Client { a } else { b }, me }
    });
    let bell = client.bell();
    let mut leave = server.leave(MOST_NS).expect("the first to leave");
    for waited_ns in [0, MOST_NS - 1] {
        assert!(matches!(leave.next(|| false, waited_ns), Leaving::Pause));
    }
    assert!(matches!(leave.next(|| false, MOST_NS), Leaving::Reset));
    // It goes on if the other end is quick, or if that process has died, and sends nothing any more.
    assert!(matches!(leave.next(|| true, MOST_NS), Leaving::Inherit));
    drop(bell);
    assert_eq!(client.outgoing().producer.notifying.load(Ordering::SeqCst), 0);
    page.has_left(End::Server);
}

/// Goal: the same, for a bell that is sent in time.
#[test]
fn an_end_that_leaves_waits_for_a_bell_that_is_about_to_be_sent() {
    let (page, waiters) = (page(), Waiters::default());
    let client = Connection { page: &page, waiters: &waiters, me: End::Client };
    let server = Connection { page: &page, waiters: &waiters, me: End::Server };
    let bell = client.bell().expect("the other end listens");
    let mut leave = server.leave(MOST_NS).expect("the first to leave");
    assert!(matches!(leave.next(|| false, 0), Leaving::Pause));
    bell.send(|| true);
    let next = leave.next(|| false, 1);
    assert!(matches!(next, Leaving::Receive { most: 1, are_bells: true }), "{next:?}");
}
