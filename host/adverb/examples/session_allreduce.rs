//! Allreduce: members each have a vector, and all end up with the sum of them.
//!
//! `session_allreduce` runs four members in one program. Or, one on each machine, with the same
//! addresses in the same order everywhere: `session_allreduce RANK ADDRESS ADDRESS …`.

use adverb::session::{
    Adapter, ClientSession, Config, Group, Messenger, MessengerConfig, Reduction, ServerSession,
    WorkMode,
};
use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::{thread, time::Duration};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Connects to the members before this one, and waits for those after it.
fn join(rank: usize, addresses: &[SocketAddr]) -> Outcome<Group> {
    let config = Config::default().name(rank.to_string()).work_mode(WorkMode::Epoll);
    let own = *addresses.get(rank).ok_or("there is no such rank")?;
    let adapter = Adapter::open_at(own, config)?;
    let mut server = ServerSession::bind_on(own, adapter.clone())?;
    let session = ClientSession::on(adapter);
    let mut peers: Vec<Option<Messenger>> = vec![None; addresses.len()];
    for (address, peer) in addresses.iter().zip(&mut peers).take(rank) {
        let endpoint = session.connect(address)?;
        *peer = Some(Messenger::open(&endpoint, "data", MessengerConfig::default())?);
    }
    for _ in rank + 1..addresses.len() {
        let endpoint = server.accept(Duration::from_secs(60))?;
        let from: usize = endpoint.peer().name.as_str().parse()?;
        let peer = peers.get_mut(from).ok_or("a stranger came")?;
        *peer = Some(Messenger::open(&endpoint, "data", MessengerConfig::default())?);
    }
    Ok(Group::new(rank, peers)?)
}

/// One member: adds up its vector with those of the others.
fn member(rank: usize, addresses: &[SocketAddr]) -> Outcome<Vec<f32>> {
    let mut group = join(rank, addresses)?;
    let mine = f32::from(u8::try_from(rank + 1)?);
    let mut vector: Vec<f32> = (0..1_000_u16).map(|place| mine * f32::from(place)).collect();
    group.allreduce(&mut vector, Reduction::Sum)?;
    group.barrier()?; // A member that leaves early takes what the others wait for along.
    Ok(vector)
}

/// Addresses of this machine whose ports are free.
fn free_addresses(count: usize) -> Outcome<Vec<SocketAddr>> {
    let listen = |_| TcpListener::bind("127.0.0.1:0");
    let listeners: Vec<_> = (0..count).map(listen).collect::<Result<_, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}

fn main() -> Outcome<()> {
    adverb::log_to_stderr()?;
    let mut words = std::env::args().skip(1);
    if let Some(rank) = words.next() {
        let addresses: Vec<SocketAddr> =
            words.map(|word| word.parse()).collect::<Result<_, _>>()?;
        let vector = member(rank.parse()?, &addresses)?;
        println!("{:?} … {:?}", vector.get(..4), vector.last());
        return Ok(());
    }
    let addresses = free_addresses(4)?;
    let vectors = thread::scope(|scope| {
        let start = |rank| {
            scope.spawn({
                let all = &addresses;
                move || member(rank, all)
            })
        };
        let members: Vec<_> = (0..addresses.len()).map(start).collect();
        members.into_iter().map(|member| member.join().map_err(|_| "a member panicked")?).collect()
    });
    for (rank, vector) in Outcome::<Vec<_>>::from(vectors)?.into_iter().enumerate() {
        println!("member {rank}: {:?} … {:?}", vector.get(..3).unwrap_or_default(), vector.last());
    }
    Ok(())
}
