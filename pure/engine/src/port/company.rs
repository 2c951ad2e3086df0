//! Requests that wait for company: under a stream of posts a system call for each would cost more
//! than the packets.

/// Requests that were posted since packets were last emitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Company {
    requests: u64,
    bytes: u64,
}

impl Company {
    /// With fewer requests under way than this, nothing waits: latency is what counts then.
    const UNDER_WAY_MIN: u64 = 8;
    /// As many as leave in one burst.
    const REQUESTS_MAX: u64 = 64;
    const BYTES_MAX: u64 = 32 << 10;

    /// A request of so many bytes was posted.
    pub fn on_post(&mut self, len: u32) {
        self.requests += 1;
        self.bytes += u64::from(len);
    }

    /// They may wait for the next post or poll; `outstanding` requests have not ended, these included.
    pub fn can_wait(&self, outstanding: u64) -> bool {
        outstanding.saturating_sub(self.requests) >= Self::UNDER_WAY_MIN
            && self.requests < Self::REQUESTS_MAX
            && self.bytes < Self::BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_while_others_are_under_way_and_not_for_long() {
        let mut company = Company::default();
        company.on_post(100);
        assert!(!company.can_wait(8), "seven others are under way");
        assert!(company.can_wait(9));
        (1..64).for_each(|_| company.on_post(100));
        assert!(!company.can_wait(1000), "they fill a burst");
        let mut company = Company::default();
        company.on_post(32 << 10);
        assert!(!company.can_wait(1000));
    }
}
