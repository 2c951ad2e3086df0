//! Which node this is, of how many, and where the others are: from the command line, or from what a
//! launcher has put into the environment.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Doing, Failure};

/// The place of a node in the mesh.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// Which one this is, from 0.
    pub(crate) rank: usize,
    /// Where each listens, as host and port.
    pub(crate) nodes: Vec<(String, u16)>,
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) nodes: Vec<String>,
    pub(crate) rank: Option<usize>,
    pub(crate) size: Option<usize>,
    pub(crate) port: u16,
}

/// Launchers, each with the variables in which it says the rank and the size.
const LAUNCHERS: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "ADVERB_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", "ADVERB_SIZE"),
];

impl Place {
    /// Finds out. `env` looks up a variable of the environment.
    ///
    /// # Errors
    ///
    /// Something is missing, and where it is looked for.
    pub(crate) fn find(told: &Told, env: impl Fn(&str) -> Option<String>) -> Result<Self, Failure> {
        let number = |name: &str| env(name).and_then(|text| text.trim().parse::<usize>().ok());
        let launcher = LAUNCHERS.iter().find(|(rank, _)| number(rank).is_some());
        let rank = told.rank.or_else(|| launcher.and_then(|(rank, _)| number(rank)));
        let size = told.size.or_else(|| launcher.and_then(|(_, size)| number(size)));
        let hosts = hosts(told, size, &env)?;
        if hosts.len() < 2 {
            return Err(Failure::usage(
                "a mesh has two nodes or more: name them with --nodes HOST[:PORT],…, or start them \
                 here with --local N",
            ));
        }
        let nodes = with_ports(&hosts, told.port)?;
        let rank = match rank {
            Some(rank) => rank,
            None => own(&nodes)?,
        };
        if rank >= nodes.len() {
            let last = nodes.len() - 1;
            return Err(Failure::usage(format!("rank {rank}, but the nodes are 0 to {last}")));
        }
        Ok(Self { rank, nodes })
    }

    /// Where a node listens.
    ///
    /// # Errors
    ///
    /// The name has no address, as yet.
    pub(crate) fn address(&self, rank: usize) -> Result<SocketAddr, Failure> {
        let (host, port) = self.nodes.get(rank).ok_or(Failure::failed("there is no such node"))?;
        let mut all = (host.as_str(), *port).to_socket_addrs().doing(host)?;
        all.next().ok_or_else(|| Failure::failed(format!("{host} has no address")))
    }
}

/// The hosts in the order of their ranks.
fn hosts(
    told: &Told,
    size: Option<usize>,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Vec<String>, Failure> {
    let listed = env("ADVERB_NODES").map(|text| text.split(',').map(str::to_owned).collect());
    let named = if told.nodes.is_empty() { listed.unwrap_or_default() } else { told.nodes.clone() };
    match named.as_slice() {
        // One name with a hole for the rank, as the pods of an indexed Job have.
        [pattern] if pattern.contains("{}") => {
            let size = size.ok_or_else(|| {
                Failure::usage("how many nodes? --size N, or ADVERB_SIZE in the environment")
            })?;
            Ok((0..size).map(|rank| pattern.replace("{}", &rank.to_string())).collect())
        }
        [_, ..] => Ok(named),
        [] => Ok(match (env("SLURM_JOB_NODELIST"), size) {
            (Some(list), Some(size)) => spread(&expand(&list), size),
            // Ranks of a launcher that all run here.
            (None, Some(size)) => {
                let local = env("OMPI_COMM_WORLD_LOCAL_SIZE").or_else(|| env("MPI_LOCALNRANKS"));
                match local.and_then(|text| text.parse::<usize>().ok()) == Some(size) {
                    true => vec!["127.0.0.1".to_owned(); size],
                    false => Vec::new(),
                }
            }
            (_, None) => Vec::new(),
        }),
    }
}

/// As many places as there are tasks, in blocks, as Slurm hands them out.
fn spread(hosts: &[String], size: usize) -> Vec<String> {
    let each = size.div_ceil(hosts.len().max(1)).max(1);
    hosts.iter().flat_map(|host| std::iter::repeat_n(host.clone(), each)).take(size).collect()
}

/// Takes `a[1-3,07],b` apart.
fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let open = rest.find('[').unwrap_or(rest.len());
        let comma = rest.find(',').unwrap_or(rest.len());
        if comma <= open {
            let (host, after) = rest.split_at(comma);
            hosts.push(host.to_owned());
            rest = after.strip_prefix(',').unwrap_or(after);
            continue;
        }
        let (prefix, after) = rest.split_at(open);
        let Some((ranges, after)) = after.strip_prefix('[').and_then(|a| a.split_once(']')) else {
            hosts.push(rest.to_owned());
            return hosts;
        };
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let width = first.len();
            if let (Ok(from), Ok(to)) = (first.parse::<u32>(), last.parse::<u32>()) {
                hosts.extend((from..=to).map(|number| format!("{prefix}{number:0width$}")));
            }
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    hosts
}

/// Gives each host a port: its own, or the next one on that host.
fn with_ports(hosts: &[String], port: u16) -> Result<Vec<(String, u16)>, Failure> {
    let mut nodes: Vec<(String, u16)> = Vec::with_capacity(hosts.len());
    for host in hosts {
        let (name, given) = match host.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                let port = port.parse::<u16>();
                (name, Some(port.map_err(|_| Failure::usage(format!("{host}: not a port")))?))
            }
            Some(_) | None => (host.as_str(), None),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let before = nodes.iter().filter(|(known, _)| *known == name).count();
        let next = u16::try_from(before).ok().and_then(|before| port.checked_add(before));
        let port = given.or(next).ok_or(Failure::usage("there are not so many ports"))?;
        if nodes.contains(&(name.clone(), port)) {
            return Err(Failure::usage(format!("two nodes at {name} port {port}")));
        }
        nodes.push((name, port));
    }
    Ok(nodes)
}

/// The one node whose address this machine has.
fn own(nodes: &[(String, u16)]) -> Result<usize, Failure> {
    let here: Vec<_> = adverb::verbs::devices()
        .doing("listing the addresses of this machine")?
        .iter()
        .flat_map(|device| device.gids.iter().map(|gid| gid.ip()).collect::<Vec<_>>())
        .collect();
    let is_here = |(host, port): &(String, u16)| {
        let found = (host.as_str(), *port).to_socket_addrs();
        found.is_ok_and(|mut all| all.any(|address| here.contains(&address.ip())))
    };
    let mut found = nodes.iter().enumerate().filter(|(_, node)| is_here(node));
    match (found.next(), found.next()) {
        (Some((rank, _)), None) => Ok(rank),
        (None, _) => Err(Failure::usage("none of the nodes is this machine: say which, --rank R")),
        (Some(_), Some(_)) => {
            Err(Failure::usage("several of the nodes are this machine: say which, --rank R"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(nodes: &[&str]) -> Told {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        Told { nodes, port: 100, ..Told::default() }
    }

    fn env<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn names(place: &Place) -> Vec<String> {
        place.nodes.iter().map(|(host, port)| format!("{host}:{port}")).collect()
    }

    #[test]
    fn ports_are_given_or_counted_up_on_each_host() {
        let told = Told { rank: Some(1), ..told(&["a", "a", "b:7", "[::1]:9", "a"]) };
        let place = Place::find(&told, env(&[])).unwrap();
        assert_eq!(names(&place), ["a:100", "a:101", "b:7", "::1:9", "a:102"]);
        assert_eq!(place.rank, 1);
    }

    #[test]
    fn launchers_are_known_by_their_environment() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        let place = Place::find(&told(&[]), env(&open_mpi)).unwrap();
        assert_eq!((place.rank, place.nodes.len()), (2, 4));
        assert_eq!(place.nodes[3], ("127.0.0.1".to_owned(), 103));

        let slurm =
            [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "6"), ("SLURM_JOB_NODELIST", "n[08-09],gpu")];
        let place = Place::find(&told(&[]), env(&slurm)).unwrap();
        assert_eq!(
            names(&place),
            ["n08:100", "n08:101", "n09:100", "n09:101", "gpu:100", "gpu:101"]
        );
        assert_eq!(place.rank, 3);

        let job = [("JOB_COMPLETION_INDEX", "1"), ("ADVERB_SIZE", "3")];
        let place = Place::find(&told(&["mesh-{}.mesh"]), env(&job)).unwrap();
        assert_eq!(names(&place), ["mesh-0.mesh:100", "mesh-1.mesh:100", "mesh-2.mesh:100"]);
        assert_eq!(place.rank, 1);
    }

    #[test]
    fn what_is_missing_is_named() {
        let text =
            |told, pairs: &[(&str, &str)]| Place::find(&told, env(pairs)).unwrap_err().to_string();
        assert!(text(told(&[]), &[]).contains("--nodes"));
        assert!(text(told(&["one-{}"]), &[]).contains("--size"));
        assert!(text(told(&["a", "a:100"]), &[]).contains("two nodes at a port 100"));
        assert!(text(told(&["a", "b:x"]), &[]).contains("not a port"));
        let far = Told { rank: Some(2), ..told(&["a", "b"]) };
        assert!(text(far, &[]).contains("0 to 1"));
    }

    #[test]
    fn lists_of_slurm_are_taken_apart() {
        assert_eq!(expand("a1"), ["a1"]);
        assert_eq!(expand("a,b[2,4-5],c"), ["a", "b2", "b4", "b5", "c"]);
        assert_eq!(expand("x[098-101]"), ["x098", "x099", "x100", "x101"]);
    }
}
