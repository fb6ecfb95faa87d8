//! Everything between this gateway and another: links, what the two tell each other, meetings where neither can be
//! dialled, measurements.

pub(crate) mod control;
pub(crate) mod link;
pub(crate) mod measure;
pub(crate) mod meeting;
pub(crate) mod tcp_info;
pub(crate) mod trunk;
