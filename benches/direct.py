"""The rival of landbridge: an MPI's own launcher and libfabric's tcp, over a lab whose nodes reach each other by routes
(`--route-directly`)."""

from machine import LANDBRIDGE, PROGRAMS, VENV, libraries


def direct(mpi, hosts, each=1, landbridge=LANDBRIDGE):
    """The first words of a command that starts a program with `each` ranks on every host, and their environment.

    `hosts` maps addresses to names of the lab's hosts; `landbridge` is the command that made the lab.
    """
    home, launcher = VENV[mpi], str(PROGRAMS / "lab-launcher")
    listed = ",".join(f"{address}:{each}" for address in hosts)
    environment = {
        **libraries(mpi),
        "BENCH_HOSTS": " ".join(f"{address}={host}" for address, host in hosts.items()),
        "BENCH_LANDBRIDGE": str(landbridge),
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "eth0",
    }
    if mpi == "openmpi":
        # Its windows crash with a segmentation fault on libfabric's tcp here, so they use its own tcp.
        environment |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_plm_ssh_agent": launcher,
            "PRTE_MCA_prte_if_include": "eth0",
            "OMPI_MCA_pml": "cm",
            "OMPI_MCA_mtl": "ofi",
            "OMPI_MCA_mtl_ofi_provider_include": "tcp",
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
        }
        words = ["--host", listed, "--map-by", f"ppr:{each}:node"]
    elif mpi == "intel":
        environment |= {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "tcp", "FI_PROVIDER_PATH": str(home / "lib")}
        words = ["-bootstrap", "ssh", "-bootstrap-exec", launcher, "-iface", "eth0"]
        words += ["-hosts", ",".join(hosts), "-ppn", each]
    else:
        environment |= {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
        words = ["-launcher", "ssh", "-launcher-exec", launcher, "-iface", "eth0", "-hosts", listed]
    return [home / "bin" / "mpiexec", *words, "-n", each * len(hosts)], environment
