"""Landbridge's recipe for Spack: put this folder into a repository as packages/landbridge/."""

from spack.package import *


class Landbridge(Package):
    """Runs one unmodified MPI program across private clusters that cannot reach each other: a libfabric provider in
    every rank, gateways between the clusters, and a command that starts jobs."""

    homepage = "@HOMEPAGE@"
    url = "@HOMEPAGE@/releases/download/v0.1.0/landbridge-0.1.0.tar.gz"

    license("Apache-2.0 OR MIT")

    version("0.1.0", sha256="@SHA256@")

    variant("lab", default=True, description="landbridge lab: several sites on one machine")
    variant("top", default=True, description="landbridge top: a live view in the terminal")

    depends_on("c", type="build")  # ring, the cryptography below TLS
    depends_on("rust@1.88:", type="build")

    def install(self, spec, prefix):
        features = ["share"] + [name for name in ("lab", "top") if spec.satisfies(f"+{name}")]
        cargo = which("cargo", required=True)
        cargo(
            "build",
            "--release",
            "--locked",
            "-p",
            "landbridge-cli",
            "--no-default-features",
            "--features",
            ",".join(features),
        )
        libraries = {"provider": "fi", "layer": "layer", "layer-large": "layer-large"}
        for package in [*libraries, "c"]:
            cargo("build", "--release", "--locked", "-p", f"landbridge-{package}")
        mkdirp(prefix.bin, prefix.lib.landbridge)
        install("target/release/landbridge", prefix.bin)
        for package, name in libraries.items():
            built = f"target/release/liblandbridge_{package.replace('-', '_')}.so"
            install(built, join_path(prefix.lib.landbridge, f"liblandbridge-{name}.so"))
        install("target/release/liblandbridge.so", prefix.lib)
        install_tree("arrays/c/include", prefix.include)
        install_tree("arrays/c/fortran", join_path(prefix.share, "landbridge", "fortran"))
        Executable(prefix.bin.landbridge)("share", prefix.share)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.landbridge)("--version")
