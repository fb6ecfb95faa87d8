//! The covered MPI functions that have counts, in both of their forms.

/// Gives these functions to the macro `$define`, which gets the type of counts; then, for each function, its names and
/// profiling names with counts of type `int` and of type `MPI_Count`, its parameters, and the code that hands a call to
/// the table of covered functions.
#[macro_export]
macro_rules! functions_with_counts {
    ($define:path, $Count:ty) => {
        $define! {
            $Count;
            MPI_Bcast PMPI_Bcast MPI_Bcast_c PMPI_Bcast_c (
                buffer: $crate::Buffer, count: $Count, datatype: usize, root: $crate::Int, comm: usize
            )
                |table, buffer, count, datatype, root, comm| {
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.bcast)(buffer, count.into(), datatype, root, comm) }
                };
            MPI_Reduce PMPI_Reduce MPI_Reduce_c PMPI_Reduce_c (
                from: $crate::Buffer, to: $crate::Buffer, count: $Count, datatype: usize,
                operation: usize, root: $crate::Int, comm: usize
            )
                |table, from, to, count, datatype, operation, root, comm| {
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.reduce)(from, to, count.into(), datatype, operation, root, comm) }
                };
            MPI_Allreduce PMPI_Allreduce MPI_Allreduce_c PMPI_Allreduce_c (
                from: $crate::Buffer, to: $crate::Buffer, count: $Count,
                datatype: usize, operation: usize, comm: usize
            )
                |table, from, to, count, datatype, operation, comm| {
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.allreduce)(from, to, count.into(), datatype, operation, comm) }
                };
            MPI_Allgather PMPI_Allgather MPI_Allgather_c PMPI_Allgather_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                received: $Count, receives: usize, comm: usize
            )
                |table, from, sent, sends, to, received, receives, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::side(to, received, receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.allgather)(from, to, comm) }
                };
            MPI_Allgatherv PMPI_Allgatherv MPI_Allgatherv_c PMPI_Allgatherv_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                counts: *const $Count, starts: *const $Count, receives: usize, comm: usize
            )
                |table, from, sent, sends, to, counts, starts, receives, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::sides(to, (counts, starts), receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.allgatherv)(from, to, comm) }
                };
            MPI_Gather PMPI_Gather MPI_Gather_c PMPI_Gather_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                received: $Count, receives: usize, root: $crate::Int, comm: usize
            )
                |table, from, sent, sends, to, received, receives, root, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::side(to, received, receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.gather)(from, to, root, comm) }
                };
            MPI_Gatherv PMPI_Gatherv MPI_Gatherv_c PMPI_Gatherv_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                counts: *const $Count, starts: *const $Count, receives: usize, root: $crate::Int, comm: usize
            )
                |table, from, sent, sends, to, counts, starts, receives, root, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::sides(to, (counts, starts), receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.gatherv)(from, to, root, comm) }
                };
            MPI_Scatter PMPI_Scatter MPI_Scatter_c PMPI_Scatter_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                received: $Count, receives: usize, root: $crate::Int, comm: usize
            )
                |table, from, sent, sends, to, received, receives, root, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::side(to, received, receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.scatter)(from, to, root, comm) }
                };
            MPI_Scatterv PMPI_Scatterv MPI_Scatterv_c PMPI_Scatterv_c (
                from: $crate::Buffer, counts: *const $Count, starts: *const $Count, sends: usize,
                to: $crate::Buffer, received: $Count, receives: usize, root: $crate::Int, comm: usize
            )
                |table, from, counts, starts, sends, to, received, receives, root, comm| {
                    let from = $crate::sides(from, (counts, starts), sends);
                    let to = $crate::side(to, received, receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.scatterv)(from, to, root, comm) }
                };
            MPI_Alltoall PMPI_Alltoall MPI_Alltoall_c PMPI_Alltoall_c (
                from: $crate::Buffer, sent: $Count, sends: usize, to: $crate::Buffer,
                received: $Count, receives: usize, comm: usize
            )
                |table, from, sent, sends, to, received, receives, comm| {
                    let from = $crate::side(from, sent, sends);
                    let to = $crate::side(to, received, receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.alltoall)(from, to, comm) }
                };
            MPI_Alltoallv PMPI_Alltoallv MPI_Alltoallv_c PMPI_Alltoallv_c (
                from: $crate::Buffer, out: *const $Count, outs: *const $Count, sends: usize,
                to: $crate::Buffer, into: *const $Count, ins: *const $Count, receives: usize, comm: usize
            )
                |table, from, out, outs, sends, to, into, ins, receives, comm| {
                    let from = $crate::sides(from, (out, outs), sends);
                    let to = $crate::sides(to, (into, ins), receives);
                    // SAFETY: the program's arguments, passed on.
                    unsafe { (table.alltoallv)(from, to, comm) }
                };
        }
    };
}

/// Defines the functions with counts of type `int`.
#[macro_export]
macro_rules! cover_plain {
    (
        $Count:ty;
        $($name:ident $profiling:ident $large:ident $large_profiling:ident ($($parameters:tt)*) $hand:expr;)*
    ) => {
        $crate::cover! { $($name $profiling ($($parameters)*) $hand;)* }
    };
}

/// Defines the functions with counts of type `MPI_Count`, which MPI-4 added.
#[macro_export]
macro_rules! cover_large {
    (
        $Count:ty;
        $($name:ident $profiling:ident $large:ident $large_profiling:ident ($($parameters:tt)*) $hand:expr;)*
    ) => {
        $crate::cover! { $($large $large_profiling ($($parameters)*) $hand;)* }
    };
}
