use super::*;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A Python installation with a library file of this content, in the layout of PyPI's MPI packages.
fn python_with(name: &str, content: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for inner in ["bin", "lib"] {
        std::fs::create_dir(folder.path().join(inner)).unwrap();
    }
    let python = folder.path().join("bin/python3");
    // Any ELF program can stand for the interpreter.
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &python).unwrap();
    std::fs::write(folder.path().join("lib").join(name), content).unwrap();
    (folder, python)
}

fn environment() -> Environment {
    let mut environment = Environment::default();
    environment.set("PATH", "/usr/bin:/bin");
    environment
}

#[test]
fn python_uses_the_library_beside_it() {
    for (name, content, family) in [
        ("libmpi.so.12", "..MPICH Version:..", Family::Mpich),
        ("libmpi.so.12", "..MPICH Version:..Intel(R) MPI Library..", Family::Intel),
        ("libmpi.so.40", "..OMPI_MCA_..", Family::OpenMpi),
    ] {
        let (folder, python) = python_with(name, content);
        let found = recognise(&python, &environment()).unwrap().unwrap();
        assert_eq!((found.family, found.file), (family, Some(folder.path().join("lib").join(name))));
        let script = folder.path().join("script.py");
        std::fs::write(&script, format!("#!{}\n", python.display())).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(recognise(&script, &environment()).unwrap().unwrap().family, family);
    }
}

#[test]
fn an_unclear_mpi_is_an_error_and_can_be_named() {
    let (_folder, python) = python_with("libmpi.so.12", "nobody's");
    let error = library(MpiChoice::Auto, &python, &environment()).unwrap_err();
    assert!(error.to_string().contains("--mpi mpich"), "{error}");
    let named = library(MpiChoice::Named(Family::Mpich), &python, &environment()).unwrap();
    assert_eq!(named, Some(Library { family: Family::Mpich, file: None, beside: false, linked: false }));
    let named = library(MpiChoice::Named(Family::OpenMpi), &python, &environment()).unwrap();
    assert_eq!(named, Some(Library { family: Family::OpenMpi, file: None, beside: false, linked: false }));
}

#[test]
fn a_program_without_mpi_has_none() {
    assert_eq!(recognise(Path::new("/bin/sh"), &environment()), Ok(None));
    assert_eq!(recognise(Path::new("/etc/passwd"), &environment()), Ok(None));
}

#[test]
fn the_users_settings_are_kept_if_possible() {
    let provider = Path::new("/opt/lb/liblandbridge-fi.so");
    let mpich = Library { family: Family::Mpich, file: None, beside: false, linked: false };
    let mut one_site = environment();
    one_site.set("FI_PROVIDER", "tcp");
    one_site.set("FI_PROVIDER_PATH", "/mine");
    assert_eq!(settings(&mpich, &mut one_site, provider, false), Vec::<String>::new());
    assert_eq!(one_site.get("FI_PROVIDER"), Some(OsStr::new("tcp")));
    assert_eq!(one_site.get("FI_PROVIDER_PATH"), Some(OsStr::new("/mine")));
    assert_eq!(one_site.get("LANDBRIDGE_CONFIRM_SENDS"), Some(OsStr::new("no")));
    let mut across = environment();
    across.set("FI_PROVIDER", "tcp");
    let notes = settings(&mpich, &mut across, provider, true);
    assert_eq!(notes, ["FI_PROVIDER=tcp cannot work across sites; using FI_PROVIDER=landbridge"]);
    assert_eq!(across.get("FI_PROVIDER_PATH"), Some(OsStr::new("/opt/lb")));
    assert_eq!(across.get("MPIR_CVAR_CH4_NETMOD"), Some(OsStr::new("ofi")));
}

#[test]
fn intel_mpi_gets_its_root() {
    let provider = Path::new("/opt/lb/liblandbridge-fi.so");
    for (file, root, path) in [
        ("/v/lib/libmpi.so.12", "/v", "/v/lib"),
        ("/opt/mpi/lib/release/libmpi.so.12", "/opt/mpi", "/opt/mpi/lib/release:/opt/mpi/lib"),
    ] {
        let intel = Library { family: Family::Intel, file: Some(file.into()), beside: false, linked: true };
        let mut environment = environment();
        settings(&intel, &mut environment, provider, true);
        assert_eq!(environment.get("I_MPI_ROOT"), Some(OsStr::new(root)));
        assert_eq!(environment.get("LD_LIBRARY_PATH"), Some(OsStr::new(path)));
        assert_eq!(environment.get("I_MPI_FABRICS"), Some(OsStr::new("shm:ofi")));
        assert_eq!(environment.get("CCL_KVS_MODE"), Some(OsStr::new("mpi")));
        assert_eq!(environment.get("CCL_ATL_TRANSPORT"), Some(OsStr::new("mpi")));
    }
    let intel = Library { family: Family::Intel, file: None, beside: false, linked: true };
    let mut inside = environment();
    settings(&intel, &mut inside, provider, false);
    assert_eq!(inside.get("CCL_KVS_MODE"), None, "within a site oneCCL's own connections work");
    let mut chosen = environment();
    chosen.set("CCL_KVS_MODE", "pmi");
    settings(&intel, &mut chosen, provider, true);
    assert_eq!(chosen.get("CCL_KVS_MODE"), Some(OsStr::new("pmi")), "the user's own stays");
}

#[test]
fn only_open_mpi_polls_less_often_and_only_when_crowded() {
    assert_eq!(timer_slack(Family::OpenMpi, 5), Some(Duration::from_millis(1)));
    assert_eq!(timer_slack(Family::OpenMpi, 4), None);
    assert!([Family::Mpich, Family::Intel].iter().all(|family| timer_slack(*family, 99).is_none()));
}

#[test]
fn own_shared_memory_and_yielding_by_family() {
    let mut environment = environment();
    share_cores(Family::Mpich, &mut environment);
    assert_eq!(environment.get("I_MPI_WAIT_MODE"), None);
    share_cores(Family::Intel, &mut environment);
    assert_eq!(environment.get("I_MPI_WAIT_MODE"), Some(OsStr::new("1")));
    assert_eq!(environment.get("I_MPI_SPIN_COUNT"), Some(OsStr::new("20")));
    environment.set("I_MPI_WAIT_MODE", "0");
    share_cores(Family::Intel, &mut environment);
    assert_eq!(environment.get("I_MPI_WAIT_MODE"), Some(OsStr::new("0")), "the user's own stays");
    let has = |environment: &Environment| {
        [Family::Mpich, Family::Intel, Family::OpenMpi].map(|family| own_memory(family, environment))
    };
    let all = [Some("messages"), Some("messages"), Some("windows")];
    assert_eq!(has(&environment), all);
    environment.set("MPIR_CVAR_NOLOCAL", "Yes");
    assert_eq!(has(&environment), [None, Some("messages"), Some("windows")]);
    environment.set("MPIR_CVAR_NOLOCAL", "0");
    assert_eq!(has(&environment), all);
}

/// A program linked to the MPI in `linked`, with a run-time search path of this kind to it, and another MPI in `named`.
fn linked_program(folder: &Path, dtags: &str) -> PathBuf {
    let cc = |words: &[&str]| {
        let done = std::process::Command::new("cc").current_dir(folder).args(words).status().unwrap();
        assert!(done.success(), "cc {words:?}");
    };
    for (place, text) in [("linked", "MPICH Version"), ("named", "Intel(R) MPI Library")] {
        std::fs::create_dir(folder.join(place)).unwrap();
        std::fs::write(
            folder.join("mpi.c"),
            format!("const char *version = \"{text}\"; int MPI_Init(void) {{ return 0; }}"),
        )
        .unwrap();
        cc(&["-shared", "-fPIC", "-Wl,-soname,libmpi.so.12", "-o", &format!("{place}/libmpi.so.12"), "mpi.c"]);
    }
    std::fs::write(folder.join("main.c"), "int MPI_Init(void); int main(void) { return MPI_Init(); }").unwrap();
    let path = format!("-Wl,-rpath,{},{dtags}", folder.join("linked").display());
    cc(&["-o", "main", "main.c", "linked/libmpi.so.12", &path]);
    folder.join("main")
}

#[test]
fn libraries_are_searched_as_the_dynamic_linker_does() {
    let mut environment = Environment::default();
    for (dtags, expected) in [("--enable-new-dtags", Family::Intel), ("--disable-new-dtags", Family::Mpich)] {
        let folder = tempfile::tempdir().unwrap();
        let program = linked_program(folder.path(), dtags);
        environment.set("LD_LIBRARY_PATH", folder.path().join("named"));
        let found = library(MpiChoice::Auto, &program, &environment).unwrap().unwrap();
        assert_eq!((found.family, found.linked), (expected, true), "{dtags}");
        environment.set("LD_LIBRARY_PATH", "");
        assert_eq!(library(MpiChoice::Auto, &program, &environment).unwrap().unwrap().family, Family::Mpich);
    }
}

#[test]
fn a_program_linked_to_libfabric_alone_uses_it() {
    let folder = tempfile::tempdir().unwrap();
    let cc = |words: &[&str]| {
        assert!(std::process::Command::new("cc").current_dir(folder.path()).args(words).status().unwrap().success());
    };
    std::fs::write(folder.path().join("fabric.c"), "int fi_version(void) { return 1; }").unwrap();
    std::fs::write(folder.path().join("main.c"), "int fi_version(void); int main(void) { return fi_version(); }")
        .unwrap();
    cc(&["-shared", "-fPIC", "-Wl,-soname,libfabric.so.1", "-o", "libfabric.so.1", "fabric.c"]);
    cc(&["-o", "main", "main.c", "libfabric.so.1"]);
    let (main, here) = (folder.path().join("main"), environment());
    assert_eq!(library(MpiChoice::Auto, &main, &here), Ok(None));
    let uses = |choice, program: &Path| uses_libfabric(choice, program, &here);
    assert!(uses(MpiChoice::Auto, &main) && !uses(MpiChoice::Auto, Path::new("/bin/sh")));
    assert!(uses(MpiChoice::Libfabric, Path::new("/bin/sh")) && !uses(MpiChoice::Named(Family::Mpich), &main));
}

#[test]
fn an_mpi_other_than_the_user_named_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = linked_program(folder.path(), "--enable-new-dtags");
    let error = library(MpiChoice::Named(Family::Intel), &program, &Environment::default()).unwrap_err().to_string();
    let file = folder.path().join("linked/libmpi.so.12");
    assert!(
        error.contains("--mpi intel") && error.contains(file.to_str().unwrap()) && error.contains("mpich"),
        "{error}"
    );
}
