#include "system.h"

#include <math.h>
#include <string.h>

/* A small number without pattern, from -4/256 to 4/256. */
static double coupling(int row, int column, int which) {
    return ((7 * row + 11 * column + 13 * which) % 9 - 4) / 256.0;
}

/* Diffusion of one on each side, convection by a matrix that is added on one side and subtracted on the other. */
static void fill(struct system *s) {
    for (int row = 0; row < UNKNOWNS; row++)
        for (int column = 0; column < UNKNOWNS; column++) {
            double one = row == column ? 1.0 : 0.0;
            s->centre[row][column] = 6.75 * one + coupling(row, column, SYSTEM_AXES);
            for (int axis = 0; axis < SYSTEM_AXES; axis++) {
                s->side[axis][0][row][column] = -one - coupling(row, column, axis);
                s->side[axis][1][row][column] = -one + coupling(row, column, axis);
            }
        }
}

/* Gauss-Jordan elimination; no pivoting, for the diagonal is dominant. */
static void invert(const matrix m, matrix inverse) {
    matrix rest;
    memcpy(rest, m, sizeof rest);
    for (int row = 0; row < UNKNOWNS; row++)
        for (int column = 0; column < UNKNOWNS; column++) inverse[row][column] = row == column ? 1.0 : 0.0;
    for (int pivot = 0; pivot < UNKNOWNS; pivot++) {
        double by = rest[pivot][pivot];
        for (int column = 0; column < UNKNOWNS; column++) {
            rest[pivot][column] /= by;
            inverse[pivot][column] /= by;
        }
        for (int row = 0; row < UNKNOWNS; row++) {
            double times = rest[row][pivot];
            for (int column = 0; column < UNKNOWNS && row != pivot; column++) {
                rest[row][column] -= times * rest[pivot][column];
                inverse[row][column] -= times * inverse[pivot][column];
            }
        }
    }
}

static void multiply(const matrix left, const matrix right, matrix product) {
    memset(product, 0, sizeof(matrix));
    for (int row = 0; row < UNKNOWNS; row++)
        for (int column = 0; column < UNKNOWNS; column++)
            for (int n = 0; n < UNKNOWNS; n++) product[row][column] += left[row][n] * right[n][column];
}

void system_create(struct system *s) {
    fill(s);
    invert(s->centre, s->inverse);
    double rows[UNKNOWNS] = {0.0};
    for (int axis = 0; axis < SYSTEM_AXES; axis++)
        for (int side = 0; side < 2; side++) {
            multiply(s->inverse, s->side[axis][side], s->scaled[axis][side]);
            for (int row = 0; row < UNKNOWNS; row++)
                for (int column = 0; column < UNKNOWNS; column++) rows[row] += fabs(s->scaled[axis][side][row][column]);
        }
    s->contraction = 0.0;
    for (int row = 0; row < UNKNOWNS; row++) s->contraction = rows[row] > s->contraction ? rows[row] : s->contraction;
}
