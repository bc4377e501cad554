"""The project's rules that ruff, pyright and import-linter cannot check, as functions from source to problems.

Each takes a parsed module and its path below the package (`"data/loader.py"`) and yields (line, what is wrong).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

Problem = tuple[int, str]

BANNED_STEMS = frozenset({"util", "utils", "helper", "helpers", "common", "misc"})
MUTABLE_CALLS = frozenset({"dict", "list", "set", "bytearray", "defaultdict", "OrderedDict", "deque", "Counter"})
MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTATING_METHODS = frozenset(
    "append extend insert remove pop clear sort reverse add discard update setdefault popitem appendleft popleft "
    "difference_update intersection_update symmetric_difference_update".split()
)
BACKEND_FOLDERS = frozenset({"platforms", "strategies"})
# What an option is called on the command line and in a file has to be compared with something: here and nowhere else.
OPTION_FOLDERS = frozenset({"config", "launch", "cli"})
# Not vendors: a tensor in host memory, and one without memory. Each torch has both.
TORCHS_OWN = frozenset({"cpu", "meta"})
BASES = frozenset({"Strategy", "Platform"})


def module_docstring(tree: ast.Module, path: PurePosixPath) -> Iterator[Problem]:
    """A module says in one to three lines why it exists (more may follow after an empty line)."""
    text = ast.get_docstring(tree)
    if not text:
        yield 1, "no module docstring that says why the file exists"
    elif len(text.split("\n\n")[0].splitlines()) > 3:
        yield 1, "the first paragraph of the module docstring is longer than three lines"


def telling_name(tree: ast.Module, path: PurePosixPath) -> Iterator[Problem]:
    """No module or package is called utils, helpers, common or misc."""
    for part in (*path.parts[:-1], path.stem):
        if part.strip("_") in BANNED_STEMS:
            yield 1, f"the name {part!r} says nothing about what is inside"


def no_module_state(tree: ast.Module, path: PurePosixPath) -> Iterator[Problem]:
    """A module holds constants, never state: no `global`, no container that is named or used like a variable."""
    containers = dict(_module_containers(tree))
    for name, line in containers.items():
        if not (name.isupper() or name.startswith("__")):
            yield line, f"{name!r} is a mutable container at module level; a constant is UPPER_CASE and never changed"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield node.lineno, f"`global {', '.join(node.names)}`: state belongs to an object"
        elif (name := _mutated_name(node)) in containers and not _in_module_body(tree, node):
            yield getattr(node, "lineno", 1), f"{name!r} is defined at module level and changed here"


def _module_containers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for statement in _module_statements(tree.body):
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        if _is_mutable(value):
            yield from ((target.id, statement.lineno) for target in targets if isinstance(target, ast.Name))


def _module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import, also those inside `if`, `try`, `with` and loops."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _module_statements(getattr(statement, field, []))
        for handler in getattr(statement, "handlers", []):
            yield from _module_statements(handler.body)


def _is_mutable(value: ast.expr) -> bool:
    return isinstance(value, MUTABLE_LITERALS) or (
        isinstance(value, ast.Call) and _last_name(value.func) in MUTABLE_CALLS
    )


def _mutated_name(node: ast.AST) -> str | None:
    """The plain name that this node changes in place: `x[...] = `, `del x[...]`, `x += `, `x.append(...)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return node.value.id if isinstance(node.value, ast.Name) else None
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING_METHODS:
        return node.func.value.id if isinstance(node.func.value, ast.Name) else None
    return None


def _in_module_body(tree: ast.Module, node: ast.AST) -> bool:
    """Whether the node runs at import: a constant may be put together there, in several statements."""
    functions = (one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
    return not any(node is inner for function in functions for inner in ast.walk(function))


def no_backend_branch(tree: ast.Module, path: PurePosixPath) -> Iterator[Problem]:
    """Outside platforms/ and strategies/ nothing asks which backend or device it is dealing with."""
    if path.parts[0] in BACKEND_FOLDERS:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = [_compared_backend(side, [other for other in sides if other is not side]) for side in sides]
        elif isinstance(node, ast.Match):
            patterns = [case.value for case in ast.walk(node) if isinstance(case, ast.MatchValue)]
            found = [_compared_backend(node.subject, patterns)]
        elif isinstance(node, ast.Call):
            found = list(_backend_classes(node))
        else:
            continue
        for what in filter(None, found):
            if not (what.startswith("DistributedType.") and path.parts[0] in OPTION_FOLDERS):
                yield node.lineno, f"asks for {what}: add a method to the platform or the strategy instead"


def _backend_classes(call: ast.Call) -> Iterator[str]:
    """The strategies and platforms that an `isinstance` asks for by name."""
    if _last_name(call.func) not in ("isinstance", "issubclass") or len(call.args) < 2:
        return
    kinds = call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]]
    for name in filter(None, map(_last_name, kinds)):
        if name not in BASES and name.endswith(tuple(BASES)):
            yield name


def _compared_backend(side: ast.expr, others: list[ast.expr]) -> str | None:
    """The attribute by which this comparison asks for one certain backend, if it does."""
    if not isinstance(side, ast.Attribute):
        return None
    owner = _last_name(side.value) or ""
    if owner == "DistributedType":
        return f"{owner}.{side.attr}" if side.attr != "NO" else None
    words = {word for other in others for word in _words(other)}
    named = side.attr == "name" and owner.lstrip("_") in ("strategy", "platform") and words
    typed = side.attr == "type" and owner.endswith("device") and words - TORCHS_OWN
    return f"{owner}.{side.attr}" if named or typed else None


def _words(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def function_lengths(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """(qualified name, lines from the first decorator to the last statement) of every function."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    start = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                    yield name, (child.end_lineno or child.lineno) - start + 1
                yield from walk(child, f"{name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(tree, "")
