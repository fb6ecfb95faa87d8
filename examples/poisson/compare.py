#!/usr/bin/env python3
"""Compare two pressure fields written by `poisson --field`, bit for bit.

    compare.py --size IxJxK FIRST SECOND

Exit code 0: identical. 1: different; the first differing point, the number of differing points and the largest
difference are printed. 2: a file cannot be read or has the wrong length.
"""

import argparse
import sys

import numpy as np

NAMED_SIZES = {
    "XS": (32, 32, 64),
    "S": (64, 64, 128),
    "M": (128, 128, 256),
    "L": (256, 256, 512),
    "XL": (512, 512, 1024),
}


def parse_size(text):
    """`IxJxK` or one of Himeno's names, as a tuple of three numbers."""
    if text in NAMED_SIZES:
        return NAMED_SIZES[text]
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) >= 3 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: expected XS, S, M, L, XL, or IxJxK with each at least 3")
    return tuple(int(part) for part in parts)


def read_field(path, size):
    """The field as a float32 array of shape `size`. Raises ValueError naming the file if its length is wrong."""
    raw = np.fromfile(path, dtype="u1")
    points = size[0] * size[1] * size[2]
    if raw.size != 4 * points:
        raise ValueError(f"{path}: {raw.size} bytes, expected {4 * points} for {'x'.join(map(str, size))}")
    return raw.view("<f4").reshape(size)


def first_difference(first, second):
    """None if the fields are identical, else a line that names the first differing point (I, J, K from 0)."""
    # As integers: NaN equals itself and -0 differs from 0, as "bit for bit" means.
    different = first.view("<u4") != second.view("<u4")
    count = int(np.count_nonzero(different))
    if count == 0:
        return None
    where = tuple(int(n) for n in np.unravel_index(int(np.argmax(different)), first.shape))
    largest = float(np.nanmax(np.abs(first.astype("f8") - second.astype("f8"))))
    return (
        f"first difference at I,J,K = {where[0]},{where[1]},{where[2]}: {first[where]!s} and {second[where]!s}; "
        f"{count} of {first.size} points differ, by {largest:g} at most"
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, required=True, help="XS, S, M, L, XL, or IxJxK")
    parser.add_argument("first")
    parser.add_argument("second")
    options = parser.parse_args(arguments)
    try:
        difference = first_difference(read_field(options.first, options.size), read_field(options.second, options.size))
    except (OSError, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    print(difference or f"identical: {options.first} and {options.second}")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
