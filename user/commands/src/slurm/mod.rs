//! Staging behind other users' jobs on a Slurm cluster: its installation, a node's service, and the hooks.

pub mod check;
pub mod hook;
pub mod install;
pub mod paths;
pub mod service;
pub mod step;
pub mod supervise;
