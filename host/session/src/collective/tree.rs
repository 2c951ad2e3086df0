//! Trees of the members of a group: the parent and the children of each. There are no messages here.
//!
//! Read Sanders, Speck, Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan* (2009), before changing the double tree.

/// The place of a member in a tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Tree {
    /// The member that it reports to; the root has none.
    pub(super) above: Option<usize>,
    /// The members that report to it, in the order of their ranks.
    pub(super) below: Vec<usize>,
}

impl Tree {
    fn new(rank: usize, size: usize, above: impl Fn(usize) -> Option<usize>) -> Self {
        let below = (0..size).filter(|member| above(*member) == Some(rank)).collect();
        Self { above: above(rank), below }
    }

    /// A tree in which everybody has `width` members below until there are no more.
    pub(super) fn wide(rank: usize, size: usize, root: usize, width: usize) -> Self {
        let width = width.max(1);
        Self::new(rank, size, |member| {
            let place = (member + size - root % size) % size;
            let above = place.checked_sub(1)?.checked_div(width)?;
            Some((above + root) % size)
        })
    }

    /// Two binary trees. A member with others below it in one has none in the other, but for the roots.
    pub(super) fn double(rank: usize, size: usize) -> [Self; 2] {
        let first = Self::new(rank, size, |member| in_order(member, size));
        // Even places have members below. Turned round, or by one, they are the odd ones.
        let second = match size.is_multiple_of(2) {
            true => {
                Self::new(rank, size, |member| Some(size - 1 - in_order(size - 1 - member, size)?))
            }
            false => Self::new(rank, size, |member| {
                Some((in_order((member + size - 1) % size, size)? + 1) % size)
            }),
        };
        [first, second]
    }
}

/// The parent of a place of a binary tree whose places are numbered from left to right: a place is as
/// high as its number has zeros at the end.
fn in_order(place: usize, size: usize) -> Option<usize> {
    if place == 0 {
        return None; // The root: above all that is to its right.
    }
    let height = place & place.wrapping_neg();
    let rest = place ^ height;
    // The next higher place on the side where there is one; beyond the end there is none.
    let right = rest | height << 1;
    Some(if right < size { right } else { rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody is in the tree of `root` once, and both ends of each branch know of it.
    fn check(trees: &[Tree], root: usize) -> usize {
        let mut seen = vec![false; trees.len()];
        let mut level = vec![root];
        let mut depth = 0;
        assert_eq!(trees[root].above, None);
        while !level.is_empty() {
            depth += 1;
            let mut next = Vec::new();
            for member in level {
                assert!(!std::mem::replace(&mut seen[member], true));
                for below in &trees[member].below {
                    assert_eq!(trees[*below].above, Some(member));
                    next.push(*below);
                }
            }
            level = next;
        }
        assert!(seen.iter().all(|seen| *seen));
        depth
    }

    #[test]
    fn wide_trees_hold_everybody_and_nobody_has_more_below_than_the_width() {
        for size in 1..40 {
            for (root, width) in [(0, 1), (size - 1, 2), (size / 2, 3), (0, 100)] {
                let trees: Vec<_> =
                    (0..size).map(|rank| Tree::wide(rank, size, root, width)).collect();
                check(&trees, root);
                assert!(trees.iter().all(|tree| tree.below.len() <= width));
            }
        }
    }

    #[test]
    fn double_trees_are_low_and_nobody_but_a_root_works_in_both() {
        for size in 1..130_usize {
            let both: Vec<_> = (0..size).map(|rank| Tree::double(rank, size)).collect();
            for which in 0..2 {
                let trees: Vec<_> = both.iter().map(|two| two[which].clone()).collect();
                let root = trees.iter().position(|tree| tree.above.is_none()).unwrap();
                let depth = check(&trees, root);
                assert!(1 << depth <= 8 * size, "{size}: {depth}");
                assert!(trees.iter().all(|tree| tree.below.len() <= 2));
            }
            for [first, second] in &both {
                let works = |tree: &Tree| !tree.below.is_empty() && tree.above.is_some();
                assert!(!(works(first) && works(second)), "{size}");
            }
        }
    }
}
