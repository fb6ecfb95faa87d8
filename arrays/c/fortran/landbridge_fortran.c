/* Wrappers that landbridge.f90 calls. Compile them with the program's MPI library: mpicc -c landbridge_fortran.c. */
#include "landbridge_coupling.h"

/* For the module: wrappers of functions that no library contains. Fortran's communicators are integers. */
int lb_fortran_plan_create(const lb_layout *src, const lb_layout *dst, const char *dtype, MPI_Fint comm,
                           const lb_options *options, lb_plan **plan);
int lb_fortran_plan_run(lb_plan *plan, const void *a, void *into);
int lb_fortran_plan_start(lb_plan *plan, const void *a, void *into, lb_run **run);
int lb_fortran_run_test(lb_run *run, int *over);
int lb_fortran_run_wait(lb_run **run);
void lb_fortran_plan_traffic(const lb_plan *plan, int64_t *sends, int64_t *receives);
void lb_fortran_plan_free(lb_plan **plan);
int lb_fortran_join(const char *name, MPI_Fint comm, double timeout, lb_coupling **coupling);
int lb_fortran_export(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                      const char *dtype, const void *a, const lb_transfer_options *options);
int lb_fortran_fetch(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                     const char *dtype, void *into, const lb_transfer_options *options);
int lb_fortran_fetch_start(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                           const char *dtype, void *into, const lb_transfer_options *options, lb_fetching **fetching);
int lb_fortran_fetch_wait(lb_fetching **fetching, double timeout);
int lb_fortran_close(lb_coupling **coupling, double timeout);
void lb_fortran_leave(lb_coupling **coupling, const char *reason);

int lb_fortran_plan_create(const lb_layout *src, const lb_layout *dst, const char *dtype, MPI_Fint comm,
                           const lb_options *options, lb_plan **plan) {
    return lb_plan_create(src, dst, dtype, MPI_Comm_f2c(comm), options, plan);
}

int lb_fortran_plan_run(lb_plan *plan, const void *a, void *into) { return lb_plan_run(plan, a, into); }

int lb_fortran_plan_start(lb_plan *plan, const void *a, void *into, lb_run **run) {
    return lb_plan_start(plan, a, into, run);
}

int lb_fortran_run_test(lb_run *run, int *over) { return lb_run_test(run, over); }

int lb_fortran_run_wait(lb_run **run) { return lb_run_wait(run); }

void lb_fortran_plan_traffic(const lb_plan *plan, int64_t *sends, int64_t *receives) {
    lb_plan_traffic(plan, sends, receives);
}

void lb_fortran_plan_free(lb_plan **plan) { lb_plan_free(plan); }

int lb_fortran_join(const char *name, MPI_Fint comm, double timeout, lb_coupling **coupling) {
    lb_join_options options;
    memset(&options, 0, sizeof options);
    options.timeout = timeout;
    return lb_join(name, MPI_Comm_f2c(comm), &options, coupling);
}

/* Fortran has no unsigned integers. */
static int is_negative(int64_t version) {
    char text[64];
    if (version >= 0) return LB_OK;
    snprintf(text, sizeof text, "version is %lld: it cannot be negative", (long long)version);
    return lb_fail(LB_INVALID, text);
}

int lb_fortran_export(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                      const char *dtype, const void *a, const lb_transfer_options *options) {
    int code = is_negative(version);
    return code ? code : lb_export(coupling, name, (uint64_t)version, layout, dtype, a, options);
}

int lb_fortran_fetch(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                     const char *dtype, void *into, const lb_transfer_options *options) {
    int code = is_negative(version);
    return code ? code : lb_fetch(coupling, name, (uint64_t)version, layout, dtype, into, options);
}

int lb_fortran_fetch_start(lb_coupling *coupling, const char *name, int64_t version, const lb_layout *layout,
                           const char *dtype, void *into, const lb_transfer_options *options, lb_fetching **fetching) {
    int code = is_negative(version);
    return code ? code : lb_fetch_start(coupling, name, (uint64_t)version, layout, dtype, into, options, fetching);
}

int lb_fortran_fetch_wait(lb_fetching **fetching, double timeout) { return lb_fetch_wait(fetching, timeout); }

int lb_fortran_close(lb_coupling **coupling, double timeout) { return lb_close(coupling, timeout); }

void lb_fortran_leave(lb_coupling **coupling, const char *reason) { lb_leave(coupling, reason); }
