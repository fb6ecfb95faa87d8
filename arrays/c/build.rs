//! Sets the library's soname, so that programs look for that name and not for the path they were linked with.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblandbridge.so");
    println!("cargo:rerun-if-changed=build.rs");
}
