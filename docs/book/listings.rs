//! The listings of the book: each one in a chapter is compiled and run as an example of the documentation.
//!
//! Whole programs lie in `examples/`; `tests/programs.rs` runs them in processes of their own, and compares them with
//! the chapters that show them. A chapter that has a listing has to be named here, which that test checks, too.

macro_rules! chapters {
    ($($chapter:literal)*) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("src/", $chapter, ".md"))]
            const _: () = ();
        )*
        /// Chapters whose listings are compiled, by file name without `.md`.
        pub const CHAPTERS: &[&str] = &[$($chapter),*];
    };
}

chapters! {
    "one-process"
    "two-processes"
    "verbs"
    "pingpong"
    "key-value"
    "ring"
    "locks"
    "sessions"
    "tokio"
    "tuning"
}
