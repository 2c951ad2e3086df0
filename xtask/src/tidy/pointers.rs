//! Rules for code that reaches memory which others change meanwhile, as far as a signature or a word shows them.
//!
//! A safe function takes no raw pointer, for its caller promises nothing about it, and returns no lifetime that its
//! arguments do not have, for nothing would bound it. Bytes are copied by `copying.rs`, which the compiler does not see
//! into: to it they would be this program's alone. Exceptions are listed, each with its reason.
//!
//! It reads words and not types. It does not see: accesses behind a reference to such bytes (`&*bytes`), fields (`(*at).len`),
//! a pointer's methods in the midst of an unsafe function, a pointer that comes in a structure or a tuple, a function under
//! another name (`use ptr::read as r`), and a lifetime that an `impl` declares.

use crate::source::{Source, has_word, words};

/// What does not hold for `source`, one sentence each.
pub(super) fn broken(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    if SHARERS.iter().any(|place| source.path.starts_with(place)) {
        let safe = functions(source.product()).filter(|function| !function.is_unsafe);
        found.extend(safe.flat_map(|function| function.broken(&source.path)));
    }
    if SHARERS.iter().chain(&COPIERS).any(|place| source.path.starts_with(place)) {
        found.extend(plain_accesses(source));
    }
    found
}

/// Code of files in these places uses memory that other processes write, or hands it out.
const SHARERS: [&str; 5] =
    ["host/device/src/", "host/shm/src/", "host/xdp/src/", "host/verbs/src/", "host/session/src/"];
/// Here functions of C are replaced, whose arguments are pointers.
const COPIERS: [&str; 1] = ["edge/preload/src/transport/"];

/// Functions whose pointers are not followed.
const UNFOLLOWED: [(&str, &str); 6] = [
    ("host/shm/src/line.rs", "prefetch"),
    ("host/shm/src/line.rs", "prefetch_bytes"),
    ("host/shm/src/line.rs", "prefetch_for_writing"),
    ("host/shm/src/line.rs", "prefetch_record_for_writing"),
    ("host/device/src/link/shm/link.rs", "fetch_rest"),
    // It asks the kernel for the pages, which refuses what is not mapped.
    ("host/device/src/memory/region.rs", "fetch"),
];

/// What the compiler takes for accesses to bytes that nothing else changes.
const PLAIN: [&str; 11] = [
    "copy_nonoverlapping",
    "copy_from_nonoverlapping",
    "copy_to_nonoverlapping",
    "write_bytes",
    "read_unaligned",
    "write_unaligned",
    "from_raw_parts",
    "from_raw_parts_mut",
    "slice_from_raw_parts",
    "slice_from_raw_parts_mut",
    "swap_nonoverlapping",
];

/// The same as parts of paths and calls: the words alone have other meanings.
const PLAIN_CALLS: [&str; 7] = [
    "ptr::copy(",
    ".copy_from(",
    ".copy_to(",
    "ptr::read(",
    "ptr::write(",
    "ptr::swap(",
    "ptr::replace(",
];

/// The same by methods of a pointer, or by a pointer alone, in a block of its own.
const BY_POINTER: &str = "read or write";
const ACCESSES: [&str; 2] = [".read()", ".write("];

/// Files where such bytes are this program's alone.
const ALONE: [(&str, &str); 13] = [
    // Of a UMEM that no other process maps.
    ("host/xdp/src/umem.rs", "from_raw_parts"),
    // Of a buffer that no peer may write to, while it is the caller's.
    ("host/verbs/src/memory.rs", "from_raw_parts"),
    ("host/verbs/src/memory.rs", "from_raw_parts_mut"),
    // Numbers, and lists of pieces, as what they consist of.
    ("host/session/src/collective/number.rs", "from_raw_parts"),
    ("host/session/src/collective/number.rs", "from_raw_parts_mut"),
    ("host/verbs/src/hw/qp.rs", "from_raw_parts"),
    // What the kernel has said beside a datagram.
    ("edge/preload/src/transport/datagram/inbox.rs", "read_unaligned"),
    ("edge/preload/src/transport/datagram/inbox.rs", BY_POINTER),
    // Of a child that has just been forked: it has one thread.
    ("edge/preload/src/transport/datagram/attachment.rs", BY_POINTER),
    // The copy that the caller has asked for.
    ("edge/preload/src/transport/datagram/mailbox/newest.rs", "write_unaligned"),
    // Functions of this project's own, by the name of a pointer's.
    ("host/device/src/link/shm/link.rs", ".copy_to("),
    ("host/session/src/messenger.rs", ".copy_to("),
    ("host/verbs/src/memory.rs", ".copy_from("),
];

fn plain_accesses(source: &Source) -> Vec<String> {
    let path = &source.path;
    let wrong = used(source.product()).filter(|word| !ALONE.contains(&(path.as_str(), *word)));
    wrong.map(|word| format!("{path}: `{word}` of memory that others may write")).collect()
}

/// The plain accesses of `code`.
fn used(code: &str) -> impl Iterator<Item = &'static str> {
    let words = PLAIN.into_iter().filter(move |word| has_word(code, word));
    let calls = PLAIN_CALLS.into_iter().filter(move |call| code.contains(call));
    let mut blocks = code.match_indices("unsafe {").filter_map(|(at, _)| {
        let (_, from) = code.split_at_checked(at + "unsafe ".len())?;
        group(from, '{', '}')
    });
    let by_pointer = blocks.any(|(block, _)| {
        let is_place = block.trim_start().starts_with('*');
        is_place || ACCESSES.iter().any(|access| block.contains(access))
    });
    words.chain(calls).chain(by_pointer.then_some(BY_POINTER))
}

/// Exceptions that nothing needs, one sentence each.
pub(super) fn idle(sources: &[Source]) -> Vec<String> {
    let product = |path: &str| {
        let found = sources.iter().find(|source| source.path == path);
        found.map_or("", Source::product)
    };
    let unfollowed = UNFOLLOWED.iter().filter(|(path, name)| {
        !functions(product(path)).any(|function| function.name == *name && function.follows())
    });
    let alone =
        ALONE.iter().filter(|(path, word)| !used(product(path)).any(|found| found == *word));
    let idle = unfollowed.chain(alone);
    idle.map(|(path, what)| format!("{path}: nothing needs the exception for `{what}`")).collect()
}

/// The head of a function that has a body.
#[derive(Debug)]
struct Function<'a> {
    name: &'a str,
    is_unsafe: bool,
    /// Between angle brackets behind the name.
    generics: &'a str,
    arguments: &'a str,
    /// Behind the arguments: what is returned, and bounds.
    rest: &'a str,
}

impl Function<'_> {
    fn broken(&self, path: &str) -> Vec<String> {
        let Self { name, is_unsafe: _, generics, arguments, rest } = self;
        let mut found = Vec::new();
        if self.follows() && !UNFOLLOWED.contains(&(path, name)) {
            found.push(format!("{path}: `{name}` is safe and takes a raw pointer"));
        }
        let returned = without_bounds(rest);
        let unbounded = lifetimes(generics)
            .filter(|life| has_lifetime(returned, life) && !has_lifetime(arguments, life));
        for life in unbounded {
            found.push(format!("{path}: `{name}` returns '{life}, which no argument has"));
        }
        found
    }

    /// It takes a raw pointer.
    fn follows(&self) -> bool {
        let own = without_calls(self.arguments);
        own.contains("*const ") || own.contains("*mut ")
    }
}

/// What stands before `where`.
fn without_bounds(rest: &str) -> &str {
    let bounds = rest.match_indices("where").find(|(at, word)| {
        let before = rest.get(..*at).is_some_and(|text| text.ends_with(char::is_whitespace));
        let after = rest.get(at + word.len()..);
        before && after.is_some_and(|text| text.starts_with(char::is_whitespace))
    });
    bounds.and_then(|(at, _)| rest.get(..at)).unwrap_or(rest)
}

/// Where the body begins, or the end of a function without one: not at the semicolon of an array's type.
fn end_of_head(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let end = text.char_indices().find(|(_, c)| {
        depth += usize::from(matches!(c, '[' | '('));
        depth = depth.saturating_sub(usize::from(matches!(c, ']' | ')')));
        depth == 0 && matches!(c, '{' | ';')
    });
    end.map(|(at, _)| at)
}

fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    code.match_indices("fn ").filter_map(|(at, _)| {
        let (before, after) = code.split_at_checked(at)?;
        if before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            return None;
        }
        let modifiers = before.rsplit(['{', '}', ';', ']']).next().unwrap_or_default();
        let after = after.strip_prefix("fn ")?;
        let name = words(after).next()?;
        let after = after.strip_prefix(name)?;
        let (generics, after) =
            if after.starts_with('<') { group(after, '<', '>')? } else { ("", after) };
        let (arguments, after) = group(after, '(', ')')?;
        let (rest, end) = after.split_at_checked(end_of_head(after)?)?;
        let is_unsafe = has_word(modifiers, "unsafe");
        end.starts_with('{').then_some(Function { name, is_unsafe, generics, arguments, rest })
    })
}

/// What stands between `open`, with which the text begins, and its `close`; and what comes after that.
fn group(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        depth += usize::from(c == open);
        if c == close && previous != '-' {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some((text.get(open.len_utf8()..at)?, text.get(at + close.len_utf8()..)?));
            }
        }
        previous = c;
    }
    None
}

/// Without what is between parentheses: arguments of functions that are arguments, which their callee answers for.
fn without_calls(arguments: &str) -> String {
    let mut depth = 0_usize;
    let outside = arguments.chars().filter(|c| {
        depth += usize::from(*c == '(');
        let is_outside = depth == 0;
        depth -= usize::from(*c == ')' && depth > 0);
        is_outside
    });
    outside.collect()
}

/// Lifetimes that a list of generics declares.
fn lifetimes(generics: &str) -> impl Iterator<Item = &str> {
    let each = generics.split(',').filter_map(|one| one.trim().strip_prefix('\''));
    each.filter_map(|one| words(one).next())
}

fn has_lifetime(text: &str, life: &str) -> bool {
    text.split('\'')
        .skip(1)
        .any(|after| words(after).next() == Some(life) && after.starts_with(life))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_in(path: &str, code: &str) -> Vec<String> {
        broken(&Source::new(path, code))
    }

    const PATH: &str = "host/device/src/a.rs";

    #[test]
    fn a_safe_function_takes_no_raw_pointer() {
        for wrong in [
            "fn a(to: *mut u8) {}",
            "impl A { pub(crate) const fn a(&self, from: *const u8) -> bool { true } }",
            "fn a<T: Fn(u8) -> u8>(t: T, from: *const u8) {}",
            "unsafe impl Send for A {}\nfn a(from: *const u8) {}",
            "fn a(from: *const u8) -> [u8; 4] { b() }",
        ] {
            let found = broken_in(PATH, wrong);
            assert_eq!(
                found,
                ["host/device/src/a.rs: `a` is safe and takes a raw pointer"],
                "{wrong}"
            );
            assert_eq!(broken_in("host/sys/src/a.rs", wrong), [""; 0]);
        }
        for right in [
            "unsafe fn a(to: *mut u8) {}",
            "pub unsafe extern \"C\" fn a(to: *mut u8) {}",
            "unsafe extern \"C\" { fn memcpy(to: *mut u8); }",
            "fn a(show: impl FnMut(*const u8, usize)) {}",
            "fn a() -> *mut u8 { b() }",
            "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b(to: *mut u8) {}\n}",
        ] {
            assert_eq!(broken_in(PATH, right), [""; 0], "{right}");
        }
        assert_eq!(broken_in("host/shm/src/line.rs", "fn prefetch(line: *const u8) {}"), [""; 0]);
    }

    #[test]
    fn a_safe_function_returns_no_lifetime_of_its_own_making() {
        let wrong = "impl A { fn a<'v>(place: Place) -> Option<&'v AtomicU64> { None } }";
        let found = broken_in(PATH, wrong);
        assert_eq!(found, ["host/device/src/a.rs: `a` returns 'v, which no argument has"]);
        for right in [
            "fn a<'v>(place: Place<'v>) -> &'v u8 { b() }",
            "fn a<'v, 'w: 'v>(guard: &'v Guard, x: X<'w>) -> Option<Place<'v>> { None }",
            "fn a(&self) -> InRing<'_> { b() }",
            "unsafe fn a<'r>(bytes: *const u8) -> R<'r> { b() }",
            "fn a<'v>(&self) -> u8 where Self: 'v { 0 }",
            "fn a<'v>(&self) -> u8\nwhere\n    Self: 'v,\n{ 0 }",
        ] {
            assert_eq!(broken_in(PATH, right), [""; 0], "{right}");
        }
    }

    #[test]
    fn shared_bytes_are_copied_by_code_that_the_compiler_does_not_see() {
        let code = "fn a() { unsafe { std::ptr::copy_nonoverlapping(b, c, 1) } }";
        let sentence =
            |path: &str| format!("{path}: `copy_nonoverlapping` of memory that others may write");
        for path in [PATH, "host/xdp/src/umem.rs", "edge/preload/src/transport/ring.rs"] {
            assert_eq!(broken_in(path, code), [sentence(path)]);
        }
        assert_eq!(broken_in("edge/preload/src/base/heap.rs", code), [""; 0]);
        let test = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n    {code}\n}}");
        assert_eq!(broken_in(PATH, &test), [""; 0]);
        let alone = "fn a() { unsafe { std::slice::from_raw_parts(b, 1) } }";
        assert_eq!(broken_in("host/xdp/src/umem.rs", alone), [""; 0]);
        assert_eq!(broken_in(PATH, alone).len(), 1);
        for (word, code) in [
            ("ptr::copy(", "ptr::copy(b, c, 1)"),
            (".copy_to(", "b.copy_to(c, 1)"),
            ("ptr::read(", "std::ptr::read(b)"),
            ("swap_nonoverlapping", "ptr::swap_nonoverlapping(b, c, 1)"),
            ("slice_from_raw_parts", "ptr::slice_from_raw_parts(b, 1)"),
        ] {
            let found = broken_in(PATH, &format!("fn a() {{ {code} }}"));
            assert_eq!(found, [format!("{PATH}: `{word}` of memory that others may write")]);
        }
        for access in ["b.read()", "b.cast::<u64>().write(1)", "\n    b\n.read()\n"] {
            assert_eq!(broken_in(PATH, &format!("fn a() {{ unsafe {{ {access} }} }}")).len(), 1);
            assert_eq!(broken_in(PATH, &format!("fn a() {{ {access} }}")), [""; 0]);
        }
        assert_eq!(broken_in(PATH, "fn a() -> u8 { unsafe { *b } }").len(), 1);
        assert_eq!(broken_in(PATH, "fn a() -> u8 { unsafe { &*b }.load() }"), [""; 0]);
    }

    #[test]
    fn an_exception_that_nothing_needs_is_named() {
        let all = UNFOLLOWED.len() + ALONE.len();
        assert_eq!(idle(&[]).len(), all);
        let needs = "fn prefetch(line: *const u8) {}\nfn prefetch_bytes(bytes: u64) {}";
        assert_eq!(idle(&[Source::new("host/shm/src/line.rs", needs)]).len(), all - 1);
    }
}
