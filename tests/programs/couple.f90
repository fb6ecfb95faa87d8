! One side of a coupling, through the Fortran module: exports what tests/programs/couple_c.py fetches, and fetches it.
program couple
    use, intrinsic :: iso_c_binding
    use landbridge
    implicit none
    include 'mpif.h'
    integer(c_int64_t), parameter :: shape(2) = [37_c_int64_t, 26_c_int64_t]
    type(c_ptr) :: layout, coupling, fetching
    integer(c_int64_t) :: local(2), version
    real(c_double), allocatable, target :: a(:, :)
    character(32) :: name, what
    integer :: ierr, rank, ranks, first, i, j
    integer(c_int) :: code

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    call get_command_argument(1, name)
    call get_command_argument(2, what)
    call check(lb_layout_create(2, shape, [lb_whole(), lb_block(ranks)], LB_FORTRAN, layout))
    call check(lb_layout_local_shape(layout, rank, local))
    first = min(26, (26 + ranks - 1)/ranks*rank)
    allocate (a(local(1), local(2)))
    call check(lb_join(trim(name)//c_null_char, MPI_COMM_WORLD, 60.0_c_double, coupling))
    do version = 0, 19
        if (what == 'export') then
            do j = 1, int(local(2))
                do i = 1, 37
                    a(i, j) = 1000*(i - 1) + first + j - 1 + 1000000*version
                end do
            end do
            call check(lb_export(coupling, "sst"//c_null_char, version, layout, "f8"//c_null_char, c_loc(a), c_null_ptr))
        else
            a = -1
            if (modulo(version, 2_c_int64_t) == 0) then
                call check(lb_fetch(coupling, "sst"//c_null_char, version, layout, "f8"//c_null_char, c_loc(a), &
                                    c_null_ptr))
            else
                call check(lb_fetch_start(coupling, "sst"//c_null_char, version, layout, "f8"//c_null_char, c_loc(a), &
                                          c_null_ptr, fetching))
                code = LB_TIMEOUT
                do while (code == LB_TIMEOUT)
                    code = lb_fetch_wait(fetching, 0.01_c_double)
                end do
                call check(code)
            end if
            do j = 1, int(local(2))
                do i = 1, 37
                    if (nint(a(i, j), c_int64_t) /= 1000*(i - 1) + first + j - 1 + 1000000*version) then
                        print *, 'rank', rank, 'wrong at', i, j
                        call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
                    end if
                end do
            end do
        end if
    end do
    code = lb_export(coupling, "sst"//c_null_char, -1_c_int64_t, layout, "f8"//c_null_char, c_loc(a), c_null_ptr)
    if (code /= LB_INVALID) call check(LB_INTERNAL)
    if (lb_message() /= 'version is -1: it cannot be negative') call check(code)
    call check(lb_close(coupling, 60.0_c_double))
    call lb_layout_free(layout)
    if (rank == 0) print *, trim(what), ': good'
    call MPI_Finalize(ierr)
contains
    subroutine check(code)
        integer(c_int), intent(in) :: code
        if (code /= LB_OK) then
            print *, 'rank', rank, 'wrong: ', lb_message()
            call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
        end if
    end subroutine
end program
