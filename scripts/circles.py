#!/usr/bin/env python3
"""Finds circles of files: files of a crate that name each other, directly or through others. Prints each circle that
has more files than allowed; exit code 1 if there is any. `circles.py CRATE…` prints every circle of these crates."""

import re
import sys

from invariants import ORDER, ROOT, folder_of, is_test, production, tracked

MOST_FILES = 5
# This crate's files are the operations of libfabric's objects, which name each other in C too.
EXCEPTED = {"provider"}
USE = re.compile(r"(?<!\w)(?:pub(?:\([^)]*\))? )?use ([^;]+);")
PATH = re.compile(r"(?<![\w:])(?:crate|super|self)(?:::\w+)+|(?<![\w:.])\w+::\w+")


def modules(crate):
    """The files of a crate by the paths of their modules; the root's path is empty."""
    source = ROOT / folder_of(crate) / "src"
    found = {}
    for path in tracked(f"{folder_of(crate)}/src/*.rs"):
        parts = path.relative_to(source).with_suffix("").parts
        if not is_test(path) and parts[0] not in ("bin", "main"):
            found[parts[:-1] if parts[-1] in ("mod", "lib") else parts] = path
    return found or {(): ROOT / folder_of(crate) / "src/main.rs"}


def imports(tree):
    """The paths of a use declaration: `a::{b, c::d}` has `a::b` and `a::c::d`."""
    before, brace, inner = tree.strip().partition("{")
    if not brace:
        return [before.split(" as ")[0].strip()]
    parts, depth = [""], 0
    for character in inner[: inner.rindex("}")]:
        depth += (character == "{") - (character == "}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [before + path for part in parts if part.strip() for path in imports(part)]


def named(module, path, children, known):
    """The module that a path leads to from a module, or None if it leads out of the crate."""
    first, *rest = path.split("::")
    if first == "crate":
        base = ()
    elif first == "self":
        base = module
    elif first == "super":
        base = module[:-1]
        while rest and rest[0] == "super":
            base, rest = base[:-1], rest[1:]
    elif first in children:
        base, rest = module, [first, *rest]
    else:
        return None
    while rest and (*base, rest[0]) in known:
        base, rest = (*base, rest[0]), rest[1:]
    return base


def edges(crate):
    """The modules that each module names. A parent does not name a child only because it declares it."""
    known = modules(crate)
    found = {}
    for module, path in known.items():
        code = production(path)
        children = set(re.findall(r"\bmod (\w+);", code))
        paths = [path for tree in USE.findall(code) for path in imports(tree)]
        paths += PATH.findall(code)
        targets = {named(module, path, children, known) for path in paths}
        found[module] = {target for target in targets if target in known and target != module}
    return found


def circles(graph):
    """The strongly connected components with more than one member, after Tarjan, "Depth-first search and linear graph
    algorithms", 1972."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main(asked):
    failed = False
    for crate in asked or ORDER:
        for circle in circles(edges(crate)):
            too_large = len(circle) > MOST_FILES and crate not in EXCEPTED
            failed |= too_large
            if asked or too_large:
                print(f"circles: {crate}: {len(circle)} files: {', '.join('/'.join(m) or 'lib' for m in circle)}")
    print(f"circles: {'too large ones' if failed else f'none of more than {MOST_FILES} files'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
