//! How wide a terminal is.

use std::os::fd::AsFd;

/// Columns and rows of the terminal; `None` where it is none, or does not say.
#[must_use]
pub fn size(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0 && size.ws_row > 0)
        .then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_no_terminal_has_no_size() {
        let (pipe, _other) = std::io::pipe().unwrap();
        assert_eq!(super::size(pipe), None);
    }
}
