// oneCCL's collectives on CPU buffers, over MPI: each checked for every element. Prints "oneccl: N ranks good" at rank
// 0.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <oneapi/ccl.hpp>

static void check(bool good, const char *what, size_t at) {
    if (!good) {
        std::fprintf(stderr, "oneccl: %s is wrong at %zu\n", what, at);
        std::exit(1);
    }
}

int main() {
    ccl::init();
    MPI_Init(nullptr, nullptr);
    int size = 0, rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    // As in oneCCL's own examples, one rank makes the key-value store and broadcasts its address by MPI.
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) store = ccl::create_kvs(address);
    auto communicator = ccl::create_communicator(size, rank, store);

    for (size_t count : {size_t(1), size_t(1000), size_t(1) << 20}) {
        std::vector<float> mine(count), all(count);
        for (size_t i = 0; i < count; i++) mine[i] = float(rank + i % 7);
        ccl::allreduce(mine.data(), all.data(), count, ccl::reduction::sum, communicator).wait();
        for (size_t i = 0; i < count; i++)
            check(all[i] == float(size * (size - 1) / 2 + size * (i % 7)), "allreduce", i);

        std::vector<int> word(count, rank == size - 1 ? 42 : -1);
        ccl::broadcast(word.data(), count, size - 1, communicator).wait();
        for (size_t i = 0; i < count; i++) check(word[i] == 42, "broadcast", i);

        std::vector<int> out(count * size), in(count * size, -1);
        for (int peer = 0; peer < size; peer++) std::fill_n(out.begin() + peer * count, count, rank * 100 + peer);
        ccl::alltoall(out.data(), in.data(), count, communicator).wait();
        for (size_t i = 0; i < count * size; i++) check(in[i] == int(i / count) * 100 + rank, "alltoall", i);

        std::vector<size_t> counts(size, count);
        std::vector<int> own(count, rank), gathered(count * size, -1);
        ccl::allgatherv(own.data(), count, gathered.data(), counts, communicator).wait();
        for (size_t i = 0; i < count * size; i++) check(gathered[i] == int(i / count), "allgatherv", i);
    }
    ccl::barrier(communicator);
    if (rank == 0) std::printf("oneccl: %d ranks good\n", size);
    MPI_Finalize();
}

// oneccl-devel's static library was built with Intel's compiler. What it needs of that compiler's runtime is here, with
// the hooks of Intel's profiler (ITT), which stay empty.
extern "C" {
void *_intel_fast_memcpy(void *to, const void *from, size_t length) { return std::memcpy(to, from, length); }
void *_intel_fast_memset(void *to, int byte, size_t length) { return std::memset(to, byte, length); }
void *__itt_domain_create_ptr__3_0, *__itt_event_create_ptr__3_0, *__itt_event_end_ptr__3_0,
    *__itt_event_start_ptr__3_0;
void *__itt_metadata_add_ptr__3_0, *__itt_string_handle_create_ptr__3_0, *__itt_task_begin_ptr__3_0,
    *__itt_task_end_ptr__3_0;
void *__itt_thread_set_name_ptr__3_0;
}
