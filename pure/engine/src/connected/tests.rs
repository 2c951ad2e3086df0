//! The responder of an unreliable connection alone.
