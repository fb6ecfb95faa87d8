/* A block seven-point system: five unknowns a point, coupled at the point and with its six neighbours by 5 x 5 blocks,
 * the same at every point; beyond the cube everything is zero. The shape is that of the implicit step of a flow solver.
 *
 * The centre's block outweighs its neighbours' so far that Gauss-Seidel converges by a known factor. */
#ifndef KERNELS_SYSTEM_H
#define KERNELS_SYSTEM_H

enum { UNKNOWNS = 5, SYSTEM_AXES = 3 };

typedef double matrix[UNKNOWNS][UNKNOWNS];

struct system {
    matrix centre, inverse;        /* inverse: of the centre */
    matrix side[SYSTEM_AXES][2];   /* of the lower and the upper neighbour along each axis */
    matrix scaled[SYSTEM_AXES][2]; /* inverse * side */
    double contraction;            /* at least by this does a Gauss-Seidel sweep shrink the error's largest component:
                                    * the norm of inverse * (sum of sides), for the maximum norm */
};

/* From whole numbers and the four operations of arithmetic alone: the same bits on every machine. */
void system_create(struct system *system);

/* y += m x, y -= m x */
static inline void system_add(double *restrict y, const matrix m, const double *restrict x) {
    for (int row = 0; row < UNKNOWNS; row++)
        for (int column = 0; column < UNKNOWNS; column++) y[row] += m[row][column] * x[column];
}

static inline void system_subtract(double *restrict y, const matrix m, const double *restrict x) {
    for (int row = 0; row < UNKNOWNS; row++)
        for (int column = 0; column < UNKNOWNS; column++) y[row] -= m[row][column] * x[column];
}

#endif
