! A matrix from blocks of rows to cyclic columns, through the Fortran module; four ranks.
program redistribute
    use, intrinsic :: iso_c_binding
    use landbridge
    implicit none
    include 'mpif.h'
    integer(c_int64_t), parameter :: shape(2) = [10_c_int64_t, 7_c_int64_t]
    integer(c_int64_t), target :: sizes(4) = [4_c_int64_t, 0_c_int64_t, 1_c_int64_t, 5_c_int64_t]
    type(c_ptr) :: source, target_layout, runs, plan, run
    type(lb_run_of) :: own(9)
    real(c_double), target :: elements(22)
    integer(c_int64_t) :: rows(2), columns(2), bad(2), sends(0:3), receives(0:3)
    real(c_double), allocatable, target :: a(:, :), b(:, :)
    integer :: ierr, rank, first, i, j, turn
    integer(c_int) :: over
    integer(c_int32_t) :: owner

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call check(lb_layout_create(2, shape, [lb_block(4, sizes), lb_whole()], LB_FORTRAN, source))
    call check(lb_layout_create(2, shape, [lb_whole(), lb_cyclic(4, 2_c_int64_t, first=1)], LB_FORTRAN, target_layout))
    call check(lb_layout_local_shape(source, rank, rows))
    call check(lb_layout_local_shape(target_layout, rank, columns))
    call check(lb_layout_owner(source, [9_c_int64_t, 0_c_int64_t], owner))
    if (rows(1) /= sizes(rank + 1) .or. columns(1) /= 10 .or. owner /= 3) call wrong('shapes')
    allocate (a(rows(1), 7), b(10, columns(2)))
    first = int(sum(sizes(1:rank)))
    call check(lb_plan_create(source, target_layout, "f8"//c_null_char, MPI_COMM_WORLD, c_null_ptr, plan))
    do turn = 1, 3
        do j = 1, 7
            do i = 1, int(rows(1))
                a(i, j) = 1000*turn + 10*(first + i) + j
            end do
        end do
        b = -1
        if (turn < 3) then
            call check(lb_plan_run(plan, c_loc(a), c_loc(b)))
        else
            call check(lb_plan_start(plan, c_loc(a), c_loc(b), run))
            over = 0
            do while (over == 0)
                call check(lb_run_test(run, over))
            end do
            call check(lb_run_wait(run))
        end if
        ! Columns 1 and 2 are rank 1's, 3 and 4 rank 2's, 5 and 6 rank 3's, and 7 is rank 0's.
        do j = 1, int(columns(2))
            do i = 1, 10
                if (b(i, j) /= 1000*turn + 10*i + modulo(rank - 1, 4)*2 + j) call wrong('an element')
            end do
        end do
    end do
    call lb_plan_traffic(plan, sends, receives)
    if (sum(sends) /= 8*rows(1)*7 .or. sum(receives) /= 80*columns(2)) call wrong('the traffic')
    bad = [10_c_int64_t, -7_c_int64_t]
    if (lb_layout_create(2, bad, [lb_whole(), lb_whole()], LB_C, run) /= LB_INVALID) call wrong('no error')
    if (lb_message() /= 'shape[1] is -7: it cannot be negative') call wrong(lb_message())
    call lb_plan_free(plan)
    ! Each rank has runs of two elements, numbered row-major over the array, from 0; rank 0 the last six as well.
    own = [(lb_run_of(8*i + 2*rank, 2), i=0, 7), lb_run_of(64, merge(6, 0, rank == 0))]
    call check(lb_layout_create_runs(2, shape, 4, 9_c_int64_t, own, runs))
    call check(lb_plan_create(runs, target_layout, "f8"//c_null_char, MPI_COMM_WORLD, c_null_ptr, plan))
    do i = 0, 7
        elements(2*i + 1:2*i + 2) = [8*i + 2*rank, 8*i + 2*rank + 1]
    end do
    elements(17:22) = [(64 + i, i=0, 5)]
    b = -1
    call check(lb_plan_run(plan, c_loc(elements), c_loc(b)))
    do j = 1, int(columns(2))
        do i = 1, 10
            if (b(i, j) /= 7*(i - 1) + modulo(rank - 1, 4)*2 + j - 1) call wrong('an element of runs')
        end do
    end do
    call lb_plan_free(plan)
    call lb_layout_free(runs)
    call lb_layout_free(source)
    call lb_layout_free(target_layout)
    if (rank == 0) print *, 'fortran: good'
    call MPI_Finalize(ierr)
contains
    subroutine check(code)
        integer(c_int), intent(in) :: code
        if (code /= LB_OK) call wrong(lb_message())
    end subroutine

    subroutine wrong(what)
        character(*), intent(in) :: what
        print *, 'rank', rank, 'wrong: ', what
        call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
    end subroutine
end program
