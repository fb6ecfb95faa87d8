//! Invalid settings in this process's environment.

use std::fmt;
use std::num::ParseIntError;

use ::endpoint::ConfigError;

/// An environment variable with an invalid value. The user who starts the program must correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) enum SettingError {
    /// An invalid setting of the endpoint.
    Endpoint(ConfigError),
    /// `LANDBRIDGE_SPIN`: its value, and the reason why it is not a number.
    Spin(String, ParseIntError),
    /// `LANDBRIDGE_CROWDED`: its value, and the reason why it is not a number.
    Crowded(String, ParseIntError),
    /// `LANDBRIDGE_CROWDED` is 0.
    NotCrowded,
    /// `LANDBRIDGE_MPI_SHM`: its value.
    OwnMemory(String),
    /// `LANDBRIDGE_CONFIRM_SENDS`: its value.
    ConfirmSends(String),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingError::Endpoint(error) => error.fmt(f),
            SettingError::Spin(value, error) => {
                write!(f, "LANDBRIDGE_SPIN={value}: {error}; give microseconds, or \"always\"")
            }
            SettingError::Crowded(value, error) => {
                write!(f, "LANDBRIDGE_CROWDED={value}: {error}; give the number of ranks to a core")
            }
            SettingError::NotCrowded => f.write_str("LANDBRIDGE_CROWDED=0: at least one rank runs on a core"),
            SettingError::OwnMemory(value) => {
                write!(f, "LANDBRIDGE_MPI_SHM={value}: give \"windows\" or \"messages\"")
            }
            SettingError::ConfirmSends(value) => write!(f, "LANDBRIDGE_CONFIRM_SENDS={value}: give yes or no"),
        }
    }
}

impl std::error::Error for SettingError {}

impl From<ConfigError> for SettingError {
    fn from(error: ConfigError) -> SettingError {
        SettingError::Endpoint(error)
    }
}
