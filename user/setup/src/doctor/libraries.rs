//! The MPI libraries on this machine, and the libfabric that each loads.

use job::mpi::{Libfabric, installed};

use super::report::{Question, Report, Verdict};

pub(super) fn examine(question: &Question, report: &mut Report) {
    let found = installed(&question.environment());
    if found.is_empty() {
        let detail = "none beside PATH, in LD_LIBRARY_PATH or in the system's folders; a job's modules may bring one";
        report.add("MPI", Verdict::Note, detail);
    }
    for library in &found {
        let file = library.file.display();
        match &library.libfabric {
            Libfabric::Loaded(libfabric) => {
                report.add(library.family.to_string(), Verdict::Ok, format!("{file} loads {}", libfabric.display()));
            }
            Libfabric::Inside => {
                report.add(library.family.to_string(), Verdict::Ok, format!("{file} contains a libfabric"));
            }
            Libfabric::Unseen => {
                let detail = format!("{file} is not linked to libfabric; it may load one as a plugin");
                report.add(library.family.to_string(), Verdict::Note, detail);
            }
            Libfabric::Missing(name) => {
                let detail = format!("{file} needs {name}, which is in none of the library folders");
                let remedy = format!("load the module that has {name}, or add its folder to LD_LIBRARY_PATH");
                report.failed(library.family.to_string(), detail, remedy);
            }
        }
    }
}
