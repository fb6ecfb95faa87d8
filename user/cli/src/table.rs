//! Tables of text: columns separated by two spaces, as wide as their longest cell.

/// Formats rows of left-aligned cells. Lines have no spaces at their end.
pub(crate) fn columns<C: AsRef<str>, R: AsRef<[C]>>(rows: &[R]) -> String {
    let count = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let cell = |row: &R, at: usize| row.as_ref().get(at).map_or(0, |cell| cell.as_ref().chars().count());
    let widths: Vec<usize> = (0..count).map(|at| rows.iter().map(|row| cell(row, at)).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", cell.as_ref()));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Formats figures about pairs: a row for each name and a column for each, with `cell` of both.
pub(crate) fn matrix(names: &[&str], cell: impl Fn(&str, &str) -> String) -> String {
    let head = ["from / to"].iter().chain(names).map(|name| (*name).to_owned()).collect();
    let row = |from: &&str| [(*from).to_owned()].into_iter().chain(names.iter().map(|to| cell(from, to))).collect();
    let rows: Vec<Vec<String>> = [head].into_iter().chain(names.iter().map(row)).collect();
    columns(&rows)
}

/// Indents all lines of a text after the first to this column.
pub(crate) fn hanging(text: &str, column: usize) -> String {
    text.trim_end().replace('\n', &format!("\n{:column$}", ""))
}

/// The width of a column: that of its longest cell or its title.
pub(crate) fn width<'a>(cells: impl Iterator<Item = &'a str>, title: &str) -> usize {
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(title.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        assert_eq!(columns(&[vec!["a", "–", "c"], vec!["long", "b", ""]]), "a     –  c\nlong  b\n");
        assert_eq!(matrix(&["a"], |_, _| "–".to_owned()), "from / to  a\na          –\n");
        assert_eq!(hanging("x\ny\n", 2), "x\n  y");
    }
}
