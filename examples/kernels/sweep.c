#include "sweep.h"

#include <string.h>

/* From a point to the next along I, J, K, in doubles. */
struct steps {
    ptrdiff_t along[SYSTEM_AXES];
};

static struct steps steps_of(const struct block *b) {
    return (struct steps){{(ptrdiff_t)b->row, UNKNOWNS, (ptrdiff_t)b->plane}};
}

/* d = inverse * (f - K u) */
static void scaled_residual(const struct block *b, const struct system *s) {
    const struct steps steps = steps_of(b);
    for (int k = 1; k <= b->n; k++)
        for (int i = 1; i <= b->owned[0]; i++)
            for (int j = 1; j <= b->owned[1]; j++) {
                size_t at = block_at(b, i, j, k);
                const double *u = b->u + at;
                double rest[UNKNOWNS], *d = b->d + at;
                memcpy(rest, b->f + at, sizeof rest);
                system_subtract(rest, s->centre, u);
                for (int axis = 0; axis < SYSTEM_AXES; axis++) {
                    system_subtract(rest, s->side[axis][0], u - steps.along[axis]);
                    system_subtract(rest, s->side[axis][1], u + steps.along[axis]);
                }
                memset(d, 0, sizeof rest);
                system_add(d, s->inverse, rest);
            }
}

/* One plane of d -= sum over lower neighbours of scaled * d; every point after those that it needs. */
static void lower_plane(const struct block *b, const struct system *s, const struct steps *steps, int k) {
    for (int i = 1; i <= b->owned[0]; i++)
        for (int j = 1; j <= b->owned[1]; j++) {
            double *d = b->d + block_at(b, i, j, k);
            for (int axis = 0; axis < SYSTEM_AXES; axis++)
                system_subtract(d, s->scaled[axis][0], d - steps->along[axis]);
        }
}

/* The same with upper neighbours, and the correction applied. */
static void upper_plane(const struct block *b, const struct system *s, const struct steps *steps, int k) {
    for (int i = b->owned[0]; i >= 1; i--)
        for (int j = b->owned[1]; j >= 1; j--) {
            size_t at = block_at(b, i, j, k);
            double *d = b->d + at, *u = b->u + at;
            for (int axis = 0; axis < SYSTEM_AXES; axis++)
                system_subtract(d, s->scaled[axis][1], d + steps->along[axis]);
            for (int n = 0; n < UNKNOWNS; n++) u[n] += d[n];
        }
}

void sweep_iterate(const struct block *b, const struct system *s, struct traffic *traffic) {
    const struct steps steps = steps_of(b);
    block_exchange(b, traffic);
    scaled_residual(b, s);
    for (int k = 1; k <= b->n; k++) {
        block_receive(b, k, true, traffic);
        lower_plane(b, s, &steps, k);
        block_send(b, k, true, traffic);
    }
    for (int k = b->n; k >= 1; k--) {
        block_receive(b, k, false, traffic);
        upper_plane(b, s, &steps, k);
        block_send(b, k, false, traffic);
    }
}
