//! The preloaded layer for MPI libraries with MPI-4's large-count functions: `layer`, and those functions.

#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::{c_int, c_void};

use layer::{side, sides};

layer::cover! {
    MPI_Bcast_c PMPI_Bcast_c (buffer: *mut c_void, count: i64, datatype: usize, root: c_int, comm: usize)
        |table, buffer, count, datatype, root, comm| {
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.bcast)(buffer, count, datatype, root, comm) }
        };
    MPI_Reduce_c PMPI_Reduce_c (
        from: *mut c_void, to: *mut c_void, count: i64, datatype: usize,
        operation: usize, root: c_int, comm: usize
    )
        |table, from, to, count, datatype, operation, root, comm| {
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.reduce)(from, to, count, datatype, operation, root, comm) }
        };
    MPI_Allreduce_c PMPI_Allreduce_c (
        from: *mut c_void, to: *mut c_void, count: i64,
        datatype: usize, operation: usize, comm: usize
    )
        |table, from, to, count, datatype, operation, comm| {
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.allreduce)(from, to, count, datatype, operation, comm) }
        };
    MPI_Allgather_c PMPI_Allgather_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void,
        received: i64, receives: usize, comm: usize
    )
        |table, from, sent, sends, to, received, receives, comm| {
            let (from, to) = (side(from, sent, sends), side(to, received, receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.allgather)(from, to, comm) }
        };
    MPI_Allgatherv_c PMPI_Allgatherv_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void,
        counts: *const i64, starts: *const i64, receives: usize, comm: usize
    )
        |table, from, sent, sends, to, counts, starts, receives, comm| {
            let (from, to) = (side(from, sent, sends), sides(to, (counts, starts), receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.allgatherv)(from, to, comm) }
        };
    MPI_Gather_c PMPI_Gather_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void,
        received: i64, receives: usize, root: c_int, comm: usize
    )
        |table, from, sent, sends, to, received, receives, root, comm| {
            let (from, to) = (side(from, sent, sends), side(to, received, receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.gather)(from, to, root, comm) }
        };
    MPI_Gatherv_c PMPI_Gatherv_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void,
        counts: *const i64, starts: *const i64, receives: usize, root: c_int, comm: usize
    )
        |table, from, sent, sends, to, counts, starts, receives, root, comm| {
            let (from, to) = (side(from, sent, sends), sides(to, (counts, starts), receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.gatherv)(from, to, root, comm) }
        };
    MPI_Scatter_c PMPI_Scatter_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void,
        received: i64, receives: usize, root: c_int, comm: usize
    )
        |table, from, sent, sends, to, received, receives, root, comm| {
            let (from, to) = (side(from, sent, sends), side(to, received, receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.scatter)(from, to, root, comm) }
        };
    MPI_Scatterv_c PMPI_Scatterv_c (
        from: *mut c_void, counts: *const i64, starts: *const i64, sends: usize,
        to: *mut c_void, received: i64, receives: usize, root: c_int, comm: usize
    )
        |table, from, counts, starts, sends, to, received, receives, root, comm| {
            let (from, to) = (sides(from, (counts, starts), sends), side(to, received, receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.scatterv)(from, to, root, comm) }
        };
    MPI_Alltoall_c PMPI_Alltoall_c (
        from: *mut c_void, sent: i64, sends: usize, to: *mut c_void, received: i64, receives: usize, comm: usize
    )
        |table, from, sent, sends, to, received, receives, comm| {
            let (from, to) = (side(from, sent, sends), side(to, received, receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.alltoall)(from, to, comm) }
        };
    MPI_Alltoallv_c PMPI_Alltoallv_c (
        from: *mut c_void, out: *const i64, outs: *const i64, sends: usize,
        to: *mut c_void, into: *const i64, ins: *const i64, receives: usize, comm: usize
    )
        |table, from, out, outs, sends, to, into, ins, receives, comm| {
            let (from, to) = (sides(from, (out, outs), sends), sides(to, (into, ins), receives));
            // SAFETY: the program's arguments, passed on.
            unsafe { (table.alltoallv)(from, to, comm) }
        };
}
