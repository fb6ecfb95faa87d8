//! Output of `--json`: one object per line, with the number of its schema. See `docs/json.md`.

use serde::Serialize;
use types::untrusted::acts;

/// Incremented when a field changes its meaning or is removed; new fields do not change it.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Versioned<T> {
    schema: u32,
    #[serde(flatten)]
    value: T,
}

/// The object as text; the schema comes first.
pub(crate) fn object(value: impl Serialize) -> serde_json::Result<String> {
    Ok(escaped(&serde_json::to_string(&Versioned { schema: SCHEMA, value })?))
}

/// JSON without characters that act on a terminal. serde_json escapes only those below U+0020; the others can occur
/// only inside strings, where `\uXXXX` means the same.
pub(crate) fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if acts(c) {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}"));
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_schema_stands_first() {
        let object = super::object(serde_json::json!({ "ok": true })).unwrap_or_default();
        assert_eq!(object, r#"{"schema":1,"ok":true}"#);
    }

    #[test]
    fn no_character_acts_and_the_text_is_the_same() {
        let text = "\u{1b}\u{9b}\u{7f}\u{202e}\u{e0001}é";
        let object = super::object(serde_json::json!({ "x": text })).unwrap_or_default();
        assert!(!object.chars().any(types::untrusted::acts), "{object}");
        let value: serde_json::Value = serde_json::from_str(&object).unwrap_or_default();
        assert_eq!(value["x"], text);
    }
}
