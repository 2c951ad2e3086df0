//! What a program chooses for its connections.

use core::time::Duration;

/// Limits and habits of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Bytes of the longest IP packet that the interface takes.
    pub mtu: u16,
    /// Most bytes that wait for the program to read them; the window.
    pub receive_bytes_max: u32,
    /// Most packets whose payload waits in place; that of more is copied together.
    pub receive_packets_max: usize,
    /// Most bytes that wait to be sent or acknowledged.
    pub send_bytes_max: u64,
    /// Time stamps are offered. RFC 7323 §3.
    pub time_stamps: bool,
    /// Selective acknowledgements are offered. RFC 2018.
    pub sack: bool,
    /// Windows above 64 KiB are offered. RFC 7323 §2.
    pub window_scaling: bool,
    /// How the network's load is guessed.
    pub congestion: Algorithm,
    /// Small segments leave although others are in flight: no algorithm of Nagle. RFC 9293 §3.7.4.
    pub no_delay: bool,
    /// Every segment is acknowledged at once.
    pub quick_ack: bool,
    /// How long an acknowledgement waits for company. RFC 9293 §3.8.6.3 has it below 500 ms.
    pub ack_delay: Duration,
    /// Time-out of a retransmission before the round trip is known. RFC 6298 §2.
    pub rto_initial: Duration,
    /// The shortest time-out of a retransmission.
    pub rto_min: Duration,
    /// The longest time-out of a retransmission.
    pub rto_max: Duration,
    /// How long a peer may be silent while it owes an answer, or take nothing from a connection that is closed.
    /// RFC 5482.
    pub user_timeout: Duration,
    /// How long a connection may take to come up.
    pub handshake_timeout: Duration,
    /// Whether silent peers are asked if they are there.
    pub keep_alive: Option<KeepAlive>,
    /// How long a connection's name is not used again: two lifetimes of a segment. RFC 9293 §3.6.1.
    pub time_wait: Duration,
    /// How long a closed connection waits for the peer's FIN.
    pub fin_wait_2: Duration,
    /// Most bytes a second.
    pub pacing: Option<u64>,
    /// Another implementation carries the connection on if this one cannot: see [`super::Connection::is_left`]. If not, what the
    /// peer has marked as urgent comes in line: RFC 6093.
    pub may_leave: bool,
}

/// How the network's load is guessed, and how it is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// RFC 9438.
    Cubic,
    /// RFC 5681, RFC 6582.
    NewReno,
    /// Not at all: for networks that are known to be idle.
    None,
}

impl Algorithm {
    /// The algorithm of this name: `cubic`, `reno`, `newreno` or `none`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "cubic" => Some(Self::Cubic),
            "newreno" | "reno" => Some(Self::NewReno),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

/// How silent peers are asked if they are there. RFC 9293 §3.8.4.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeepAlive {
    /// Silence before the first question.
    pub idle: Duration,
    /// Silence before each other one.
    pub interval: Duration,
    /// Questions without an answer that end the connection.
    pub probes_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mtu: 1500,
            receive_bytes_max: 1 << 20,
            receive_packets_max: 2048,
            send_bytes_max: 4 << 20,
            time_stamps: true,
            sack: true,
            window_scaling: true,
            congestion: Algorithm::Cubic,
            no_delay: false,
            quick_ack: false,
            ack_delay: Duration::from_millis(40),
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            user_timeout: Duration::from_secs(900),
            handshake_timeout: Duration::from_secs(120),
            keep_alive: None,
            time_wait: Duration::from_secs(60),
            fin_wait_2: Duration::from_secs(60),
            pacing: None,
            may_leave: false,
        }
    }
}
