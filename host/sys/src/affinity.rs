//! Processor affinity of threads.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that the calling thread may run on, in ascending order. Never empty.
///
/// # Errors
///
/// Those of `sched_getaffinity(2)`: a machine with more than 1024 processors.
pub fn cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Keeps the calling thread on processor `cpu` from now on. Threads that it starts inherit this.
///
/// # Errors
///
/// `EINVAL` if there is no such processor or this process may not use it; nothing has changed.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    pin_to_cpus(&[cpu])
}

/// The same, on any of these processors, as far as there are such.
///
/// # Errors
///
/// `EINVAL` if this process may use none of them; nothing has changed.
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_run_on_its_processor_only() {
        let last = *cpus().unwrap().last().unwrap();
        let pinned = std::thread::spawn(move || pin_to_cpu(last).and_then(|()| cpus()));
        assert_eq!(pinned.join().unwrap().unwrap(), [last]);
    }

    #[test]
    fn a_processor_that_does_not_exist_is_refused_and_nothing_changes() {
        let before = cpus().unwrap();
        assert_eq!(pin_to_cpu(usize::MAX).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(pin_to_cpu(CpuSet::MAX_CPU - 1).is_err() || before.len() == CpuSet::MAX_CPU);
        assert_eq!(cpus().unwrap(), before);
    }
}
