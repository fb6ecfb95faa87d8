//! Errors of single settings.

/// A setting of the sites file that makes no sense.
pub(super) struct Wrong {
    /// The setting, such as `site lyon: links`.
    pub(super) place: String,
    pub(super) message: String,
}

impl Wrong {
    pub(super) fn new(place: impl Into<String>, message: impl Into<String>) -> Wrong {
        Wrong { place: place.into(), message: message.into() }
    }

    /// The same in an outer part of the file, such as `site lyon`.
    pub(super) fn within(self, outer: &str) -> Wrong {
        Wrong { place: format!("{outer}: {}", self.place), message: self.message }
    }
}
