//! Pictures of the book: SVG made from drawings in text.
//!
//! A drawing is what stands in the pages: lines of box-drawing characters and words, readable as it is. Each line
//! character becomes strokes from the middle of its cell to the edges that it touches; words stay words.

use std::fmt::Write;

/// Whether a block of text is a drawing.
pub(crate) fn is_drawing(block: &str) -> bool {
    block.chars().filter(|c| strokes(*c).is_some()).count() >= STROKES_MIN
}

/// The drawing as SVG on one line, in the colour of the text around it.
pub(crate) fn svg(block: &str) -> String {
    let rows: Vec<Vec<char>> = block.lines().map(|line| line.chars().collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let (width, height) = (columns * CELL_WIDTH, rows.len() * CELL_HEIGHT);
    let (mut paths, mut words) = (String::new(), String::new());
    for (y, row) in rows.iter().enumerate() {
        for (x, c) in row.iter().enumerate() {
            if let Some(strokes) = strokes(*c) {
                paths.push_str(&path(x * CELL_WIDTH, y * CELL_HEIGHT, strokes));
            }
        }
        for (x, word) in runs(row) {
            let _ = write!(
                words,
                "<text x=\"{}\" y=\"{}\" textLength=\"{}\">{}</text>",
                x * CELL_WIDTH,
                y * CELL_HEIGHT + BASELINE,
                word.chars().count() * CELL_WIDTH,
                escaped(&word)
            );
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         style=\"max-width:100%\" font-family=\"monospace\" font-size=\"14\" fill=\"currentColor\">\
         <path d=\"{paths}\" stroke=\"currentColor\" stroke-width=\"1.5\" fill=\"none\"/>{words}</svg>"
    )
}

/// Strokes to the left, the right, the top and the bottom edge, of a character that is a line.
fn strokes(c: char) -> Option<[bool; 4]> {
    let text = match c {
        '─' | '═' => "lr",
        '│' | '║' => "tb",
        '┌' | '╭' => "rb",
        '┐' | '╮' => "lb",
        '└' | '╰' => "rt",
        '┘' | '╯' => "lt",
        '├' => "rtb",
        '┤' => "ltb",
        '┬' => "lrb",
        '┴' => "lrt",
        '┼' => "lrtb",
        _ => return None,
    };
    Some(['l', 'r', 't', 'b'].map(|edge| text.contains(edge)))
}

fn path(left: usize, top: usize, [l, r, t, b]: [bool; 4]) -> String {
    let (x, y) = (left + CELL_WIDTH / 2, top + CELL_HEIGHT / 2);
    let ends = [(l, left, y), (r, left + CELL_WIDTH, y), (t, x, top), (b, x, top + CELL_HEIGHT)];
    let drawn = ends.into_iter().filter(|(is_there, ..)| *is_there);
    drawn.map(|(_, to_x, to_y)| format!("M{x} {y}L{to_x} {to_y}")).collect()
}

/// Words of a row and where they begin: what is between lines, or two blanks.
fn runs(row: &[char]) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut end = None;
    for (x, c) in row.iter().enumerate().filter(|(_, c)| **c != ' ' && strokes(**c).is_none()) {
        match (found.last_mut(), end) {
            (Some((_, word)), Some(end)) if x == end => word.push(*c),
            (Some((_, word)), Some(end)) if x == end + 1 && row.get(end) == Some(&' ') => {
                word.push(' ');
                word.push(*c);
            }
            _ => found.push((x, c.to_string())),
        }
        end = Some(x + 1);
    }
    found
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Lines of fewer characters may be a table or a rule.
const STROKES_MIN: usize = 6;
const CELL_WIDTH: usize = 8;
const CELL_HEIGHT: usize = 18;
const BASELINE: usize = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_meet_at_the_edges_of_their_cells_and_words_stay_words() {
        let drawing = "┌──┐\n│ab│ c < d\n└──┘";
        assert!(is_drawing(drawing) && !is_drawing("a -> b\n| c |"));
        let svg = svg(drawing);
        assert!(svg.contains("M4 9L8 9M4 9L4 18"), "{svg}");
        assert!(svg.contains("M12 9L8 9M12 9L16 9"), "{svg}");
        assert!(svg.contains("<text x=\"8\" y=\"31\" textLength=\"16\">ab</text>"), "{svg}");
        assert!(svg.contains("<text x=\"40\" y=\"31\" textLength=\"40\">c &lt; d</text>"), "{svg}");
    }
}
