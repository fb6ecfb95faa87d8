/* One iteration of symmetric Gauss-Seidel (SSOR with a relaxation factor of one) on a block.
 *
 * With the system K = L + D + U it is u += (D + U)^-1 D (D + L)^-1 (f - K u): the residual, a lower sweep from the
 * first point to the last, an upper one back. A point of the lower sweep needs its three lower neighbours, so points
 * with equal i + j + k could be computed at once (L. Lamport, "The parallel execution of DO loops", Communications of
 * the ACM 17, 1974). Over a grid of ranks that becomes a pipeline, plane by plane: a rank takes the edges of plane k
 * from the two ranks before it, computes the plane, and passes its own edges on (E. Barszcz, R. Fatoohi,
 * V. Venkatakrishnan and S. Weeratunga, "Solution of regular, sparse triangular linear systems on vector and
 * distributed-memory multiprocessors", NAS report RNR-93-007, 1993). */
#ifndef KERNELS_SWEEP_H
#define KERNELS_SWEEP_H

#include "block.h"
#include "system.h"
#include "traffic.h"

/* Collective over the block's ranks. */
void sweep_iterate(const struct block *block, const struct system *system, struct traffic *traffic);

#endif
