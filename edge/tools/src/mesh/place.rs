//! Which node this is, of how many, and where the others are: from the command line, or from what a
//! launcher has put into the environment.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::failure::{Doing, Failure};
use crate::here;

/// The place of a node in the mesh.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// Which one this is, from 0.
    pub(crate) rank: usize,
    /// Where each listens, as host and port.
    pub(crate) nodes: Vec<(String, u16)>,
    /// A launcher has started all of them, and said which this is.
    pub(crate) launched: bool,
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
        if size.is_some_and(|size| size > NODES_MAX) {
            return Err(Failure::usage(format!("a mesh has at most {NODES_MAX} nodes")));
        }
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
        Ok(Self { rank, nodes, launched: told.rank.is_none() && launcher.is_some() })
    }

    /// Where a node listens.
    ///
    /// # Errors
    ///
    /// The name has no address, as yet.
    pub(crate) fn address(&self, rank: usize) -> Result<SocketAddr, Failure> {
        let (host, port) = self.nodes.get(rank).ok_or(Failure::failed("there is no such node"))?;
        let all = (host.as_str(), *port).to_socket_addrs();
        let mut all = all.doing(format_args!("looking for the host {host}"))?;
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
    // Slurm speaks of the step that this is a task of, or else of the whole job.
    let step = |what: &str| {
        let job = if what == "NODELIST" { "SLURM_JOB_NODELIST" } else { "SLURM_TASKS_PER_NODE" };
        env(&format!("SLURM_STEP_{what}")).or_else(|| env(job))
    };
    match named.as_slice() {
        // One name with a hole for the rank, as the pods of an indexed Job have.
        [pattern] if pattern.contains("{}") => {
            let size = size.ok_or_else(|| {
                Failure::usage("how many nodes? --ranks N, or ADVERB_SIZE in the environment")
            })?;
            Ok((0..size).map(|rank| pattern.replace("{}", &rank.to_string())).collect())
        }
        [_, ..] => Ok(named),
        [] => Ok(match (step("NODELIST"), size) {
            (Some(list), Some(size)) => {
                let tasks = step("TASKS_PER_NODE").map(|text| counts(&text)).unwrap_or_default();
                let way = env("SLURM_DISTRIBUTION").unwrap_or_default();
                spread(&expand(&list), &tasks, size, way.starts_with("cyclic"))
            }
            // Ranks of a launcher that all run here.
            (None, Some(size)) => {
                let local = env("OMPI_COMM_WORLD_LOCAL_SIZE").or_else(|| env("MPI_LOCALNRANKS"));
                match local.and_then(|text| text.parse::<usize>().ok()) == Some(size) {
                    true => vec![here::address().to_string(); size],
                    false => Vec::new(),
                }
            }
            (_, None) => Vec::new(),
        }),
    }
}

/// The host of each task, as Slurm hands them out: so many `tasks` to each host, or equally many; one
/// host after the other, or, in a cycle, one task after the other.
fn spread(hosts: &[String], tasks: &[usize], size: usize, cycle: bool) -> Vec<String> {
    let even = size.div_ceil(hosts.len().max(1));
    let mut left: Vec<_> =
        (0..hosts.len()).map(|host| tasks.get(host).copied().unwrap_or(even)).collect();
    let mut spread = Vec::with_capacity(size);
    while spread.len() < size && left.iter().any(|left| *left > 0) {
        for (host, left) in hosts.iter().zip(&mut left) {
            let count = (*left).min(if cycle { 1 } else { size });
            spread.extend(std::iter::repeat_n(host.clone(), count));
            *left -= count;
        }
    }
    spread.truncate(size);
    spread
}

/// Takes `2(x3),1` apart.
fn counts(list: &str) -> Vec<usize> {
    let count = |part: &str| {
        let (count, times) = part.split_once("(x").unwrap_or((part, "1"));
        let times = times.trim_end_matches(')').parse::<usize>().ok()?;
        Some(std::iter::repeat_n(count.parse::<usize>().ok()?, times.min(HOSTS_MAX)))
    };
    list.split(',').filter_map(count).flatten().collect()
}

/// Each is connected with each, and has its row in everybody's matrix.
const NODES_MAX: usize = 1024;

/// Hosts that one range of a list can stand for.
const HOSTS_MAX: usize = 65_536;

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
                let names = (from..=to).map(|number| format!("{prefix}{number:0width$}"));
                hosts.extend(names.take(HOSTS_MAX));
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
                let port = port.ok().filter(|port| *port > 0);
                (name, Some(port.ok_or_else(|| Failure::usage(format!("{host}: not a port")))?))
            }
            Some(_) | None => (host.as_str(), None),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        if name.is_empty() {
            return Err(Failure::usage("a node without a name: --nodes HOST[:PORT],…"));
        }
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

        assert!(place.launched);

        let job = [("JOB_COMPLETION_INDEX", "1"), ("ADVERB_SIZE", "3")];
        let place = Place::find(&told(&["mesh-{}.mesh"]), env(&job)).unwrap();
        assert_eq!(names(&place), ["mesh-0.mesh:100", "mesh-1.mesh:100", "mesh-2.mesh:100"]);
        assert_eq!(place.rank, 1);

        let all = [job[0], job[1], ("ADVERB_NODES", "j-{}.svc.ns.svc.cluster.local")];
        let place = Place::find(&told(&[]), env(&all)).unwrap();
        assert_eq!(place.nodes[2].0, "j-2.svc.ns.svc.cluster.local");
    }

    /// Method: what srun sets for `-n 5`, on a part of the job's hosts, one of which takes more.
    #[test]
    fn steps_of_slurm_go_where_slurm_puts_them() {
        let mut variables = vec![
            ("SLURM_PROCID", "4"),
            ("SLURM_NTASKS", "5"),
            ("SLURM_JOB_NODELIST", "n[1-9]"),
            ("SLURM_TASKS_PER_NODE", "1(x9)"),
            ("SLURM_STEP_NODELIST", "n[2-4]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2,1,2"),
        ];
        let blocks = Place::find(&told(&[]), env(&variables)).unwrap();
        assert_eq!(names(&blocks), ["n2:100", "n2:101", "n3:100", "n4:100", "n4:101"]);
        variables.push(("SLURM_DISTRIBUTION", "cyclic,pack"));
        let cycle = Place::find(&told(&[]), env(&variables)).unwrap();
        assert_eq!(names(&cycle), ["n2:100", "n3:100", "n4:100", "n2:101", "n4:101"]);
        assert_eq!(counts("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(counts("x,(x),3(xy),"), [0; 0]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let text =
            |told, pairs: &[(&str, &str)]| Place::find(&told, env(pairs)).unwrap_err().to_string();
        assert!(text(told(&[]), &[]).contains("--nodes"));
        assert!(text(told(&["one-{}"]), &[]).contains("--ranks"));
        let many = Told { size: Some(usize::MAX), ..told(&["one-{}"]) };
        assert!(text(many, &[]).contains("at most 1024"));
        assert!(text(told(&["a", ""]), &[]).contains("without a name"));
        assert!(text(told(&["a", ":7"]), &[]).contains("without a name"));
        assert!(text(told(&["a", "b:0"]), &[]).contains("not a port"));
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
