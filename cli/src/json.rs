//! What `--json` prints: one object per line, with the number of its schema. See `docs/json.md`.

use serde::Serialize;

/// Incremented when a field changes its meaning or is removed; new fields leave it as it is.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Versioned<T> {
    schema: u32,
    #[serde(flatten)]
    value: T,
}

/// The object as text; the schema comes first.
pub(crate) fn object(value: impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Versioned { schema: SCHEMA, value })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_schema_stands_first() {
        let object = super::object(serde_json::json!({ "ok": true })).unwrap_or_default();
        assert_eq!(object, r#"{"schema":1,"ok":true}"#);
    }
}
