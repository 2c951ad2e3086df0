//! Terminal: its size, and single keys from it.

use std::io::{Stdin, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// Columns and rows of the terminal; `None` where it is none, or does not say.
#[must_use]
pub fn size(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0 && size.ws_row > 0)
        .then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Keys of the terminal at standard input, one by one and without an echo; as before when this is dropped.
#[derive(Debug)]
pub struct Keys {
    input: Stdin,
    before: Termios,
}

impl Keys {
    /// `None` where standard input is no terminal.
    #[must_use]
    pub fn take() -> Option<Self> {
        let input = stdin();
        let before = tcgetattr(&input).ok()?;
        let mut now = before.clone();
        now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(&input, OptionalActions::Now, &now).ok()?;
        Some(Self { input, before })
    }

    /// The next key; `None` if there is none in this time, or a signal came.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<u8> {
        let most = Timespec::try_from(most).ok()?;
        let mut ready = [PollFd::new(&self.input, PollFlags::IN)];
        (poll(&mut ready, Some(&most)).ok()? > 0).then_some(())?;
        let mut key = [0];
        let count = rustix::io::read(&self.input, &mut key).ok()?;
        key.first().copied().filter(|_| count > 0)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // There is nothing to do about a terminal that has gone.
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_no_terminal_has_no_size() {
        let (pipe, _other) = std::io::pipe().unwrap();
        assert_eq!(super::size(pipe), None);
    }
}
