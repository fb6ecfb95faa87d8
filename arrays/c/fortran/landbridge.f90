!> Distributed arrays for Fortran: what landbridge.h, landbridge_mpi.h and landbridge_coupling.h say, where each
!> function is described.
!>
!> Compile it, and landbridge_fortran.c, with the MPI library of the program, and link with liblandbridge:
!>
!>     mpicc -c landbridge_fortran.c && mpifort landbridge.f90 program.f90 landbridge_fortran.o -llandbridge
!>
!> Indices of arrays, processes and axes count from 0 here, as in C. Texts end with c_null_char: "f8"//c_null_char.
module landbridge
    use, intrinsic :: iso_c_binding
    implicit none
    private

    integer(c_int), parameter, public :: LB_OK = 0, LB_INVALID = 1, LB_OVER = 2, LB_TIMEOUT = 3, LB_MEMORY = 4
    integer(c_int), parameter, public :: LB_INTERNAL = 5, LB_MPI = 6
    integer(c_int32_t), parameter, public :: LB_C = 0, LB_FORTRAN = 1
    integer(c_int32_t), parameter :: WHOLE = 0, BLOCK_AXIS = 1, CYCLIC = 2, LISTS = 3

    !> How the indices of an axis are spread over the processes along it.
    type, bind(c), public :: lb_axis
        integer(c_int32_t) :: kind = WHOLE
        integer(c_int32_t) :: over = 1
        integer(c_int64_t) :: block = 0
        integer(c_int32_t) :: first = 0
        integer(c_int32_t) :: periodic = 0
        integer(c_int64_t) :: before = 0, after = 0
        type(c_ptr) :: sizes = c_null_ptr
        type(c_ptr) :: indices = c_null_ptr
    end type

    !> The indices start, start + step, ...; a negative count: one index.
    type, bind(c), public :: lb_slice
        integer(c_int64_t) :: start = 0, step = 1, count = 0
    end type

    !> Consecutive elements: the number of the first one, from 0, row-major over the array, and how many.
    type, bind(c), public :: lb_run_of
        integer(c_int64_t) :: first = 0, count = 0
    end type

    !> Which elements go where: addresses (c_loc) of arrays of lb_slice, integer(c_int32_t) and integer(c_int64_t).
    type, bind(c), public :: lb_select
        type(c_ptr) :: source = c_null_ptr, target = c_null_ptr
        type(c_ptr) :: axes = c_null_ptr
        type(c_ptr) :: shift = c_null_ptr
    end type

    !> What lb_plan_create may be told besides: addresses (c_loc) of arrays, and of an lb_select.
    type, bind(c), public :: lb_options
        type(c_ptr) :: src_ranks = c_null_ptr, dst_ranks = c_null_ptr
        type(c_ptr) :: select = c_null_ptr
        type(c_ptr) :: src_strides = c_null_ptr, dst_strides = c_null_ptr
        integer(c_int64_t) :: budget = 0
    end type

    !> What lb_export and lb_fetch may be told besides: addresses (c_loc) of an array and of an lb_select, and seconds.
    type, bind(c), public :: lb_transfer_options
        type(c_ptr) :: strides = c_null_ptr
        type(c_ptr) :: select = c_null_ptr
        real(c_double) :: timeout = 0
    end type

    public :: lb_whole, lb_block, lb_cyclic, lb_lists, lb_with_halo, lb_message
    public :: lb_layout_create, lb_layout_create_on_grid, lb_layout_free, lb_layout_size, lb_layout_local_shape
    public :: lb_layout_create_runs, lb_layout_owner, lb_plan_create, lb_plan_run, lb_plan_start, lb_run_test
    public :: lb_run_wait, lb_plan_traffic, lb_plan_free
    public :: lb_join, lb_export, lb_fetch, lb_fetch_start, lb_fetch_wait, lb_close, lb_leave

    interface
        function lb_error() bind(c) result(text)
            import
            type(c_ptr) :: text
        end function

        function lb_layout_create(axes, shape, along, order, layout) bind(c) result(code)
            import
            integer(c_int32_t), value :: axes, order
            integer(c_int64_t), intent(in) :: shape(*)
            type(lb_axis), intent(in) :: along(*)
            type(c_ptr), intent(out) :: layout
            integer(c_int) :: code
        end function

        function lb_layout_create_runs(axes, shape, size, count, runs, layout) bind(c) result(code)
            import
            integer(c_int32_t), value :: axes, size
            integer(c_int64_t), intent(in) :: shape(*)
            integer(c_int64_t), value :: count
            type(lb_run_of), intent(in) :: runs(*)
            type(c_ptr), intent(out) :: layout
            integer(c_int) :: code
        end function

        function lb_layout_create_on_grid(axes, shape, along, order, dimensions, processes, axis, layout) &
            bind(c) result(code)
            import
            integer(c_int32_t), value :: axes, order, dimensions
            integer(c_int64_t), intent(in) :: shape(*)
            type(lb_axis), intent(in) :: along(*)
            integer(c_int32_t), intent(in) :: processes(*), axis(*)
            type(c_ptr), intent(out) :: layout
            integer(c_int) :: code
        end function

        subroutine lb_layout_free(layout) bind(c)
            import
            type(c_ptr), intent(inout) :: layout
        end subroutine

        function lb_layout_size(layout) bind(c) result(size)
            import
            type(c_ptr), value :: layout
            integer(c_int32_t) :: size
        end function

        function lb_layout_local_shape(layout, process, shape) bind(c) result(code)
            import
            type(c_ptr), value :: layout
            integer(c_int32_t), value :: process
            integer(c_int64_t), intent(out) :: shape(*)
            integer(c_int) :: code
        end function

        function lb_layout_owner(layout, index, owner) bind(c) result(code)
            import
            type(c_ptr), value :: layout
            integer(c_int64_t), intent(in) :: index(*)
            integer(c_int32_t), intent(out) :: owner
            integer(c_int) :: code
        end function

        !> `comm`: an integer; of mpi_f08 pass comm%MPI_VAL. `options`: c_loc of an lb_options, or c_null_ptr.
        function lb_plan_create(src, dst, dtype, comm, options, plan) &
            bind(c, name="lb_fortran_plan_create") result(code)
            import
            type(c_ptr), value :: src, dst
            character(kind=c_char), intent(in) :: dtype(*)
            integer(c_int), value :: comm
            type(c_ptr), value :: options
            type(c_ptr), intent(out) :: plan
            integer(c_int) :: code
        end function

        !> `a`, `into`: c_loc of this rank's parts, or c_null_ptr.
        function lb_plan_run(plan, a, into) bind(c, name="lb_fortran_plan_run") result(code)
            import
            type(c_ptr), value :: plan, a, into
            integer(c_int) :: code
        end function

        function lb_plan_start(plan, a, into, run) bind(c, name="lb_fortran_plan_start") result(code)
            import
            type(c_ptr), value :: plan, a, into
            type(c_ptr), intent(out) :: run
            integer(c_int) :: code
        end function

        function lb_run_test(run, over) bind(c, name="lb_fortran_run_test") result(code)
            import
            type(c_ptr), value :: run
            integer(c_int), intent(out) :: over
            integer(c_int) :: code
        end function

        function lb_run_wait(run) bind(c, name="lb_fortran_run_wait") result(code)
            import
            type(c_ptr), intent(inout) :: run
            integer(c_int) :: code
        end function

        subroutine lb_plan_traffic(plan, sends, receives) bind(c, name="lb_fortran_plan_traffic")
            import
            type(c_ptr), value :: plan
            integer(c_int64_t), intent(out) :: sends(*), receives(*)
        end subroutine

        subroutine lb_plan_free(plan) bind(c, name="lb_fortran_plan_free")
            import
            type(c_ptr), intent(inout) :: plan
        end subroutine

        !> `timeout`: seconds to wait for the other program; 0: 300; negative: forever.
        function lb_join(name, comm, timeout, coupling) bind(c, name="lb_fortran_join") result(code)
            import
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: comm
            real(c_double), value :: timeout
            type(c_ptr), intent(out) :: coupling
            integer(c_int) :: code
        end function

        !> `a`: c_loc of this rank's part, or c_null_ptr. `options`: c_loc of an lb_transfer_options, or c_null_ptr.
        function lb_export(coupling, name, version, layout, dtype, a, options) &
            bind(c, name="lb_fortran_export") result(code)
            import
            type(c_ptr), value :: coupling, layout, a, options
            character(kind=c_char), intent(in) :: name(*), dtype(*)
            integer(c_int64_t), value :: version
            integer(c_int) :: code
        end function

        function lb_fetch(coupling, name, version, layout, dtype, into, options) &
            bind(c, name="lb_fortran_fetch") result(code)
            import
            type(c_ptr), value :: coupling, layout, into, options
            character(kind=c_char), intent(in) :: name(*), dtype(*)
            integer(c_int64_t), value :: version
            integer(c_int) :: code
        end function

        function lb_fetch_start(coupling, name, version, layout, dtype, into, options, fetching) &
            bind(c, name="lb_fortran_fetch_start") result(code)
            import
            type(c_ptr), value :: coupling, layout, into, options
            character(kind=c_char), intent(in) :: name(*), dtype(*)
            integer(c_int64_t), value :: version
            type(c_ptr), intent(out) :: fetching
            integer(c_int) :: code
        end function

        function lb_fetch_wait(fetching, timeout) bind(c, name="lb_fortran_fetch_wait") result(code)
            import
            type(c_ptr), intent(inout) :: fetching
            real(c_double), value :: timeout
            integer(c_int) :: code
        end function

        function lb_close(coupling, timeout) bind(c, name="lb_fortran_close") result(code)
            import
            type(c_ptr), intent(inout) :: coupling
            real(c_double), value :: timeout
            integer(c_int) :: code
        end function

        subroutine lb_leave(coupling, reason) bind(c, name="lb_fortran_leave")
            import
            type(c_ptr), intent(inout) :: coupling
            character(kind=c_char), intent(in) :: reason(*)
        end subroutine

        pure function strlen(text) bind(c) result(length)
            import
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function
    end interface

contains

    pure function lb_whole() result(axis)
        type(lb_axis) :: axis
        axis = lb_axis()
    end function

    !> `sizes`: how many indices each process has; must outlive the call that makes the layout.
    function lb_block(over, sizes) result(axis)
        integer, intent(in) :: over
        integer(c_int64_t), intent(in), target, optional :: sizes(:)
        type(lb_axis) :: axis
        axis%kind = BLOCK_AXIS
        axis%over = int(over, c_int32_t)
        if (present(sizes)) axis%sizes = c_loc(sizes)
    end function

    pure function lb_cyclic(over, block, first) result(axis)
        integer, intent(in) :: over
        integer(c_int64_t), intent(in) :: block
        integer, intent(in), optional :: first
        type(lb_axis) :: axis
        axis%kind = CYCLIC
        axis%over = int(over, c_int32_t)
        axis%block = block
        if (present(first)) axis%first = int(first, c_int32_t)
    end function

    !> `sizes`: how many of `indices` each process has; both must outlive the call that makes the layout.
    function lb_lists(sizes, indices) result(axis)
        integer(c_int64_t), intent(in), target :: sizes(:), indices(:)
        type(lb_axis) :: axis
        axis%kind = LISTS
        axis%over = int(size(sizes), c_int32_t)
        axis%sizes = c_loc(sizes)
        axis%indices = c_loc(indices)
    end function

    pure function lb_with_halo(of, before, after, periodic) result(axis)
        type(lb_axis), intent(in) :: of
        integer(c_int64_t), intent(in) :: before, after
        logical, intent(in), optional :: periodic
        type(lb_axis) :: axis
        axis = of
        axis%before = before
        axis%after = after
        if (present(periodic)) axis%periodic = merge(1_c_int32_t, 0_c_int32_t, periodic)
    end function

    !> What went wrong in the last call that failed: lb_error of landbridge.h, as a text of Fortran.
    function lb_message() result(text)
        character(:), allocatable :: text
        character(kind=c_char), pointer :: found(:)
        type(c_ptr) :: address
        integer :: at
        address = lb_error()
        call c_f_pointer(address, found, [strlen(address)])
        allocate (character(size(found)) :: text)
        do at = 1, size(found)
            text(at:at) = found(at)
        end do
    end function
end module
