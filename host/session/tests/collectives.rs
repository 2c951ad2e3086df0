//! Collectives: what comes of them is what one program would have computed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail"
)]

#[allow(dead_code, reason = "each test file uses a part of it")]
mod support;

use adverb_session::{
    ClientSession, Config, Group, GroupError, Messenger, MessengerConfig, Number, Reduction,
    ServerSession, Topology, WorkMode,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::thread;
use support::LONG;

/// Runs `member` in a thread for each member of a group.
fn group(size: usize, member: impl Fn(&mut Group) + Send + Sync + 'static) {
    let config = Config::default().work_mode(WorkMode::Epoll);
    let servers: Vec<_> = (0..size)
        .map(|_| ServerSession::bind("127.0.0.1:0", config.clone()).expect("a server"))
        .collect();
    let addresses: Vec<_> = servers.iter().map(ServerSession::local_addr).collect();
    let member = Arc::new(member);
    let threads: Vec<_> = (0..size)
        .zip(servers)
        .map(|(rank, mut server)| {
            let (member, addresses) = (Arc::clone(&member), addresses.clone());
            thread::spawn(move || {
                // To those before it it connects; those after it come.
                let mut peers: Vec<Option<Messenger>> = (0..size).map(|_| None).collect();
                let open = |endpoint: &adverb_session::Endpoint| {
                    let messenger = Messenger::open(endpoint, "data", MessengerConfig::default());
                    Some(messenger.expect("a messenger").with_timeout(LONG))
                };
                let config = server.adapter().config().clone().name(format!("{rank}"));
                let session = ClientSession::new(config).expect("a client");
                for (before, address) in addresses.iter().enumerate().take(rank) {
                    peers[before] = open(&session.connect(address).expect("an endpoint"));
                }
                for _ in rank + 1..size {
                    let endpoint = server.accept(LONG).expect("an endpoint");
                    let from: usize = endpoint.peer().name.as_str().parse().expect("a rank");
                    peers[from] = open(&endpoint);
                }
                let mut group = Group::new(rank, peers).expect("a group");
                group.barrier().expect("all are there");
                member(&mut group);
                let _ = group.close(); // It may be out of step.
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// Number `place` of member `rank`.
fn value(rank: usize, place: usize) -> i32 {
    let mixed = (rank * 7919 + place).wrapping_mul(2_654_435_761) >> 7;
    i32::try_from(mixed % 20_001).expect("small") - 10_000
}

/// A number of every kind, and what tells it from all others.
trait Any: Number + Send + Sync {
    fn of(rank: usize, place: usize) -> Self;
    fn bits(self) -> u64;
}

macro_rules! any {
    ($($type:ty, $of:expr, $bits:expr;)*) => {$(
        impl Any for $type {
            fn of(rank: usize, place: usize) -> Self {
                $of(value(rank, place), place)
            }
            fn bits(self) -> u64 {
                $bits(self)
            }
        }
    )*};
}

// Fractions whose sums depend on the order; here and there zeros of both signs and what is not a
// number, of which it depends on the order which is smallest.
fn fraction(value: i32, place: usize) -> f64 {
    match (place % 3, value.rem_euclid(3)) {
        (0, 0) => 0.0,
        (0, 1) => -0.0,
        (0, _) => f64::NAN,
        _ => 1e3 / (f64::from(value) + 0.5),
    }
}

any! {
    i32, |value: i32, _| value.wrapping_mul(300_000), |number| u64::from(i32::cast_unsigned(number));
    i64, |value: i32, _| i64::from(value) << 45, i64::cast_unsigned;
    f32, |value, place| fraction(value, place) as f32,
        |number: f32| if number.is_nan() { 1 } else { u64::from(number.to_bits()) };
    f64, fraction, |number: f64| if number.is_nan() { 1 } else { number.to_bits() };
}

/// The members below `rank` in the first of the two trees, looked for from above.
fn below_in_order(rank: usize, size: usize) -> Vec<usize> {
    let halves = |from: usize| std::iter::successors(Some(from), |half| Some(half / 2));
    let height = if rank == 0 { size.next_power_of_two() * 2 } else { rank & rank.wrapping_neg() };
    let left = (rank > 0 && height > 1).then(|| rank - height / 2);
    let right = halves(height / 2).take_while(|half| *half > 0).map(|half| rank + half);
    left.into_iter().chain(right.filter(|right| *right < size).take(1)).collect()
}

/// The members below `rank` in a tree of a topology.
fn below(topology: Topology, tree: usize, rank: usize, size: usize) -> Vec<usize> {
    let mut below = match topology {
        Topology::Tree { width } => (rank * width + 1..=rank * width + width).collect(),
        _ if tree == 0 => below_in_order(rank, size),
        _ if size.is_multiple_of(2) => {
            let turned = below_in_order(size - 1 - rank, size);
            turned.into_iter().map(|below| size - 1 - below).collect()
        }
        _ => {
            let turned = below_in_order((rank + size - 1) % size, size);
            turned.into_iter().map(|below| (below + 1) % size).collect()
        }
    };
    below.retain(|below| *below < size);
    below.sort_unstable();
    below
}

/// What comes of the numbers at `place`, by one program in the order that is documented.
fn due<T: Any>(topology: Topology, how: Reduction, size: usize, len: usize, place: usize) -> T {
    let number = |rank: usize| T::of(rank, place);
    let up = |root: usize, tree: usize| {
        fn up<T: Any>(
            rank: usize,
            below: &dyn Fn(usize) -> Vec<usize>,
            number: &dyn Fn(usize) -> T,
            how: Reduction,
        ) -> T {
            let others = below(rank).into_iter().map(|rank| up(rank, below, number, how));
            others.fold(number(rank), |sum, other| sum.reduce(other, how))
        }
        up(root, &|rank| below(topology, tree, rank, size), &number, how)
    };
    // The share of so many that the place is in.
    let share = |count: usize| {
        let end = |index: usize| len / count * (index + 1) + (len % count).min(index + 1);
        (0..count).find(|index| place < end(*index)).unwrap()
    };
    match topology {
        Topology::Ring => {
            let from = share(size);
            let order = (from..from + size).map(|rank| number(rank % size));
            order.reduce(|sum, other| sum.reduce(other, how)).unwrap()
        }
        Topology::Tree { .. } => up(0, 0),
        Topology::DoubleTree if share(2) == 0 => up(0, 0),
        Topology::DoubleTree if size.is_multiple_of(2) => up(size - 1, 1),
        Topology::DoubleTree => up(1 % size, 1),
        _ => (0..size).map(number).reduce(|sum, other| sum.reduce(other, how)).unwrap(),
    }
}

/// One allreduce and what is known of it beforehand. Long vectors are looked at here and there.
fn check<T: Any>(group: &mut Group, topology: Topology, how: Reduction, len: usize) {
    let (rank, size) = (group.rank(), group.size());
    let mut data: Vec<T> = (0..len).map(|place| T::of(rank, place)).collect();
    group.allreduce(&mut data, how).unwrap();
    let step = if len > 5000 { 61 } else { 1 };
    for (place, result) in data.into_iter().enumerate().rev().step_by(step) {
        let due = due::<T>(topology, how, size, len, place);
        assert_eq!(
            result.bits(),
            due.bits(),
            "{topology:?} of {size} {how:?}: number {place} of {len} is {result:?}, not {due:?}"
        );
    }
}

const TOPOLOGIES: [Topology; 7] = [
    Topology::Auto,
    Topology::Mesh,
    Topology::Ring,
    Topology::Tree { width: 1 },
    Topology::Tree { width: 2 },
    Topology::Tree { width: 3 },
    Topology::DoubleTree,
];

fn a_length() -> impl Strategy<Value = usize> {
    // Around where vectors become long, and pieces and parts uneven.
    prop_oneof![0..20_usize, 500..530_usize, 1020..1030_usize, 2040..2060_usize, 4000..40_000_usize]
}

fn a_case() -> impl Strategy<Value = (usize, u8, u8, usize)> {
    (0..TOPOLOGIES.len(), 0..4_u8, 0..3_u8, a_length())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 40, failure_persistence: None, ..Default::default() })]

    /// Goal: every member has the bits that one program computes in the order of the topology.
    #[test]
    fn allreduce_is_what_one_program_computes(
        size in 1..8_usize,
        cases in prop::collection::vec(a_case(), 1..40),
    ) {
        group(size, move |group| {
            for &(topology, kind, how, len) in &cases {
                let topology = TOPOLOGIES[topology];
                let how = [Reduction::Sum, Reduction::Min, Reduction::Max][usize::from(how)];
                group.set_topology(topology);
                match kind {
                    0 => check::<i32>(group, topology, how, len),
                    1 => check::<i64>(group, topology, how, len),
                    2 => check::<f32>(group, topology, how, len),
                    _ => check::<f64>(group, topology, how, len),
                }
            }
        });
    }
}

/// Goal: vectors that need many slabs and parts, several of which are under way at once.
#[test]
fn long_vectors_are_reduced_in_every_topology() {
    for size in [3, 4] {
        group(size, |group| {
            for topology in TOPOLOGIES {
                group.set_topology(topology);
                check::<f32>(group, topology, Reduction::Sum, 1_300_003);
                check::<i64>(group, topology, Reduction::Max, 1_000_000);
            }
        });
    }
}

#[test]
fn vectors_are_broadcast_gathered_and_scattered() {
    for size in [2, 4] {
        group(size, move |group| {
            let rank = group.rank();
            for topology in TOPOLOGIES {
                group.set_topology(topology);
                for root in 0..size {
                    let mut data: Vec<i64> = (0..5000).map(|at| at * (rank as i64 + 1)).collect();
                    group.broadcast(root, &mut data).unwrap();
                    assert!((0..5000).all(|at| data[at as usize] == at * (root as i64 + 1)));
                }
            }
            let own = [rank as f64, 0.5];
            let mut all = vec![0.0; 2 * size];
            group.allgather(&own, &mut all).unwrap();
            for rank in 0..size {
                assert_eq!(all[2 * rank..2 * rank + 2], [rank as f64, 0.5]);
            }
            for len in [10, 100_000] {
                let mut data: Vec<f32> = (0..size * len).map(|at| f32::of(rank, at)).collect();
                let part = group.reduce_scatter(&mut data, Reduction::Sum).unwrap();
                assert_eq!(part, rank * len..rank * len + len);
                for at in part {
                    // From the next one on, and itself at last.
                    let order = (1..=size).map(|step| f32::of((rank + step) % size, at));
                    let due = order.reduce(|a, b| a + b).unwrap();
                    assert_eq!(data[at].bits(), due.bits(), "number {at} of {len}");
                }
            }
            let mut uneven = vec![0_i32; size + 1];
            let error = group.reduce_scatter(&mut uneven, Reduction::Sum).unwrap_err();
            assert_eq!(error, GroupError::Uneven { len: size + 1, members: size });
        });
    }
}

#[test]
fn members_that_disagree_are_told() {
    group(2, |group| {
        let mut data = vec![0_i32; 3 + group.rank()];
        let error = group.allreduce(&mut data, Reduction::Sum).unwrap_err();
        let (rank, due) = (1 - group.rank(), data.len() * 4);
        assert_eq!(error, GroupError::Disagreement { rank, sent: 28 - due, due });
    });
}
