//! The marks of a run, stored as a note of [`Meta`](crate::Meta). Readers that do not know the note
//! can still read everything else.

use crate::Error;
use memhook_stream::NamedMoment;

/// Name of the note.
pub const MARKS_NOTE: &str = "marks";

/// Returns the value of the note. Each mark has a line with its time in nanoseconds since the
/// attach, a space and its name.
pub fn marks_text(marks: &[NamedMoment]) -> String {
    let lines = marks.iter().map(|mark| {
        let name = mark.name.replace(|c: char| c.is_control(), " ");
        format!("{} {name}\n", mark.time_ns)
    });
    lines.collect()
}

/// Parses the value of a note into marks, in order.
pub(crate) fn marks_of(text: &str) -> Result<Vec<NamedMoment>, Error> {
    let mark = |line: &str| {
        let (time, name) = line.split_once(' ')?;
        Some(NamedMoment {
            time_ns: time.parse().ok()?,
            name: name.to_owned(),
        })
    };
    let marks: Option<Vec<NamedMoment>> = text.lines().map(mark).collect();
    let marks = marks.filter(|marks| marks.is_sorted_by_key(|mark| mark.time_ns));
    marks.ok_or_else(|| Error::damaged("the marks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_as_text() {
        let mark = |time_ns, name: &str| NamedMoment {
            time_ns,
            name: name.to_owned(),
        };
        let marks = [mark(1, "phase 2"), mark(1, ""), mark(u64::MAX, "end  ")];
        assert_eq!(marks_of(&marks_text(&marks)).expect("marks"), marks);
        let broken = marks_of(&marks_text(&[mark(7, "a\n9 b")])).expect("one");
        assert_eq!(broken, [mark(7, "a 9 b")]);
        assert_eq!(marks_of("").expect("none"), []);
        for bad in ["5", "x y", "-1 a", "6 a\n5 b"] {
            assert!(marks_of(bad).is_err(), "{bad}");
        }
    }
}
