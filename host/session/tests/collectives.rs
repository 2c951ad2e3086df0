//! Collectives: what comes of them is what one program would have computed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail"
)]

use adverb_session::{
    ClientSession, Config, Group, GroupError, Messenger, MessengerConfig, Number, Reduction,
    ServerSession, Topology, WorkMode,
};
use proptest::prelude::*;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `member` in a thread for each member of a group.
fn group(size: usize, member: impl Fn(&mut Group) + Send + Sync + 'static) {
    // Many threads on few processors: no member is given up because it has not had its turn.
    let config = Config::default().work_mode(WorkMode::Epoll).silence_timeout(PATIENCE);
    let config = config.connect_timeout(PATIENCE).handshake_timeout(PATIENCE);
    let server = |rank| ServerSession::bind("127.0.0.1:0", config.clone().name(format!("{rank}")));
    let servers: Vec<_> = (0..size).map(|rank| server(rank).expect("a server")).collect();
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
                    Some(messenger.expect("a messenger").with_timeout(PATIENCE))
                };
                let session = ClientSession::on(server.adapter().unwrap().clone());
                for (before, address) in addresses.iter().enumerate().take(rank) {
                    peers[before] = open(&session.connect(address).expect("an endpoint"));
                }
                for _ in rank + 1..size {
                    let endpoint = server.accept(PATIENCE).expect("an endpoint");
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

/// One allreduce and what is known of it beforehand.
fn check<T: Any>(group: &mut Group, topology: Topology, how: Reduction, len: usize) {
    check_told::<T>(group, (topology, topology), how, len);
}

/// The same where the topology that is set means another. Long vectors are looked at here and there.
fn check_told<T: Any>(
    group: &mut Group,
    (set, topology): (Topology, Topology),
    how: Reduction,
    len: usize,
) {
    let (rank, size) = (group.rank(), group.size());
    let mut data: Vec<T> = (0..len).map(|place| T::of(rank, place)).collect();
    group.allreduce(&mut data, how).unwrap();
    let step = if len > 5000 { 61 } else { 1 };
    for (place, result) in data.into_iter().enumerate().rev().step_by(step) {
        let due = due::<T>(topology, how, size, len, place);
        assert_eq!(
            result.bits(),
            due.bits(),
            "{set:?} of {size} {how:?}: number {place} of {len} is {result:?}, not {due:?}"
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

/// What `Auto` is for vectors of so many bytes.
fn chosen(topology: Topology, size: usize, bytes: usize) -> Topology {
    match topology {
        Topology::Auto if size <= 16 => Topology::Mesh,
        Topology::Auto if bytes <= 64 << 10 => Topology::DoubleTree,
        Topology::Auto => Topology::Ring,
        told => told,
    }
}

/// One reduce-scatter: the part that this member has, in the order that is documented.
fn check_scattered(group: &mut Group, topology: Topology, len: usize) {
    let (rank, size) = (group.rank(), group.size());
    group.set_topology(topology);
    let mut data: Vec<f32> = (0..len).map(|at| f32::of(rank, at)).collect();
    let part = group.reduce_scatter(&mut data, Reduction::Sum).unwrap();
    let end = |index: usize| len / size * index + (len % size).min(index);
    assert_eq!(part, end(rank)..end(rank + 1));
    let step = if len > 5000 { 61 } else { 1 };
    for at in part.step_by(step) {
        let due = match chosen(topology, size, size_of_val(&data[..])) {
            // From the next one on, and itself at last.
            Topology::Ring => {
                let order = (1..=size).map(|step| f32::of((rank + step) % size, at));
                order.reduce(|a, b| a + b).unwrap()
            }
            other => due(other, Reduction::Sum, size, len, at),
        };
        assert_eq!(data[at].bits(), due.bits(), "{topology:?} of {size}: number {at} of {len}");
    }
}

/// A broadcast from each of some members, and an allgather of so many numbers of each.
fn check_spread(group: &mut Group, topology: Topology, roots: &[usize], len: usize) {
    let (rank, size) = (group.rank(), group.size());
    group.set_topology(topology);
    for &root in roots {
        let mut data: Vec<i64> = (0..len).map(|at| i64::of(rank, at)).collect();
        group.broadcast(root, &mut data).unwrap();
        assert!((0..len).all(|at| data[at] == i64::of(root, at)), "{topology:?} from {root}");
    }
    let own: Vec<f64> = (0..len).map(|at| f64::of(rank, at)).collect();
    let mut all = vec![0.0; len * size];
    group.allgather(&own, &mut all).unwrap();
    for (place, number) in all.iter().enumerate() {
        let due = f64::of(place / len, place % len);
        assert_eq!(number.bits(), due.bits(), "{topology:?} of {size}: number {place}");
    }
}

#[test]
fn vectors_are_broadcast_gathered_and_scattered() {
    for size in [2, 3, 4] {
        group(size, move |group| {
            for topology in TOPOLOGIES {
                let roots: Vec<_> = (0..size).collect();
                check_spread(group, topology, &roots, 5000);
                check_spread(group, topology, &[], 1);
                for len in [0, 1, size - 1, size, 10 * size + 1, 100_000 * size + size - 1] {
                    check_scattered(group, topology, len);
                }
            }
            let error = group.allgather(&[0_i32], &mut vec![0; size + 1]).unwrap_err();
            assert_eq!(error, GroupError::Uneven { len: size + 1, members: size });
        });
    }
}

/// Goal: groups with several levels of trees and many steps of a ring, and those in which lengths decide
/// for everybody: every bit is right there too.
#[test]
fn large_groups_do_what_small_ones_do() {
    const TOLD: [Topology; 4] =
        [Topology::Mesh, Topology::Ring, Topology::Tree { width: 3 }, Topology::DoubleTree];
    // In the second, lengths decide.
    for (size, topologies) in [(12, &TOLD[..]), (17, &[Topology::Auto][..])] {
        group(size, move |group| {
            for &topology in topologies {
                group.set_topology(topology);
                for len in [size - 1, 20_011] {
                    let told = chosen(topology, size, len * size_of::<f32>());
                    check_told::<f32>(group, (topology, told), Reduction::Sum, len);
                    check_scattered(group, topology, len);
                }
                check_spread(group, topology, &[size / 2], 1501);
            }
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
