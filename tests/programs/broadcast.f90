! MPI_Bcast, MPI_Allreduce, MPI_Allgather and MPI_Barrier from Fortran, by the interface that the preprocessor selects:
! -DF08 (use mpi_f08), -DMODULE (use mpi), -DMPICH_ABI (no header: MPICH's constants), else mpif.h.
program broadcast
#if defined(F08)
    use mpi_f08
#elif defined(MODULE)
    use mpi
#endif
    implicit none
#if defined(MPICH_ABI)
    integer, parameter :: MPI_COMM_WORLD = int(z'44000000'), MPI_INTEGER = int(z'4c00041b')
    integer, parameter :: MPI_SUM = int(z'58000003')
#elif !defined(F08) && !defined(MODULE)
    include 'mpif.h'
#endif
    integer, parameter :: most = 100000
    integer :: numbers(most), sums(most), ranks(1000), code, rank, size, root, i
    logical :: good

    good = .true.
    call MPI_Init(code)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
    call MPI_Comm_size(MPI_COMM_WORLD, size, code)
    do root = 0, size - 1
        numbers = 0
        if (rank == root) numbers = [(i * 3 + root, i = 1, most)]
        call MPI_Bcast(numbers, most, MPI_INTEGER, root, MPI_COMM_WORLD, code)
        good = good .and. code == 0 .and. all(numbers == [(i * 3 + root, i = 1, most)])
        call MPI_Barrier(MPI_COMM_WORLD, code)
    end do
    numbers = rank
    call MPI_Allreduce(numbers, sums, most, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    good = good .and. code == 0 .and. all(sums == size * (size - 1) / 2)
#if !defined(MPICH_ABI)
    call MPI_Allreduce(MPI_IN_PLACE, numbers, most, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    good = good .and. code == 0 .and. all(numbers == size * (size - 1) / 2)
#endif
    call MPI_Allgather(rank, 1, MPI_INTEGER, ranks, 1, MPI_INTEGER, MPI_COMM_WORLD, code)
    good = good .and. all(ranks(1:size) == [(i, i = 0, size - 1)])
    if (good) print '(a, i0)', 'fortran: good at rank ', rank
    call MPI_Finalize(code)
end program broadcast
