//! The streamer alone.
