//! A file of rules: groups for programs, and the first rule that fits.
//!
//! ```text
//! # Everything behind a hash is a comment.
//! application-id tcp-lat B1
//! use vma tcp_client 192.168.1.0/24:*:*:*
//! use os tcp_server *:5001
//! ```
//!
//! `application-id` opens a group: its rules are for programs of that name, started with that id.
//! Rules before the first group are for all programs. `log` statements are accepted and do nothing.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::rule::{Rule, RuleError, Socket, Transport};
use crate::{Warning, matches};

/// What the file says where there is none: the name service stays with the kernel.
pub const DEFAULT_FILE: &str = "use os udp_connect *:53\n";

/// The rules for one program, in the order in which they are looked at.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Reads a file, keeping what is meant for `program` (a name without path) started with the
    /// application id `id`. Lines that mean nothing become warnings and are skipped.
    #[must_use]
    pub fn parse(text: &str, program: &str, id: &str) -> (Self, Vec<Warning>) {
        let mut rules = Vec::new();
        let mut warnings = Vec::new();
        let mut is_ours = true;
        for (number, line) in (1_usize..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            let mut words = line.split_whitespace();
            let read = match words.next() {
                None | Some("log") => Ok(()),
                Some("application-id") => group(words).map(|(name, wanted)| {
                    is_ours = matches(name, program) && (wanted == "*" || wanted == id);
                }),
                Some(_) => line.parse().map(|rule| {
                    if is_ours {
                        rules.push(rule);
                    }
                }),
            };
            if let Err(error) = read {
                warnings.push(Warning::Rule { line: number, text: line.to_string(), error });
            }
        }
        (Self { rules }, warnings)
    }

    /// Puts a rule in front of all others.
    ///
    /// # Errors
    ///
    /// Why `line` is not a rule; the rules are as before.
    pub fn prepend(&mut self, line: &str) -> Result<(), RuleError> {
        let line: String = line.split('#').next().unwrap_or("").trim().to_string();
        self.rules.insert(0, line.parse()?);
        Ok(())
    }

    /// What is to be done with `socket`: what the first rule says that is about it, and
    /// [`Transport::Best`] if none is.
    #[must_use]
    pub fn transport(&self, socket: &Socket) -> Transport {
        let first = self.rules.iter().find(|rule| rule.is_about(socket));
        first.map_or(Transport::Best, |rule| rule.transport)
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

/// Reads the rest of an `application-id` statement: a program's name and an id.
fn group<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<(&'a str, &'a str), RuleError> {
    let (Some(name), Some(id)) = (words.next(), words.next()) else {
        return Err(RuleError::Statement);
    };
    if words.next().is_some() { Err(RuleError::Trailing) } else { Ok((name, id)) }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::rule::Role;

    fn server(port: u16) -> Socket {
        let local = (IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Socket { role: Role::TcpServer, local, remote: Socket::NOWHERE }
    }

    #[test]
    fn the_first_rule_that_fits_counts() {
        let text = "use vma tcp_server *:80\nuse os tcp_server *:1-100\nuse spin tcp_server *:*\n";
        let (rules, warnings) = Rules::parse(text, "a", "");
        assert!(warnings.is_empty());
        assert_eq!(rules.transport(&server(80)), Transport::Best);
        assert_eq!(rules.transport(&server(81)), Transport::Os);
        assert_eq!(rules.transport(&server(101)), Transport::Spin);
    }

    #[test]
    fn groups_are_for_their_program_and_id_alone() {
        let text = "\
use os tcp_server *:1
application-id tcp-lat B1   # a comment
  use os tcp_server *:2
application-id db2* *
use os tcp_server *:3
application-id * B1
use os tcp_server *:4
";
        for (program, id, expected) in [
            ("tcp-lat", "B1", [true, true, false, true]),
            ("tcp-lat", "B2", [true, false, false, false]),
            ("db2sysc", "", [true, false, true, false]),
            ("other", "B1", [true, false, false, true]),
        ] {
            let (rules, warnings) = Rules::parse(text, program, id);
            assert!(warnings.is_empty());
            let found = [1, 2, 3, 4].map(|port| rules.transport(&server(port)) == Transport::Os);
            assert_eq!(found, expected, "{program} {id}");
        }
    }

    #[test]
    fn a_bad_line_costs_a_warning_and_nothing_else() {
        let (rules, warnings) =
            Rules::parse("\n\nuse os tcp_servre *:1\nlog 3\nuse os tcp_server *:1", "a", "");
        assert_eq!(rules.len(), 1);
        let [Warning::Rule { line: 3, error: RuleError::Role, .. }] = warnings.as_slice() else {
            panic!("{warnings:?}");
        };
    }

    #[test]
    fn a_rule_added_later_comes_first() {
        let (mut rules, _) = Rules::parse("use os tcp_server *:80\n", "a", "");
        rules.prepend("use vma tcp_server *:80").unwrap();
        assert_eq!(rules.transport(&server(80)), Transport::Best);
        assert_eq!(rules.prepend("nonsense"), Err(RuleError::Statement));
        assert_eq!(rules.len(), 2);
    }

    #[test]
    fn the_default_file_keeps_the_name_service_with_the_kernel() {
        let (rules, warnings) = Rules::parse(DEFAULT_FILE, "a", "");
        assert!(warnings.is_empty());
        let remote = (IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9)), 53);
        let dns = Socket { role: Role::UdpConnect, local: Socket::NOWHERE, remote };
        assert_eq!(rules.transport(&dns), Transport::Os);
        assert_eq!(rules.transport(&server(53)), Transport::Best);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in "[ -~\n#*:/.0-9a-z\\[\\]]{0,300}") {
            let _ = Rules::parse(&text, "a", "b");
        }
    }
}
