//! Packet pacing: how many bytes may be sent now, so that no more than a rate allows are sent in all.
//!
//! A token bucket, written as one number that processes can share: the time at which it will be full again.
//! While the number lies in the past, the bucket is full; what is taken moves it on. Time is an argument.
//!
//! Read RFC 2697 (token buckets) and socket(7), `SO_MAX_PACING_RATE`, before changing this file.

/// A rate, and how far it may be exceeded for a moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pace {
    bytes_per_second: u64,
    burst_bytes: u64,
    least_bytes: u64,
}

/// What a bucket gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Grant {
    /// So many bytes may be sent, and the bucket is full again at that time, in [`TICKS`].
    Bytes(u64, u64),
    /// Nothing yet: it is worth asking again after so many nanoseconds.
    Wait(u64),
}

/// What is to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Load {
    /// A stream of so many bytes, of which any part may go.
    Stream(u64),
    /// A datagram of so many bytes, which goes as a whole.
    Datagram(u64),
}

/// What a late sender is spared of the price of bytes, in [`TICKS`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Discount {
    /// So much less is owed.
    pub paid: u64,
    /// So much goes off the price.
    pub off: u64,
}

/// Parts of a nanosecond that a bucket counts in: at 10 GB/s a byte takes a tenth of one.
pub const TICKS: u64 = 64;

impl Pace {
    /// A rate in bytes per second; `None` if it is 0 or the largest number, both of which mean no limit.
    ///
    /// `burst_bytes` is how much may be sent at once after a pause, 0 for as much as is due in a millisecond, at
    /// least 3,000 bytes. `least_bytes` is the least part of a stream that is worth sending, 0 for a quarter of
    /// a burst.
    pub fn new(bytes_per_second: u64, burst_bytes: u64, least_bytes: u64) -> Option<Self> {
        if [0, u64::MAX].contains(&bytes_per_second) {
            return None;
        }
        let burst_bytes = match burst_bytes {
            0 => (bytes_per_second / 1000).max(BURST_MIN),
            given => given,
        };
        let least_bytes = match least_bytes {
            0 => (burst_bytes / 4).max(1),
            given => given.min(burst_bytes),
        };
        Some(Self { bytes_per_second, burst_bytes, least_bytes })
    }

    /// Takes from the bucket what may be sent at `now_ns`. `full_at` is the bucket: when it is full again, in
    /// [`TICKS`], 0 at first.
    ///
    /// A datagram that is longer than a burst waits for a full bucket, and the next one for longer. `owed` is what a late
    /// sender is owed: what goes off the price of a burst would make it a longer one, and is not in the bucket.
    pub fn take(&self, full_at: u64, now_ns: u64, load: Load, owed: u64) -> Grant {
        let now = now_ns.saturating_mul(TICKS);
        // A bucket that is further from full than any load makes it was damaged, or the clock was set back.
        let debt_max = self.ticks(self.burst_bytes.saturating_add(LOAD_MAX));
        let full_at = full_at.clamp(now, now.saturating_add(debt_max));
        let (bytes, least) = match load {
            Load::Stream(bytes) => (bytes.min(self.burst_bytes), bytes.min(self.least_bytes)),
            Load::Datagram(bytes) => (bytes, bytes.min(self.burst_bytes)),
        };
        let depth = self.ticks(self.burst_bytes) - self.kept_out(owed);
        // The bucket holds `least`, or is full, from this time on.
        let ready_at = full_at.saturating_add(self.ticks(least).min(depth)).saturating_sub(depth);
        if ready_at > now {
            return Grant::Wait((ready_at - now).div_ceil(TICKS));
        }
        let granted = match load {
            Load::Stream(_) => {
                bytes.min(self.bytes(depth.saturating_sub(full_at - now))).max(least)
            }
            Load::Datagram(_) => bytes,
        };
        Grant::Bytes(granted, full_at.saturating_add(self.ticks(granted)))
    }

    /// How long, in [`TICKS`], a bucket has been full that its sender would have used; `None` if nothing is lost.
    ///
    /// A sender that waits for the bucket would have. So would one that comes a little late: others have had its
    /// processor, or its receiver had no room. What is longer is a pause of its own, which is worth a full bucket alone.
    pub fn late(full_at: u64, now_ns: u64, has_waited: bool) -> Option<u64> {
        let late = now_ns.saturating_mul(TICKS).checked_sub(full_at)?;
        let longest = if has_waited { u64::MAX } else { OWED_MAX };
        (full_at > 0 && (1..=longest).contains(&late)).then_some(late)
    }

    /// What a late sender is owed after it has been late once more.
    pub fn owe(owed: u64, late: u64) -> u64 {
        owed.saturating_add(late).min(OWED_MAX)
    }

    /// How much of what is owed is paid with bytes that have been granted: a sender that was late catches up, a little
    /// faster than its rate and never by a burst.
    pub fn discount(&self, granted: u64, owed: u64) -> Discount {
        let paid = owed.min(self.ticks(granted) / CATCH_UP);
        // The rest is in the bucket from now on.
        let off = paid - (self.kept_out(owed) - self.kept_out(owed - paid));
        Discount { paid, off }
    }

    /// The bucket after `unsent` of `granted` bytes have been given back, and how much is owed again. What is given back is
    /// what was charged.
    pub fn give_back(
        &self,
        full_at: u64,
        granted: u64,
        discount: Discount,
        unsent: u64,
    ) -> (u64, u64) {
        let share = |of: u64| {
            let share = u128::from(of) * u128::from(unsent) / u128::from(granted.max(1));
            u64::try_from(share).unwrap_or(of).min(of)
        };
        let charged = self.ticks(unsent).saturating_sub(share(discount.off));
        (full_at.saturating_sub(charged), share(discount.paid))
    }

    /// What the bucket lacks while a sender is owed something: so much goes off the price of a burst.
    fn kept_out(&self, owed: u64) -> u64 {
        owed.min(self.ticks(self.burst_bytes) / CATCH_UP)
    }

    /// How long a sender may sleep in one go, in nanoseconds: what is due by then is a quarter of a burst.
    pub fn nap_ns(self) -> u64 {
        self.ticks(self.burst_bytes) / (4 * TICKS)
    }

    /// How long so many bytes take.
    fn ticks(&self, bytes: u64) -> u64 {
        scaled(bytes, SECOND, self.bytes_per_second)
    }

    /// How many bytes so long a time allows.
    fn bytes(&self, ticks: u64) -> u64 {
        scaled(ticks, self.bytes_per_second, SECOND)
    }
}

/// `value * times / parts`. What fits 64 bits, as it does of all but the longest, is divided several times faster.
fn scaled(value: u64, times: u64, parts: u64) -> u64 {
    if let Some(product) = value.checked_mul(times) {
        return product / parts;
    }
    let scaled = u128::from(value) * u128::from(times) / u128::from(parts);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

const SECOND: u64 = 1_000_000_000 * TICKS;

/// The least burst that is chosen where none is given: two packets of Ethernet.
const BURST_MIN: u64 = 3000;

/// The most that is owed: less than 2 % of the second that it is measured by.
const OWED_MAX: u64 = SECOND / 1000 * 16;

/// What is owed pays for one in so many bytes: a sender that catches up is faster than its rate by a fifteenth.
const CATCH_UP: u64 = 16;

/// The longest datagram.
const LOAD_MAX: u64 = 65_535;

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 10_000_000;
    const BURST: u64 = 15_000;
    /// Long enough after the start that a mistaken subtraction shows.
    const START_NS: u64 = 77_000_000_007;

    /// Sends as much as it may from `START_NS` on for `for_ns`, and returns when how much went.
    fn sent(pace: &Pace, load: Load, for_ns: u64) -> alloc::vec::Vec<(u64, u64)> {
        let (mut full_at, mut now, mut sent) = (0, START_NS, alloc::vec::Vec::new());
        while now < START_NS + for_ns {
            match pace.take(full_at, now, load, 0) {
                Grant::Bytes(bytes, next) => {
                    full_at = next;
                    sent.push((now, bytes));
                }
                Grant::Wait(wait_ns) => now += wait_ns.max(1),
            }
        }
        sent
    }

    fn loads() -> [Load; 4] {
        [Load::Stream(1 << 20), Load::Stream(100), Load::Datagram(1472), Load::Datagram(64)]
    }

    #[test]
    fn a_second_carries_what_the_rate_allows() {
        // The fastest for a shorter time, which carries enough.
        for (rate, part) in [(3_000, 1), (RATE, 1), (9_999_999_999, 200)] {
            for load in loads() {
                let pace = Pace::new(rate, 0, 0).unwrap();
                let sent = sent(&pace, load, 1_000_000_000 / part);
                let total: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
                let due = rate / part;
                // The first burst is in addition.
                let most = due + due / 50 + (rate / 1000).max(BURST_MIN) + 1472;
                assert!((due - due / 50..=most).contains(&total), "{rate} {load:?}: {total}");
            }
        }
    }

    /// Goal: in no stretch of time more than a burst goes beyond the rate. Method: every stretch is looked at.
    #[test]
    fn no_stretch_of_time_exceeds_the_burst() {
        let pace = Pace::new(RATE, BURST, 0).unwrap();
        for load in loads() {
            let sent = sent(&pace, load, 50_000_000);
            for (at, (start, _)) in sent.iter().enumerate().step_by(7) {
                let mut total = 0;
                for (now, bytes) in &sent[at..] {
                    total += bytes;
                    let allowed = BURST + (now - start) * RATE / 1_000_000_000 + 2;
                    assert!(total <= allowed, "{load:?}: {total} in {} ns", now - start);
                }
            }
        }
    }

    /// Goal: a sender that wakes up late keeps its rate, and no stretch of time has more than a burst beyond what it may
    /// catch up by. Method: it sleeps three milliseconds longer than it was told, every 60 ms.
    #[test]
    fn time_lost_by_waking_late_is_caught_up_with() {
        for load in loads() {
            catches_up(load);
        }
        assert_eq!(Pace::owe(OWED_MAX, u64::MAX), OWED_MAX, "what is owed has a bound");
    }

    fn catches_up(load: Load) {
        let pace = Pace::new(RATE, 0, 0).unwrap();
        let (mut full_at, mut now, mut owed, mut waits) = (0, START_NS, 0, 0_u32);
        let mut sent = alloc::vec::Vec::new();
        let mut late_at = START_NS;
        while now < START_NS + 1_000_000_000 {
            match pace.take(full_at, now, load, owed) {
                Grant::Bytes(bytes, next) => {
                    let Discount { paid, off } = pace.discount(bytes, owed);
                    (full_at, owed) = (next - off, owed - paid);
                    sent.push((now, bytes));
                }
                Grant::Wait(wait_ns) => {
                    waits += 1;
                    now += wait_ns;
                    if now - late_at > 60_000_000 {
                        now += 3_000_000;
                        late_at = now;
                    }
                    if let Some(late) = Pace::late(full_at, now, true) {
                        (full_at, owed) = (now * TICKS, Pace::owe(owed, late));
                    }
                }
            }
        }
        assert!(waits > 100, "{waits}");
        let total: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
        assert!((RATE - RATE / 50..=RATE + RATE / 50).contains(&total), "{load:?}: {total}");
        let burst = (RATE / 1000).max(BURST_MIN);
        for (at, (start, _)) in sent.iter().enumerate().step_by(sent.len() / 200) {
            let mut stretch = 0;
            for (now, bytes) in &sent[at..] {
                stretch += bytes;
                let faster = RATE + RATE / (CATCH_UP - 1);
                let allowed = burst + (now - start) * faster / 1_000_000_000 + 2;
                assert!(stretch <= allowed, "{load:?}: {stretch} in {} ns", now - start);
            }
        }
    }

    #[test]
    fn a_pause_gives_one_burst_and_no_more() {
        let pace = Pace::new(RATE, BURST, 0).unwrap();
        let Grant::Bytes(BURST, full_at) = pace.take(0, START_NS, Load::Stream(1 << 20), 0) else {
            panic!("no burst");
        };
        let later_ns = START_NS + 3_600_000_000_000;
        let again = pace.take(full_at, later_ns, Load::Stream(1 << 20), 0);
        assert!(matches!(again, Grant::Bytes(BURST, _)), "{again:?}");
    }

    #[test]
    fn a_datagram_beyond_the_burst_goes_and_makes_the_next_one_wait() {
        let pace = Pace::new(RATE, 1000, 0).unwrap();
        let Grant::Bytes(9000, full_at) = pace.take(0, START_NS, Load::Datagram(9000), 0) else {
            panic!("it has to go");
        };
        // 9000 bytes take 900 us.
        assert_eq!(pace.take(full_at, START_NS, Load::Datagram(9000), 0), Grant::Wait(900_000));
        // The burst may go 100 us before the bucket is full.
        assert_eq!(pace.take(full_at, START_NS, Load::Datagram(1), 0), Grant::Wait(800_100));
    }

    #[test]
    fn what_is_given_back_may_be_sent() {
        let pace = Pace::new(RATE, BURST, 0).unwrap();
        let Grant::Bytes(granted, full_at) = pace.take(0, START_NS, Load::Stream(BURST), 0) else {
            panic!("no burst");
        };
        let (full_at, owed) = pace.give_back(full_at, granted, Discount::default(), granted);
        let again = pace.take(full_at, START_NS, Load::Stream(BURST), 0);
        assert!(matches!(again, Grant::Bytes(BURST, _)), "{again:?}");
        assert_eq!(owed, 0);
    }

    #[test]
    fn what_is_given_back_is_what_was_charged() {
        let pace = Pace::new(RATE, BURST, 0).unwrap();
        let Grant::Bytes(1600, full_at) = pace.take(0, START_NS, Load::Stream(1600), 0) else {
            panic!("no grant");
        };
        let start = START_NS * TICKS;
        for owed in [OWED_MAX, pace.kept_out(u64::MAX) / 2] {
            let discount = pace.discount(1600, owed);
            let Discount { paid, off } = discount;
            assert!(paid > 0, "nothing is owed");
            assert_eq!(pace.give_back(full_at - off, 1600, discount, 1600), (start, paid));
            let (half, owed) = pace.give_back(full_at - off, 1600, discount, 800);
            assert_eq!((half - start, owed), ((full_at - off - start) / 2, paid / 2));
        }
    }

    #[test]
    fn a_damaged_bucket_delays_for_no_longer_than_a_datagram() {
        let pace = Pace::new(RATE, BURST, 0).unwrap();
        let Grant::Wait(wait_ns) = pace.take(u64::MAX, START_NS, Load::Stream(1), 0) else {
            panic!("the bucket is empty");
        };
        assert!(wait_ns <= 10_000_000, "{wait_ns}");
    }

    #[test]
    fn no_limit_is_no_pace() {
        assert_eq!(Pace::new(0, 0, 0), None);
        assert_eq!(Pace::new(u64::MAX, 0, 0), None);
    }
}
