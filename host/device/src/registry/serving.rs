//! Which device of an address gets what is for none: requests for connections, and packets that no route leads.
//!
//! It passes on what is another one's (`progress/management.rs`). The first member of the address's group does it until
//! it does not answer: it may be stopped. Then another one takes its place, and says so here. Questions are datagrams
//! that go where requests go (`probe.rs`), so that an answer shows that requests arrive.

use super::layout::{Group, index};
use super::{Registry, SlotId, group_key};
use std::sync::atomic::Ordering;

/// What a device has seen of the one that serves an address.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Seen {
    /// The question that was answered last.
    pub(crate) answered: u32,
    /// How often another one has taken over.
    pub(crate) takeovers: u32,
}

impl Registry {
    /// The groups of an address that this device is in.
    fn own_groups(&self, address: [u8; 16], scope: u32) -> impl Iterator<Item = &Group> + '_ {
        let groups = self.groups_of(group_key(address, scope));
        groups.filter(|group| group.listed().any(|member| member == self.slot))
    }

    /// The place among the members of an address's group of the one that serves it.
    pub(crate) fn place_of_server(&self, address: [u8; 16], scope: u32, members: &[SlotId]) -> u32 {
        let mut places = self.groups_of(group_key(address, scope)).filter_map(|group| {
            let server = group.server.load(Ordering::Relaxed).checked_sub(1)?;
            members.iter().position(|member| member.0 == server)
        });
        places.next().and_then(|place| u32::try_from(place).ok()).unwrap_or(0)
    }

    /// This device serves the address.
    pub(crate) fn serves(&self, address: [u8; 16], scope: u32, members: &[SlotId]) -> bool {
        let place = self.place_of_server(address, scope, members);
        members.get(index(place)) == Some(&self.slot)
    }

    /// Other devices are in the group of an address, as far as one can see at a glance.
    pub(crate) fn has_company(&self, address: [u8; 16], scope: u32) -> bool {
        let mut members = self.own_groups(address, scope).flat_map(Group::listed);
        members.any(|member| member != self.slot)
    }

    /// What there is to see of the one that serves an address.
    pub(crate) fn seen(&self, address: [u8; 16], scope: u32) -> Seen {
        let seen = self.own_groups(address, scope).next().map(|group| Seen {
            answered: group.answered.load(Ordering::Acquire),
            takeovers: group.takeovers.load(Ordering::Acquire),
        });
        seen.unwrap_or_default()
    }

    /// A question has come here that goes where requests for the address go.
    pub(crate) fn answer_for(&self, address: [u8; 16], scope: u32, question: u32) {
        for group in self.own_groups(address, scope) {
            group.answered.store(question, Ordering::Release);
        }
    }

    /// This device serves the address from now on: to be called, before the kernel is told, within
    /// [`Registry::try_with_group`].
    pub(crate) fn take_over(&self, address: [u8; 16], scope: u32) {
        for group in self.own_groups(address, scope) {
            group.server.store(self.slot.0 + 1, Ordering::Relaxed);
            group.takeovers.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    const HERE: [u8; 16] = [7; 16];

    /// Goal: the one that has taken over serves while it is there, and the first one does when it has gone.
    #[test]
    fn an_address_is_served_by_the_first_until_another_takes_over() {
        let scratch = Scratch::new();
        let [first, second] = [(); 2].map(|()| scratch.join().unwrap());
        for device in [&first, &second] {
            let joined = device.with_group(HERE, 0, |device, members| {
                members.push(device.slot());
                Ok(())
            });
            joined.unwrap();
        }
        let members = [first.slot(), second.slot()];
        assert!(first.has_company(HERE, 0) && !first.has_company([8; 16], 0));
        assert_eq!(first.place_of_server(HERE, 0, &members), 0);
        first.answer_for(HERE, 0, 5);
        assert_eq!(second.seen(HERE, 0), Seen { answered: 5, takeovers: 0 });
        second.take_over(HERE, 0);
        assert_eq!(first.place_of_server(HERE, 0, &members), 1);
        assert!(second.serves(HERE, 0, &members) && !first.serves(HERE, 0, &members));
        assert_eq!(first.seen(HERE, 0), Seen { answered: 5, takeovers: 1 });
        assert_eq!(first.place_of_server(HERE, 0, &[first.slot()]), 0);
    }
}
